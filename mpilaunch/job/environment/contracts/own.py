"""mpilaunch's own variables, and Python's output buffer."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(
    job=lambda job: {
        "MPILAUNCH_JOB_ID": job.job_id,
        "MPILAUNCH_RESTART_COUNT": str(job.restart_count),
        "MPILAUNCH_SIZE": str(job.size),
    },
    node=lambda job, node: {"MPILAUNCH_NODE_RANK": str(node.node_rank)},
    rank=lambda job, node, rank: {"MPILAUNCH_RANK": str(rank.rank), "MPILAUNCH_LOCAL_RANK": str(rank.local_rank)},
    # Python then writes its output without delay.
    defaults=lambda job, node: {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
    also_fixed=frozenset({"MPILAUNCH_CHECKPOINT_DIR", "MPILAUNCH_RESTART_DIR"}),
    scrubbed=("MPILAUNCH_*",),
)
