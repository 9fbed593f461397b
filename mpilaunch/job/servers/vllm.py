"""vLLM over several nodes by its own processes; VLLM_HOST_IP is set for every job.

Source: "Parallelism and Scaling", "Running vLLM with MultiProcessing", of vLLM's documents.
"""

from __future__ import annotations

from mpilaunch.job.servers.server import Server, unless_given

SERVER = Server(
    commands=(("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server")),
    after=lambda program: unless_given(
        program,
        ("--nnodes", "{nnodes}"),
        ("--node-rank", "{node_rank}"),
        ("--master-addr", "{master_addr}"),
        ("--master-port", "{master_port}"),
        aliases={"-n": "--nnodes", "-r": "--node-rank"},
    ),
    follow=True,
    beyond=("--headless",),
)
