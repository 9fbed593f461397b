from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpilaunch.daemon.node import topology
from mpilaunch.daemon.node.topology import parse_cpu_list, shared_caches, usable_cpus
from mpilaunch.hosts.node_facts import cpus_from_message
from tests.support import trees


@pytest.mark.parametrize("old_kernel", [False, True])
def test_two_sockets_with_two_threads_per_core(tmp_path: Path, old_kernel: bool) -> None:
    total = trees.cpus(tmp_path, sockets=2, cores=2, threads=2, old_kernel=old_kernel)
    assert usable_cpus(str(tmp_path), set(range(total))) == [
        [0, 0, 0, 0],
        [1, 1, 0, 0],
        [2, 2, 1, 1],
        [3, 3, 1, 1],
        [4, 0, 0, 0],
        [5, 1, 0, 0],
        [6, 2, 1, 1],
        [7, 3, 1, 1],
    ]


def test_only_the_affinity_is_listed_and_its_cores_keep_their_names(tmp_path: Path) -> None:
    trees.cpus(tmp_path, sockets=2, cores=2, threads=2)
    assert usable_cpus(str(tmp_path), {7, 5}) == [[5, 1, 0, 0], [7, 3, 1, 1]]


def test_without_sys_each_thread_is_a_core_of_one_socket(tmp_path: Path) -> None:
    assert usable_cpus(str(tmp_path), {0, 1, 3}) == [[0, 0, 0, 0], [1, 1, 0, 0], [3, 3, 0, 0]]


def test_a_broken_file_costs_no_more_than_what_it_says(tmp_path: Path) -> None:
    trees.cpus(tmp_path, sockets=1, cores=2, threads=1)
    cpu = tmp_path / "sys/devices/system/cpu/cpu1/topology"
    for name in ("core_cpus_list", "package_cpus_list", "physical_package_id"):
        (cpu / name).write_text("?\n")
    (tmp_path / "sys/devices/system/node/node0/cpulist").write_text("zero\n")
    assert usable_cpus(str(tmp_path), {0, 1}) == [[0, 0, 0, 0], [1, 1, 0, 0]]


def read_and_note(read: list[str]) -> Callable[[str], str]:
    def read_text(path: str) -> str:
        read.append(path)
        return Path(path).read_text()

    return read_text


def test_each_core_and_package_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = trees.cpus(tmp_path, sockets=2, cores=64, threads=2)
    read: list[str] = []
    monkeypatch.setattr(topology, "read_text", read_and_note(read))
    assert len(usable_cpus(str(tmp_path), set(range(total)))) == 256
    assert len(read) == 128 + 2 + 2 + 2  # cores, packages, their numbers, NUMA nodes


# Caches: two sockets of four cores of two threads, 0-3 and 8-11 on the first


def node_with_caches(root: Path, l2: list[str], l3: list[str]) -> set[int]:
    total = trees.cpus(root, sockets=2, cores=4, threads=2)
    own = [f"{core},{core + 8}" for core in range(8)]
    trees.caches(root, 1, 0, own, "Data")
    trees.caches(root, 1, 1, own, "Instruction")
    trees.caches(root, 2, 2, l2 or own, "Unified")
    trees.caches(root, 3, 3, l3, "Unified")
    return set(range(total))


@pytest.mark.parametrize(
    ("l2", "l3", "told"),
    [
        ([], ["0-3,8-11", "4-7,12-15"], {"1": "core", "2": "core", "3": "socket"}),
        ([], ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"], {
            "1": "core", "2": "core", "3": ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"],
        }),
        ([], [], {"1": "core", "2": "core"}),
        # One kind of core with its own cache, another that shares it by four.
        ([*(f"{core},{core + 8}" for core in range(4)), "4-7,12-15"], ["0-15"], {
            "1": "core", "2": ["0,8", "1,9", "2,10", "3,11", "4-7,12-15"], "3": ["0-15"],
        }),
    ],
)
def test_caches_are_described_in_few_words(tmp_path: Path, l2: list[str], l3: list[str], told: dict[str, object]) -> None:
    affinity = node_with_caches(tmp_path, l2, l3)
    rows = usable_cpus(str(tmp_path), affinity)
    message = shared_caches(rows, str(tmp_path))
    assert message == told
    facts = {cpu.number: cpu for cpu in cpus_from_message(rows, json.loads(json.dumps(message)))}
    for level, groups in (("l1", []), ("l2", l2), ("l3", l3)):
        expected = [set(parse_cpu_list(group)) for group in groups]
        if not groups and level != "l3":
            expected = [{core, core + 8} for core in range(8)]
        found: dict[int, set[int]] = {}
        for number, cpu in facts.items():
            found.setdefault(getattr(cpu, level), set()).add(number)
        assert list(found.values()) == (expected or [affinity])
        assert (-1 in found) == (not expected)


def test_caches_of_a_part_of_the_node(tmp_path: Path) -> None:
    node_with_caches(tmp_path, [], ["0-3,8-11", "4-7,12-15"])
    rows = usable_cpus(str(tmp_path), {1, 2, 9, 5})
    assert shared_caches(rows, str(tmp_path)) == {"1": "core", "2": "core", "3": "socket"}
    assert shared_caches([], str(tmp_path)) == {}
    assert shared_caches(rows, str(tmp_path / "nowhere")) == {}


def test_a_level_that_is_not_known_whole_is_left_out(tmp_path: Path) -> None:
    node_with_caches(tmp_path, [], ["0-3,8-11", "4-7,12-15"])
    (tmp_path / "sys/devices/system/cpu/cpu4/cache/index3/shared_cpu_list").write_text("?\n")
    assert "3" not in shared_caches(usable_cpus(str(tmp_path), set(range(16))), str(tmp_path))


def test_a_shared_cache_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = trees.cpus(tmp_path, sockets=2, cores=64, threads=2)
    own = [f"{core},{core + 128}" for core in range(128)]
    trees.caches(tmp_path, 2, 0, own)
    trees.caches(tmp_path, 3, 1, [f"{first}-{first + 7},{first + 128}-{first + 135}" for first in range(0, 128, 8)])
    rows = usable_cpus(str(tmp_path), set(range(total)))
    read: list[str] = []
    monkeypatch.setattr(topology, "read_text", read_and_note(read))
    told = shared_caches(rows, str(tmp_path))
    assert len(read) == 4 + 2 + 1 + 16  # level and type of two, the cores at both ends, and for the other the first end and all
    assert len(json.dumps(told)) < 600


@pytest.mark.parametrize("text", ["0-99999999", "x", "-1"])
def test_a_strange_list_of_cpus_is_refused_at_the_head(text: str) -> None:
    with pytest.raises(ValueError, match=r"CPU|invalid"):
        cpus_from_message([[0, 0, 0, 0]], {"3": [text]})


def test_on_this_machine_the_numbers_are_the_affinity() -> None:
    assert [cpu[0] for cpu in usable_cpus()] == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(("text", "numbers"), [("", []), ("0\n", [0]), ("0-2,8\n", [0, 1, 2, 8])])
def test_cpu_list(text: str, numbers: list[int]) -> None:
    assert parse_cpu_list(text) == numbers


def test_a_file_longer_than_one_read_is_read_whole(tmp_path: Path) -> None:
    trees.write(tmp_path / "long", "x" * 200_000)
    assert len(topology.read_text(str(tmp_path / "long"))) == 200_000
