"""torchrun's variables, which torch, Accelerate, DeepSpeed, Lightning and Megatron-LM read; vLLM's address of a node.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py, and torch's `env://` rendezvous; `get_ip` of
vllm/utils/network_utils.py.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, Variables


def _defaults(job: JobFacts, node: NodePlace) -> Variables:
    """Return torchrun's one OpenMP thread, as several ranks with one per core would compete for the cores, or the job's.

    On several nodes vLLM needs the address of each, and would take that of the default route.
    """
    threads = ("1" if node.local_size > 1 else "none") if job.threads == "auto" else job.threads
    address = {"VLLM_HOST_IP": node.address} if node.address else {}
    return address if threads == "none" else {"OMP_NUM_THREADS": threads, **address}


CONTRACT = Contract(
    job=lambda job: {
        "WORLD_SIZE": str(job.size),
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": job.master_port,
        "GROUP_WORLD_SIZE": str(job.node_count),
        "ROLE_WORLD_SIZE": str(job.size),
        "ROLE_NAME": job.role,
        "TORCHELASTIC_RUN_ID": job.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RESTART_COUNT": str(job.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
    },
    node=lambda job, node: {
        "NODE_RANK": str(node.node_rank),
        "GROUP_RANK": str(node.node_rank),
        "LOCAL_WORLD_SIZE": str(node.local_size),
    },
    rank=lambda job, node, rank: {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "ROLE_RANK": str(rank.rank),
    },
    defaults=_defaults,
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
