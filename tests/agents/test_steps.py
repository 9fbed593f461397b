"""The agent `slurm` with a stand-in for srun, which runs the tasks of a step here; tests/slurm has the real one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mpilaunch.agent import Agent, AgentOptions
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.batch import steps
from mpilaunch_agents.child import find_program
from mpilaunch_agents.conformance import AgentConformance, Recorder, with_agent
from mpilaunch_agents.registry import load
from tests.support.launching import launch, script

SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, threading

words = sys.argv[1:]
nodes = next(word.partition("=")[2] for word in words if word.startswith("--nodelist=")).split(",")
command = words[words.index(next(word for word in words if not word.startswith("--"))) :]
with open(os.path.join(os.path.dirname(__file__), "steps"), "a") as file:
    file.write(" ".join(nodes) + "\\n")
if "unknown" in nodes:
    sys.exit("srun: error: Unable to create step for job 7: Requested node configuration is not available")
if "gone" in nodes:
    sys.exit("srun: error: Unable to confirm allocation for job 7: Invalid job id specified")
lines = sys.stdin.buffer.read()
pipe, out = subprocess.PIPE, threading.Lock()
tasks = [
    subprocess.Popen(command, env={{**os.environ, "SLURMD_NODENAME": node}}, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
    for node in nodes
]
signal.signal(signal.SIGTERM, lambda *_: [task.kill() for task in tasks])

def serve(number, task):
    task.stdin.write(lines)
    task.stdin.close()
    for line in task.stdout:
        with out:
            sys.stdout.buffer.write(b"%d: %s" % (number, line))
            sys.stdout.flush()
    if code := task.wait():
        how = f"Exited with exit code {{code}}" if code > 0 else "Killed"
        print(f"srun: error: {{nodes[number]}}: task {{number}}: {{how}}", file=sys.stderr, flush=True)

threads = [threading.Thread(target=serve, args=pair) for pair in enumerate(tasks)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(max(task.returncode & 255 for task in tasks))
"""


@pytest.fixture(autouse=True)
def _srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "srun", SRUN)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")


class TestSteps(AgentConformance):
    node = Node(0, "n01", (), "slurm")
    unreachable = Node(1, "unknown", (), "slurm")
    python = sys.executable

    @pytest.fixture(autouse=True)
    def _machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = tmp_path, monkeypatch

    def make_agent(self) -> Agent:
        return load("slurm", AgentOptions(call_back=("slurm",)))

    @with_agent
    async def test_nodes_that_are_opened_together_share_a_step(self, agent: Agent) -> None:
        seen = [Recorder() for _ in range(5)]
        program = [sys.executable, "-c", "import os; print(os.environ['SLURMD_NODENAME']); input()"]
        nodes = [Node(index, f"n0{index}", (), "slurm") for index in (3, 1, 2, 0, 4)]
        channels = await asyncio.gather(*(agent.open(node, program, each) for node, each in zip(nodes, seen, strict=True)))
        for node, each, channel in zip(nodes, seen, channels, strict=True):
            await each.until(lambda each=each: each.stdout.endswith(b"\n"), "it has called")  # type: ignore[misc]
            assert each.stdout.decode() == f"{node.name}\n"
            channel.write(b"\n")
        assert [(await each.ended()).exit_code for each in seen] == [0] * 5
        assert (self.folder / "steps").read_text() == "n00 n01 n02 n03 n04\n"

    @with_agent
    async def test_a_node_whose_task_fails_is_reported_while_the_others_run(self, agent: Agent) -> None:
        ours, other = Recorder(), Recorder()
        # Another command is another step; here the same one fails on a node.
        code = "import os, sys; os.environ['SLURMD_NODENAME'] == 'n02' and sys.exit('no such thing'); input()"
        program = [sys.executable, "-c", code]
        channels = [
            await agent.open(Node(index, f"n0{index}", (), "slurm"), program, each) for index, each in ((1, ours), (2, other))
        ]
        assert (await other.ended()).exit_code == 1 and b"no such thing" in other.stderr
        assert ours.end is None
        channels[0].write(b"\n")
        assert (await ours.ended()).exit_code == 0

    @with_agent
    async def test_what_srun_says_is_the_reason(self, agent: Agent) -> None:
        for name, cause, words in (
            ("unknown", "agent-failed", "Unable to create step"),
            ("gone", "job-ended", "Invalid job id"),
        ):
            seen = Recorder()
            await agent.open(Node(0, name, (), "slurm"), [sys.executable, "-c", ""], seen)
            end = await seen.ended()
            assert (end.exit_code, end.cause) == (1, cause) and words in end.error

    @with_agent
    async def test_a_step_that_does_not_end_is_cancelled(self, agent: Agent) -> None:
        for name in ("END_SECONDS", "CANCEL_SECONDS"):
            self.patch.setattr(steps, name, 0.3)
        seen = Recorder()
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"
        await agent.open(self.node, [sys.executable, "-c", code], seen)
        await seen.until(lambda: seen.stdout == b"up\n", "it runs")
        await agent.close()


def test_a_job_runs_by_steps(tmp_path: Path) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[01-03]", "SLURM_TASKS_PER_NODE": "2(x3)", "SLURM_NTASKS": "6"}
    done = launch("sh", "-c", "echo $RANK $GROUP_RANK", env=environ)
    assert (done.code, done.err, done.lines) == (0, b"", [f"{rank} {rank // 2}" for rank in range(6)])
    assert (tmp_path / "steps").read_text() == "n01 n02 n03\n"


def test_a_job_that_has_ended_is_reported() -> None:
    done = launch("true", env={"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gone"})
    assert done.code != 0 and "error[start-job-ended]: gone: the batch system has ended the job, or its step" in done.words
    assert "unset SLURM_JOB_ID SLURM_JOB_NODELIST" in done.words


def test_mpilaunch_itself_by_the_name_of_srun_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    own = script(tmp_path / "own" / "mpilaunch", "#!/bin/sh\n")
    (tmp_path / "own" / "srun").symlink_to(own)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "own" / "srun")])
    assert find_program("srun", f"{tmp_path}/own::{tmp_path}/none") is None
    assert find_program("srun", f"{tmp_path}/own:{tmp_path}") == str(tmp_path / "srun")


def test_each_part_of_a_heterogeneous_job_has_a_step(tmp_path: Path) -> None:
    parts = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n01", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[02-03]"}
    done = launch("sh", "-c", "echo $RANK", env={"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", **parts})
    assert (done.code, done.err, done.lines) == (0, b"", ["0", "1", "2"])
    assert sorted((tmp_path / "steps").read_text().splitlines()) == ["n01", "n02 n03"]


@pytest.mark.parametrize("options", [("--remote-agent", "false {host} {command}"), ("--agent", "openssh")])
def test_where_a_login_fails_the_hint_names_the_agent(options: tuple[str, ...]) -> None:
    done = launch(*options, "true", env={"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0.invalid"})
    assert done.code and ("hint: --agent slurm reaches the nodes of this job without a login" in done.words) == (
        options[1] == "openssh"
    )


def test_outside_of_a_job_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    done = launch("--agent", "slurm", "-H", "n01", "true")
    assert done.code and done.words.startswith("error[start-outside-job]: n01: this is no job of its batch system after ")
    assert "hint: --slurm nodes=N asks Slurm for a job" in done.words and not (tmp_path / "steps").exists()
