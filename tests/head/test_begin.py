"""The first step of a launch: daemons start before the job is made; threads must not delay the exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.agent import AgentOptions
from mpilaunch.head.nodes.bundle import LOCAL_BOOT
from mpilaunch_agents import child
from mpilaunch_agents.local import LocalAgent
from tests.support.launching import children, finish, launch, launching, wait_for_files
from tests.support.paths import ROOT


@pytest.mark.parametrize("words", [("--map-by", "ppr:1:node", "-np", "3", "true"), ("--map-by", "nonsense", "true")])
def test_a_usage_error_leaves_no_prestarted_daemon(words: tuple[str, ...]) -> None:
    done = launch(*words)
    assert done.code == 2
    assert done.words.startswith("error[")


def test_a_prestarted_daemon_is_dismissed_if_other_nodes_are_chosen(tmp_path: Path) -> None:
    env: dict[str, str | bytes] = {"SLURM_JOB_NODELIST": "elsewhere", "SLURM_TASKS_PER_NODE": "1"}
    program = f"echo up >{tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    with launching("--remote-agent", "sh -c 'eval \"exec $0\"' {command}", "sh", "-c", program, env=env) as job:
        wait_for_files(tmp_path / "up")
        (only,) = children(job.pid)
        assert LOCAL_BOOT.encode() not in Path(f"/proc/{only}/cmdline").read_bytes()
        (tmp_path / "go").touch()
        assert finish(job).code == 0


def test_a_dismissed_daemon_ends_even_if_it_ignores_signals() -> None:
    agent = LocalAgent(AgentOptions())
    agent.begin(["sh", "-c", "trap '' TERM HUP; sleep 100 & wait"])
    agent.dismiss()
    agent.begin(["no-such-program-anywhere"], ["neither-this-one"])
    agent.dismiss()


def test_a_daemon_that_cannot_be_killed_delays_no_dismissal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "DISMISS_SECONDS", 0.1)
    monkeypatch.setattr(child, "KILL_SECONDS", 0.1)
    agent = LocalAgent(AgentOptions())
    before = set(children(os.getpid()))
    agent.begin(["sleep", "60"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda pid, number: None)
        agent.dismiss()
    (left,) = set(children(os.getpid())) - before
    os.kill(left, signal.SIGKILL)
    os.waitpid(left, 0)


THREADS = """
import asyncio, sys, time
from mpilaunch.head.threads import DaemonThreadExecutor

def fail():
    raise ValueError("as it should")

async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonThreadExecutor())
    print(await asyncio.gather(*(loop.run_in_executor(None, pow, number, 2) for number in range(200))) ==
          [number**2 for number in range(200)])
    try:
        await loop.run_in_executor(None, fail)
    except ValueError as error:
        print(error)
    loop.run_in_executor(None, time.sleep, 100)
    await asyncio.sleep(0.1)

asyncio.run(main())
sys.exit(7)
"""


def test_neither_the_loop_nor_the_exit_waits_for_a_call_that_blocks() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "True\nas it should\n", "")


@pytest.mark.parametrize(("words", "code"), [("--version", 74), ("--hlp", 2)])
def test_output_that_cannot_be_written_leaves_our_exit_code_and_not_that_of_python(words: str, code: int) -> None:
    command = f"exec {sys.executable} -m mpilaunch {words} >/dev/full 2>/dev/full"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=env, timeout=20, check=False)
    assert done.returncode == code
