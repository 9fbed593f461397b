"""Every scheduler's variables give its hosts and slots, and what cannot be read is told by the variable's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.nodeset import fold
from mpilaunch.hosts.schedulers import BatchJob, discover, find_job
from mpilaunch.hosts.schedulers.grid_engine import parse_pe_hostfile

FILES = {
    "/pbs": "n1\nn1\n\nn2\n",
    "/sge": "n1 4 all.q@n1 UNDEFINED\nshort\nn2 2 all.q@n2 <NULL>\n",
    "/sge-bad": "n1 4 all.q\nn2 x4 all.q\n",
    "/blank": "\n",
}


def read_text(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


def found(**environ: str) -> tuple[list[tuple[str, int | None]], str] | None:
    job = discover(environ, read_text)
    return None if job is None else ([(entry.name, entry.slots) for entry in job[0]], job[1])


@pytest.mark.parametrize(
    ("environ", "expected", "source"),
    [
        (
            {"SLURM_JOB_NODELIST": "node[01-03]", "SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_JOB_ID": "42"},
            [("node01", 4), ("node02", 4), ("node03", 3)],
            "Slurm job 42",
        ),
        (
            {"SLURM_JOB_NODELIST": "a,n[1-2]-ib", "SLURM_JOB_CPUS_PER_NODE": "8,16(x2)", "SLURM_CPUS_PER_TASK": "4"},
            [("a", 2), ("n1-ib", 4), ("n2-ib", 4)],
            "Slurm",
        ),
        (
            {"SLURM_JOB_NODELIST": "a", "SLURM_JOB_CPUS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "4"},
            [("a", 1)],
            "Slurm",
        ),
        # Tasks are tasks: the CPUs of each do not make them fewer.
        (
            {"SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "4"},
            [("a", 2)],
            "Slurm",
        ),
        ({"SLURM_JOB_NODELIST": "a,b"}, [("a", None), ("b", None)], "Slurm"),
        # In a step, the tasks are those of the step.
        (
            {
                "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_ID": "0",
                "SLURM_JOB_CPUS_PER_NODE": "2(x3)",
            },
            [("n1", 2), ("n2", 2), ("n3", 2)],
            "Slurm",
        ),
        # A heterogeneous job; the variables without an ending are of its first part.
        (
            {
                "SLURM_HET_SIZE": "2", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n01", "SLURM_TASKS_PER_NODE": "1",
                "SLURM_JOB_NODELIST_HET_GROUP_0": "n01", "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
                "SLURM_JOB_NODELIST_HET_GROUP_1": "n[02-03]", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2,1",
            },
            [("n01", 1), ("n02", 2), ("n03", 1)],
            "Slurm job 5",
        ),
        ({"SLURM_NODELIST": "a", "SLURM_TASKS_PER_NODE": "2"}, [("a", 2)], "Slurm"),
        (
            {"PBS_NODEFILE": "/pbs", "PBS_JOBID": "7.head"},
            [("n1", None), ("n1", None), ("n2", None)],
            "PBS job 7.head",
        ),
        ({"LSB_MCPU_HOSTS": "a 4 b 2", "LSB_HOSTS": "a a", "LSB_JOBID": "9"}, [("a", 4), ("b", 2)], "LSF job 9"),
        ({"LSB_DJOB_HOSTFILE": "/pbs"}, [("n1", None), ("n1", None), ("n2", None)], "LSF"),
        ({"LSB_HOSTS": "a a b"}, [("a", None), ("a", None), ("b", None)], "LSF"),
        ({"PE_HOSTFILE": "/sge", "JOB_ID": "5"}, [("n1", 4), ("n2", 2)], "Grid Engine job 5"),
        ({"COBALT_NODEFILE": "/pbs"}, [("n1", None), ("n1", None), ("n2", None)], "Cobalt"),
        # The first row that is set wins.
        ({"SLURM_JOB_NODELIST": "a", "PBS_NODEFILE": "/absent"}, [("a", None)], "Slurm"),
    ],
)
def test_discover(environ: dict[str, str], expected: list[tuple[str, int | None]], source: str) -> None:
    assert found(**environ) == (expected, source)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "42"},
        {"SLURM_JOB_NODELIST": ""},
        {"FLUX_URI": "local:///run/flux", "FLUX_JOB_NNODES": "1"},
        {"FLUX_JOB_NNODES": "2"},
    ],
)
def test_no_job_around(environ: dict[str, str]) -> None:
    assert found(**environ) is None


def test_origins() -> None:
    def origins(**environ: str) -> list[str]:
        job = discover(environ, read_text)
        assert job is not None
        return [entry.origin for entry in job[0]]

    assert origins(SLURM_JOB_NODELIST="a", SLURM_TASKS_PER_NODE="1") == ["SLURM_JOB_NODELIST"]
    assert origins(PBS_NODEFILE="/pbs") == ["PBS_NODEFILE=/pbs:1", "PBS_NODEFILE=/pbs:2", "PBS_NODEFILE=/pbs:4"]
    assert origins(LSB_MCPU_HOSTS="a 1") == ["LSB_MCPU_HOSTS"]
    assert origins(LSB_HOSTS="a") == ["LSB_HOSTS"]
    assert origins(PE_HOSTFILE="/sge") == ["PE_HOSTFILE=/sge:1", "PE_HOSTFILE=/sge:3"]


@pytest.mark.parametrize(
    ("environ", "reference", "message"),
    [
        (
            {"SLURM_JOB_NODELIST": "n[1-"},
            "nodeset-syntax",
            "SLURM_JOB_NODELIST:1:2: '[' is never closed",
        ),
        (
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x3)"},
            "scheduler-variable",
            "SLURM_TASKS_PER_NODE='4(x3)' does not give one count for each of SLURM_JOB_NODELIST (2 nodes)",
        ),
        (
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x999999999)"},
            "scheduler-variable",
            "SLURM_TASKS_PER_NODE='4(x999999999)' does not give one count for each of SLURM_JOB_NODELIST (2 nodes)",
        ),
        (
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4,b"},
            "scheduler-variable",
            "SLURM_TASKS_PER_NODE:1:3: 'b' is not a count",
        ),
        (
            {"SLURM_JOB_NODELIST": "a", "SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "many"},
            "scheduler-variable",
            "SLURM_CPUS_PER_TASK has 'many' where a number belongs",
        ),
        (
            {"PBS_NODEFILE": "/absent"},
            "scheduler-variable",
            "PBS_NODEFILE='/absent' cannot be read: no such file or directory",
        ),
        ({"PBS_NODEFILE": "/blank"}, "hostfile-empty", "PBS_NODEFILE=/blank:1:1: no hosts in this file"),
        ({"LSB_MCPU_HOSTS": "a 4 b"}, "scheduler-variable", "LSB_MCPU_HOSTS='a 4 b' is not pairs of host and slots"),
        ({"LSB_MCPU_HOSTS": "a b"}, "scheduler-variable", "LSB_MCPU_HOSTS has 'b' where a number belongs"),
        (
            {"PE_HOSTFILE": "/sge-bad"},
            "scheduler-variable",
            "PE_HOSTFILE=/sge-bad:2:4: 'x4' is not a number of slots",
        ),
        ({"PE_HOSTFILE": "/blank"}, "scheduler-variable", "PE_HOSTFILE='/blank' names no hosts"),
        (
            {"FLUX_URI": "local:///run/flux"},
            "scheduler-flux",
            "this runs inside a Flux instance, whose hosts are in no variable",
        ),
        (
            {"FLUX_URI": "local:///run/flux", "FLUX_JOB_NNODES": "4"},
            "scheduler-flux",
            "this runs inside a Flux instance, whose hosts are in no variable",
        ),
    ],
)
def test_what_cannot_be_read(environ: dict[str, str], reference: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        found(**environ)
    assert (caught.value.reference, caught.value.message) == (reference, message)
    assert caught.value.hint


def test_a_file_that_is_not_text_is_named_by_its_variable() -> None:
    def read_binary(path: str) -> str:
        return b"\xff".decode()

    with pytest.raises(UsageError, match=r"PBS_NODEFILE='/x' cannot be read: .*codec can't decode"):
        discover({"PBS_NODEFILE": "/x"}, read_binary)


def test_pe_hostfile_points_at_the_slots_and_not_at_the_name() -> None:
    with pytest.raises(UsageError) as caught:
        parse_pe_hostfile("  x1  x q", "pe")
    assert caught.value.context == ("  x1  x q", "      ^")


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 9)), min_size=1, max_size=20, unique_by=lambda pair: pair[0]))
def test_slurm_counts_follow_their_nodes(nodes: list[tuple[int, int]]) -> None:
    nodes = sorted(nodes)
    job = found(
        SLURM_JOB_NODELIST=fold(f"n{number:03}" for number, _ in nodes),
        SLURM_TASKS_PER_NODE=",".join(f"{slots}" for _, slots in nodes),
    )
    assert job == ([(f"n{number:03}", slots) for number, slots in nodes], "Slurm")


def test_entries_say_nothing_else() -> None:
    job = discover({"SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": "2"}, read_text)
    assert job is not None
    assert job[0][0]._replace(origin="") == HostEntry("a", 2)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_HET_SIZE": "0"}, "SLURM_HET_SIZE is 0, which is not a number of parts from 1 to 128"),
        ({"SLURM_HET_SIZE": "999999999"}, "SLURM_HET_SIZE is 999999999, which"),
        ({"SLURM_HET_SIZE": "x"}, "SLURM_HET_SIZE has 'x' where a number belongs"),
        (
            {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "a"},
            "SLURM_JOB_NODELIST_HET_GROUP_1 is missing, which",
        ),
        ({"SLURM_JOB_NUM_NODES": "4"}, "a job of Slurm has 4 nodes (SLURM_JOB_NUM_NODES), but"),
    ],
)
def test_a_job_of_slurm_that_is_not_understood_does_not_run_here_alone(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        found(**environ)
    assert caught.value.reference == "scheduler-variable" and caught.value.message.startswith(words)


def test_a_job_of_one_node_whose_list_is_missing_is_this_machine() -> None:
    assert found(SLURM_JOB_NUM_NODES="1", SLURM_JOB_ID="7") is None


OF_ONE = {"SLURM_JOB_NODELIST": "n", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environ", "agent"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}, BatchJob("slurm", frozenset({"n1", "n2"}), True)),
        ({**OF_ONE, "SLURM_CPUS_PER_TASK": "4"}, BatchJob("slurm", frozenset("n"), True, 4)),
        ({**OF_ONE, "SLURM_CPUS_PER_TASK": "x"}, BatchJob("slurm", frozenset("n"), True)),
        ({**OF_ONE, "SLURM_STEP_ID": "0"}, BatchJob("slurm", frozenset("n"), True, None, True)),
        ({**OF_ONE, "SLURM_STEP_ID": "4294967290"}, BatchJob("slurm", frozenset("n"), True)),
        ({"SLURM_JOB_NODELIST": "n[1-2]"}, None),
        ({"SLURM_JOB_NODELIST": "n[1-", "SLURM_JOB_ID": "7"}, None),
        ({"PBS_NODEFILE": "/pbs", "PBS_JOBID": "7"}, None),
        ({}, None),
    ],
)
def test_the_job_whose_hosts_have_an_agent(environ: dict[str, str], agent: BatchJob | None) -> None:
    assert find_job(environ, read_text, lambda name: name == "srun") == agent
    if agent is not None:
        assert find_job(environ, read_text, lambda name: False) == agent._replace(installed=False)
