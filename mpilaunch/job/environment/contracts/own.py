"""mpilaunch's own variables, and Python's output buffer."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables


def job(facts: JobFacts) -> Variables:
    return {
        "MPILAUNCH_JOB_ID": facts.job_id,
        "MPILAUNCH_RESTART_COUNT": str(facts.restart_count),
        "MPILAUNCH_SIZE": str(facts.size),
    }


def node(job: JobFacts, facts: NodePlace) -> Variables:
    return {"MPILAUNCH_NODE_RANK": str(facts.node_rank)}


def rank(job: JobFacts, node: NodePlace, facts: RankPlace) -> Variables:
    return {"MPILAUNCH_RANK": str(facts.rank), "MPILAUNCH_LOCAL_RANK": str(facts.local_rank)}


def defaults(job: JobFacts, node: NodePlace) -> Variables:
    """Make Python write its output without delay."""
    return {"PYTHONUNBUFFERED": "1"}


CONTRACT = Contract(
    job,
    node,
    rank,
    defaults,
    also_fixed=frozenset({"MPILAUNCH_CHECKPOINT_DIR", "MPILAUNCH_RESTART_DIR"}),
    scrubbed=("MPILAUNCH_*",),
)
