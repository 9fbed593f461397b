"""Options of launchers whose command lines mpilaunch does not accept, and what to use instead.

Pure, and loaded only for the hint of an unknown option: pdsh, clush, srun, torchrun and deepspeed mean other jobs than mpirun
does, so no option of theirs is translated.
"""

from __future__ import annotations

INSTEAD = {
    "-w": "--host HOSTS names the nodes, as -w of pdsh, clush and srun does",
    "--nodelist": "--host HOSTS names the nodes, as --nodelist of srun does",
    "-m": "write the interpreter, as in: mpilaunch -np 4 python3 -m MODULE",
    "--module": "write the interpreter, as in: mpilaunch -np 4 python3 -m MODULE",
    "--standalone": "leave it out: without --host and --hostfile a job runs on this machine",
    "--nproc-per-node": "-N N starts N ranks on each node, as --nproc-per-node of torchrun does",
    "--num-gpus": "-N N starts N ranks on each node, as --num_gpus of deepspeed does",
    "--num-nodes": "--host and --hostfile name the nodes",
    "--node-rank": "leave it out: mpilaunch runs once and starts the ranks on all nodes",
    "--rdzv-backend": "leave it out: mpilaunch sets MASTER_ADDR and MASTER_PORT for all ranks",
    "--rdzv-endpoint": "--master-addr and --master-port set where rank 0 listens; without them mpilaunch chooses",
    "--rdzv-id": "leave it out: mpilaunch gives each job an id",
    "--include": "--host HOSTS names the nodes",
    "--ntasks": "-np N starts N ranks",
    "--ntasks-per-node": "-N N starts N ranks on each node",
    "--cpus-per-task": "--cpus-per-rank N gives each rank N CPUs",
    "--gpus-per-task": "--gpus-per-rank N gives each rank N GPUs",
}
"""Flag, with hyphens, to the hint."""


def instead_of(flag: str) -> str | None:
    """Return what to use instead of an option of these launchers, None for any other option."""
    return INSTEAD.get(flag.replace("_", "-"))
