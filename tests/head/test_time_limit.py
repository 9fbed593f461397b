"""What the nodes tell of their ranks at the time limit, and that no node can hold up the end: scripted nodes, a real head."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mpilaunch.head.observe import looks
from mpilaunch.job.verdict import Verdict
from tests.support.conversations import Conversation, Message, Script, converse

WORDS = ("--timeout", "0.5", "--grace", "0.2", "--start-timeout", "10", "--reconnect-timeout", "0", "--mpi", "none")


class Hangs(Script):
    """A node whose ranks run until they are stopped.

    Args:
        tells: what node b says when it is asked for what its ranks do; None for the truth.
    """

    def __init__(self, name: str, tells: list[Message] | None = None) -> None:
        super().__init__(name)
        self._tells = tells if name == "b" else None

    def take_launch(self, message: Message) -> list[Message]:
        started, *_ = super().take_launch(message)
        self.living = list(self.ranks)
        return [started]

    def take_observe(self, message: Message) -> list[Message]:
        return super().take_observe(message) if self._tells is None else self._tells


def ended(*tells: Message, true: bool = False) -> Conversation:
    return asyncio.run(converse(WORDS, lambda name: Hangs(name, None if true else list(tells))))


class Fails(Hangs):
    """A node of which a rank fails while it is asked, at the time limit, for what its ranks do."""

    def take_observe(self, message: Message) -> list[Message]:
        if self.name != "b":
            return super().take_observe(message)
        return [{**told, "code": 3} if told["type"] == "exited" else told for told in self.end(ranks=self.living[-1:])]


@pytest.mark.parametrize("options", [(), ("--stack-on-failure",)], ids=["", "with its stacks"])
def test_a_rank_that_fails_during_a_look_ends_the_job_too(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    monkeypatch.setattr(looks, "LONGEST_LOOK", 0.3)
    end = asyncio.run(converse((*WORDS, *options), Fails))
    assert end.reference == "rank-failed" and end.seconds < 5
    assert isinstance(end.outcome, Verdict) and bool(end.outcome.others) == bool(options)


def observed(*rows: Sequence[object]) -> Message:
    return {"type": "observed", "ranks": list(rows)}


def test_equal_ranks_share_a_line() -> None:
    end = ended(true=True)
    first, line = end.words.splitlines()
    assert (end.reference, first) == ("timeout", "time limit of 0.5 s exceeded")
    assert line.startswith("ranks 0-5 on a,b,c: in step (train.py:8), no output for ")
    assert end.seconds < looks.LONGEST_LOOK, "the answers are not waited for any longer"


def test_a_node_that_does_not_tell_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "LONGEST_LOOK", 0.3)
    end = ended()
    assert end.reference == "timeout"
    assert end.words.splitlines()[1:][-1] == "ranks 2-3 on b: no answer from the daemon"


@pytest.mark.parametrize(
    ("tells", "reason"),
    [
        ([observed([0, 1, "S", 0.0, "", 1, 0.5, 4096])], "rank 0"),
        ([observed([2, 1, "S", -1.0, "", 1, 0.5, 4096])], "'observed' does not fit"),
        ([observed([2, 1, "S", 0.0, "x" * 5000, 1, 0.5, 4096])], "'observed' does not fit"),
        ([observed(), observed()], "'observed' that was not asked for"),
    ],
    ids=["another node's rank", "a negative use", "a long name", "twice"],
)
def test_a_node_that_tells_what_it_may_not_is_lost(tells: list[Message], reason: str) -> None:
    end = ended(*tells)
    assert end.launch.nodes_done.lost == {1}
    assert reason in end.words or end.reference == "timeout"


def test_what_a_node_tells_is_escaped_and_bounded() -> None:
    end = ended(*[observed(*[[rank, 1, "S", 0.0, "\x1b[2J" + "x" * 4000, 1, 0.5, 4096] for rank in (2, 3, 2, 2)])])
    (line,) = [line for line in end.words.splitlines() if "\\x1b[2J" in line]
    assert line.startswith("ranks 2-3 on b: idle, waits in ") and len(line) < 200
