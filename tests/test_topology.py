from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpilaunch.daemon import topology
from mpilaunch.daemon.topology import parse_cpu_list, usable_cpus
from tests import trees


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


def test_each_core_and_package_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = trees.cpus(tmp_path, sockets=2, cores=64, threads=2)
    read: list[str] = []
    monkeypatch.setattr(topology, "read_text", lambda path: read.append(path) or Path(path).read_text())
    assert len(usable_cpus(str(tmp_path), set(range(total)))) == 256
    assert len(read) == 128 + 2 + 2 + 2  # cores, packages, their numbers, NUMA nodes


def test_on_this_machine_the_numbers_are_the_affinity() -> None:
    assert [cpu[0] for cpu in usable_cpus()] == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(("text", "numbers"), [("", []), ("0\n", [0]), ("0-2,8\n", [0, 1, 2, 8])])
def test_cpu_list(text: str, numbers: list[int]) -> None:
    assert parse_cpu_list(text) == numbers


def test_a_file_longer_than_one_read_is_read_whole(tmp_path: Path) -> None:
    trees.write(tmp_path / "long", "x" * 200_000)
    assert len(topology.read_text(str(tmp_path / "long"))) == 200_000
