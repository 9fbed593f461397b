"""Processes of Python are asked for their stacks by SIGABRT, and no other process gets it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from mpilaunch.daemon.observe import stacks
from tests.support.launching import wait_until

STAYS = "import time; print('up', flush=True); time.sleep(60)"
HANDLES = "import signal; signal.signal(signal.SIGTERM, lambda *_: None); " + STAYS


def end_of(argv: Sequence[str], *, enabled: bool = True) -> tuple[bool, int, bytes]:
    """Return whether a process was asked, the signal that ended it, and its stderr; one that was not asked is killed."""
    environ = {**os.environ, "PYTHONFAULTHANDLER": "1" if enabled else ""}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (1 << 20, 1 << 20))
        asked = stacks.ask([process.pid])
        if not asked:
            process.kill()
        _, errors = process.communicate(timeout=60)
    return asked, -process.returncode, errors


def test_python_writes_its_stacks_and_leaves_no_core_file() -> None:
    asked, number, errors = end_of([sys.executable, "-c", STAYS])
    assert (asked, number) == (True, signal.SIGABRT)
    assert b"Current thread" in errors and b'File "<string>", line 1 in <module>' in errors


@pytest.mark.parametrize(
    ("argv", "enabled"),
    [
        ([sys.executable, "-c", STAYS], False),
        ([sys.executable, "-c", HANDLES], True),
        (["sh", "-c", "echo up; exec sleep 60"], True),
    ],
    ids=["without the variable", "that handles SIGTERM", "of another program"],
)
def test_a_process_is_left_alone(argv: list[str], enabled: bool) -> None:
    assert end_of(argv, enabled=enabled) == (False, signal.SIGKILL, b"")


def test_a_process_that_has_gone_is_no_error() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{process.pid}"), "it is gone")
    assert not stacks.ask([process.pid])
