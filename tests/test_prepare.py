"""From settings to a JobSpec."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpilaunch import config
from mpilaunch.binding import CpuPolicy
from mpilaunch.cli import read_words
from mpilaunch.errors import UsageError
from mpilaunch.jobspec import Deadlines, JobSpec
from mpilaunch.mapping import MappingPolicy
from mpilaunch.prepare import make_job, mapping_and_cpus


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(words: str, **environ: str) -> JobSpec:
    environ = {"HOME": "/nowhere", **environ}
    said, program = read_words([*words.split(), "prog"])
    return make_job(config.load_settings(said, environ), program, environ)


def nodes(words: str, **environ: str) -> list[tuple[str, int]]:
    return [(node.name, len(node.slots)) for node in job(words, **environ).allocation.nodes]


# Where the hosts come from

SLURM = {"SLURM_JOB_NODELIST": "s[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_ID": "42"}


def test_hosts_from_the_strongest_layer(here: Path) -> None:
    (here / "h").write_text("a slots=2\nb slots=2\n")
    (here / "g").write_text("c\n")
    (here / "p.yaml").write_text("host: d:3\n")
    a, b = ("a", 2), ("b", 2)
    assert nodes("-f h", **SLURM) == [a, b]
    assert nodes("-f h -f g") == [a, b, ("c", 1)]
    assert nodes("-f h -H b", **SLURM) == [b]
    assert nodes("", MPILAUNCH_HOSTFILE="h", **SLURM) == [a, b]
    assert nodes("-H z", MPILAUNCH_HOSTFILE="h") == [("z", 1)]
    assert nodes("", MPILAUNCH_HOSTFILE="h", MPILAUNCH_HOST="b:1") == [("b", 1)]
    assert nodes("-f h", MPILAUNCH_HOST="z") == [a, b]
    assert nodes("--config p.yaml", **SLURM) == [("d", 3)]
    assert nodes("", **SLURM) == [("s1", 2), ("s2", 2)]
    assert nodes("-H x -H y:2,z") == [("x", 1), ("y", 2), ("z", 1)]


def test_without_hosts_one_rank_per_cpu_of_this_machine() -> None:
    assert len(job("").job_map.placements) == len(os.sched_getaffinity(0))
    assert len(job("-np 300").job_map.placements) == 300


def test_names_of_this_machine_need_no_ssh() -> None:
    names = ["localhost", "127.0.0.1", os.uname().nodename, "elsewhere"]
    assert [node.agent for node in job(f"-H {','.join(names)}").allocation.nodes] == ["local", "local", "local", "ssh"]


def test_the_slot_map(here: Path) -> None:
    (here / "m.yaml").write_text("nodes:\n  a: {slots: 2, gpus: 0-3}\n")
    named = job("--slot-map m.yaml")
    assert [slot.gpus for slot in named.allocation.nodes[0].slots] == [("0", "1"), ("2", "3")]
    both = job("--slot-map m.yaml -H a,b")
    assert [len(node.slots) for node in both.allocation.nodes] == [2, 1]
    # It says what the slots are of a scheduler's nodes; it does not take their place.
    with pytest.raises(UsageError, match="node 'a' is not in the allocation"):
        job("--slot-map m.yaml", **SLURM)


# Ranks


@pytest.mark.parametrize(
    ("words", "policy", "cpu"),
    [
        ("", MappingPolicy(), CpuPolicy()),
        ("-np 4 -map-by node -rank-by slot", MappingPolicy(4, "node", rank_by="slot"), CpuPolicy()),
        ("-N 2", MappingPolicy(per_node=2), CpuPolicy()),
        ("--map-by ppr:2:node", MappingPolicy(per_node=2), CpuPolicy()),
        ("--map-by PPR:2:NODE:OVERSUBSCRIBE -N 2", MappingPolicy(per_node=2, oversubscribe=True), CpuPolicy()),
        ("--map-by node:oversubscribe", MappingPolicy(map_by="node", oversubscribe=True), CpuPolicy()),
        ("--oversubscribe --map-by :nooversubscribe", MappingPolicy(), CpuPolicy()),
        ("--map-by slot:PE=4", MappingPolicy(), CpuPolicy("core", 4)),
        ("--map-by slot:PE=4 --bind-to hwthread", MappingPolicy(), CpuPolicy("hwthread", 4)),
        ("--cpus-per-rank 2 --bind-to none", MappingPolicy(), CpuPolicy("none", 2)),
        ("--bind-to socket", MappingPolicy(), CpuPolicy("socket", 1)),
    ],
)
def test_mapping_and_cpus(words: str, policy: MappingPolicy, cpu: CpuPolicy) -> None:
    said, _ = read_words(words.split())
    assert mapping_and_cpus(config.load_settings(said, {"HOME": "/nowhere"})) == (policy, cpu)


@pytest.mark.parametrize("text", ["ppr", "ppr:2", "ppr:0:node", "ppr:x:node", "ppr:2:socket", "core", "", "slot:PE=0", "slot:"])
def test_wrong_policies(text: str) -> None:
    said, _ = read_words(["--np=1", "prog"])
    settings = config.load_settings(said, {"HOME": "/nowhere", "MPILAUNCH_MAP_BY": text or ":x"})
    with pytest.raises(UsageError, match="--map-by: "):
        mapping_and_cpus(settings)


@pytest.mark.parametrize(("who", "policy"), [("all", "all"), ("none", "none"), ("1", "1"), ("01", "1")])
def test_stdin(who: str, policy: str) -> None:
    assert job(f"-np 2 --stdin {who}").stdin == policy


# What the ranks are given


def test_the_environment(here: Path) -> None:
    (here / "e").write_text("A=file\nB=file\n")
    environ = {"NCCL_DEBUG": "INFO", "MINE": "m", "OTHER": "o"}
    words = "-H a --env-file e -x A=option -x MINE -mca btl tcp,self"
    mine = {"A": "option", "B": "file", "MINE": "m", "OMPI_MCA_btl": "tcp,self"}
    assert job(words, **environ).environment == {**mine, "NCCL_DEBUG": "INFO"}
    assert job(f"{words} --no-forward", **environ).environment == mine


def test_the_rest_of_the_job() -> None:
    words = (
        "-H a --python py --wdir d --master-addr m --master-port 9 --gpus-per-rank 0 --gpu-bind node --oversubscribe-gpus "
        "--tag rank --timestamp-output --output-filename o --merge-stderr-to-stdout --fold -q -v --timeout 5m --grace 0 "
        "--start-timeout 3 --fanout 7 --ssh-option A=b --ssh-option C=d --insecure-host-keys --report r --report-bindings"
    )
    made = job(words)
    assert made.program == ("prog",) and len(made.job_id) == 16 and made.job_id != job(words).job_id
    assert (made.python, made.wdir, made.master_addr, made.master_port) == ("py", "d", "m", 9)
    assert (made.gpu.per_rank, made.gpu.bind, made.gpu.oversubscribe) == (0, "node", True)
    assert (made.output.tag, made.output.directory) == ("{time} [{rank}] ", "o")
    assert (made.output.merge_stderr, made.output.fold, made.output.quiet, made.output.verbose) == (True, True, True, 1)
    assert made.deadlines == Deadlines(timeout=300.0, grace=0.0, start=3.0, fanout=7)
    assert (made.agent.ssh_options, made.agent.insecure_host_keys) == (("A=b", "C=d"), True)
    assert (made.report_file, made.report_bindings) == ("r", True)


def test_what_nobody_said_is_the_default_of_the_job_spec() -> None:
    made = job("-H a")
    plain = JobSpec(made.job_id, made.program, made.allocation, made.job_map)
    assert made == plain
