"""Servers that span nodes. To add one, add its module, its name here, and a line to `table`."""

NAMES = ("ray", "sglang", "trtllm", "vllm")
"""The names of their profiles."""
