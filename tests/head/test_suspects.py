"""Which node is to blame, when nodes fall silent as a rank fails: scripted nodes, and a real head."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.conversations import Message, Script, converse

SILENCE = ("--heartbeat", "2", "--reconnect-timeout", "0.3", "--grace", "0.2", "--start-timeout", "10", "--mpi", "none")

LATER = 0.1
"""Seconds of the first rank's failure after the other nodes were last heard of, as its node's clock has it."""


class Failing(Script):
    """A node whose first rank exits with 3 as soon as it has started; the others' run on."""

    def __init__(self, name: str, cut_off: str) -> None:
        super().__init__(name)
        self._cut_off = name in cut_off

    def take_launch(self, message: Message) -> list[Message]:
        started, drained, exited, *_ = super().take_launch(message)
        failed = self.name == "b"
        self.living = self.ranks[failed:]
        return [started, *([drained, {**exited, "code": 3, "clock": exited["clock"] + LATER}] if failed else [])]

    def take_stop(self, message: Message) -> list[Message]:
        self.cut_off = self._cut_off  # before the answer to the head's ping, which came just before
        return super().take_stop(message)


@pytest.mark.parametrize(
    ("reference", "cut_off"),
    [*(("node-lost", cut_off) for cut_off in ("a", "ac")), *(("rank-failed", cut_off) for cut_off in ("", "b", "ab", "abc"))],
)
def test_silent_nodes_are_to_blame_only_if_the_failed_ranks_own_node_is_heard(reference: str, cut_off: str) -> None:
    ended = asyncio.run(converse(SILENCE, lambda name: Failing(name, cut_off)))
    assert ended.reference == reference, ended.outcome
