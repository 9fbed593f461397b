"""Hostile bytes: no message makes the head or a daemon crash, hang, or grow past its limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpilaunch.agent import ChannelEnd
from mpilaunch.errors import DaemonFault, LaunchError
from mpilaunch.head.launch import Launch
from mpilaunch.head.node_events import NodeEvents
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.nodes.link_channel import LAST_OUTPUT
from mpilaunch.head.nodes.messages import DAEMON_MESSAGES, DAEMON_REQUESTS
from mpilaunch.head.observe import Observer
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.verdict import verdict_of_ranks
from mpilaunch.wire.frames import CONTROL, MARKER, WireError, frame
from mpilaunch.wire.messages import HEAD_SENDS, check
from tests.support.command_line import job
from tests.support.launching import WireToDaemon

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([-1, 0, 1, 9, 1 << 70]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

FACTS = {
    "hostname": "n", "python": "3.11.7", "executable": "/usr/bin/python3", "cpus": [[0, 0, 0, 0]], "gpus": [],
    "network": {
        "interfaces": [["eth0", "physical", True, 1000, 1500, True, ["10.0.0.1/24"]]],
        "name_at": [], "ports": [], "settings": [], "gpu_paths": {},
    },
    "ssh_connection": None, "free_port": 29500, "notes": [],
}  # fmt: skip
FROM_DAEMON: dict[str, dict[str, Any]] = {
    "hello": {"version": "0.1.0", "clock": 1.0, "facts": FACTS},
    "listening": {"path": "/tmp/mpilaunch-0/attach", "error": ""},
    "terminated": {},
    "ready": {"programs": ["/bin/true"], "notes": []},
    "refused": {"problems": [{"cause": "program-missing", "detail": "x: not found"}]},
    "started": {"ranks": [[0, 4711, 1.0]], "failed": [[1, 2, 1.0]]},
    "listens": {"rank": 0, "port": 80},
    "stack": {"rank": 0, "processes": [{"pid": 4711, "steady": True, "threads": [[["train.py", 8, "step"]]]}]},
    "backtrace": {"rank": 0, "error": "", "output": "", "program": "/bin/true"},
    "observed": {"ranks": [[0, 4711, "S", 0.0, "futex_wait", 1, 1.5, 4096]]},
    "exited": {
        "rank": 0, "code": 1, "signal": None, "core": False, "clock": 2.0, "stopped": False, "stdin_read": 0, "mpi": "absent",
        "evidence": {"out_of_memory": "", "memory_kills": 1},
    },
    "collective": {"kind": "pmi ", "members": [["j", -1]], "ranks": 1, "data": {"a": "b"}},
    "ask": {"id": 1, "request": "lookup"},
    "answer": {"id": 1, "error": ""},
    "joined": {"world": "j"},
    "waiting": {"world": "j", "absent": [0]},
    "singleton": {"rank": 0, "library": "libmpi.so.40", "family": "Open MPI", "offer": ["pmi"], "pmix_error": ""},
    "broken": {"text": "x"},
    "fault": {"text": "Traceback (most recent call last):\nKeyError: 'x'"},
    "note": {"text": "x"},
    "finished": {"worlds": 1, "swept": [[4711, "sleep"]]},
}  # fmt: skip
RANK = {"rank": 0, "app": 0, "environment": {"A": "b"}, "unset": ["C"], "cpus": [0], "stdin": True, "fields": None}
APP = {"program": ["true"], "directory": "/", "directory_required": True, "environment": {}}
MPI = {
    "world": "j", "namespace": "n", "first": 0, "size": 1, "universe_size": 1, "pmi_universe_size": 0,
    "hosts": ["n"], "blocks": [[0, 1, 1]],
    "app_sizes": [1], "parent": "", "pairs": {}, "offer": ["pmi"], "library": None,
    "pmix_defaults": {}, "descriptor": 60, "port": False,
    "notice_after": 30.0,
}  # fmt: skip
FROM_HEAD: dict[str, dict[str, Any]] = {
    "limits": {"silence": 60.0, "pulse": 60.0},
    "prepare": {
        "job": "0123456789abcdef", "apps": [APP], "python": ["python3"], "environment": {"A": "b"}, "defaults": {}, "scrub": [],
        "stdout": "pipe", "merge_stderr": False, "window": 65536, "drain": 0.1, "sweep": True, "silence": 60.0, "pulse": 60.0,
        "attach": {"secret": "0f" * 32, "seconds": 0.1}, "mpi": MPI, "node": 0, "ranks": [RANK], "number": 0,
        "independent": False, "rendezvous": {"address": "127.0.0.1", "port": 1, "secret": "0f" * 32},
    },
    "launch": {"numbers": [0]},
    "await": {"rank": 0, "port": 80},
    "signal": {"signal": 18},
    "observe": {},
    "backtrace": {"ranks": [0]},
    "stop": {"steps": [[15, 0.1]]},
    "cancel": {"number": 0},
    "release": {},
    "world": {"mpi": MPI},
    "collective": {"kind": "pmi ", "members": [["j", -1]], "number": 1, "parts": [{"a": "b"}]},
    "ask": {"id": 1, "request": "modex", "world": "j", "rank": 0},
    "answer": {"id": 1, "error": ""},
}  # fmt: skip


def paths(data: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path (keys and indexes) of every member and item of data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for key, value in items for path in ((*here, key), *paths(value, (*here, key)))]


@st.composite
def message(draw: st.DrawFn, table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Draw a message with up to two members, at any depth, replaced or removed."""
    kind = draw(st.sampled_from(sorted(table)))
    made: dict[str, Any] = json.loads(json.dumps({"type": kind, **table[kind]}))
    for _ in range(draw(st.integers(0, 2))):
        ways = [path for path in paths(made) if path != ("type",)]
        if not ways:
            break
        *way, last = draw(st.sampled_from(ways))
        inner = made
        for key in way:
            inner = inner[key]
        if draw(st.booleans()) and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = draw(JSON)
    return made


# The tables


@pytest.mark.parametrize(("table", "says"), [(FROM_DAEMON, DAEMON_MESSAGES), (FROM_HEAD, HEAD_SENDS)], ids=["daemon", "head"])
def test_the_tables_take_every_message_and_miss_no_member(table: dict[str, dict[str, Any]], says: dict[str, Any]) -> None:
    assert set(table) == set(says)
    for kind, members in table.items():
        check({"type": kind, **members, "new": 1}, says)
        for name in members:
            with pytest.raises(WireError, match=kind):
                check({"type": kind, **{other: value for other, value in members.items() if other != name}}, says)
    check({"type": "of a newer version"}, says)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300, True, "1"])
def test_an_invalid_time_is_a_protocol_error(value: object) -> None:
    with pytest.raises(WireError):
        check({"type": "stop", "steps": [[15, value]]}, HEAD_SENDS)


def test_no_argument_or_variable_holds_a_zero_byte() -> None:
    for app in ({**APP, "program": ["a\0b"]}, {**APP, "environment": {"A": "\0"}}, {**APP, "directory": "/\0"}):
        with pytest.raises(WireError):
            check({"type": "prepare", **FROM_HEAD["prepare"], "apps": [app]}, HEAD_SENDS)


@given(JSON)
def test_facts_are_facts_or_an_error_that_the_link_takes(data: Any) -> None:
    with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        NodeFacts.from_message(data)


# The head


class Deaf:
    """A channel that accepts all data, and ends when it is aborted."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def write(self, data: bytes) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self._link.channel.closed(ChannelEnd(137))


class Silent(Observer):
    """An observer that ignores everything."""

    def progress(self, *_: object) -> None:
        pass

    def started(self) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def note_line(self, text: str) -> str:
        return ""

    warning_line = note_line


@settings(max_examples=100)
@given(st.booleans(), st.lists(message(FROM_DAEMON), max_size=6), st.binary(max_size=40))
def test_the_head_survives_any_message_of_a_daemon(running: bool, messages: Sequence[dict[str, Any]], rest: bytes) -> None:
    hear(running, [frame(CONTROL, 0, json.dumps(one).encode()) for one in messages] + [rest])


def handlers_of(launch: Launch, link: NodeLink) -> list[dict[str, Any]]:
    return [events_of(link).handlers, launch._mpi.handlers, link.handlers]


def events_of(link: NodeLink) -> NodeEvents:
    events = link._events
    assert isinstance(events, NodeEvents)
    return events


def hear(
    running: bool,
    pieces: Sequence[bytes],
    fault: type[Exception] | None = None,
    others: Mapping[str, Callable[..., None]] = MappingProxyType({}),
) -> Launch:
    """Pass data of one of two nodes to a launch; return the launch, which has had this fault of its own.

    Args:
        others: handlers in place of the true ones.
    """

    async def main() -> Launch:
        launch = Launch(job("-H local:1,local:1"), {}, Silent())
        links = list(launch._daemons.links.values())
        for link in links:
            link.opened(Deaf(link), b"")
        hello = json.dumps({"type": "hello", **FROM_DAEMON["hello"]}).encode()
        links[1].channel.data_received(MARKER + frame(CONTROL, 0, hello))
        starter = events_of(links[0])._starter
        if running:
            launch.nodes_done.started = True
            starter.worlds_sent.update(link.node.index for link in links)
            for link in links:
                link.state = "running"
        else:
            starter._answers = {link.node.index: asyncio.get_running_loop().create_future() for link in links}
        for table in handlers_of(launch, links[0]):
            table.update((kind, other) for kind, other in others.items() if kind in table)
        links[0].channel.data_received(MARKER)
        for piece in pieces:
            if links[0].channel.end is None:
                links[0].channel.data_received(piece)
        assert type(launch._faults.first) in ([fault] if fault else [type(None), DaemonFault]), "no content is a fault of ours"
        # What was taken can be told: no number or text of it breaks the verdict.
        verdict = verdict_of_ranks(launch._state)
        assert verdict.first is None or (verdict.first.description and isinstance(verdict.first.exit_code, int))
        for end in launch._state.ends.values():
            assert end.rank == 0, "a node speaks for its own ranks"
        for answer in starter._answers.values():
            if answer.done() and answer.result()["type"] == "refused":
                assert all(problem["cause"] and problem["detail"] is not None for problem in answer.result()["problems"])
        return launch

    return asyncio.run(main())


def test_each_message_and_request_of_a_daemon_has_one_handler() -> None:
    async def main() -> None:
        launch = Launch(job("-H local:1"), {}, Silent())
        (link,) = launch._daemons.links.values()
        assert sorted(chain(*handlers_of(launch, link))) == sorted(DAEMON_MESSAGES)
        assert sorted(launch._mpi.requests) == sorted(DAEMON_REQUESTS)

    asyncio.run(main())


@pytest.mark.parametrize("kind", sorted(DAEMON_MESSAGES))
def test_a_fault_in_a_handler_is_ours_and_not_the_nodes(kind: str) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    running = "running" in DAEMON_MESSAGES[kind][0].split()
    piece = frame(CONTROL, 0, json.dumps({"type": kind, **FROM_DAEMON[kind]}).encode())
    launch = hear(running, [piece], ZeroDivisionError, {kind: broken})
    assert not any(link.given_up for link in launch._daemons.links.values())


def test_a_node_cannot_report_about_the_ranks_of_another() -> None:
    for one in (
        {"type": "started", "ranks": [[1, 5, 1.0]], "failed": []},
        {"type": "exited", **FROM_DAEMON["exited"], "rank": 1},
        {"type": "exited", **FROM_DAEMON["exited"], "rank": 1 << 40},
    ):
        launch = hear(True, [frame(CONTROL, 0, json.dumps(one).encode())])
        assert not launch._state.ends
        assert launch._stop.outcome is not None and launch._stop.outcome.cause == "node-lost"


def test_a_node_lost_while_others_prepare_counts_as_a_failed_start() -> None:
    def said(kind: str) -> bytes:
        return frame(CONTROL, 0, json.dumps({"type": kind, **FROM_DAEMON[kind]}).encode())

    async def main() -> None:
        launch = Launch(job("-H local:1,local:1"), {}, Silent())
        for link in list(launch._daemons.links.values()):
            link.opened(Deaf(link), b"")
            link.channel.data_received(MARKER + said("hello"))
        preparing = asyncio.ensure_future(launch.nodes_done._starter.prepare(launch.ranks.worlds[0]))
        await asyncio.sleep(0)
        first, second = list(launch._daemons.links.values())
        first.channel.data_received(said("ready"))
        first.channel.closed(ChannelEnd(137))
        second.channel.data_received(said("ready"))
        with pytest.raises(LaunchError, match="1 of 2 nodes: local"):
            await preparing

    asyncio.run(main())


def test_a_banner_without_end_is_bounded() -> None:
    async def main() -> None:
        link = Launch(job("-H local:1,local:1"), {}, Silent())._daemons.links[0]
        for _ in range(1000):
            link.channel.data_received(b"no marker" * 1000)
            link.channel.stderr_received(b"words" * 1000)
        assert len(link.channel.banner) <= LAST_OUTPUT + 20 and len(link.channel.stderr) <= LAST_OUTPUT

    asyncio.run(main())


# The daemon


@settings(max_examples=25)
@given(st.booleans(), st.lists(message(FROM_HEAD), min_size=1, max_size=4), st.binary(max_size=40))
def test_the_daemon_ends_in_order_after_any_message_of_a_head(
    running: bool, messages: Sequence[dict[str, Any]], rest: bytes
) -> None:
    with WireToDaemon() as daemon:
        if running:
            daemon.run("sleep", "100")
        with contextlib.suppress(BrokenPipeError):  # it has heard enough
            for one in messages:
                daemon.write(frame(CONTROL, 0, json.dumps(one).encode()))
            daemon.write(rest)
        daemon.close_wire()
        code, words = daemon.end()
        # The head may do there what it likes: what it should not have sent is a fault, which the daemon owns up to.
        assert code in (0, 70) and "Traceback" not in words, words
        assert words.count("\n") <= 1
