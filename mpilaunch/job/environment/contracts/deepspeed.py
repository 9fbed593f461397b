"""The variables of DeepSpeed's own launcher. Source: deepspeed/launcher/launch.py."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(
    node=lambda job, node: {"LOCAL_SIZE": str(node.local_size)},
    rank=lambda job, node, rank: {"CROSS_RANK": str(rank.cross_rank), "CROSS_SIZE": str(rank.cross_size)},
    scrubbed=("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
)
