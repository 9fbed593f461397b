"""Debuggers that read C stacks: those that are missing, slow or mean harm, and their end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.daemon.observe import native
from mpilaunch.daemon.observe.native import Backtraces, reason_in
from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.daemon.ranks import reaper
from tests.support.launching import wait_until
from tests.support.processes import everything, ours


def test_the_reason_names_what_the_kernel_forbids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "warning: process 7 is already traced by process 5\nptrace: Operation not permitted.\n"
    (tmp_path / "scope").write_text("1\n")
    for path, end in ((tmp_path / "none", ""), (tmp_path / "scope", f"; {tmp_path}/scope is 1")):
        monkeypatch.setattr(native, "SCOPE", str(path))
        assert reason_in(text) == "gdb: ptrace: Operation not permitted" + end
        assert reason_in("nothing") == "gdb found none"


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def told(pids: dict[int, int | None], folder: Path, gdb: str | None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the answers where this script is gdb, None for no gdb."""
    if gdb is not None:
        (folder / "gdb").write_text(f"#!/bin/sh\n{gdb}\n")
        (folder / "gdb").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/bin" if gdb is not None else str(folder))
    before = everything()
    poller, timers, sent = Poller(), Timers(), list[dict[str, Any]]()
    backtraces = Backtraces(poller, timers, sent.append)
    backtraces.begin(pids)
    until = time.monotonic() + 20
    while len(sent) < len(pids) and time.monotonic() < until:
        poller.run(timers.seconds_left())
        timers.run()
        reaper.reap()
    backtraces.close()
    wait_until(lambda: not (reaper.reap() or ours(before)), "no debugger is left")
    return sent


STACK = """echo 'Thread 1 (LWP 1 "x"):'; echo '#0  main () at a.c:7'"""


def test_many_ranks_are_read_a_few_at_a_time(tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = f"[ $(ls {tmp_path}/on | wc -l) -le {native.MOST_AT_ONCE} ] || echo too many >> {tmp_path}/wrong"
    (tmp_path / "on").mkdir()
    script = f"touch {tmp_path}/on/$$; {count}; sleep 0.1; rm {tmp_path}/on/$$; {STACK}"
    answers = told(dict.fromkeys(range(10), sleeper), tmp_path, script, monkeypatch)
    assert sorted(answer["rank"] for answer in answers) == list(range(10)) and not (tmp_path / "wrong").exists()
    assert all("\n#0  main () at a.c:7\n" in each["output"] and each["program"].endswith("/sleep") for each in answers)


@pytest.mark.parametrize(
    ("gdb", "error"),
    [
        (None, "there is no gdb"),
        ("exit 1", "gdb found none"),
        ("echo 'ptrace: No such process.' >&2", "gdb: ptrace: No such process"),
        ("trap '' TERM INT HUP; while :; do sleep 0.1; done", "gdb did not end within 1 s"),
        ("exec /bin/cat /dev/zero", "gdb found none"),
    ],
    ids=["none", "silent", "refused", "endless", "flood"],
)
def test_a_debugger_that_tells_nothing_is_reported_and_left(
    gdb: str | None, error: str, tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error.endswith("within 1 s"):
        monkeypatch.setattr(native, "SECONDS", 1.0)
    (answer,) = told({3: sleeper}, tmp_path, gdb, monkeypatch)
    assert (answer["rank"], answer["output"]) == (3, "") and answer["error"].startswith(error)


def test_ranks_that_the_time_does_not_reach_and_ended_ones_are_reported(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "SECONDS", 0.5)
    ranks = {**dict.fromkeys(range(6), sleeper), 6: None}
    answers = {each["rank"]: each["error"] for each in told(ranks, tmp_path, "exec sleep 30", monkeypatch)}
    assert [answers[rank].split()[0] for rank in range(6)] == ["gdb"] * 4 + ["the"] * 2
    answers = {each["rank"]: each["error"] for each in told({6: None}, tmp_path, STACK, monkeypatch)}
    assert answers == {6: "it has ended"}


def test_no_start_file_of_the_user_is_run(tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://localhost")
    script = f"env > {tmp_path}/environ; printf '%s\\n' \"$@\" > {tmp_path}/words"
    told({0: sleeper}, tmp_path, script, monkeypatch)
    environ, words = ((tmp_path / name).read_text().splitlines() for name in ("environ", "words"))
    assert not [line for line in environ if line.startswith(("PYTHON", "DEBUGINFOD"))] and "LC_ALL=C" in environ
    assert words[:2] == ["-nx", "-batch"] and words[-2:] == ["-p", str(sleeper)]
