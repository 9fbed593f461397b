"""Servers that span nodes, by the names of their profiles. To add one, add its module and a line here."""

from __future__ import annotations

from mpilaunch.job.servers import ray, sglang, trtllm, vllm

SERVERS = {"ray": ray.SERVER, "sglang": sglang.SERVER, "trtllm": trtllm.SERVER, "vllm": vllm.SERVER}
