"""Whole conversations of a real head with nodes that break the protocol, and of a real daemon with such a head."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from mpilaunch.errors import DaemonFault
from mpilaunch.head.ending import stop
from mpilaunch.head.nodes import link, link_channel
from mpilaunch.job.verdict import Verdict
from mpilaunch.wire.frames import CONTROL, frame
from tests.support.conversations import (
    ESCAPES,
    FACTS,
    LIMITS,
    Conversation,
    HostileHead,
    MeasuredLoop,
    Message,
    Script,
    converse,
)
from tests.support.cpu_time import without_collector
from tests.support.launching import LIMIT, WireToDaemon, environment
from tests.support.paths import ROOT

SEED = int(os.environ.get("MPILAUNCH_TEST_SEED") or 1_795_449_008)
"""The first seed of the fuzz tests. The default has a request of a node that is preparing in its first sixty."""
QUICK, LONG = 60, 480
DAEMONS = 12
"""Conversations of the fuzz tests."""


def talk(
    change: Callable[[Script, Message, list[Message]], list[Message]],
    *words: str,
    signals: Sequence[float] = (),
    script: Callable[[str], Script] = Script,
) -> Conversation:
    """Hold a conversation in which node `b` sends what `change` makes of (its script, the head's message, its answer)."""
    return asyncio.run(converse([*LIMITS, *words], with_change(change, script), signals))


def with_change(
    change: Callable[[Script, Message, list[Message]], list[Message]], script: Callable[[str], Script]
) -> Callable[[str], Script]:
    """Return the scripts by name, with node `b` changed as for `talk`."""

    class Changed(Script):
        def take(self, message: Message) -> list[Message]:
            return change(self, message, super().take(message))

    return lambda name: Changed(name) if name == "b" else script(name)


def instead_of_collective(*messages: Message) -> Callable[[Script, Message, list[Message]], list[Message]]:
    """Return a change: these messages follow the start of the ranks, before they wait; WORLD stands for their world."""

    def put(value: Any, world: str) -> Any:
        if isinstance(value, dict):
            return {name: put(item, world) for name, item in value.items()}
        if isinstance(value, list):
            return [put(item, world) for item in value]
        return world if value == "WORLD" else value

    def change(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        return [answer[0], *(put(one, node.world) for one in messages), *answer[1:]] if message["type"] == "launch" else answer

    return change


class Waits(Script):
    """A node whose ranks run until they are stopped."""

    def take_launch(self, message: Message) -> list[Message]:
        messages = super().take_launch(message)
        self.living = list(self.ranks)
        return messages[:1]


class Joins(Waits):
    """The same, in MPI_Init."""

    def take_launch(self, message: Message) -> list[Message]:
        messages = Script.take_launch(self, message)
        self.living = list(self.ranks)
        return messages[:2]


def lost(ended: Conversation) -> str:
    """Check that only node `b` was lost; return the reason."""
    assert isinstance(ended.outcome, Verdict) and (ended.reference, ended.outcome.host) == ("node-lost", "b"), ended.words
    assert ended.launch.nodes_done.lost == {1}
    for name in "ac":
        assert any(one["type"] == "stop" for one in ended.nodes[name].taken), "the ranks of the others are ended in order"
    return ended.words


def test_the_scripts_are_honest() -> None:
    for mpi in ("auto", "none"):
        ended = talk(lambda node, message, answer: answer, "--mpi", mpi)
        assert ended.reference == "ok", ended.words


def spawn(rank: int, world: str = "WORLD") -> Message:
    app = {"program": ["true"], "count": 1, "environment": {}, "info": {}}
    return {"type": "ask", "id": 1, "request": "spawn", "world": world, "rank": rank, "apps": [app], "pairs": {}}


def collective(members: list[Any], ranks: int = 2, data: Any = None, kind: str = "pmi y") -> Message:
    return {"type": "collective", "kind": kind, "members": members, "ranks": ranks, "data": {} if data is None else data}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"type": "finished", "worlds": 1, "swept": []}], "'finished' before the end of rank 2"),
        ([{"type": "finished", "worlds": 2, "swept": []}], "'finished' with 2 worlds of 1"),
        ([spawn(0)], "rank 0 of world"),
        ([spawn(2, "other")], "rank 2 of world 'other' is not on this node"),
        ([collective([["other", -1]])], "a collective with rank -1 of world 'other', which is not there"),
        ([collective([["WORLD", 6]])], "a collective with rank 6"),
        ([collective([["WORLD", 0]], 1)], "a collective of 1 ranks, of which this node has 0"),
        ([collective([["WORLD", -1]], 3)], "a collective of 3 ranks, of which this node has 2"),
        ([collective([["WORLD", 2], ["WORLD", 2]])], "a collective that names a rank twice"),
        ([collective([["WORLD", -1], ["WORLD", 2]])], "a collective that names a rank twice"),
        ([collective([["WORLD", -1]], 2, "no pairs")], "the data of a collective is not that of its kind"),
        ([collective([["WORLD", -1]], 2, "%", "pmix y")], "data that is not base64"),
        ([{"type": "answer", "id": 1, "error": ""}], "an answer to a question that was not asked"),
        ([{"type": "waiting", "world": "WORLD", "absent": [0]}], "rank 0 of world"),
        ([{"type": "joined", "world": "other"}], "this node has no rank of world 'other'"),
        ([{"type": "ready", "programs": [], "notes": []}], "'ready' without a `prepare`"),
        ([{"type": "refused", "problems": [{"cause": "of ours", "detail": ""}]}], "'refused' does not fit"),
        ([{"type": "hello", "version": "1", "clock": 1.0, "facts": FACTS}], "'hello' of a node that is running"),
        ([{"type": "ask", "id": 1, "request": "riches"}], "'ask' for 'riches', which this job does not offer"),
        (
            [{"type": "ask", "id": 1, "request": "publish", "space": "pmix", "values": {"n": ["WORLD", 0, [3, "x"]]}}],
            "rank 0 of world",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_node_may_report_about_its_own_ranks_only(messages: list[Message], words: str) -> None:
    text = lost(talk(instead_of_collective(*messages)))
    assert text.startswith("b: lost: broke the protocol: ") and words in text


@pytest.mark.parametrize("running", [False, True], ids=["preparing", "running"])
def test_a_fault_in_a_daemon_is_ours_and_ends_the_job(running: bool) -> None:
    fault = {"type": "fault", "text": "Traceback (most recent call last):\n  \x1b[31m\nKeyError: 'x'\n"}
    told: list[tuple[str, str]] = []

    class Told(Waits):
        def take(self, message: Message) -> list[Message]:
            told.append((self.name, message["type"]))
            return super().take(message)

    def change(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        return [*answer[:1], fault] if message["type"] == ("launch" if running else "prepare") else answer

    with pytest.raises(DaemonFault, match=r"^in the daemon on b: KeyError: 'x'$") as raised:
        talk(change, script=Told)
    assert str(raised.value.__cause__) == "Traceback (most recent call last):\n  \\x1b[31m\nKeyError: 'x'"
    assert not running or {("a", "stop"), ("c", "stop")} <= set(told)


def test_a_fault_in_a_callback_of_the_loop_is_ours_and_ends_the_job() -> None:
    def change(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        if message["type"] == "launch":
            asyncio.get_running_loop().call_later(0.01, lambda: 1 // 0)
        return answer

    with pytest.raises(ZeroDivisionError):
        talk(change, script=Waits)


@pytest.mark.parametrize("message", [spawn(2), {"type": "broken", "text": "x"}, {"type": "joined", "world": ""}], ids=str)
def test_messages_of_mpi_are_rejected_in_a_job_without_mpi(message: Message) -> None:
    assert "in a job that offers no" in lost(talk(instead_of_collective(message), "--mpi", "none", script=Waits))


def test_a_job_can_continue_without_a_node_that_finishes_too_early() -> None:
    early: Message = {"type": "finished", "worlds": 1, "swept": []}
    ended = talk(instead_of_collective(early), "--continue-on-error", "--mpi", "none")
    assert (ended.reference, ended.launch.nodes_done.lost) == ("node-lost", {1})


def test_a_job_can_continue_without_a_node_that_names_an_unknown_world() -> None:
    ended = talk(instead_of_collective(collective([["other", -1]])), "--continue-on-error")
    assert ended.launch.nodes_done.lost == {1}


def test_an_answer_to_a_request_sent_to_another_node() -> None:
    asks: Message = {"type": "ask", "id": 7, "request": "modex", "world": "WORLD", "rank": 0}  # a rank of node a
    change = instead_of_collective(asks, {"type": "answer", "id": 1, "error": "", "data": "AAAA"})
    assert "an answer to a question that another node was asked" in lost(talk(change, script=Waits))


def test_a_rank_may_ask_for_data_of_a_rank_that_is_not_there() -> None:
    others = (("x", 0), ("WORLD", 99))
    asks = [{"type": "ask", "id": 7, "request": "modex", "world": world, "rank": rank} for world, rank in others]
    ended = talk(instead_of_collective(*asks))
    assert ended.reference == "ok"
    assert [one["error"] for one in ended.nodes["b"].taken if one["type"] == "answer"] == ["not-found"] * 2


def test_a_node_of_a_job_without_mpi_runs_nothing_on_the_others() -> None:
    """MPI_Init is collective, so a world whose other nodes never call it has no rank that could spawn."""
    app = {"program": ["true"], "count": 1, "environment": {}, "info": {"host": "a"}}
    joined: Message = {"type": "joined", "world": "WORLD"}
    ended = talk(instead_of_collective(joined, {**spawn(2), "apps": [app]}), script=Waits)
    (answer,) = (one for one in ended.nodes["b"].taken if one["type"] == "answer")
    assert answer["error"] == "its world has not passed MPI_Init on every node"
    for node in ended.nodes.values():
        assert sum(one["type"] == "prepare" for one in node.taken) == 1


def test_no_rank_spawns_others_before_it_has_been_launched() -> None:
    def early(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        return [spawn(2, node.world)] if message["type"] == "prepare" else answer

    ended = talk(early)
    assert ended.reference == "start-protocol"
    assert ended.words.startswith("1 of 3 nodes: b: the daemon broke the protocol: broke the protocol: 'ask' of a node that is")


def test_an_unknown_cause_of_refused_is_one_error() -> None:
    refused: Message = {"type": "refused", "problems": [{"cause": "of ours", "detail": "x"}]}
    ended = talk(lambda node, message, answer: [refused] if message["type"] == "prepare" else answer)
    assert ended.reference == "start-protocol"
    assert ended.words == "1 of 3 nodes: b: the daemon broke the protocol: broke the protocol: 'refused' does not fit"


def test_invalid_facts_are_one_error() -> None:
    class Wrong(Script):
        def hello(self) -> list[Message]:
            (hello,) = super().hello()
            return [{**hello, "facts": {**hello["facts"], "hostname": "c\0"}}] if self.name == "c" else [hello]

    ended = asyncio.run(converse(LIMITS, Wrong))
    assert ended.reference == "start-protocol" and "c: the daemon broke the protocol" in ended.words


def test_texts_of_a_singleton_reach_the_terminal_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    texts = dict.fromkeys(("library", "family", "pmix_error"), ESCAPES)
    talk(instead_of_collective({"type": "singleton", "rank": 2, "offer": ["pmi"], **texts}))
    words = capfd.readouterr().err
    assert "has an MPI library" in words and words.count("\n") == 1
    assert not {"\x1b", "\r", "\u202e", "\x07"} & set(words)


# Limits


def test_collectives_that_wait_are_limited_for_a_job() -> None:
    many = [collective([["WORLD", -1]], 2, {"k": "x" * 1_000_000}, f"pmi {number}") for number in range(80)]
    ended = talk(instead_of_collective(*many), script=Waits)
    assert (ended.reference, ended.words) == ("mpi-failed", "b: collectives of MPI that wait hold more than 67,108,864 bytes")


def test_published_names_and_look_ups_are_limited_for_a_job() -> None:
    asks: list[Message] = [
        {"type": "ask", "id": n, "request": "publish", "space": "pmi", "values": {str(n): "x" * 1_000_000}} for n in range(20)
    ]
    asks += [
        {"type": "ask", "id": 100 + n, "request": "lookup", "space": "pmi", "names": ["y" * 1_000_000], "wait": True}
        for n in range(5)
    ]
    ended = talk(instead_of_collective(*asks))
    errors = [one["error"] for one in ended.nodes["b"].taken if one["type"] == "answer" and one["error"]]
    assert errors[0] == "published names hold more than 4,194,304 bytes" and len(errors) >= 20


def held(*messages: Message) -> list[str]:
    """Let node b send these messages; return the callbacks of the loop that took too long."""
    loop = MeasuredLoop()
    with contextlib.closing(loop), without_collector():
        scripts = with_change(instead_of_collective(*messages), Waits)
        loop.run_until_complete(converse([*LIMITS, "--timeout", "6"], scripts))
    return loop.held


@pytest.mark.slow
def test_no_number_of_small_messages_holds_the_loop() -> None:
    look: Message = {"type": "ask", "id": 1, "request": "lookup", "space": "pmi", "wait": True}
    waiting = [{**look, "names": [f"n{number % 2}", "never"]} for number in range(9_900)]
    publishes: list[Message] = [
        {"type": "ask", "id": 2, "request": "publish", "space": "pmi", "values": {f"n{number}": ""}} for number in range(5_000)
    ]
    all_at_once: Message = {"type": "ask", "id": 3, "request": "publish", "space": "pmi", "values": {"never": ""}}
    assert held(*waiting, *publishes, all_at_once) == []


@pytest.mark.slow
def test_no_number_of_collectives_holds_the_loop() -> None:
    wait = [collective([["WORLD", -1]], 2, {}, f"pmi {number}") for number in range(9_000)]
    assert held(*wait, *[{"type": "joined", "world": "WORLD"}] * 5_000) == []


def test_a_large_message_holds_the_loop_shortly() -> None:
    """No larger ones are accepted."""
    values: Message = {"type": "new", "x": [[1, 2, 3]] * 30_000}
    text: Message = {"type": "new", "x": "\u00e9" * 1_000_000}
    assert held(values, text) == []


def test_nothing_after_a_broken_message_is_handled() -> None:
    notes = [{"type": "note", "text": f"late {number}"} for number in range(100)]
    said: list[str] = []
    ended = talk(instead_of_collective({"type": "hello", "version": "1", "clock": 1.0, "facts": FACTS}, *notes))
    said += [text for text in lost(ended).splitlines() if "late" in text]
    assert "'hello' of a node that is running" in ended.words and said == []
    assert ended.launch._daemons.links[1]._notes == 0


def test_failed_spawns_are_reported_a_limited_number_of_times(capfd: pytest.CaptureFixture[str]) -> None:
    app = {"program": ["x" * 2_000], "count": 1, "environment": {}, "info": {"host": "nowhere" * 300}}

    class Spawns(Joins):
        def take_launch(self, message: Message) -> list[Message]:
            many = [{**spawn(4, self.world), "apps": [app]} for _ in range(400)]
            # The last node to be launched: the others have joined before.
            return super().take_launch(message) + (many if self.name == "c" else [])

    talk(lambda node, message, answer: answer, script=Spawns)
    told = [line for line in capfd.readouterr().err.splitlines() if "MPI_Comm_spawn failed" in line]
    assert 0 < len(told) <= link.MOST_NOTES and max(map(len, told)) <= link.LONGEST_NOTE + 100


def test_a_message_of_too_many_values_is_not_read() -> None:
    assert "more than 131072 values" in lost(talk(instead_of_collective({"type": "new", "x": [[]] * 70_000})))


def test_a_node_that_asks_and_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_channel, "MOST_UNREAD", 1 << 20)

    def change(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        looks: Message = {"type": "ask", "id": 1, "request": "lookup", "space": "pmi", "names": ["n"], "wait": False}
        publishes: Message = {"type": "ask", "id": 1, "request": "publish", "space": "pmi", "values": {"n": "x" * 100_000}}
        return [answer[0], publishes, *[looks] * 30] if message["type"] == "launch" else answer

    assert "has not read 1,048,576 bytes that were sent to it" in lost(talk(change, "--reconnect-timeout", "5"))


# A stop always ends


def test_a_node_that_does_not_end_is_disconnected_after_the_grace_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "OVERDUE", 1.0)

    def silent(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        return [] if message["type"] in ("stop", "collective") else answer[:1]

    ended = talk(silent, "--mpi", "none", "--timeout", "0.5", script=Waits)
    assert ended.reference == "timeout" and ended.launch.nodes_done.lost == {1}
    assert ended.seconds >= 0.5 + 0.2 + stop.OVERDUE


@pytest.mark.parametrize("lack", ["drained", "finished", "worlds"])
def test_a_stop_after_a_failure_ends_too(lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank fails; node b ends its ranks, but for their output, or never finishes."""

    class Fails(Waits):
        def take_launch(self, message: Message) -> list[Message]:
            messages = super().take_launch(message)
            if self.name != "a":
                return messages
            end = self.end()
            return [*messages, *({**one, "code": 3} if one["type"] == "exited" else one for one in end)]

        def take_stop(self, message: Message) -> list[Message]:
            messages = super().take_stop(message)
            if self.name != "b":
                return messages
            if lack == "worlds":
                return [{**one, "worlds": 0} if one["type"] == "finished" else one for one in messages]
            left = ("drained", "finished") if lack == "drained" else ("finished",)
            return [one for one in messages if one["type"] not in left]

    monkeypatch.setattr(stop, "OVERDUE", 1.0)
    words = ["--grace", "0.2", "--reconnect-timeout", "0", "--mpi", "none"]
    ended = asyncio.run(converse(words, Fails))
    assert ended.reference == "rank-failed" and ended.launch.nodes_done.lost == {1}
    assert ended.seconds >= stop.OVERDUE


def test_three_signals_end_at_once() -> None:
    def silent(node: Script, message: Message, answer: list[Message]) -> list[Message]:
        return [] if message["type"] == "stop" else answer[:1]

    ended = talk(silent, "--mpi", "none", "--timeout", "60", "--grace", "30", script=Waits, signals=(0.2, 0.3, 0.4))
    assert ended.reference == "interrupted" and ended.seconds < 30, "the grace time and the time limit are longer"


# Fuzz


def fuzz(count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.conversations", str(SEED), str(count)],
        capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=100 + count, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"MPILAUNCH_TEST_SEED={SEED}:\n{done.stdout}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr
    assert not {"\x1b", "\r", "\u202e"} & set(done.stderr), f"MPILAUNCH_TEST_SEED={SEED}: {done.stderr!r}"


@pytest.mark.timeout(QUICK + 200)
def test_faulty_conversations_end_in_order() -> None:
    fuzz(QUICK)


@pytest.mark.slow
@pytest.mark.timeout(LONG + 200)
def test_many_faulty_conversations_end_in_order() -> None:
    fuzz(LONG)


def hostile_heads(count: int) -> None:
    for number in range(SEED, SEED + count):
        began = time.monotonic()
        with WireToDaemon() as daemon:
            if number % 2:
                daemon.run("sleep", "100")
            with contextlib.suppress(BrokenPipeError):
                for message in HostileHead(Random(number)).messages():
                    daemon.write(frame(CONTROL, 0, json.dumps(message).encode()))
            daemon.close_wire()
            code, words = daemon.end()
        where = f"MPILAUNCH_TEST_SEED={number}: {words}"
        assert code in (0, 70) and "Traceback" not in words, where
        assert time.monotonic() - began < LIMIT, where


@pytest.mark.parametrize("message", [{"type": "signal", "signal": 65}, {"type": "stop", "steps": [[4000, 0.1]]}], ids=str)
def test_an_invalid_signal_number_ends_the_daemon_in_order(message: Message) -> None:
    with WireToDaemon() as daemon:
        daemon.run("sleep", "100")
        daemon.write(frame(CONTROL, 0, json.dumps(message).encode()))
        code, words = daemon.end()
    assert code == 0 and "the head broke the protocol" in words and "Traceback" not in words


def test_daemons_end_in_order_after_a_faulty_head() -> None:
    hostile_heads(DAEMONS)


@pytest.mark.slow
def test_daemons_end_in_order_after_many_faulty_heads() -> None:
    hostile_heads(5 * DAEMONS)
