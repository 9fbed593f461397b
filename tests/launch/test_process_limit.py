"""Where the limit of processes is reached, a launch ends with an error that names the limit, or works: it never hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT
from tests.support.launching import MPILAUNCH, script

USER = 61_234
"""A user whose processes are only those of these tests: the limit counts all processes of a user, and not at all for root."""
SEE_OUR_FILES = "+dac_override,+dac_read_search"
SECONDS = 45
NODE_AGENT = '#!/bin/sh\nshift\nexec /bin/sh -c "$1"\n'


def launch_limited(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mpilaunch as a plain user who may have `limit` processes and threads."""
    user = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    user += [f"--inh-caps={SEE_OUR_FILES}", f"--ambient-caps={SEE_OUR_FILES}"]
    command = ["setpriv", *user, "prlimit", f"--nproc={limit}", *MPILAUNCH, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/agents", "HOME": "/"}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """An agent whose nodes are this machine."""
    path = script(tmp_path / "agent", NODE_AGENT)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.is_relative_to("/tmp/"):
            folder.chmod(0o755)
    return f"{path} {{host}} {{command}}"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 8])
def test_a_launch_without_processes_ends_with_the_limit(agent: str, limit: int) -> None:
    done = launch_limited(limit, "--agent", agent, "--python", sys.executable, "-H", "a:2,b:2", "sh", "-c", "echo up")
    assert "Traceback" not in done.stderr and "internal" not in done.stderr, done.stderr
    if done.returncode:
        assert "error[" in done.stderr and "hint: " in done.stderr, done.stderr
    else:
        assert done.stdout == "up\n" * 4
    if limit <= 3:
        assert "error[start-process-limit]: " in done.stderr, done.stderr
        assert limit > 2 or f"the limit of this user is {limit}" in done.stderr, done.stderr
