"""Ranks are really where --map-by, --bind-to and rankfiles put them: what the kernel says of each, here and on hosts."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from mpilaunch.daemon.node.topology import shared_caches, usable_cpus
from mpilaunch.hosts.node_facts import Cpu, cpus_from_message
from mpilaunch.placement.topology import OBJECTS, objects
from tests.support.hosts import Hosts
from tests.support.launching import launch

SHOW = ("python3", "-c", "import os; print(os.environ['RANK'], sorted(os.sched_getaffinity(0)))")
ROWS = usable_cpus()
CPUS = cpus_from_message(ROWS, shared_caches(ROWS))
ALL = sorted(cpu.number for cpu in CPUS)
KINDS = [kind for kind in OBJECTS if objects(CPUS, kind)]


def seen(*words: str, cwd: Path | None = None) -> list[list[int]]:
    """Launch, and return the CPUs that each rank may use by the kernel's word."""
    done = launch(*words, *SHOW, cwd=cwd)
    assert done.code == 0, done.words
    of_rank = dict(line.split(" ", 1) for line in done.lines)
    return [ast.literal_eval(of_rank[str(rank)]) for rank in range(len(of_rank))]


def numbers(members: tuple[Cpu, ...]) -> list[int]:
    return sorted(cpu.number for cpu in members)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_is_bound_to_each_kind_of_object(kind: str) -> None:
    found = objects(CPUS, kind)
    ranks = min(len(found), 4)
    expected = [numbers(one) for one in found[:ranks]]
    assert seen("-np", str(ranks), "--bind-to", kind) == expected
    if kind != "machine":
        assert seen("-np", str(ranks), "--map-by", kind) == expected


def test_the_other_words() -> None:
    last = objects(CPUS, "core")[-1]
    assert seen("-np", "2") == [ALL, ALL]
    assert seen("-np", "2", "--map-by", "core", "--bind-to", "none") == [ALL, ALL]
    assert seen("-np", "2", "--bind-to", "rr") == [[ALL[0]], [ALL[1 % len(ALL)]]]
    assert seen("-np", "2", "--bind-to", f"user:{ALL[-1]}") == [[ALL[-1]]] * 2
    place = str(len(objects(CPUS, "core")) - 1)
    assert seen("-np", "2", "--cpu-set", place) == [numbers(last)] * 2
    assert seen("-np", "1", "--cpu-set", place, "--bind-to", "core") == [numbers(last)]
    assert seen("-np", "1", "--map-by", f"slot:PE={len(objects(CPUS, 'core'))}") == [ALL]


def test_a_rankfile_binds(tmp_path: Path) -> None:
    cores = objects(CPUS, "core")
    (tmp_path / "ranks").write_text(f"rank 0=localhost slot={len(cores) - 1}\nrank 1=localhost slot=0:*\n")
    expected = [numbers(cores[-1]), numbers(objects(CPUS, "socket")[0])]
    assert seen("-rf", "ranks", cwd=tmp_path) == expected
    assert seen("-H", "localhost:2", "--map-by", "rankfile:file=ranks", cwd=tmp_path) == expected


def test_a_number_on_each_object_asks_the_node_first() -> None:
    found = objects(CPUS, "core")
    assert seen("--map-by", "ppr:1:core") == [numbers(one) for one in found]
    per_socket = [numbers(one) for one in objects(CPUS, "socket") for _ in range(2)]
    assert seen("--npersocket", "2") == per_socket
    done = launch("--map-by", "ppr:1:core", "-np", str(len(found) + 1), "true")
    assert done.code == 2
    assert f"{len(found) + 1} ranks with 1 on each core do not fit on the {len(found)} core" in done.words
    done = launch("--map-by", "ppr:1:core", "--stdin", "9999", "true")
    assert done.words.startswith("error[stdin]: --stdin: there is no rank 9999")


def test_what_this_machine_cannot_give_names_it_and_the_numbers(tmp_path: Path) -> None:
    cores = len(objects(CPUS, "core"))
    done = launch("-np", str(cores + 1), "--bind-to", "core", "true")
    assert done.code == 1
    assert f"localhost has {cores} core" in done.words and f"for {cores + 1} ranks with 1 each" in done.words
    assert launch("-np", str(cores + 1), "--bind-to", "core:overload-allowed", "true").code == 0
    (tmp_path / "ranks").write_text("rank 0=localhost slot=7:0\n")
    assert "rank 0 on localhost: there is no socket 7" in launch("-rf", "ranks", "true", cwd=tmp_path).words
    for kind in set(OBJECTS) - set(KINDS):
        assert f"localhost reports no {kind}" in launch("-np", "1", "--bind-to", kind, "true").words
        assert seen("-np", "1", "--bind-to", f"{kind}:if-supported") == [ALL]


def test_more_ranks_than_slots_is_reported_as_ever() -> None:
    done = launch("-H", "localhost:2", "-np", "3", "--map-by", "core", "true")
    assert (done.code, done.words.splitlines()[0]) == (
        2,
        "error[not-enough-slots]: 3 ranks do not fit in 2 slots of 1 node (--host)",
    )


def test_a_plan_that_depends_on_the_nodes_says_so() -> None:
    done = launch("--dry-run", "-H", "node1:4,node2:4", "--map-by", "ppr:2:socket", "-np", "4", "prog")
    assert (done.code, done.words) == (0, "")
    shown = done.out.decode().splitlines()
    assert shown[0] == "the map depends on the topology of the nodes: 2 ranks on each socket, 4 ranks in all"
    assert shown[1].startswith("--topology ")
    assert "8 slots on 2 nodes, hosts from --host" in shown and shown[-1] == "program: prog"
    assert "depends on the topology of its nodes" in launch("--show-env", "0", "--map-by", "socket:span", "prog").words


def test_what_is_shown_before_the_ranks_run() -> None:
    done = launch("-np", "1", "--bind-to", "core", "--report-bindings", "--display-allocation", "true")
    first = objects(CPUS, "core")[0]
    assert re.search(rf"^rank 0 on localhost: cpus {first[0].number}\S* \[B+[/\]]", done.words, re.M), done.words
    assert f"{len(os.sched_getaffinity(0))} slots on 1 node" in done.words
    assert "rank 0 on localhost: cpus" in launch("-np", "1", "--bind-to", "core:REPORT", "true").words


@pytest.mark.testbed
def test_hosts_are_asked_and_ranks_bound_there(hosts: Hosts) -> None:
    cores = objects(CPUS, "core")
    done = hosts.launch("-H", "node[01-03]:64", "--map-by", "ppr:1:core", "--display-map", *SHOW)
    assert done.returncode == 0, done.stderr
    of_rank = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    expected = [numbers(one) for _ in range(3) for one in cores]
    assert [ast.literal_eval(of_rank[str(rank)]) for rank in range(len(of_rank))] == expected
    assert f"{len(expected)} ranks on 3 nodes" in done.stderr


@pytest.mark.testbed
def test_a_host_that_cannot_be_asked_is_named(hosts: Hosts) -> None:
    done = hosts.launch("-H", "node01:4,nowhere:4", "--map-by", "socket:SPAN", "true")
    assert done.returncode != 0
    assert "nowhere" in done.stderr and "error[start-" in done.stderr
