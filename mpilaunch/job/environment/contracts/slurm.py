"""Slurm's variables of a step: dropped, so that a rank does not join that step; the profile sets those of a step of srun.

Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables

CONTRACT = Contract(scrubbed=("SLURM_*", "SLURMD_*"))


def _node(job: JobFacts, node: NodePlace) -> Variables:
    nodes, tasks = str(job.node_count), str(job.size)
    return {
        "SLURM_NODEID": str(node.node_rank),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
    }


def _rank(job: JobFacts, node: NodePlace, rank: RankPlace) -> Variables:
    return {"SLURM_PROCID": str(rank.rank), "SLURM_LOCALID": str(rank.local_rank)}


PROFILE = Contract(node=_node, rank=_rank)
OF_TASKS = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES"),
    *("SLURM_STEP*", "SLURM_TASK*", "SLURM_SRUN_*", "SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_DISTRIBUTION"),
)
"""Variables of the tasks of one step, not of its allocation: exact names, and prefixes written `PREFIX*`."""
