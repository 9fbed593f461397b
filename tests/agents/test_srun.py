"""srun's command line and environment, and what it says of its tasks; the messages are those of Slurm 22.05."""

from __future__ import annotations

import pytest

from mpilaunch_agents.batch import srun
from mpilaunch_agents.batch.srun import Gpus, TaskEnd


def test_a_step_has_one_task_on_each_node() -> None:
    words = srun.argv("/usr/bin/srun", ["n01", "n03"], ["python3", "-c", "x"])
    assert words[0] == "/usr/bin/srun" and words[-3:] == ["python3", "-c", "x"]
    assert {"--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n01,n03", "--mpi=none"} < {*words}
    assert not [word for word in words[1:] if not word.startswith("--")][:-3], "no option has its value in a word of its own"


@pytest.mark.parametrize(
    ("value", "ports"),
    [("60001-60003", [60001, 60002, 60003]), ("0-0", []), ("65534-99999", [65534, 65535]), ("(null)", []), ("9-7", [])],
)
def test_the_ports_that_an_administrator_has_opened_are_read(value: str, ports: list[int]) -> None:
    config = f"SlurmctldPort           = 6817\nSrunEpilog              = (null)\nSrunPortRange           = {value}\n"
    assert [*srun.port_range(config)] == ports
    assert [*srun.port_range("")] == []


def test_the_job_is_known_to_srun_and_options_for_other_steps_are_not() -> None:
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOBID": "7",
        "SLURM_JOB_NODELIST": "n[01-03]",
        "SLURM_CONF": "/x",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_SUBMIT_DIR": "/home/ann",
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_RESTART_COUNT": "1",
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
    }
    options = (
        "CPUS_PER_TASK",
        "NTASKS",
        "NPROCS",
        "CPU_BIND",
        "MEM_PER_CPU",
        "EXACT",
        "GPUS_PER_TASK",
        "LABELIO",
        "WAIT",
        "NNODES",
    )
    steps = {f"SLURM_{name}": "1" for name in (*options, "STEP_ID", "PROCID", "DISTRIBUTION", "EXPORT_ENV")}
    assert srun.environment({**job, **steps, "SRUN_CPUS_PER_TASK": "4", "SRUN_DEBUG": "3"}) == job


@pytest.mark.parametrize(
    ("line", "label"),
    [
        (b"12: words: more", (12, b"words: more")),
        (b"0: ", (0, b"")),
        (b"3:no blank", (3, b"no blank")),
        (b"srun: error: x", (None, b"srun: error: x")),
        (b"12345678901234567890: x", (None, b"12345678901234567890: x")),
        (b"", (None, b"")),
    ],
)
def test_labels(line: bytes, label: tuple[int | None, bytes]) -> None:
    assert srun.labelled(line) == label


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("srun: error: n01: task 0: Exited with exit code 98", TaskEnd((0,), 98)),
        ("srun: error: n[01-02,07]: tasks 0-1,4: Exited with exit code 2", TaskEnd((0, 1, 4), 2)),
        ("srun: error: n03: task 2: Killed", TaskEnd((2,), None)),
        ("srun: error: n03: task 2: Segmentation fault (core dumped)", TaskEnd((2,), None)),
        ("srun: error: Unable to create step for job 3: Requested node configuration is not available", None),
        ("srun: error: n03: task x: Killed", None),
        ("srun: error: n03: tasks 0-99999999: Killed", None),
        ("srun: error: n03: tasks 0-9999999: Killed", None),
        ("srun: error: n03: task 2", None),
        ("0: srun: error: n03: task 2: Killed", None),
        ("", None),
    ],
)
def test_ends_of_tasks(line: str, end: TaskEnd | None) -> None:
    assert srun.task_end(line) == end


CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n01 CANCELLED AT 2026-11-29T00:54:42 DUE TO TIME LIMIT ***"
REFUSED = "srun: error: Unable to create step for job 3: Requested node configuration is not available"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f"srun: x\n{CANCELLED}\nsrun: error: n01: task 0: Killed\n", (CANCELLED[23:-4], True)),
        ("srun: error: Unable to confirm allocation for job 9: Invalid job id specified\nsrun: Check SLURM_JOB_ID\n",
         ("srun: error: Unable to confirm allocation for job 9: Invalid job id specified", True)),
        (f"{REFUSED}\n", (REFUSED, False)),
        ("srun: error: n01: task 0: Exited with exit code 2\n", ("", False)),
        ("", ("", False)),
    ],
)  # fmt: skip
def test_reasons(words: str, reason: tuple[str, bool]) -> None:
    assert srun.reason(words) == reason


def test_the_nodes_of_a_heterogeneous_job_are_named_with_their_part() -> None:
    lists = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n01", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[02-03]"}
    assert srun.parts({"SLURM_HET_SIZE": "2", **lists}) == {
        "n01": "--het-group=0",
        **dict.fromkeys(("n02", "n03"), "--het-group=1"),
    }
    assert srun.parts({"SLURM_JOB_NODELIST": "n[01-03]"}) == {}


DETAILS = """\
JobId=15 JobName=interactive
   NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:4
{nodes}
   MinCPUsNode=1 MinMemoryCPU=256M MinTmpDiskNode=0
   {asked}
"""
"""What `scontrol show job --details` of Slurm 22.05 prints."""


@pytest.mark.parametrize(
    ("nodes", "asked", "expected"),
    [
        (["Nodes=n[01-02] CPU_IDs=0-1 Mem=512 GRES=gpu:2(IDX:0-1)"], "TresPerTask=gres:gpu:1",
         {"n01": Gpus("--gres=gpu:2"), "n02": Gpus("--gres=gpu:2")}),
        (["Nodes=n01 CPU_IDs=1 Mem=256 GRES=gpu:2(IDX:0-1)", "Nodes=n02 CPU_IDs=1 Mem=256 GRES=gpu:1(IDX:0)"],
         "TresPerJob=gres:gpu:3", {"n01": Gpus("--gpus=2", True), "n02": Gpus("--gpus=1", True)}),
        (["Nodes=n[01-02] CPU_IDs=0 Mem=256 GRES="], "", {"n01": Gpus(), "n02": Gpus()}),
        (["Nodes=n01 CPU_IDs=0 Mem=256 GRES=gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:7),mps:100,gpux:5"], "TresPerNode=gres:gpu:3",
         {"n01": Gpus("--gres=gpu:3")}),
        (["Nodes= CPU_IDs= GRES=gpu:"], "", {}),
        ([], "", {}),
    ],
)  # fmt: skip
def test_a_step_asks_for_the_gpus_that_the_job_was_granted(nodes: list[str], asked: str, expected: dict[str, Gpus]) -> None:
    text = DETAILS.format(nodes="\n".join(f"     {line}" for line in nodes), asked=asked)
    assert srun.gpus_by_node(text) == expected
    assert srun.gpus_by_node("") == {}
