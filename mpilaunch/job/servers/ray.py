"""A Ray cluster for one program: it starts on all nodes, the program runs once on the first of them, and both end together.

Source: `ray symmetric-run --help` of Ray 2.49 and later; its workers find their own address on the way to the first node.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.job.servers.server import NO_WORDS, Server, Words, in_front

COMMAND = ("ray", "symmetric-run")


def _before(program: Sequence[str]) -> Words:
    if tuple(program[:2]) == COMMAND:
        return NO_WORDS
    return in_front(program, *COMMAND, "--address", "{master_addr}:{master_port}", "--min-nodes", "{nnodes}", "--")


# A worker would notice only a minute later that the first node has gone.
SERVER = Server(before=_before, follow=True)
