"""Variables of the tasks of batch systems. Those of the task in which mpilaunch runs are dropped, as no rank takes its place;
profiles set those of srun, flux run and PALS, by which scripts choose the GPU of a rank.

Sources: srun(1), "OUTPUT ENVIRONMENT VARIABLES"; flux-core's src/shell/task.c; PALS' mpiexec(1), and cray-pmi for PMI_LOCAL_*.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, Variables

CONTRACT = Contract(scrubbed=("SLURM_*", "SLURMD_*", "FLUX_TASK_*", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "PALS_*"))


def _slurm_node(job: JobFacts, node: NodePlace) -> Variables:
    nodes, tasks = str(job.node_count), str(job.size)
    return {
        "SLURM_NODEID": str(node.node_rank),
        "SLURMD_NODENAME": node.name,
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
    }


SLURM = Contract(
    node=_slurm_node,
    rank=lambda job, node, rank: {"SLURM_PROCID": str(rank.rank), "SLURM_LOCALID": str(rank.local_rank)},
)
FLUX = Contract(
    node=lambda job, node: {"FLUX_JOB_SIZE": str(job.size), "FLUX_JOB_NNODES": str(job.node_count)},
    rank=lambda job, node, rank: {"FLUX_TASK_RANK": str(rank.rank), "FLUX_TASK_LOCAL_ID": str(rank.local_rank)},
)
PALS = Contract(
    node=lambda job, node: dict.fromkeys(("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"), str(node.local_size)),
    rank=lambda job, node, rank: {
        "PALS_RANKID": str(rank.rank),
        **dict.fromkeys(("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"), str(rank.local_rank)),
    },
)
OF_TASKS = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES"),
    *("SLURM_STEP*", "SLURM_TASK*", "SLURM_SRUN_*", "SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_DISTRIBUTION"),
)
"""Slurm's variables of the tasks of one step, not of its allocation: exact names, and prefixes written `PREFIX*`."""
