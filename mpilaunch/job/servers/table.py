"""The table of servers that span nodes, by the names of their profiles; loaded by jobs that name one, or may run one."""

from __future__ import annotations

from mpilaunch.job.servers import ray, sglang, trtllm, vllm

SERVERS = {"ray": ray.SERVER, "sglang": sglang.SERVER, "trtllm": trtllm.SERVER, "vllm": vllm.SERVER}
