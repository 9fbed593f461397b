"""TensorRT-LLM over several nodes: an MPI job of one rank for each GPU, whose rank 0 runs the command.

Source: tensorrt_llm/llmapi/trtllm-llmapi-launch; "LLM API with MPI" of its documents.
"""

from __future__ import annotations

from mpilaunch.job.servers.server import NO_WORDS, Server, in_front

LAUNCHER = "trtllm-llmapi-launch"

SERVER = Server(
    commands=(("trtllm-serve",), ("trtllm-bench",), ("trtllm-eval",)),
    before=lambda program: NO_WORDS if program[0].rpartition("/")[2] == LAUNCHER else in_front(program, LAUNCHER),
    one_per_node=False,
)
