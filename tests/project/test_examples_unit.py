"""The examples without a launcher, and the profiles and hostfiles up to the job that they ask for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.cli.job.make import make_job
from mpilaunch.job.settings import Value
from mpilaunch.job.spec import JobSpec
from tests.support.command_line import request
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
CONFIGS = ROOT / "configs"


# Programs


def run_ranks(size: int, *program: str) -> list[subprocess.CompletedProcess[str]]:
    """Start ranks by hand, as a launcher does, and return how each ended, in rank order."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    sizes = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            program,
            env={**os.environ, **sizes, **master, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    ended = []
    try:
        for process in ranks:
            out, err = process.communicate(timeout=60)
            ended.append(subprocess.CompletedProcess(program, process.returncode, out, err))
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return ended


def test_hello_says_where_it_is() -> None:
    ends = run_ranks(2, sys.executable, str(EXAMPLES / "hello.py"))
    host = socket.gethostname()
    assert [end.stdout for end in ends] == [f"hello from rank {r} of 2 on {host} (rank {r} of 2 there)\n" for r in range(2)]


@pytest.mark.parametrize(("size", "count"), [(1, 10), (2, 200_000), (3, 100_000), (5, 3), (7, 0)])
def test_ring_allreduce_is_right(size: int, count: int) -> None:
    ends = run_ranks(size, sys.executable, "-W", "error", str(EXAMPLES / "ring_allreduce.py"), str(count))
    assert [(end.returncode, end.stderr) for end in ends] == [(0, "")] * size
    for rank, end in enumerate(ends):
        assert end.stdout.startswith(f"rank {rank} of {size} on {socket.gethostname()}: the sum of {count} numbers is right, ")


def test_ring_allreduce_finds_a_wrong_sum() -> None:
    source = (EXAMPLES / "ring_allreduce.py").read_text()
    assert source.count("operator.add,") == 1
    ends = run_ranks(2, sys.executable, "-c", source.replace("operator.add,", "operator.sub,"), "100")
    assert [end.returncode for end in ends] == [1, 1]
    assert "the sum of 100 numbers is WRONG" in ends[0].stderr


# The smoke test, with a launcher that runs every "node" here. FAULT says what is wrong with the cluster.

LAUNCHER = r"""
import os, subprocess, sys
program = sys.argv[sys.argv.index("--") + 1:]
options = sys.argv[1:sys.argv.index("--")]
assert options[:6] == ["--quiet", "--hostfile", os.environ["HOSTFILE"], "--npernode", "1", "--timeout"], options
fault = os.environ["FAULT"]
if fault == "reach":
    sys.exit("node02: connection refused")
outputs, codes = [], []
for node in range(2):
    end = subprocess.run(program, stdout=subprocess.PIPE, text=True, env={**os.environ, "WORLD_SIZE": "1"})
    text = end.stdout
    if node == 1 and fault == "clocks" and program[0] == "date":
        text = str(int(text) + 3) + "\n"
    if node == 1 and fault == "pythons" and "platform" in program[-1]:
        text = "3.7.1\n"
    outputs.append(text)
    codes.append(1 if fault == "network" and "ring" in program[-1] else end.returncode)
if "--fold" in options:
    outputs = [f"node: {text}" for text in sorted(set(outputs))]
print("".join(outputs), end="")
sys.exit(1 if fault == "failure" and any(codes) else max(codes))
"""


@pytest.mark.parametrize("fault", ["", "reach", "clocks", "pythons", "network", "failure"])
def test_smoke_test_finds_the_fault(fault: str, tmp_path: Path) -> None:
    hostfile = tmp_path / "my.hosts"
    hostfile.write_text("node01\nnode02\n")
    launcher = tmp_path / "mpilaunch"
    launcher.write_text(f"#!{sys.executable}\n{LAUNCHER}")
    launcher.chmod(0o755)
    environment = {**os.environ, "MPILAUNCH": str(launcher), "FAULT": fault, "HOSTFILE": str(hostfile)}
    end = subprocess.run(
        ["sh", str(EXAMPLES / "smoke_test.sh"), str(hostfile)], env=environment, capture_output=True, text=True, timeout=60
    )
    verdict = end.stdout.splitlines()[-1]
    if not fault:
        assert (end.returncode, verdict) == (0, "smoke test: all 5 checks passed"), end.stdout
    elif fault == "reach":
        assert (end.returncode, verdict) == (1, f"smoke test: FAILED: not every node of {hostfile} can be reached")
        assert "connection refused" in end.stdout
    else:
        assert (end.returncode, verdict) == (1, f"smoke test: FAILED: {fault}"), end.stdout
    assert end.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["/nowhere/at.all"], ["a", "b"]])
def test_smoke_test_wants_one_hostfile(arguments: list[str]) -> None:
    end = subprocess.run(["sh", str(EXAMPLES / "smoke_test.sh"), *arguments], capture_output=True, text=True, timeout=10)
    assert (end.returncode, end.stdout, end.stderr) == (2, "", "usage: smoke_test.sh HOSTFILE\n")


# Profiles and hostfiles


def job(**values: Value) -> JobSpec:
    """Return the job of these options before `true`."""
    words = []
    for name, value in values.items():
        for item in value if isinstance(value, tuple) else (value,):
            words.append(f"--{name.replace('_', '-')}={item}")
    asked = request([*words, "true"])
    return make_job(asked.settings, asked.sections, {})


def layout(spec: JobSpec) -> list[int]:
    """Ranks on each node that has any."""
    return [sum(place.node == node for place in spec.job_map.placements) for node in spec.job_map.nodes]


@pytest.mark.parametrize(
    ("hostfile", "expected"),
    [("openmpi", [4, 4, 4]), ("hydra", [4, 4, 1, 2]), ("slurm-ranges", [4] * 33), ("gpus", [4, 3, 2, 2])],
)
def test_hostfiles(hostfile: str, expected: list[int]) -> None:
    assert layout(job(hostfile=(str(CONFIGS / f"{hostfile}.hosts"),))) == expected


def test_slot_map() -> None:
    spec = job(slot_map=str(CONFIGS / "slotmap.yaml"))
    assert layout(spec) == [4, 4, 2]
    first = spec.job_map.placements[0]
    assert spec.allocation.nodes[first.node].name == "node03"
    assert spec.allocation.nodes[first.node].slots[first.slot].gpus == ("0", "1")
    assert [slot.gpus for slot in spec.allocation.nodes[0].slots] == [("0",), ("1",), ("2",), ("3",)]


def test_local_try_is_two_nodes_here() -> None:
    spec = job(config=str(CONFIGS / "local-try.yaml"))
    assert layout(spec) == [2, 2]
    assert {node.agent for node in spec.allocation.nodes} == {"local"}


def test_smoke_is_one_rank_on_each_node_folded() -> None:
    spec = job(config=str(CONFIGS / "smoke.yaml"), hostfile=(str(CONFIGS / "slurm-ranges.hosts"),))
    assert layout(spec) == [1] * 33
    assert spec.output.fold
    assert (spec.deadlines.start, spec.deadlines.timeout) == (20.0, 120.0)


@pytest.mark.parametrize(
    ("profile", "name", "value"),
    [
        ("nccl-debug", "NCCL_DEBUG", "INFO"),
        ("ethernet-gloo", "GLOO_SOCKET_IFNAME", "eth0"),
        ("infiniband-nccl", "NCCL_IB_HCA", "mlx5"),
    ],
)
def test_profiles_that_set_variables(profile: str, name: str, value: str) -> None:
    spec = job(config=str(CONFIGS / f"{profile}.yaml"), hostfile=(str(CONFIGS / "gpus.hosts"),))
    assert spec.environment[name] == value


def test_every_file_is_in_the_readme_and_says_how_to_use_it() -> None:
    for folder in (CONFIGS, EXAMPLES):
        readme = (folder / "README.md").read_text("utf-8")
        files = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != "README.md")
        assert files
        for name in files:
            assert f"[{name}]({name})" in readme
            assert "mpilaunch" in (folder / name).read_text("utf-8")
