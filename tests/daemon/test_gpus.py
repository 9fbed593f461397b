from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mpilaunch.daemon.node import nvml
from mpilaunch.daemon.node.gpus import find_gpus
from mpilaunch.daemon.node.nvml import read_nvml, run_in_child
from tests.support import trees


def no_nvml(bus_ids: list[str]) -> dict[str, Any]:
    raise AssertionError(f"NVML was asked for {bus_ids} though /proc says all")


def find(root: Path, ask: Callable[[list[str]], Any] = no_nvml, **environ: Any) -> tuple[list[dict[str, Any]], list[str]]:
    notes: list[str] = []
    return find_gpus(str(root), environ, notes, ask), notes


def indices(root: Path, **environ: Any) -> list[int]:
    return [gpu["index"] for gpu in find(root, **environ)[0]]


# NVIDIA.


def test_eight_nvidia_gpus_in_bus_order_with_names_and_numa_nodes(tmp_path: Path) -> None:
    trees.nvidia_node(tmp_path, 8)
    found, notes = find(tmp_path)
    assert [gpu["index"] for gpu in found] == list(range(8))
    assert [gpu["uuid"] for gpu in found] == [trees.nvidia_uuid(7 - number) for number in range(8)]
    assert [gpu["numa"] for gpu in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found[0] == {
        "vendor": "nvidia",
        "index": 0,
        "uuid": "GPU-00000007-0000-4000-8000-0123456789ab",
        "bus_id": "0000:1b:00.0",
        "name": "NVIDIA H200",
        "numa": 0,
    }
    assert notes == []


def test_a_container_sees_the_gpus_of_its_dev_numbered_as_its_tools_number_them(tmp_path: Path) -> None:
    trees.nvidia_node(tmp_path, 8, in_dev=[6, 2])
    found, notes = find(tmp_path)
    assert [(gpu["index"], gpu["uuid"]) for gpu in found] == [(0, trees.nvidia_uuid(6)), (1, trees.nvidia_uuid(2))]
    assert notes == []


def test_bus_ids_sort_as_numbers_with_their_domain(tmp_path: Path) -> None:
    for minor, bus in enumerate(["0001:01:00.0", "10000:01:00.0", "0000:c1:00.0", "0000:0a:00.0"]):
        trees.nvidia_gpu(tmp_path, bus, minor)
    assert [gpu["bus_id"] for gpu in find(tmp_path)[0]] == ["0000:0a:00.0", "0000:c1:00.0", "0001:01:00.0", "10000:01:00.0"]


@pytest.mark.parametrize("sick", ["unreadable", "no minor", "bad bus id"])
def test_a_sick_gpu_is_left_out_and_noted(tmp_path: Path, sick: str) -> None:
    trees.nvidia_gpu(tmp_path, "0000:1b:00.0", 0)
    tree = tmp_path / "proc/driver/nvidia/gpus"
    if sick == "unreadable":
        trees.unreadable(tree / "0000:2b:00.0/information")
    elif sick == "no minor":
        trees.write(tree / "0000:2b:00.0/information", "Model: NVIDIA H200\n")
    else:
        trees.nvidia_gpu(tmp_path, "2b", 1)
    found, notes = find(tmp_path)
    assert [gpu["bus_id"] for gpu in found] == ["0000:1b:00.0"]
    assert len(notes) == 1 and "2b" in notes[0] and "left out" in notes[0]


def test_an_excluded_gpu_is_not_there(tmp_path: Path) -> None:
    trees.nvidia_gpu(tmp_path, "0000:1b:00.0", 0)
    information = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
    information.write_text(information.read_text().replace("Excluded:\t No", "Excluded:\t Yes"))
    assert find(tmp_path) == ([], [])


def test_without_proc_the_device_files_that_open_count_and_have_no_uuid(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        trees.write(tmp_path / "dev" / name)
    trees.unreadable(tmp_path / "dev/nvidia7")  # left behind by a driver that is gone
    found, _ = find(tmp_path)
    assert [(gpu["index"], gpu["uuid"], gpu["bus_id"]) for gpu in found] == [(0, "", ""), (1, "", ""), (2, "", "")]


def test_an_unknown_uuid_is_asked_of_nvml(tmp_path: Path) -> None:
    trees.nvidia_gpu(tmp_path, "0000:1b:00.0", 0, uuid="GPU-????????-????-????-????-????????????")
    trees.nvidia_gpu(tmp_path, "0000:2b:00.0", 1)
    library = trees.FakeNvml({}, uuids={"0000:1b:00.0": "GPU-feed"})
    asked: list[list[str]] = []

    def ask(bus_ids: list[str]) -> Any:
        asked.append(bus_ids)
        return read_nvml(library, bus_ids)

    found, _ = find(tmp_path, ask)
    assert asked == [["0000:1b:00.0"]]
    assert [gpu["uuid"] for gpu in found] == ["GPU-feed", trees.nvidia_uuid(1)]


def test_a_gpu_whose_uuid_nobody_knows_still_counts(tmp_path: Path) -> None:
    trees.nvidia_gpu(tmp_path, "0000:1b:00.0", 0, uuid="")
    assert [gpu["uuid"] for gpu in find(tmp_path, lambda bus_ids: {})[0]] == [""]


# MIG.


@pytest.fixture
def mig_node(tmp_path: Path) -> Path:
    """GPU 0 whole, GPU 1 split in two."""
    trees.nvidia_gpu(tmp_path, "0000:1b:00.0", 0)
    trees.nvidia_gpu(tmp_path, "0000:2b:00.0", 1)
    trees.numa_of_device(tmp_path, "0000:2b:00.0", 1)
    trees.mig_instances(tmp_path, 1, 2)
    return tmp_path


def ask_fake_nvml(bus_ids: list[str]) -> Any:
    instances = {"0000:2b:00.0": [("MIG-aaaa-1", "NVIDIA H200 MIG 3g.71gb"), ("MIG-aabb-2", "NVIDIA H200 MIG 4g.71gb")]}
    return read_nvml(trees.FakeNvml(instances), bus_ids)


def test_mig_instances_stand_in_the_place_of_their_gpu(mig_node: Path) -> None:
    found, notes = find(mig_node, ask_fake_nvml)
    assert [(gpu["index"], gpu["uuid"], gpu["bus_id"], gpu["name"], gpu["numa"]) for gpu in found] == [
        (0, trees.nvidia_uuid(0), "0000:1b:00.0", "NVIDIA H200", -1),
        (1, "MIG-aaaa-1", "0000:2b:00.0", "NVIDIA H200 MIG 3g.71gb", 1),
        (2, "MIG-aabb-2", "0000:2b:00.0", "NVIDIA H200 MIG 4g.71gb", 1),
    ]
    assert notes == []


def test_a_split_gpu_without_nvml_is_left_out_not_shown_whole(mig_node: Path) -> None:
    found, notes = find(mig_node, lambda bus_ids: {})
    assert [gpu["uuid"] for gpu in found] == [trees.nvidia_uuid(0)]
    assert len(notes) == 1 and "0000:2b:00.0" in notes[0] and "MIG" in notes[0]


@pytest.mark.parametrize(
    ("mask", "uuids"),
    [("MIG-aabb-2", ["MIG-aabb-2"]), ("MIG-aab", ["MIG-aabb-2"]), ("MIG-aa", []), ("1", []), ("MIG-aaaa-1,0", ["MIG-aaaa-1"])],
)
def test_mig_masks_go_by_uuid_as_numbers_count_whole_gpus(mig_node: Path, mask: str, uuids: list[str]) -> None:
    assert [gpu["uuid"] for gpu in find(mig_node, ask_fake_nvml, CUDA_VISIBLE_DEVICES=mask)[0]] == uuids


# Masks as CUDA reads them.


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 3 , 1", [3, 1]),
        (trees.nvidia_uuid(3), [0]),
        ("GPU-00000001,GPU-00000003", [2, 0]),
        ("gpu-00000001", [2]),
        ("GPU-0000000", []),  # not unique
        ("1,GPU-00000000", [1, 3]),
        ("0,2,-1,1", [0, 2]),
        ("1,4,2", [1]),
        ("1,x,2", [1]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("NoDevFiles", []),
        ("0,1,0", []),
        ("0,\u00b2", [0]),
        (f"1,{'9' * 5000}", [1]),
    ],
)
def test_cuda_mask(tmp_path: Path, mask: str, expected: list[int]) -> None:
    trees.nvidia_node(tmp_path, 4)
    assert indices(tmp_path, CUDA_VISIBLE_DEVICES=mask) == expected


def test_an_empty_mask_is_not_the_beginning_of_the_only_uuid(tmp_path: Path) -> None:
    trees.nvidia_node(tmp_path, 1)
    assert indices(tmp_path, CUDA_VISIBLE_DEVICES="") == []


@pytest.mark.parametrize(("mask", "noted"), [("0,9", "'9'"), ("0,1,0", "'0' is there twice"), ("", None), ("0,-1", None)])
def test_a_mask_that_hides_by_mistake_is_noted(tmp_path: Path, mask: str, noted: str | None) -> None:
    trees.nvidia_node(tmp_path, 4)
    notes = find(tmp_path, CUDA_VISIBLE_DEVICES=mask)[1]
    assert [noted in note for note in notes if noted] == ([True] if noted else [])
    assert bool(notes) == bool(noted)


def test_the_request_to_a_container_runtime_is_no_mask(tmp_path: Path) -> None:
    trees.nvidia_node(tmp_path, 2)
    assert indices(tmp_path, NVIDIA_VISIBLE_DEVICES="1") == [0, 1]


@pytest.mark.parametrize(
    ("environ", "noted"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": trees.nvidia_uuid(0)}, False),
        ({}, False),
    ],
)
def test_numbers_on_a_node_of_several_models_are_noted(tmp_path: Path, environ: dict[str, Any], noted: bool) -> None:
    trees.nvidia_gpu(tmp_path, "0000:1b:00.0", 0, model="NVIDIA T4")
    trees.nvidia_gpu(tmp_path, "0000:2b:00.0", 1, model="NVIDIA H200")
    assert bool(find(tmp_path, **environ)[1]) is noted


# AMD.


def test_four_amd_gpus(tmp_path: Path) -> None:
    trees.amd_node(tmp_path, 4)
    trees.numa_of_device(tmp_path, "0000:11:00.0", 3)
    found, notes = find(tmp_path)
    assert [(gpu["index"], gpu["uuid"]) for gpu in found] == [(n, f"GPU-{0xA0B0 + n:016x}") for n in range(4)]
    assert found[0] == {
        "vendor": "amd",
        "index": 0,
        "uuid": "GPU-000000000000a0b0",
        "bus_id": "0000:11:00.0",
        "name": "gfx942",
        "numa": 3,
    }
    assert notes == []


def test_amd_gpus_count_in_the_kernels_order_of_nodes(tmp_path: Path) -> None:
    trees.amd_gpu(tmp_path, 2, unique=2, bus=0xC1, render=129)
    trees.amd_gpu(tmp_path, 10, unique=10, bus=0x01, render=128)
    assert [gpu["bus_id"] for gpu in find(tmp_path)[0]] == ["0000:c1:00.0", "0000:01:00.0"]


def test_amd_needs_kfd_and_a_render_node(tmp_path: Path) -> None:
    trees.amd_gpu(tmp_path, 1, unique=1, bus=1, render=128, in_dev=False)
    trees.amd_gpu(tmp_path, 2, unique=2, bus=2, render=129)
    assert [gpu["bus_id"] for gpu in find(tmp_path)[0]] == ["0000:02:00.0"]
    (tmp_path / "dev/kfd").unlink()
    assert find(tmp_path) == ([], [])


def test_a_sick_kfd_node_is_left_out_and_noted(tmp_path: Path) -> None:
    trees.amd_node(tmp_path, 2)
    trees.unreadable(tmp_path / "sys/class/kfd/kfd/topology/nodes/7/properties")
    trees.write(tmp_path / "sys/class/kfd/kfd/topology/nodes/8/properties", "")  # as the device cgroup shows others' GPUs
    found, notes = find(tmp_path)
    assert len(found) == 2
    assert ["node 7" in notes[0], "node 8" in notes[1], len(notes)] == [True, True, 2]


def test_amd_partitions_that_share_a_name_have_none(tmp_path: Path) -> None:
    trees.amd_gpu(tmp_path, 1, unique=5, bus=1, render=128)
    trees.amd_gpu(tmp_path, 2, unique=5, bus=1, render=129)
    trees.amd_gpu(tmp_path, 3, unique=6, bus=2, render=130)
    assert [gpu["uuid"] for gpu in find(tmp_path)[0]] == ["", "", "GPU-0000000000000006"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000A0B2"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1,0"}, [1, 3]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "2"}, []),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_rocm_masks_compound(tmp_path: Path, environ: dict[str, Any], expected: list[int]) -> None:
    trees.amd_node(tmp_path, 4)
    assert indices(tmp_path, **environ) == expected


# Intel.


def intel_node(root: Path, tiles: int = 1) -> None:
    """An integrated GPU and two cards, whose render nodes are numbered against the bus order."""
    trees.intel_gpu(root, 130, "0000:00:02.0", pci_class="0x030000", tiles=1)
    trees.intel_gpu(root, 129, "0000:3a:00.0", tiles=tiles)
    trees.intel_gpu(root, 128, "0000:9a:00.0", tiles=tiles)


def test_intel_gpus_in_bus_order(tmp_path: Path) -> None:
    intel_node(tmp_path)
    trees.numa_of_device(tmp_path, "0000:9a:00.0", 1)
    found, notes = find(tmp_path)
    assert [(gpu["index"], gpu["bus_id"], gpu["numa"]) for gpu in found] == [
        (0, "0000:00:02.0", -1),
        (1, "0000:3a:00.0", -1),
        (2, "0000:9a:00.0", 1),
    ]
    assert {(gpu["vendor"], gpu["uuid"], gpu["name"]) for gpu in found} == {("intel", "", "0x0bd5")}
    assert notes == []


def test_what_is_no_intel_gpu_is_not_listed(tmp_path: Path) -> None:
    trees.intel_gpu(tmp_path, 128, "0000:3a:00.0", pci_class="0x120000")
    trees.intel_gpu(tmp_path, 129, "0000:4a:00.0")
    (tmp_path / "sys/class/drm/renderD129/device/vendor").write_text("0x1002\n")
    trees.intel_gpu(tmp_path, 130, "0000:5a:00.0")
    (tmp_path / "dev/dri/renderD130").unlink()
    assert find(tmp_path) == ([], [])


def test_a_sick_intel_gpu_is_left_out_and_noted(tmp_path: Path) -> None:
    intel_node(tmp_path)
    (tmp_path / "sys/class/drm/renderD129/device/class").unlink()
    found, notes = find(tmp_path)
    assert [gpu["bus_id"] for gpu in found] == ["0000:00:02.0", "0000:9a:00.0"]
    assert len(notes) == 1 and "renderD129" in notes[0]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ZE_AFFINITY_MASK": "2,1"}, [0, 2]),  # without the variable for bus order integrated GPUs count last
        ({"ZE_AFFINITY_MASK": "2,1", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}, [1, 2]),
        ({"ZE_AFFINITY_MASK": "7,0"}, [1]),
        ({"ZE_AFFINITY_MASK": "-1"}, []),
        ({"ZE_AFFINITY_MASK": ""}, [0, 1, 2]),
        ({"ZE_AFFINITY_MASK": "default"}, [0, 1, 2]),
    ],
)
def test_level_zero_mask(tmp_path: Path, environ: dict[str, Any], expected: list[int]) -> None:
    intel_node(tmp_path)
    assert indices(tmp_path, **environ) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ZE_AFFINITY_MASK": "0"}, []),
        ({"ZE_AFFINITY_MASK": "0", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [1]),
        ({"ZE_AFFINITY_MASK": "0.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, []),
        ({}, [0, 1, 2]),
    ],
)
def test_a_mask_of_tiles_is_never_widened_to_whole_gpus(
    tmp_path: Path, environ: dict[str, Any], expected: list[int]
) -> None:
    intel_node(tmp_path, tiles=2)
    found, notes = find(tmp_path, **environ)
    assert [gpu["index"] for gpu in found] == expected
    assert bool(notes) == (expected == [])


def test_tiles_of_the_older_driver_count_too(tmp_path: Path) -> None:
    trees.intel_gpu(tmp_path, 128, "0000:3a:00.0", tiles=0)
    for tile in range(2):
        trees.write(tmp_path / f"sys/bus/pci/devices/0000:3a:00.0/drm/card1/gt/gt{tile}/id")
    assert indices(tmp_path, ZE_AFFINITY_MASK="0") == []


# Ascend, and several vendors.


def test_ascend_devices(tmp_path: Path) -> None:
    for name in ("davinci0", "davinci2", "davinci10", "davinci_manager"):
        trees.write(tmp_path / "dev" / name)
    found, _ = find(tmp_path)
    assert [(gpu["vendor"], gpu["index"], gpu["uuid"]) for gpu in found] == [("ascend", n, "") for n in range(3)]
    assert indices(tmp_path, ASCEND_RT_VISIBLE_DEVICES="1,2,-1,0") == [1, 2]


def test_vendors_come_in_a_fixed_order_and_count_apart(tmp_path: Path) -> None:
    trees.write(tmp_path / "dev/davinci0")
    trees.intel_gpu(tmp_path, 128, "0000:00:02.0", pci_class="0x030000")
    trees.nvidia_node(tmp_path, 1)
    assert [(gpu["vendor"], gpu["index"]) for gpu in find(tmp_path)[0]] == [("nvidia", 0), ("ascend", 0), ("intel", 0)]


def test_a_node_without_gpus(tmp_path: Path) -> None:
    assert find(tmp_path, CUDA_VISIBLE_DEVICES="0", ZE_AFFINITY_MASK="0") == ([], [])


# The child that asks NVML.


def test_the_child_brings_back_what_the_call_returns() -> None:
    assert run_in_child(lambda: {"pid": os.getpid()}, 10.0)["pid"] != os.getpid()


def test_a_call_that_raises_gives_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_in_child(lambda: ctypes.CDLL("libthere-is-none.so"), 10.0) is None
    assert capfd.readouterr() == ("", "")


def test_a_call_that_kills_its_process_gives_nothing() -> None:
    assert run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), 10.0) is None


def test_a_call_that_hangs_is_killed_and_buried() -> None:
    before = psutil.Process().children()
    assert run_in_child(signal.pause, 0.01) is None
    assert psutil.Process().children() == before


def test_a_library_that_does_not_start_knows_nothing() -> None:
    library = trees.FakeNvml({"0000:1b:00.0": [("MIG-1", "")]})
    library.nvmlInit_v2 = lambda: 9  # type: ignore[method-assign]
    assert read_nvml(library, ["0000:1b:00.0"]) == {}


def test_a_missing_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvml.ask_nvml(["0000:1b:00.0"]) == {}
