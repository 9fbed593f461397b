"""The agent `gridengine` with a stand-in for qrsh, which runs tasks here; tests/grid_engine has the real one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mpilaunch.agent import Agent, AgentFailure, AgentOptions
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import AgentConformance, Recorder, with_agent
from mpilaunch_agents.registry import load
from tests.support.launching import launch, script

QRSH = r"""#!/bin/sh
[ "$1" = -inherit ] || exit 2
case $2 in
unknown) echo "error: executing task of job $JOB_ID failed: can't resolve host name" >&2; exit 1 ;;
loose) echo "error: executing task of job 7 failed: daemon on \"$2\" didn't accept task" >&2; exit 1 ;;
ended) exit 3 ;;
talks) echo first >&2; echo who knows >&2; exit 1 ;;
noisy) echo words of a profile; echo more words >&2 ;;
slow) sleep 60 ;;
esac
exec sh -c "$3"
"""
NAMES = ("g01", "unknown", "loose", "ended", "talks", "noisy", "slow")
NODES = {name: Node(index, name, (), "gridengine") for index, name in enumerate(NAMES)}


@pytest.fixture(autouse=True)
def _qrsh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "qrsh", QRSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("JOB_ID", "7")


class TestTasks(AgentConformance):
    node = NODES["g01"]
    unreachable = NODES["unknown"]
    python = sys.executable

    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def make_agent(self) -> Agent:
        return load("gridengine", AgentOptions())

    async def refused(self, agent: Agent, name: str) -> tuple[str, str]:
        with pytest.raises(AgentFailure) as caught:
            await agent.open(NODES[name], ["true"], Recorder())
        return caught.value.cause, caught.value.detail

    @with_agent
    async def test_a_task_that_is_not_accepted_tells_what_it_takes(self, agent: Agent) -> None:
        cause, detail = await self.refused(agent, "loose")
        assert cause == "agent-failed" and "control_slaves TRUE" in detail

    @with_agent
    async def test_a_qrsh_that_ends_before_its_task_is_a_failure(self, agent: Agent) -> None:
        assert await self.refused(agent, "ended") == ("agent-failed", "qrsh has ended with code 3")
        assert await self.refused(agent, "talks") == ("agent-failed", "who knows")

    @with_agent
    async def test_what_a_profile_prints_is_no_output_of_the_command(self, agent: Agent) -> None:
        recorder = Recorder()
        await agent.open(NODES["noisy"], ["echo", "a  b"], recorder)
        assert (await recorder.ended()).exit_code == 0
        assert bytes(recorder.stdout) == b"a  b\n" and bytes(recorder.stderr) == b"more words\n"

    @with_agent
    async def test_a_start_that_takes_too_long_is_ended(self, agent: Agent) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(agent.open(NODES["slow"], ["true"], Recorder()), 0.2)

    @with_agent
    async def test_there_must_be_a_job(self, agent: Agent) -> None:
        self.patch.delenv("JOB_ID")
        assert await self.refused(agent, "g01") == ("outside-job", "JOB_ID is not set")


def test_a_job_uses_the_agent_where_qrsh_is_installed(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n01 2 all.q@n01 UNDEFINED\nn02 1 all.q@n02 UNDEFINED\n")
    done = launch("sh", "-c", "echo $RANK", env={"PE_HOSTFILE": str(tmp_path / "hosts"), "JOB_ID": "7"})
    assert (done.code, done.err, done.lines) == (0, b"", ["0", "1", "2"])
