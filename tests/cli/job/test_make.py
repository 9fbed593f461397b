"""From settings to a JobSpec."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.cli.advice import hints
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import allocate
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.job.environment.contracts import FIXED
from mpilaunch.job.spec import Deadlines, JobSpec
from mpilaunch.placement.cpu_binding import Cores, CpuPolicy
from mpilaunch.placement.mapping import MappingPolicy
from tests.support.command_line import job, settings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_hosts_discovered_later_get_the_agent_and_slots_of_the_first_ones() -> None:
    words = "-H a -N 2 --max-restarts 1 --host-discovery-script hosts"
    policy = job(words, OMPI_MCA_plm_rsh_agent="ssh -p 2222").restarts
    assert policy.pool is not None and policy.discovery == "hosts"
    (later,) = allocate([HostEntry("b")], "hosts", policy.pool.defaults).nodes
    assert [(node.agent, len(node.slots)) for node in (*policy.pool.nodes, later)] == [("openssh", 2)] * 2


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


def map_of(words: str, **environ: str) -> str:
    made = job(words, **environ)
    names = [node.name for node in made.allocation.nodes]
    return " ".join(f"{place.rank}@{names[place.node]}" for place in made.job_map.placements)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("-n 5 -hosts a,b x", "0@a 1@b 2@a 3@b 4@a"),
        ("-n 5 -ppn 2 -hosts a,b x", "0@a 1@a 2@b 3@b 4@a"),
        ("-ppn 2 -hosts a,b x", "0@a 1@a 2@b 3@b"),
        ("-n 3 -hosts a,b x : -n 2 y", "0@a 1@b 2@a 3@b 4@a"),
        ("-n 3 -ppn 2 -hosts a,b x : -n 2 y", "0@a 1@a 2@b 3@b 4@a"),
        ("-n 2 -host a x : -n 1 -host b y", "0@a 1@a 2@b"),
        ("-ppn 2 -host a x : -ppn 2 -host b y", "0@a 1@a 2@b 3@b"),
        ("--nooversubscribe -n 3 -hosts a,b x", "0@a 1@b 2@a"),
    ],
)
def test_ranks_go_round_the_hosts_of_hydra(words: str, ranks: str) -> None:
    for dialect in ("hydra", "intel"):
        assert map_of(f"--dialect {dialect} {words}") == ranks


def test_a_rankfile_says_host_and_cores_of_each_rank(here: Path) -> None:
    (here / "r").write_text("rank 1=a slot=0:1\nrank 0=+n1 slot=2-3\n")
    made = job("-H a,b -rf r")
    assert map_of("-H a,b -rf r") == "0@b 1@a"
    assert made.cpu == CpuPolicy("user", chosen=((Cores(None, (2, 3)),), (Cores(0, (1,)),)))
    assert map_of("-H a,b --map-by rankfile:FILE=r") == "0@b 1@a"
    assert map_of("-H a,b -rf r -np 1") == "0@b"
    assert job("-H a,b -rf r --bind-to none").cpu.bind_to == "none"


def test_without_hosts_the_rankfiles_are_the_nodes(here: Path) -> None:
    (here / "r").write_text("rank 0=b slot=0\nrank 1=a slot=0\nrank 2=b slot=1\n")
    assert nodes("-rf r") == [("b", 2), ("a", 1)]
    assert map_of("-rf r") == "0@b 1@a 2@b"
    with pytest.raises(UsageError, match="r:1: b is not in Slurm job 42"):
        job("-rf r", **SLURM)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-H a,b -rf r -np 3", "3 ranks asked for, but only 2 are listed"),
        ("-H b,c -rf r", "r:2: a is not in --host"),
        ("-H b:2 -rf s", "s:1: '+n1' is not one of the nodes of --host: the last is +n0"),
        ("-H b -rf t", "2 ranks do not fit in 1 slot of 1 node"),
        ("-rf r --map-by socket", "--rankfile and --map-by socket contradict each other"),
        ("--map-by rankfile", "--map-by: 'rankfile' names no file"),
        ("--map-by seq", "--map-by seq: no list of hosts"),
    ],
)
def test_what_is_wrong_with_a_rankfile(here: Path, words: str, message: str) -> None:
    (here / "r").write_text("rank 0=b slot=0\nrank 1=a slot=0\n")
    (here / "s").write_text("rank 0=+n1 slot=0\n")
    (here / "t").write_text("rank 0=b slot=0\nrank 1=b slot=0\n")
    with pytest.raises(UsageError, match=re.escape(message)):
        job(words)


def test_a_rankfile_and_ranks_of_a_slot_map_do_not_mix(here: Path) -> None:
    (here / "m.yaml").write_text("nodes:\n  a: {slots: [{rank: 0}, {}]}\n")
    (here / "r").write_text("rank 0=a slot=0\nrank 1=a slot=1\n")
    with pytest.raises(UsageError, match="rank 0 has a slot by the slot map, but r lists where ranks go"):
        job("--slot-map m.yaml -rf r")


def test_seq_takes_the_hostfile_line_by_line(here: Path) -> None:
    (here / "h").write_text("a\nb\na\nlocal\nlocal\n")
    (here / "s").write_text("b\na\nb\n")
    assert map_of("-f h --map-by seq") == "0@a 1@b 2@a 3@local 4@local"
    assert [place.node for place in job("-f h --map-by seq").job_map.placements] == [0, 1, 0, 2, 3]
    assert map_of("-f h --map-by seq -np 2") == "0@a 1@b"
    assert map_of("-H a:2,b:2 --map-by seq:FILE=s") == "0@b 1@a 2@b"
    assert map_of("--map-by seq:FILE=s") == "0@b 1@a 2@b"
    assert map_of("-H b,a,b --map-by seq") == "0@b 1@a 2@b"


def test_a_rankmap_names_nodes_whatever_their_slots() -> None:
    assert map_of("-H a,b --rankmap 1,0,1") == "0@b 1@a 2@b"
    assert map_of("-H a,b -rankmap (0,2,2) -np 3") == "0@a 1@a 2@b"
    with pytest.raises(UsageError, match="--rankmap and --map-by node cannot be used together"):
        job("-H a,b --rankmap 0 --map-by node")


def test_hosts_by_place(here: Path) -> None:
    (here / "h").write_text("a slots=2\nb slots=3\nc\nd\n")
    assert nodes("-f h -H +n1") == [("b", 3)]
    assert nodes("-f h -H +n1:2,+e:2") == [("a", 2), ("b", 2), ("c", 1)]
    assert nodes("-f h -H c,+e") == [("a", 2), ("b", 3), ("c", 1), ("d", 1)]
    assert nodes("-H +n1", **SLURM) == [("s2", 2)]
    assert nodes("-H +n0:5") == [("localhost", 5)]
    (here / "g").write_text("+n1 slots=1\n")
    assert nodes("-f g", **SLURM) == [("s2", 1)]
    with pytest.raises(UsageError, match=re.escape("--host: '+e:4' is not one of the nodes of h: 3 of its 4 are named by no")):
        job("-f h -H c,+e:4")


def test_nodes_in_the_order_of_their_slots_and_none_here(here: Path) -> None:
    assert nodes("-H a:2,b:4,c:2 --order-nodes DESCENDING") == [("b", 4), ("a", 2), ("c", 2)]
    assert nodes("-H a:2,b:4,c:1 --order-nodes ascending") == [("c", 1), ("a", 2), ("b", 4)]
    assert map_of("-H localhost:2,a:2 --nolocal") == "0@a 1@a"
    assert map_of("-H localhost:2,a:2 -skip-launch-node -np 1") == "0@a"
    with pytest.raises(UsageError, match="--nolocal leaves no node of this machine"):
        job("--nolocal")


def test_a_map_that_depends_on_the_nodes_is_not_made_yet() -> None:
    made = job("-H a:4,b:4 --map-by ppr:2:socket --stdin 7")
    assert [share.policy for share in made.pending] == [MappingPolicy(map_by="socket", per_object=2)]
    assert made.job_map.placements == ()


def test_the_universe_waits_for_slots_that_the_nodes_report() -> None:
    assert job("-H a:4,b:4 --universe-size SYSTEM").universe_size == 8
    assert job("-H a,b -N gpu --universe-size SYSTEM").universe_size is None


@pytest.mark.parametrize(("who", "policy"), [("all", "all"), ("none", "none"), ("1", "1"), ("01", "1"), ("auto", "0")])
def test_stdin(who: str, policy: str) -> None:
    assert job(f"-np 2 --stdin {who}").stdin == policy


def test_without_a_word_a_terminal_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings()["stdin"], job("-np 2").stdin) == ("auto", "0")
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    assert job("-np 2").stdin == "none"
    assert job("-np 2 --stdin 0").stdin == "0"
    assert job("-np 2 --stdin-archive f").stdin == job("-np 2 --stdin-archive f --detach").stdin == "0"
    with pytest.raises(UsageError, match="--stdin-archive with --stdin none"):
        job("-np 2 --stdin-archive f --stdin none")


# What the ranks are given


@pytest.mark.parametrize(
    "words",
    [
        "-np 4 -H a:2,b:2 -x WORLD_SIZE=4 -x LOCAL_SIZE=2 -x LOCAL_WORLD_SIZE=2 -x OMPI_COMM_WORLD_SIZE=4",
        "-np 1 -x RANK=0 -x LOCAL_RANK=0 -x NODE_RANK=0 -x PMI_SIZE=1",
        "-np 1 -x WORLD_SIZE -x PMI_*",
        "-np 1 -x RANK=0 a : -np 1 -x RANK=1 -x LOCAL_RANK=1",
        "-np 1 --nnodes 3 --node-rank 2 --master-addr a --master-port 1 -x RANK=2 -x WORLD_SIZE=3 -x NODE_RANK=2",
        "-genv WORLD_SIZE 2 -hosts a,b -ppn 2 -n 1 -env RANK 0 a : -n 1 -env RANK 1 -env LOCAL_RANK 1",
    ],
)
def test_a_fact_of_the_job_map_may_be_given_as_it_is(words: str) -> None:
    made = job(words, WORLD_SIZE="1", PMI_OTHER="1")
    assert not {*made.environment, *(name for app in made.apps for name in app.environment)} & FIXED


def test_a_profile_needs_the_head_of_all_ranks_if_it_names_each() -> None:
    assert job("-np 2 --profile lightning,tf").profiles == ("lightning", "tf")
    part = "-np 1 --nnodes 2 --node-rank 1 --master-addr a --master-port 1 --profile"
    assert job(f"{part} lightning").profiles == ("lightning",)
    with pytest.raises(UsageError, match="--node-rank 1 and --profile lightning,tpu cannot be used together"):
        job(f"{part} lightning,tpu")


@pytest.mark.parametrize(
    ("source", "profiles", "note"),
    [
        ("import tensorflow as tf\n", (), "train.py imports tensorflow; --profile tf sets TF_CONFIG"),
        ("if 1:\n    from pytorch_lightning import Trainer\n", (), "train.py imports pytorch_lightning; --profile lightning"),
        ("import tensorflow\n", ("tf",), None),
        ("import tensorflow_datasets, numpy\n# import tensorflow\n", (), None),
    ],
)
def test_an_import_names_a_profile(tmp_path: Path, source: str, profiles: tuple[str, ...], note: str | None) -> None:
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    found = hints.profile_note([["python3", str(tmp_path / "train.py")], ["missing.py"]], profiles)
    assert found is None if note is None else note in (found or "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-np 2 -x WORLD_SIZE=4", "-x WORLD_SIZE=...: .*: '2' for rank 0, not '4'"),
        ("-np 2 -x RANK=0", "-x RANK=...: .*: '1' for rank 1, not '0'"),
        ("-np 3 -H a:2,b:1 -x LOCAL_SIZE=2", ": '1' for rank 2, not '2'"),
        ("-np 1 -x RANK=0 a : -np 1 -x RANK=0", ": '1' for rank 1, not '0'"),
        ("-np 1 -x WORLD_SIZE", ": '1' for rank 0, not '7'"),
        ("-np 1 -x PMI_SPAWNED=", "for every rank$"),
        ("-np 1 -x PMI_PORT=1", "for every rank$"),
        ("-H a:4 --map-by ppr:2:socket -x WORLD_SIZE=4", "for every rank$"),
        ("-np 1 --append-env WORLD_SIZE 1", "for every rank$"),
    ],
)
def test_a_fact_of_the_job_map_cannot_be_changed(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        job(words, WORLD_SIZE="7")
    assert caught.value.reference == "export-reserved"



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
        "--tag rank --timestamp-output --output-filename o --merge-stderr-to-stdout -q -v --timeout 5m --grace 0 "
        "--start-timeout 3 --fanout 7 --ssh-option A=b --ssh-option C=d --insecure-host-keys --report r --report-bindings"
    )
    made = job(words)
    assert made.apps[0].program == ("prog",) and len(made.job_id) == 16 and made.job_id != job(words).job_id
    assert (made.python, made.wdir, made.master_addr, made.master_port) == ("py", "d", "m", 9)
    assert (made.gpu.per_rank, made.gpu.bind, made.gpu.oversubscribe) == (0, "node", True)
    assert (made.output.tag, made.output.directory) == ("{time} [{rank}] ", "o")
    assert (made.output.merge_stderr, made.output.quiet, made.output.verbose) == (True, True, 1)
    assert job("-H a --fold --tag rank").output.fold
    assert (made.deadlines, made.fanout) == (Deadlines(timeout=300.0, grace=0.0, start=3.0), 7)
    assert (made.agent.ssh_options, made.agent.insecure_host_keys) == (("A=b", "C=d"), True)
    assert (made.report_file, made.report_bindings) == ("r", True)


def test_what_nobody_said_is_the_default_of_the_job_spec() -> None:
    made = job("-H a")
    found: dict[str, Any] = {"head_python": made.head_python, "directory": os.getcwd()}
    plain = JobSpec(made.job_id, made.apps, made.allocation, made.job_map, **found)
    assert made == plain


@pytest.mark.parametrize("words", ["--first-interrupt status", "--host-failures clush"])
def test_options_of_independent_hosts_need_them(words: str) -> None:
    with pytest.raises(UsageError, match=f"{words.split()[0]} needs --independent"):
        job(f"-H a {words}")
    assert job(f"-H a {words} --independent").independent


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        ("", "4"),
        ("-np 3", "4"),
        ("--cpus-per-rank 2", "2"),
        ("-np 6 --oversubscribe", "auto"),  # more ranks than tasks
        ("-H other:2", "auto"),
        ("--dialect openmpi", "none"),
    ],
)
def test_ranks_have_the_cpus_of_the_tasks_of_a_slurm_job(words: str, threads: str) -> None:
    of_job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_CPUS_PER_TASK": "4"}
    assert job(words, **of_job).threads == threads
    assert job(words, **{**of_job, "SLURM_CPUS_PER_TASK": ""}).threads in ("auto", "none", "2")
