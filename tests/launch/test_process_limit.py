"""Where the limit of processes is reached, a launch ends with an error that names the limit, or works: it never hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT
from tests.support.launching import MPILAUNCH, environment, script, wait_until

pytestmark = pytest.mark.testbed

USER = 61_234
"""A user whose processes are only those of these tests: the limit counts all processes of a user, and not at all for root."""
SEE_OUR_FILES = "+dac_override,+dac_read_search"
SECONDS = 45
NODE_AGENT = '#!/bin/sh\nshift\nexec /bin/sh -c "$1"\n'


def launch_limited(limit: int, *arguments: str, cache: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    """Run mpilaunch as a plain user who may have `limit` processes and threads."""
    user = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    user += [f"--inh-caps={SEE_OUR_FILES}", f"--ambient-caps={SEE_OUR_FILES}"]
    command = ["setpriv", *user, "prlimit", f"--nproc={limit}", *MPILAUNCH, *arguments]
    variables = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/agents", "HOME": "/"}
    variables |= {"XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)


def check_limited(done: subprocess.CompletedProcess[str]) -> None:
    """A launch that could not begin names the limit; nothing else is written."""
    assert "Traceback" not in done.stderr and "internal" not in done.stderr, done.stderr
    assert done.returncode == 1 and "error[start-process-limit]: " in done.stderr, done.stderr
    assert "hint: raise it: ulimit -u" in done.stderr, done.stderr


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """An agent whose nodes are this machine."""
    path = script(tmp_path / "agent", NODE_AGENT)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and Path("/tmp") in folder.parents:  # /tmp itself keeps its sticky bit
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


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 8])
def test_a_survey_without_processes_ends_with_the_limit(agent: str, limit: int) -> None:
    words = ("--agent", agent, "--python", sys.executable, "-H", "a:2,b:2", "--map-by", "ppr:1:core")
    done = launch_limited(limit, *words, "sh", "-c", "echo up")
    if limit <= 2:
        check_limited(done)
    else:
        assert "Traceback" not in done.stderr and "internal" not in done.stderr, done.stderr
        assert done.returncode == 0 or ("error[" in done.stderr and "hint: " in done.stderr), done.stderr


@pytest.mark.parametrize("agent_name", ["ssh", "openssh"])
@pytest.mark.parametrize(
    ("verb", "words"),
    [("run", ["--map-by", "ppr:1:core", "true"]), ("run", ["true"]), ("up", [])],
    ids=["survey", "launch", "up"],
)
def test_a_name_that_no_thread_can_look_up_is_the_limit(verb: str, words: list[str], agent_name: str, tmp_path: Path) -> None:
    done = launch_limited(1, verb, "--agent", agent_name, "-H", "a.invalid,b.invalid", *words, cache=tmp_path)
    check_limited(done)


def test_a_keeper_that_can_start_no_thread_names_the_limit(tmp_path: Path) -> None:
    check_limited(done := launch_limited(2, "up", "--agent", "ssh", "-H", "a.invalid", cache=tmp_path))
    assert "no thread can be started" in done.stderr


def test_down_needs_no_thread(tmp_path: Path) -> None:
    done = launch_limited(1, "down", cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "note: no standby daemon was running\n")


def test_connectors_that_cannot_be_started_are_the_limit() -> None:
    check_limited(launch_limited(1, "--agent", "ssh", "-H", "node[001-100].invalid", "true"))


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group that may have 4 processes and threads, of the version that this machine has."""
    top = Path("/sys/fs/cgroup/pids")
    if not top.is_dir():
        top = Path("/sys/fs/cgroup")
        (top / "cgroup.subtree_control").write_text("+pids")
    group = top / f"mpilaunch-test-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        (group / "pids.max").write_text("4")
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def test_a_control_group_without_processes_is_named(small_group: Path, agent: str) -> None:
    words = ("--agent", agent, "--python", sys.executable, "-H", "a:2,b:2", "sh", "-c", "echo up")
    join = f'echo $$ >{small_group}/cgroup.procs; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", join, "sh", *MPILAUNCH, *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    check_limited(done)
    assert "the control group is 4" in done.stderr, done.stderr
