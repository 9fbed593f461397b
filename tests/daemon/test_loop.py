"""The daemon alone, driven over its wire: messages and states, credits, the ends of ranks, and the loss of the head."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpilaunch.daemon.loop import Daemon
from mpilaunch.daemon.poller import Timers
from mpilaunch.daemon.ranks import reaper
from mpilaunch.daemon.ranks.processes import Processes
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, MAGIC, PING, STDERR, STDIN, STDOUT, frame, stream_channel
from tests.support.launching import (
    WireToDaemon,
    children,
    living,
    peak_memory,
    state,
    stopped,
    wait_for_files,
    wait_gone,
    wait_until,
)
from tests.support.paths import ROOT

STDOUT_0, STDERR_0, STDIN_0 = (stream_channel(0, stream) for stream in (STDOUT, STDERR, STDIN))


@pytest.fixture
def daemon() -> Iterator[WireToDaemon]:
    """Give a daemon that has said hello."""
    with WireToDaemon() as made:
        made.until("hello")
        yield made


def stay(folder: Path, *, before: str = "") -> tuple[str, str, str]:
    """Return a rank that writes its process id into a file and stays."""
    return "sh", "-c", f"exec 2> /dev/null; {before}\ncd '{folder}'; echo $$ > pid-$RANK; while :; do sleep 0.02; done"


def rank_pids(folder: Path, ranks: int = 1) -> list[int]:
    return [int(text) for text in wait_for_files(*(folder / f"pid-{rank}" for rank in range(ranks)))]


def exits(daemon: WireToDaemon) -> dict[int, tuple[int | None, int | None]]:
    return {one["rank"]: (one["code"], one["signal"]) for one in daemon.messages if one["type"] == "exited"}


def types(daemon: WireToDaemon) -> list[str]:
    return [message["type"] for message in daemon.messages]


def pass_time(seconds: float) -> None:
    """Let a time limit of the daemon's come closer, or go by."""
    due = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= due, "the time has passed")


def ping(daemon: WireToDaemon) -> None:
    """See that the daemon is there and has dealt with everything before."""
    clock = time.monotonic()
    daemon.session.send_ping(clock)
    daemon.flush()
    daemon.take_until(lambda: any(value and value[0] == clock for _, _, value in daemon.others), "a PONG")


# Hello, preparation, launch


def test_hello_tells_the_version_the_clock_and_the_facts(daemon: WireToDaemon) -> None:
    hello = daemon.until("hello")
    assert hello["clock"] <= time.monotonic() < hello["clock"] + 30
    assert hello["facts"]["hostname"] == os.uname().nodename


def test_nothing_runs_before_launch(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.prepare("sh", "-c", f"touch {tmp_path}/ran-$RANK", ranks=2)
    ready = daemon.until("ready")
    assert os.path.basename(ready["programs"][0]) == "sh" and ready["notes"] == []
    guard_children = children(daemon.process.pid)
    assert children(guard_children[0]) == [] and not list(tmp_path.iterdir())
    daemon.send("launch")
    daemon.until("finished")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ran-0", "ran-1"]


@pytest.mark.parametrize(
    ("program", "members", "cause"),
    [
        (["no-such-program"], {}, "program-missing"),
        (["./x"], {}, "program-missing"),
        (["/etc/passwd"], {}, "program-not-executable"),
        (["/etc"], {}, "program-not-executable"),
        (["true"], {"directory": "/no/such"}, "directory-missing"),
    ],
)
def test_a_refusal_names_the_cause_and_another_prepare_may_follow(
    daemon: WireToDaemon, program: list[str], members: dict[str, Any], cause: str
) -> None:
    daemon.prepare(*program, **members)
    problems = daemon.until("refused")["problems"]
    assert [problem["cause"] for problem in problems] == [cause] and problems[0]["detail"]
    # Nothing was prepared: there is nothing to launch.
    daemon.send("launch")
    ping(daemon)
    assert types(daemon) == ["hello", "refused"]


def test_a_named_pipe_in_the_place_of_a_program_does_not_block_the_daemon(daemon: WireToDaemon, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job")
    daemon.prepare(str(tmp_path / "job"))
    (problem,) = daemon.until("refused")["problems"]
    assert problem == {"cause": "program-not-executable", "detail": f"{tmp_path}/job: not executable"}


def test_a_directory_that_may_be_missing_is_replaced_by_the_home(daemon: WireToDaemon) -> None:
    daemon.prepare("pwd", directory="/no/such", directory_required=False)
    (note,) = daemon.until("ready")["notes"]
    assert note == "no /no/such here: ranks start in the home directory"
    daemon.send("launch")
    daemon.until("finished")
    assert daemon.stdout_of(0) == os.fsencode(os.path.expanduser("~")) + b"\n"


NO_DIRECTORY = "the working directory /no/such is not there, and ranks would start in {home}"


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("./x", f"./x: not found; {NO_DIRECTORY}"),
        ("no-such", f"no-such: not found in PATH nor in {{home}}; {NO_DIRECTORY}"),
        ("/no/program", "/no/program: not found"),
    ],
)
def test_a_program_that_is_missing_with_its_directory_names_both(daemon: WireToDaemon, program: str, detail: str) -> None:
    daemon.prepare(program, directory="/no/such", directory_required=False)
    (problem,) = daemon.until("refused")["problems"]
    assert problem == {"cause": "program-missing", "detail": detail.format(home=os.path.expanduser("~"))}


def test_the_environment_of_a_rank_is_laid_in_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE", "STALE", "STALE_1", "SET", "GONE"):
        monkeypatch.setenv(name, "of the node")
    with WireToDaemon() as daemon:
        daemon.until("hello")
        daemon.run(
            *("env", "-0"),
            scrub=["STALE", "STALE_*"],
            defaults={"SET": "default", "UNSET": "default"},
            environment={"BOTH": "job", "JOB": "\udcff\n=", "STALE_1": "job"},
            unset=["GONE"],
            rank_environment={"BOTH": "rank"},
        )
        daemon.until("finished")
        found = dict(item.split(b"=", 1) for item in daemon.stdout_of(0).split(b"\0") if item)
    names = [b"NODE", b"STALE", b"STALE_1", b"SET", b"UNSET", b"GONE", b"BOTH", b"JOB"]
    assert [found.get(name) for name in names] == [
        b"of the node", None, b"job", b"of the node", b"default", None, b"rank", b"\xff\n=",
    ]  # fmt: skip


def test_a_rank_that_cannot_be_executed_is_reported_with_its_errno(daemon: WireToDaemon, tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "job").chmod(0o755)
    daemon.run(str(tmp_path / "job"), ranks=2)
    started = daemon.until("started")
    assert started["ranks"] == []
    assert [(rank, number) for rank, number, _ in started["failed"]] == [(0, errno.ENOEXEC), (1, errno.ENOEXEC)]
    daemon.until("finished")
    assert daemon.ended == {1, 2, 5, 6}


# Further worlds


def until_again(daemon: WireToDaemon, kind: str, times: int) -> dict[str, Any]:
    """Take events until a message of a type has come so often; return the last."""
    daemon.take_until(lambda: types(daemon).count(kind) == times, f"{times} messages {kind}")
    return [message for message in daemon.messages if message["type"] == kind][-1]


def test_a_world_is_added_beside_ranks_that_run(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path))
    (pid,) = rank_pids(tmp_path)
    daemon.prepare("echo", "second", first=1, ranks=2)
    until_again(daemon, "ready", 2)
    daemon.send("launch")
    until_again(daemon, "exited", 2)
    assert (daemon.stdout_of(1), daemon.stdout_of(2)) == (b"second\n", b"second\n")
    assert living(pid) and "finished" not in types(daemon)
    os.kill(pid, signal.SIGKILL)
    assert daemon.until("finished")["worlds"] == 2


def test_a_world_is_added_where_all_ranks_have_ended(daemon: WireToDaemon) -> None:
    daemon.run("true")
    assert daemon.until("finished")["worlds"] == 1
    daemon.prepare("echo", "second", first=1)
    until_again(daemon, "ready", 2)
    daemon.send("launch")
    assert until_again(daemon, "finished", 2)["worlds"] == 2
    assert daemon.stdout_of(1) == b"second\n"


def test_ranks_that_end_do_not_end_a_node_that_has_prepared_a_world(daemon: WireToDaemon) -> None:
    daemon.run("cat", stdin=True)
    daemon.prepare("echo", "second", first=1)
    until_again(daemon, "ready", 2)
    daemon.session.send_end(STDIN_0)
    daemon.flush()
    until_again(daemon, "exited", 1)
    pass_time(0.5)  # longer than the sweep waits for
    daemon.send("launch")
    assert until_again(daemon, "finished", 1)["worlds"] == 2
    assert daemon.stdout_of(1) == b"second\n"


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_a_world_may_be_cancelled(daemon: WireToDaemon, tmp_path: Path, ended: bool) -> None:
    daemon.run(*stay(tmp_path))
    (pid,) = rank_pids(tmp_path)
    if ended:
        os.kill(pid, signal.SIGKILL)
        daemon.until("finished")
    daemon.prepare("echo", "second", first=1)
    until_again(daemon, "ready", 2)
    daemon.send("cancel")
    daemon.send("launch")
    if not ended:
        ping(daemon)
        os.kill(pid, signal.SIGKILL)
    until_again(daemon, "finished", 2 if ended else 1)
    assert types(daemon).count("started") == 1 and daemon.stdout_of(1) == b""


def test_a_stop_comes_before_a_launch_that_is_on_its_way(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path))
    rank_pids(tmp_path)
    daemon.prepare("echo", "second", first=1)
    until_again(daemon, "ready", 2)
    daemon.send("stop", steps=[[signal.SIGTERM, 5.0]])
    daemon.send("launch")
    daemon.until("finished")
    assert types(daemon).count("started") == 1


@pytest.mark.parametrize("before", ["", "trap 'exit 143' TERM"], ids=["killed", "143"])
def test_a_sigterm_to_rank_and_daemon_is_reported_before_the_end_of_the_rank(
    daemon: WireToDaemon, tmp_path: Path, before: str
) -> None:
    daemon.run(*stay(tmp_path, before=before), ranks=2)
    ranks = rank_pids(tmp_path, 2)
    (pid,) = children(daemon.process.pid)
    for one in (*ranks, pid):  # in this order, as Slurm does it now and then
        os.kill(one, signal.SIGTERM)
    daemon.until("finished")
    assert types(daemon)[-4:] == ["terminated", "exited", "exited", "finished"]
    assert [end["stopped"] for end in daemon.messages if end["type"] == "exited"] == [True, True]


def test_a_sigterm_is_told_of_ranks_whose_leftovers_stay(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path), sweep=False)
    rank_pids(tmp_path)
    os.kill(children(daemon.process.pid)[0], signal.SIGTERM)
    daemon.until("terminated")
    daemon.send("stop", steps=[[signal.SIGINT, 5.0]])
    daemon.until("finished")


@pytest.mark.parametrize("shared", [False, True], ids=["this host", "the head too"])
def test_a_sigterm_to_independent_processes_is_their_own_affair(daemon: WireToDaemon, tmp_path: Path, shared: bool) -> None:
    daemon.run(*stay(tmp_path), ranks=2, sweep=False, independent=True)
    ranks = rank_pids(tmp_path, 2)
    node = children(daemon.process.pid)[0]
    if shared:
        os.kill(node, signal.SIGSTOP)  # it learns of the signals and of what the head does at the same time
    for one in (ranks[0], node):
        os.kill(one, signal.SIGTERM)
    if not shared:
        end = daemon.until("exited")
        assert (end["signal"], end["stopped"]) == (signal.SIGTERM, False)
    wait_until(lambda: not living(ranks[0]), "it is gone")
    daemon.send("stop", steps=[[signal.SIGTERM, 0.5]], shared=True)
    if shared:
        os.kill(node, signal.SIGCONT)
    daemon.until("finished")
    ends = [(end["signal"], end["stopped"]) for end in daemon.messages if end["type"] == "exited"]
    # The signal that all processes may have got comes only once.
    assert ends == [(signal.SIGTERM, shared), (signal.SIGKILL, True)]
    assert "terminated" not in types(daemon)


def test_what_a_command_has_started_may_end_between_two_looks() -> None:
    """The first look sees the group, which no event tells of; when the second one is made it has gone."""
    looks, timers = iter([True, False]), Timers()
    processes = SimpleNamespace(independent=True, ranks={}, stopping=True, ending=False)
    ended: list[str] = []
    node = SimpleNamespace(_state="running", _busy=lambda: next(looks), _processes=processes, _timers=timers)
    node._lifeline, node._sweep = SimpleNamespace(lost=False), lambda: ended.append("swept")
    node._after_exits = lambda: Daemon._after_exits(node)  # type: ignore[arg-type]
    node._after_exits()
    assert "group" in timers and not ended

    def look() -> bool:
        timers.run()
        return bool(ended)

    wait_until(look, "the second look is made")
    assert ended == ["swept"]


def test_a_sigterm_to_a_rank_alone_is_reported_with_the_time_of_its_end(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path))
    (rank,) = rank_pids(tmp_path)
    began = time.monotonic()
    os.kill(rank, signal.SIGTERM)
    end = daemon.until("exited")
    assert (end["signal"], end["stopped"]) == (signal.SIGTERM, False)
    assert began <= end["clock"] < time.monotonic() - 0.05, "not that of its telling"
    assert "terminated" not in types(daemon)


# Messages in the wrong state, and what is no message


WHOLE: dict[str, Any] = {"signal": 9, "kind": "pmi ", "members": [], "number": 1, "parts": [], "id": 1, "error": ""}
"""What makes any message whole."""


def test_messages_in_the_wrong_state_are_left_alone(daemon: WireToDaemon) -> None:
    for kind in ("launch", "cancel", "signal", "stop", "collective", "answer", "unknown", "hello"):
        daemon.send(kind, **WHOLE, steps=[])
    ping(daemon)
    assert types(daemon) == ["hello"]
    daemon.run("true")
    daemon.send("launch")
    daemon.until("finished")
    for kind in ("launch", "cancel", "signal", "stop", "collective", "answer"):
        daemon.send(kind, **WHOLE, steps=[[9, 0]])
    ping(daemon)
    assert types(daemon) == ["hello", "ready", "started", "exited", "finished"]


def hostile() -> dict[str, bytes]:
    header = struct.Struct(">HBxII")
    return {
        "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
        "zeros": bytes(4096),
        "unknown-kind": frame(77, 0, b"x"),
        "huge-control": header.pack(MAGIC, CONTROL, 0, 0xFFFFFFFF),
        "huge-data": header.pack(MAGIC, DATA, 0, 1 << 30),
        "no-json": frame(CONTROL, 0, b"{not json}"),
        "json-of-another-kind": frame(CONTROL, 0, b"[1,2]"),
        "deep-json": frame(CONTROL, 0, b"[" * 100_000),
        "no-type": frame(CONTROL, 0, b'{"kind":"stop"}'),
        "data-nobody-expects": frame(DATA, 4000, b"x"),
        "data-on-an-output": frame(DATA, STDOUT_0, b"x"),
        "end-nobody-expects": frame(END, 4000),
        "short-credit": frame(CREDIT, STDOUT_0, b"xx"),
        "long-ping": frame(PING, 0, bytes(9)),
        "signal-without-number": frame(CONTROL, 0, b'{"type":"signal"}'),
        "signal-of-no-number": frame(CONTROL, 0, b'{"type":"signal","signal":"KILL"}'),
        "stop-without-steps": frame(CONTROL, 0, b'{"type":"stop"}'),
        "stop-with-odd-steps": frame(CONTROL, 0, b'{"type":"stop","steps":[["x"]]}'),
    }


@pytest.mark.parametrize("data", list(hostile().values()), ids=list(hostile()))
def test_bytes_from_an_enemy_end_the_daemon_and_its_ranks(daemon: WireToDaemon, tmp_path: Path, data: bytes) -> None:
    daemon.run(*stay(tmp_path, before="trap '' HUP INT"), ranks=2)
    ranks = rank_pids(tmp_path, 2)
    daemon.write(data)
    code, words = daemon.end()
    assert not [pid for pid in ranks if living(pid)]
    assert "Traceback" not in words
    assert words.startswith("mpilaunch daemon: the head broke the protocol: ") and words.count("\n") == 1
    assert code == 0


@pytest.mark.parametrize(
    "broken", ["loop.Daemon._signal", "loop.Daemon._stop", "ranks.processes.Processes.signal", "mpi.wireup.WireUp.close_rank"]
)
def test_a_fault_of_the_daemon_is_reported_with_its_traceback_and_leaves_no_rank(broken: str, tmp_path: Path) -> None:
    owner, name = broken.rsplit(".", 1)
    module = owner.rsplit(".", 1)[0]
    break_it = f"import mpilaunch.daemon.{module} as m;m.{owner.rsplit('.')[-1]}.{name}=lambda *all, **more:1/0"
    with WireToDaemon(settings=break_it) as daemon:
        daemon.run(*stay(tmp_path))
        (rank,) = rank_pids(tmp_path)
        # Both in one write: the first may end the daemon.
        daemon.session.send({"type": "signal", "signal": signal.SIGCONT})
        daemon.send("stop", steps=[])
        fault = daemon.until("fault")["text"]
        code, words = daemon.end()
    what = "ZeroDivisionError: division by zero\n"
    assert fault.startswith("Traceback (most recent call last):\n") and fault.endswith(f"\n{what}")
    assert (code, words) == (70, f"mpilaunch daemon: internal error: {what}")
    assert not living(rank)


def test_each_message_of_the_head_has_a_handler(tmp_path: Path) -> None:
    code = (
        "import os; from mpilaunch.daemon import guard, loop, private_directory as place; from mpilaunch.wire import messages;"
        "pipe = os.pipe; wire, pulse = pipe(), guard.Pulse(pipe()[1]);"
        "daemon = loop.Daemon(*wire, pipe()[0], pulse, place.PrivateDirectory());"
        "print(daemon._handlers.keys() ^ messages.HEAD_SENDS.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize("message", [b'{"type":"prepare"}', b'{"type":"prepare","silence":"x"}'])
def test_a_prepare_that_does_not_fit_is_a_broken_protocol(daemon: WireToDaemon, message: bytes) -> None:
    daemon.write(frame(CONTROL, 0, message))
    code, words = daemon.end()
    assert code == 0 and words.startswith("mpilaunch daemon: the head broke the protocol: ") and "Traceback" not in words


# The loss of the head


@pytest.mark.parametrize("before", ["", "trap '' TERM INT HUP"], ids=["", "stubborn"])
def test_the_end_of_the_lifeline_ends_the_ranks(daemon: WireToDaemon, tmp_path: Path, before: str) -> None:
    daemon.run(*stay(tmp_path, before=before + "\nsetsid sleep 1000 &"), ranks=2)
    ranks = rank_pids(tmp_path, 2)
    daemon.close_wire()
    assert daemon.end() == (0, "")
    assert not [pid for pid in ranks if living(pid)]


def test_ranks_may_clean_up_when_the_head_is_gone(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before=f"trap 'echo bye > {tmp_path}/bye; exit 0' TERM"))
    rank_pids(tmp_path)
    daemon.close_wire()
    assert daemon.end() == (0, "")
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_a_silent_head_is_a_lost_head(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path), silence=1.0)
    (rank,) = rank_pids(tmp_path)
    for _ in range(4):
        pass_time(0.3)
        ping(daemon)
    assert living(rank), "every byte starts the clock again"
    last_heard = time.monotonic()
    daemon.end()
    assert not living(rank) and time.monotonic() - last_heard > 0.9


def test_a_head_that_stops_itself_may_be_silent(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path), silence=1.0)
    (rank,) = rank_pids(tmp_path)
    daemon.send("signal", signal=int(signal.SIGSTOP))
    wait_until(lambda: stopped(rank), "the rank is stopped")
    pass_time(1.5)
    assert stopped(rank)
    daemon.send("signal", signal=int(signal.SIGCONT))
    daemon.end()
    assert not living(rank)


def test_a_lost_head_before_the_launch_leaves_nothing(daemon: WireToDaemon) -> None:
    daemon.prepare("true")
    daemon.until("ready")
    daemon.close_wire()
    assert daemon.end() == (0, "")


def test_a_stopped_rank_is_killed_too(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path))
    (rank,) = rank_pids(tmp_path)
    os.kill(rank, signal.SIGSTOP)
    wait_until(lambda: stopped(rank), "the rank is stopped")
    daemon.close_wire()
    assert daemon.end() == (0, "") and not living(rank)


# Signals and stops


def test_a_signal_goes_to_the_whole_group_of_every_rank(daemon: WireToDaemon, tmp_path: Path) -> None:
    child = "(trap 'exit 5' USR1; echo up; while :; do sleep 0.01; done) &"
    daemon.run(*stay(tmp_path, before=f"{child} trap 'wait; exit 0' USR1"), ranks=2)
    rank_pids(tmp_path, 2)
    daemon.take_until(lambda: daemon.stdout_of(0) == daemon.stdout_of(1) == b"up\n", "the children are up")
    daemon.send("signal", signal=int(signal.SIGUSR1))
    assert daemon.until("finished")["swept"] == []
    assert exits(daemon) == {0: (0, None), 1: (0, None)}


def test_a_stop_goes_through_its_steps_and_kills_at_last(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before="trap 'echo INT' INT; trap 'echo TERM' TERM"), ranks=2)
    rank_pids(tmp_path, 2)
    began = time.monotonic()
    daemon.send("stop", steps=[[int(signal.SIGINT), 0.3], [int(signal.SIGTERM), 0.3]])
    daemon.until("finished")
    assert 0.6 <= time.monotonic() - began < 5
    assert exits(daemon) == {0: (None, 9), 1: (None, 9)}
    assert daemon.stdout_of(0) == daemon.stdout_of(1) == b"INT\nTERM\n"


def test_a_stop_ends_early_when_the_ranks_do(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before="trap 'exit 3' TERM"), ranks=2)
    rank_pids(tmp_path, 2)
    began = time.monotonic()
    daemon.send("stop", steps=[[int(signal.SIGTERM), 60.0]])
    daemon.until("finished")
    assert time.monotonic() - began < 10
    assert exits(daemon) == {0: (3, None), 1: (3, None)}


def test_a_second_stop_replaces_the_first(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before="trap 'echo TERM' TERM"))
    rank_pids(tmp_path)
    daemon.send("stop", steps=[[int(signal.SIGTERM), 60.0]])
    daemon.take_until(lambda: daemon.stdout_of(0) == b"TERM\n", "the rank has been told")
    daemon.send("stop", steps=[])
    daemon.until("finished")
    assert exits(daemon) == {0: (None, 9)}


# Streams


def test_a_rank_that_writes_without_bound_stops_at_its_window(daemon: WireToDaemon) -> None:
    window = 100_000
    daemon.run("yes", window=window)
    daemon.take_until(lambda: len(daemon.stdout_of(0)) == window, "the window is full")
    (pid,) = (pid for _, pid, _ in daemon.until("started")["ranks"])
    # It has filled its pipe and sleeps in a write; pings still pass, and bring nothing more of it.
    wait_until(lambda: state(pid) == "S", "it waits")
    ping(daemon)
    assert len(daemon.stdout_of(0)) == window
    daemon.session.grant(STDOUT_0, 5_000)
    daemon.flush()
    daemon.take_until(lambda: len(daemon.stdout_of(0)) == window + 5_000, "the new credit is used")
    assert daemon.stdout_of(0) == b"y\n" * ((window + 5_000) // 2)
    daemon.send("stop", steps=[])
    daemon.take_until(lambda: 0 in exits(daemon), "it is killed")


def test_one_chatty_rank_holds_up_no_other(daemon: WireToDaemon) -> None:
    program = "[ $RANK = 0 ] && exec yes; i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done"
    daemon.run("sh", "-c", program, ranks=2, window=2_000)
    daemon.take_until(lambda: stream_channel(1, STDOUT) in daemon.ended, "the quiet rank is through")
    assert daemon.stdout_of(1).split() == [b"%d" % number for number in range(200)]
    daemon.send("stop", steps=[])
    daemon.take_until(lambda: len(exits(daemon)) == 2, "both have ended")


def test_a_wire_that_nobody_reads_stops_the_ranks_and_does_not_grow_the_daemon(daemon: WireToDaemon) -> None:
    ranks = 64
    daemon.run("yes", ranks=ranks, window=4 << 20)
    daemon_pid = children(daemon.process.pid)[0]
    pids = [pid for _, pid, _ in daemon.until("started")["ranks"]]

    def busy() -> list[int]:
        return [pid for pid in (*pids, daemon_pid) if state(pid) == "R"]

    quiet_since = time.monotonic()

    def quiet() -> bool:
        nonlocal quiet_since
        if busy():
            quiet_since = time.monotonic()
        return time.monotonic() - quiet_since > 0.3

    wait_until(quiet, "everybody waits")
    # Windows of 256 MiB were given.
    assert peak_memory(daemon_pid) < 64 << 20
    daemon.close_wire()
    daemon.end()


def test_stdin_arrives_and_ends(daemon: WireToDaemon) -> None:
    data = bytes(range(256)) * 4000
    daemon.run("sha256sum", stdin=True, window=300_000)
    left = memoryview(data)
    while left:
        size = min(daemon.session.credit(STDIN_0), len(left), 100_000)
        if size:
            daemon.session.send_data(STDIN_0, bytes(left[:size]))
            left = left[size:]
            daemon.flush()
        else:
            assert daemon.take()
    daemon.session.send_end(STDIN_0)
    daemon.flush()
    daemon.until("finished")
    assert daemon.stdout_of(0).split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert daemon.until("exited")["stdin_read"] == len(data)


@pytest.mark.parametrize("ended", [True, False])
def test_what_a_rank_has_read_of_its_stdin_is_reported(daemon: WireToDaemon, ended: bool) -> None:
    daemon.run("sh", "-c", "read one; read two; echo $one $two; sleep 0.1", stdin=True)
    daemon.session.send_data(STDIN_0, b"1\n22\n333\n4444\n")
    if ended:
        daemon.session.send_end(STDIN_0)
    daemon.flush()
    assert daemon.until("exited")["stdin_read"] == len(b"1\n22\n")
    daemon.until("finished")
    assert daemon.stdout_of(0) == b"1 22\n"


def test_a_rank_that_closes_its_stdin_takes_no_more_and_lives_on(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before="exec < /dev/null"), stdin=True, window=200_000)
    (rank,) = rank_pids(tmp_path)
    daemon.session.send_data(STDIN_0, bytes(200_000))
    daemon.flush()
    ping(daemon)
    assert living(rank) and types(daemon) == ["hello", "ready", "started"]
    daemon.send("stop", steps=[])
    assert daemon.until("exited")["signal"] == 9


def test_stderr_merged_on_the_node_keeps_its_place(daemon: WireToDaemon) -> None:
    daemon.prepare("sh", "-c", "for i in 1 2 3; do echo out; echo err >&2; done", merge_stderr=True)
    daemon.until("ready")
    daemon.send("launch")
    daemon.until("finished")
    assert daemon.output == {STDOUT_0: b"out\nerr\n" * 3}


def test_what_a_rank_leaves_is_swept_and_named(daemon: WireToDaemon) -> None:
    daemon.run("sh", "-c", "sleep 1000 & setsid sleep 1000 > /dev/null 2>&1 & exit 0")
    swept = daemon.until("finished")["swept"]
    assert [name for _, name in swept] == ["sleep", "sleep"]
    assert not [pid for pid, _ in swept if living(pid)]
    assert daemon.ended == {STDOUT_0, STDERR_0}


# The guard


def test_the_guard_kills_what_a_dead_daemon_left(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before="trap '' TERM; setsid sleep 1000 &"), ranks=2)
    ranks = rank_pids(tmp_path, 2)
    (pid,) = children(daemon.process.pid)
    os.kill(pid, signal.SIGKILL)
    assert daemon.end() == (137, "")
    assert not [pid for pid in ranks if living(pid)]


def test_the_guard_kills_a_frozen_daemon_with_all_that_it_started(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path, before="trap '' TERM; setsid sleep 1000 &"), ranks=2, pulse=1.0)
    ranks = rank_pids(tmp_path, 2)
    (pid,) = children(daemon.process.pid)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    code, words = daemon.end()
    assert 0.7 < time.monotonic() - began < 5
    assert code == 137
    assert words == "mpilaunch: the daemon did not move for 1 s, and was killed with its ranks: was it stopped?\n"
    assert not [one for one in (*ranks, pid) if living(one)]


def test_a_daemon_that_only_waits_shows_its_pulse(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path), pulse=0.3)
    (rank,) = rank_pids(tmp_path)
    # A head that has stopped itself says nothing at all.
    daemon.send("signal", signal=int(signal.SIGSTOP))
    pass_time(1.5)
    assert living(rank)
    ping(daemon)
    daemon.send("stop", steps=[])
    daemon.until("finished")


def test_a_node_that_was_frozen_as_a_whole_continues(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path), pulse=0.6)
    (rank,) = rank_pids(tmp_path)
    guard, pid = daemon.process.pid, children(daemon.process.pid)[0]
    for one in (guard, pid):
        os.kill(one, signal.SIGSTOP)
    pass_time(1.5)
    for one in (guard, pid):
        os.kill(one, signal.SIGCONT)
    pass_time(1.0)
    ping(daemon)
    assert living(rank)
    daemon.send("stop", steps=[])
    daemon.until("finished")


def test_a_daemon_without_its_guard_ends_its_ranks(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*stay(tmp_path), ranks=2)
    ranks = rank_pids(tmp_path, 2)
    (pid,) = children(daemon.process.pid)
    daemon.process.kill()
    wait_gone(*ranks, pid, limit=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_the_guard_outlives_the_signals_of_an_agent(daemon: WireToDaemon, tmp_path: Path, number: signal.Signals) -> None:
    daemon.run(*stay(tmp_path))
    (rank,) = rank_pids(tmp_path)
    daemon.process.send_signal(number)
    ping(daemon)
    assert living(rank) and daemon.process.poll() is None


# Independent commands, whose leftovers are nobody's to kill

LEAVES = "sleep 60 > /dev/null 2>&1 & echo $!; setsid sleep 60 > /dev/null 2>&1 & echo $!"


def test_what_an_independent_command_leaves_running_stays(daemon: WireToDaemon) -> None:
    daemon.run("sh", "-c", LEAVES, sweep=False)
    try:
        assert daemon.until("finished")["swept"] == []
        left = [int(pid) for pid in daemon.stdout_of(0).decode().split()]
        daemon.send("release")
        daemon.close_wire()
        assert daemon.process.wait(10) == 0
        assert len(left) == 2 and all(map(living, left))
    finally:
        end_all(daemon.stdout_of(0).decode())


def test_the_output_of_what_an_independent_command_leaves_running_is_awaited(daemon: WireToDaemon) -> None:
    daemon.run("sh", "-c", "(sleep 1; echo late) & echo $!", sweep=False, drain=0)
    daemon.until("finished")
    assert daemon.stdout_of(0).decode().split()[1:] == ["late"]


def test_output_that_an_independent_leftover_holds_is_read_as_long_as_wanted(daemon: WireToDaemon) -> None:
    daemon.run("sh", "-c", "sleep 60 & echo $!", sweep=False, drain=0.2)
    try:
        assert daemon.until("finished")["swept"] == []
        assert "holds its output open" in daemon.until("note")["text"]
        assert living(int(daemon.stdout_of(0)))
    finally:
        end_all(daemon.stdout_of(0).decode())


def test_a_stop_ends_the_wait_for_output_without_a_limit(daemon: WireToDaemon) -> None:
    daemon.run("sh", "-c", "sleep 60 & echo $!", sweep=False, drain=0)
    try:
        daemon.until("exited")
        daemon.send("stop", steps=[[signal.SIGTERM, 0.1]])
        daemon.until("finished")
    finally:
        end_all(daemon.stdout_of(0).decode())


@pytest.mark.parametrize("killed", ["daemon", "guard"])
def test_a_sudden_end_leaves_independent_leftovers_alone(daemon: WireToDaemon, killed: str) -> None:
    daemon.run("sh", "-c", LEAVES, sweep=False)
    try:
        daemon.until("finished")
        # First, since the guard may hear late that it adopts nobody, and has leftovers among its children then.
        pid = children(daemon.process.pid)[0]
        os.kill(pid if killed == "daemon" else daemon.process.pid, signal.SIGKILL)
        wait_until(lambda: not living(pid), "the daemon is gone", limit=5)
        daemon.process.wait(5)
        assert all(map(living, [int(left) for left in daemon.stdout_of(0).decode().split()]))
    finally:
        end_all(daemon.stdout_of(0).decode())


def test_a_stop_ends_what_outlives_the_leader_of_an_independent_command(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run("sh", "-c", "(trap '' TERM; echo up; while :; do sleep 0.1; done) & echo $!; wait", sweep=False)
    daemon.take_until(lambda: len(daemon.stdout_of(0).split()) == 2, "the command is up")
    (deaf,) = (int(word) for word in daemon.stdout_of(0).split() if word.isdigit())
    daemon.send("stop", steps=[[signal.SIGTERM, 0.3]])
    daemon.until("finished")
    wait_until(lambda: not living(deaf), "it is gone", limit=5)


def end_all(pids: str) -> None:
    for pid in pids.split():
        os.kill(int(pid), signal.SIGKILL)
        wait_gone(int(pid), limit=5)


# What cannot be killed


def test_a_group_of_ended_processes_does_not_live() -> None:
    """An init that collects no children, as in many containers, must not hold up the end of a command."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        try:
            assert reaper.group_lives(process.pid)
        finally:
            process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not reaper.group_lives(process.pid)
    assert not reaper.group_lives(process.pid)


def test_what_cannot_be_killed_is_left_and_not_called_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "SWEEP_SECONDS", 0.05)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with monkeypatch.context() as patched:
                patched.setattr(os, "kill", lambda pid, number: None)
                assert process.pid not in dict(reaper.kill_descendants())
            processes = Processes(Timers(), lambda pids: None, lambda: None)
            processes.started(process.pid, 0)
            monkeypatch.setattr(reaper, "living_groups", lambda groups: groups)
            with monkeypatch.context() as patched:
                patched.setattr(reaper, "signal_group", lambda pid, number: None)
                processes.end([])
            assert processes.ending and not processes.signals_left
            processes.forget_groups()
            assert not processes.ending
        finally:
            process.kill()
