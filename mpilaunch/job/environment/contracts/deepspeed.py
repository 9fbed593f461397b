"""The variables of DeepSpeed's own launcher. Source: deepspeed/launcher/launch.py."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables


def node(job: JobFacts, facts: NodePlace) -> Variables:
    return {"LOCAL_SIZE": str(facts.local_size)}


def rank(job: JobFacts, node: NodePlace, facts: RankPlace) -> Variables:
    return {"CROSS_RANK": str(facts.cross_rank), "CROSS_SIZE": str(facts.cross_size)}


CONTRACT = Contract(node=node, rank=rank, scrubbed=("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"))
