"""torchrun's variables, which torch, Accelerate, DeepSpeed, Lightning and Megatron-LM read.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, and torch's `env://` rendezvous.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables


def job(facts: JobFacts) -> Variables:
    return {
        "WORLD_SIZE": str(facts.size),
        "MASTER_ADDR": facts.master_addr,
        "MASTER_PORT": facts.master_port,
        "GROUP_WORLD_SIZE": str(facts.node_count),
        "ROLE_WORLD_SIZE": str(facts.size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": facts.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RESTART_COUNT": str(facts.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(facts.max_restarts),
    }


def node(job: JobFacts, facts: NodePlace) -> Variables:
    return {
        "NODE_RANK": str(facts.node_rank),
        "GROUP_RANK": str(facts.node_rank),
        "LOCAL_WORLD_SIZE": str(facts.local_size),
    }


def rank(job: JobFacts, node: NodePlace, facts: RankPlace) -> Variables:
    return {"RANK": str(facts.rank), "LOCAL_RANK": str(facts.local_rank), "ROLE_RANK": str(facts.rank)}


def defaults(job: JobFacts, node: NodePlace) -> Variables:
    """Set one OpenMP thread, as torchrun does: several ranks with one thread per core would compete for the cores."""
    return {"OMP_NUM_THREADS": "1"} if node.local_size > 1 else {}


CONTRACT = Contract(
    job,
    node,
    rank,
    defaults,
    overridable=frozenset(
        {
            *("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
            *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        }
    ),
    scrubbed=(
        *("TORCHELASTIC_*", "PET_*"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    ),
)
