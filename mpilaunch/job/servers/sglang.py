"""SGLang over several nodes.

Source: "Multi-Node Deployment" of SGLang's documents; `get_local_ip_auto` of sglang/srt/utils.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract
from mpilaunch.job.servers.server import Server, unless_given

SERVER = Server(
    variables=Contract(node=lambda job, node: {"SGLANG_HOST_IP": node.address} if node.address else {}),
    commands=(("python", "-m", "sglang.launch_server"), ("sglang", "serve")),
    after=lambda program: unless_given(
        program,
        ("--dist-init-addr", "{master_addr}:{master_port}"),
        ("--nnodes", "{nnodes}"),
        ("--node-rank", "{node_rank}"),
        aliases={"--nccl-init-addr": "--dist-init-addr"},
    ),
)
