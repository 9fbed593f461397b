"""Jobs on several nodes of a real Slurm, which are reached by a step: there is no sshd anywhere."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.slurm.cluster import PORTS, Slurm
from tests.support.launching import MPILAUNCH, wait_until
from tests.support.two_machines import NODE, PYTHON_PATH, SECOND

BOTH = ("--partition=both", "--nodes=2", "--ntasks-per-node=2")
SECONDS = 15.0
AT_LOGIN = {"PYTHONPATH": PYTHON_PATH, "HOME": "/root"}
"""Variables for an mpilaunch outside of any job."""


def command(*words: str) -> str:
    return shlex.join((*MPILAUNCH, *words))


def ended(slurm: Slurm, text: str, *options: str) -> list[str]:
    """Return the sorted lines of a job that ends by itself."""
    job = slurm.sbatch(text, *(options or BOTH))
    wait_until(lambda: job not in slurm.queued(), f"job {job} has ended", SECONDS)
    return sorted(slurm.lines(job))


@pytest.mark.parametrize("words", [(), ("--call-back", "never"), ("--agent", "slurm")], ids=["default", "over-srun", "all"])
def test_ranks_run_on_all_nodes(slurm: Slurm, words: tuple[str, ...]) -> None:
    # The second node is the same machine, so the queue tells where the steps are; the head's own node has that of the script.
    program = ("sh", "-c", "echo $RANK $GROUP_RANK; [ $RANK != 3 ] || squeue --steps --noheader --format='%N' >steps")
    assert ended(slurm, command("-x", "SLURM_CONF", *words, *program)) == ["0 0", "1 0", "2 1", "3 1"]
    of_nodes = "n[01-02]" if "slurm" in words else SECOND
    assert sorted((slurm.shared / "steps").read_text().split()) == [NODE, of_nodes]


def test_daemons_call_back_at_a_port_that_the_administrator_has_opened(slurm: Slurm) -> None:
    # srun itself listens by IPv4 only. The head is on the node of rank 0.
    program = ("sh", "-c", "[ $RANK != 0 ] || awk '$4 == \"0A\" { print $2 }' /proc/net/tcp6")
    lines = ended(slurm, command(*program))
    assert lines and all(int(line.partition(":")[2], 16) in PORTS for line in lines), lines


def test_the_exit_code_and_the_output_come_back(slurm: Slurm) -> None:
    text = f"{command('sh', '-c', 'echo out; echo err >&2; [ $RANK != 3 ] || exit 7; sleep 60')}; echo code $?"
    lines = ended(slurm, text)
    assert lines.count("out") == lines.count("err") == 4 and "code 7" in lines
    assert "error[rank-failed]: rank 3 on n02 exited with code 7 after 0" in "\n".join(lines)


def test_scancel_reaches_the_ranks_of_a_step_once(slurm: Slurm) -> None:
    program = (
        "import signal, time; times = []; signal.signal(signal.SIGTERM, lambda *_: times.append(1)); print('up', flush=True)\n"
        "while not times: time.sleep(0.01)\n"
        "time.sleep(1.5); print('cleaned', len(times), flush=True)"
    )
    (slurm.shared / "cleans.py").write_text(program)
    job = slurm.sbatch(f"exec {command('/usr/bin/env', 'python3', 'cleans.py')}", *BOTH)
    wait_until(lambda: slurm.lines(job).count("up") == 4, f"the ranks run: {slurm.lines(job)}", SECONDS)
    slurm.run("scancel", job)
    wait_until(lambda: not slurm.queued() and not slurm.processes(), "the job is gone", SECONDS)
    assert slurm.lines(job).count("cleaned 1") == 4, slurm.lines(job)
    found = slurm.describe(job)
    assert (found["JobState"], found["ExitCode"]) == ("CANCELLED", "143:0")


def test_a_killed_head_leaves_neither_ranks_nor_the_step(slurm: Slurm) -> None:
    step = "squeue --noheader --steps --jobs=$SLURM_JOB_ID --format=%i | grep -q '[.]0$'"
    launch = command("--agent", "slurm", "--reconnect-timeout", "1", "sh", "-c", "echo up; sleep 600")
    text = f"{launch}; while {step}; do sleep 0.1; done; echo over"
    # The next mpilaunch removes the socket that the killed one has left.
    job = slurm.sbatch(f"{text}; {command('-np', '1', 'true')}", *BOTH)
    wait_until(lambda: slurm.lines(job).count("up") == 4, f"the ranks run: {slurm.lines(job)}", SECONDS)
    (head,) = (pid for pid, words in slurm.processes().items() if f"{sys.executable} -m mpilaunch" in words)
    began = time.monotonic()
    slurm.kill(head)
    wait_until(lambda: slurm.lines(job)[-1:] == ["over"], "the step has ended", SECONDS)
    assert time.monotonic() - began < 8
    wait_until(lambda: not slurm.queued(), "the job has ended", SECONDS)


def test_a_job_that_is_gone_is_reported_at_once(slurm: Slurm) -> None:
    job = {"SLURM_JOB_ID": "999999", "SLURM_JOB_NODELIST": SECOND, "SLURM_TASKS_PER_NODE": "1"}
    done = slurm.run(*MPILAUNCH, "true", env={**AT_LOGIN, **job})
    assert done.returncode != 0
    assert "error[start-job-ended]: n02: the batch system has ended the job, or its step" in done.stderr
    assert "Invalid job id specified" in done.stderr and "unset SLURM_JOB_ID SLURM_JOB_NODELIST" in done.stderr


def test_salloc_s_shell_is_no_node_of_the_job(slurm: Slurm) -> None:
    allocated = ("salloc", "--quiet", "--partition=both", f"--nodelist={SECOND}", "--ntasks=2")
    done = slurm.run(*allocated, *MPILAUNCH, "sh", "-c", "echo $RANK", env=AT_LOGIN)
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["0", "1"], "")


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (("--gres=gpu:1",), {"0": "0", "2": "0"}),
        (("--gpus-per-task=1",), {"0": "0,1", "2": "0,1"}),
        (("--gpus=3",), {"0": "0,1", "2": "0"}),
        ((), {"0": "", "2": ""}),
    ],
    ids=["per-node", "per-task", "in-total", "none"],
)
def test_ranks_see_the_gpus_that_were_granted_on_their_node(slurm: Slurm, asked: tuple[str, ...], seen: dict[str, str]) -> None:
    program = ("sh", "-c", 'echo "$RANK=$CUDA_VISIBLE_DEVICES"')
    found = dict(line.split("=") for line in ended(slurm, command(*program), *BOTH, *asked))
    assert {rank: found[rank] for rank in seen} == seen and len(found) == 4


def test_ranks_have_the_variables_of_the_job_and_none_of_a_step(slurm: Slurm) -> None:
    nodes = "$(scontrol show hostnames $SLURM_JOB_NODELIST)"
    text = f"echo $RANK {nodes} $SLURM_SUBMIT_DIR; env | grep -E '^SLURM_(STEP|PROCID|NTASKS)'; true"
    assert ended(slurm, command("sh", "-c", text)) == [f"{rank} {NODE} {SECOND} {slurm.shared}" for rank in range(4)]


def test_a_heterogeneous_job_runs_on_the_nodes_of_all_its_parts(slurm: Slurm) -> None:
    first, second = (("--partition=both", f"--nodelist={node}") for node in (NODE, SECOND))
    lines = ended(slurm, command("sh", "-c", "echo $RANK $(hostname)"), *first, "--ntasks=1", ":", *second, "--ntasks=2")
    assert lines == ["0 n01", "1 n02", "2 n02"]


def test_in_a_step_that_has_a_part_of_its_node_the_ranks_have_all_of_the_job(slurm: Slurm) -> None:
    program = ("sh", "-c", 'echo "$RANK $(hostname) $CUDA_VISIBLE_DEVICES"')
    launch = command("--map-by", "node", "-np", "4", *program)
    lines = ended(slurm, f"srun --nodes=1 --ntasks=1 --nodelist={NODE} --gres=gpu:1 {launch}", *BOTH, "--gres=gpu:2")
    assert lines == [f"{rank} {(NODE, SECOND)[rank % 2]} 0,1" for rank in range(4)]


ASKS = ("--slurm", "nodes=2,ranks=4,partition=both,time=5m")


def at_login(slurm: Slurm, *words: str) -> subprocess.CompletedProcess[str]:
    """Run mpilaunch outside of any job."""
    return slurm.run(*MPILAUNCH, *words, env=AT_LOGIN)


def test_nodes_are_asked_for_and_given_back(slurm: Slurm) -> None:
    done = at_login(slurm, *ASKS, "sh", "-c", "echo $RANK $(hostname); exit $RANK")
    assert done.returncode in (1, 2, 3) and f"0 {NODE}" in done.stdout.splitlines()
    assert "salloc: Granted job allocation" in done.stderr and "error[rank-failed]" in done.stderr
    assert not slurm.queued()


def test_a_request_that_slurm_refuses_is_reported_and_starts_nothing(slurm: Slurm) -> None:
    done = at_login(slurm, "--slurm", "nodes=2,partition=nope", "true")
    assert done.returncode != 0 and "salloc: error: invalid partition specified: nope" in done.stderr and not slurm.queued()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_an_end_of_salloc_gives_the_nodes_back(slurm: Slurm, number: int) -> None:
    output = slurm.shared / "asked.out"
    program = command(*ASKS, "sh", "-c", "echo up; exec sleep 600")
    slurm.run("sh", "-c", f"setsid {program} >{output} 2>&1 </dev/null &", env=AT_LOGIN)
    wait_until(lambda: output.read_text().count("up\n") == 4, f"the ranks run: {output.read_text()}", SECONDS)
    (asking,) = (pid for pid, words in slurm.processes().items() if words.split(None, 1)[0].endswith("/salloc"))
    os.kill(asking, number)
    wait_until(lambda: not slurm.queued() and not slurm.processes(), "the nodes are free", SECONDS)
    assert "error[preempted]: SIGTERM to " in output.read_text()
