"""Jobs on two hosts of a real Grid Engine, which are reached by qrsh: there is no sshd anywhere."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time

import pytest

from tests.grid_engine.cluster import LOOSE, GridEngine
from tests.support.launching import MPILAUNCH, wait_until
from tests.support.paths import ROOT
from tests.support.torches import torch_python
from tests.support.two_machines import PYTHON_PATH, SECOND

SECONDS = 25.0
UP = ("sh", "-c", "echo up; exec sleep 600")
SUM = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("sum %d\\n", sum);
    fflush(stdout);
    MPI_Finalize();
}
"""
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor(dist.get_rank())
dist.all_reduce(number)
print("sum", number.item(), flush=True)
"""


def command(*words: str) -> str:
    return shlex.join((*MPILAUNCH, *words))


def ended(grid: GridEngine, text: str, *options: str, environment: str = "tight") -> list[str]:
    """Return the sorted lines of a job that ends by itself."""
    job = grid.qsub(text, *options, environment=environment)
    wait_until(lambda: not grid.queued(), f"job {job} has ended: {grid.lines(job)}", SECONDS)
    return sorted(grid.lines(job))


def begun(grid: GridEngine, text: str, *options: str) -> str:
    """Return a job whose four ranks run."""
    job = grid.qsub(text, *options)
    wait_until(lambda: grid.lines(job).count("up") == 4, f"the ranks run: {grid.lines(job)}", SECONDS)
    return job


def next_launch(grid: GridEngine) -> None:
    """Launch once more: that removes the socket of an mpilaunch which Grid Engine has killed."""
    assert grid.run(*MPILAUNCH, "-np", "1", "true", env={"HOME": "/root", "PYTHONPATH": PYTHON_PATH}).returncode == 0


@pytest.mark.parametrize(
    "words",
    [(), ("--agent", "gridengine"), ("--call-back", "always"), ("--agent", "gridengine", "--call-back", "always")],
    ids=["default", "all-by-qrsh", "call-back", "all-call-back"],
)
def test_ranks_run_on_all_hosts(grid: GridEngine, words: tuple[str, ...]) -> None:
    program = ("sh", "-c", "echo $RANK $GROUP_RANK $(hostname)")
    assert ended(grid, command(*words, *program)) == ["0 0 n01", "1 0 n01", "2 1 n02", "3 1 n02"]


def test_the_launcher_of_hydra_is_the_agent(grid: GridEngine) -> None:
    text = command("--dialect", "hydra", "-launcher", "sge", "-n", "4", "sh", "-c", "echo $PMI_RANK $(hostname)")
    assert ended(grid, text) == ["0 n01", "1 n01", "2 n02", "3 n02"]


def test_a_task_of_an_array_tells_its_number_to_all_ranks(grid: GridEngine) -> None:
    job = grid.qsub(command("sh", "-c", "echo $JOB_ID $SGE_TASK_ID"), "-t", "3", "-o", str(grid.output("array")))
    wait_until(lambda: not grid.queued(), f"job {job} has ended", SECONDS)
    assert grid.lines("array") == [f"{job} 3"] * 4


def test_the_agent_keeps_the_contract(grid: GridEngine) -> None:
    pytest_here = shlex.join((sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"))
    lines = ended(grid, f"cd {ROOT}; {pytest_here} tests/grid_engine/conformance.py; echo code $?; rm -rf /tmp/pytest-of-root")
    assert "code 0" in lines and any(" passed in " in line for line in lines), "\n".join(lines)


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "torch"])
def test_programs_find_each_other(grid: GridEngine, kind: str) -> None:
    if kind == "torch":
        (grid.shared / "sum.py").write_text(TORCH)
        program = [torch_python(), "sum.py"]
    else:
        (grid.shared / "sum.c").write_text(SUM)
        subprocess.run([f"mpicc.{kind}", "-o", f"sum.{kind}", "sum.c"], cwd=grid.shared, check=True)
        program = [f"./sum.{kind}"]
    # MPI_Finalize of MPICH sometimes hangs over UCX's TCP (docs/mpi.md); torch warns where there is no NumPy.
    job = grid.qsub(command(*program))
    wait_until(lambda: grid.lines(job).count("sum 6") == 4, f"all have the sum: {grid.lines(job)}", SECONDS)
    grid.run("qdel", job)
    next_launch(grid)


def test_much_input_and_output_comes_through(grid: GridEngine) -> None:
    (grid.shared / "numbers").write_text("".join(f"{number}\n" for number in range(400_000)))
    text = command("--agent", "gridengine", "--stdin", "3", "sh", "-c", "[ $RANK != 3 ] || cat")
    assert ended(grid, f"{text} <numbers | cmp - numbers && echo same") == ["same"]


def test_the_exit_code_and_the_output_come_back(grid: GridEngine) -> None:
    text = f"{command('sh', '-c', 'echo out; echo err >&2; [ $RANK != 3 ] || exit 7; sleep 60')}; echo code $?"
    lines = ended(grid, text)
    assert lines.count("out") == lines.count("err") == 4 and "code 7" in lines
    assert "error[rank-failed]: rank 3 on n02 exited with code 7 after 0" in "\n".join(lines)


def test_an_environment_that_does_not_control_its_tasks_is_named(grid: GridEngine) -> None:
    lines = ended(grid, command("true"), environment=LOOSE)
    assert "error[start-agent-failed]: 1 of 2 nodes: n02: the agent failed" in "\n".join(lines)
    assert any("didn't accept task" in line and "control_slaves TRUE" in line for line in lines)


def test_a_host_outside_of_the_job_is_refused(grid: GridEngine) -> None:
    lines = ended(grid, f"{command('--host', 'n03', '--agent', 'gridengine', 'true')}; echo code $?")
    assert "can't resolve host name" in "\n".join(lines) and "code 1" in lines


def test_there_must_be_a_job(grid: GridEngine) -> None:
    done = grid.run(
        *MPILAUNCH, "--host", SECOND, "--agent", "gridengine", "true", env={"HOME": "/root", "PYTHONPATH": PYTHON_PATH}
    )
    assert done.returncode == 1 and "error[start-outside-job]" in done.stderr and "JOB_ID is not set" in done.stderr


@pytest.mark.parametrize("agent", [(), ("--agent", "gridengine")], ids=["default", "all-by-qrsh"])
def test_qdel_leaves_nothing(grid: GridEngine, agent: tuple[str, ...]) -> None:
    job = begun(grid, f"exec {command(*agent, *UP)}")
    grid.run("qdel", job)
    wait_until(lambda: not grid.queued() and not grid.processes(), "the job is gone", SECONDS)
    next_launch(grid)


def test_a_warning_before_the_end_lets_the_ranks_clean_up(grid: GridEngine) -> None:
    """`qsub -notify`: SIGUSR2 comes a minute before SIGKILL."""
    program = "trap 'echo cleaned; exit 0' USR2; echo up; while :; do sleep 0.05; done"
    job = begun(grid, f"trap '' USR2; {command('sh', '-c', program)}; echo code $?", "-notify")
    grid.run("qdel", job)
    wait_until(lambda: not grid.queued(), "the job is gone", SECONDS)
    assert grid.lines(job).count("cleaned") == 4 and "code 0" in grid.lines(job)


def test_a_killed_head_leaves_nothing(grid: GridEngine) -> None:
    job = begun(grid, f"{command('--agent', 'gridengine', '--reconnect-timeout', '1', *UP)}; echo over; exec sleep 600")
    head = next(pid for pid, words in grid.processes().items() if " ".join(MPILAUNCH) in words)
    grid.kill(head)
    wait_until(lambda: "over" in grid.lines(job), "the head is gone", SECONDS)
    wait_until(lambda: not any("mpilaunch" in words for words in grid.processes().values()), "all is gone", SECONDS)
    next_launch(grid)


def test_a_killed_task_is_a_lost_node(grid: GridEngine) -> None:
    began = time.monotonic()
    job = begun(grid, f"{command('--reconnect-timeout', '0', *UP)}; echo code $?")
    (qrsh,) = (pid for pid, words in grid.processes().items() if "qrsh -inherit" in words)
    grid.kill(qrsh)
    wait_until(lambda: not grid.queued(), f"the job has ended: {grid.lines(job)}", SECONDS)
    assert "code 125" in grid.lines(job) and time.monotonic() - began < SECONDS
    assert any("error[node-lost]: n02" in line for line in grid.lines(job)), grid.lines(job)
