"""What the kernel tells of ranks that seem to hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from mpilaunch.daemon.observe.kernel import Look
from tests.support.launching import state, wait_until


@contextlib.contextmanager
def ranks(*commands: str) -> Iterator[dict[int, int]]:
    """Run commands as ranks 0, 1, ...: process id -> rank."""
    with contextlib.ExitStack() as stack:
        pids: dict[int, int] = {}
        for rank, command in enumerate(commands):
            process = stack.enter_context(subprocess.Popen(["sh", "-c", command], start_new_session=True))
            stack.callback(end, process.pid)
            pids[process.pid] = rank
        yield pids


def end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def test_each_rank_is_described_by_what_its_process_does() -> None:
    with ranks("exec sleep 60", "while :; do :; done", "kill -STOP $$; sleep 60", "sleep 60; true") as pids:
        sleeps, spins, stops, shell = pids
        wait_until(lambda: state(stops) == "T" and state(sleeps) == "S", "they are there")
        wait_until(lambda: Look(pids).again()[3][1] != shell, "the shell waits for its child")
        look = Look(pids)
        time.sleep(0.5)
        rows = look.again()
    assert [(row[0], row[2]) for row in rows] == [(0, "S"), (1, "R"), (2, "T"), (3, "S")]
    assert [row[1] for row in rows[:3]] == [sleeps, spins, stops], "a shell that waits is passed over, and only that"
    assert rows[1][3] > 0.1 and all(row[3] < 0.1 for row in (rows[0], rows[2], rows[3]))
    assert "sleep" in rows[0][4] and "sleep" in rows[3][4] and rows[1][4] == ""
    assert [row[5] for row in rows] == [1, 1, 1, 2]
    assert rows[1][6] > 0.1 > rows[0][6] and all(row[7] > 1 << 16 for row in rows)


def test_a_rank_that_has_gone_is_left_out() -> None:
    with ranks("exec sleep 60", "exec sleep 60") as pids:
        look = Look(pids)
        first, second = pids
        wait_until(lambda: state(second) == "S", "it sleeps")
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert [(row[1], row[2]) for row in look.again()] == [(first, "Z"), (second, "S")]
        os.waitpid(first, 0)
        assert [row[1] for row in look.again()] == [second]


def test_what_the_kernel_does_not_show_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpilaunch.daemon.ranks.reaper.process_file", lambda pid, name: b"")
    assert Look({os.getpid(): 0}).again() == []
