"""Builders of fake /proc, /sys and /dev trees: what a node with certain GPUs, CPUs and networks shows to its processes.

Each builder adds to the tree under `root`, so that they combine. Device files are ordinary files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def unreadable(path: Path) -> None:
    """Put a directory where a file is expected: reading it fails, also for root."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir()


def nvidia_uuid(minor: int) -> str:
    return f"GPU-{minor:08x}-0000-4000-8000-0123456789ab"


def bus_id(number: int) -> str:
    return f"0000:{0x1b + 0x10 * number:02x}:00.0"


def nvidia_gpu(
    root: Path, bus: str, minor: int, *, uuid: str | None = None, model: str = "NVIDIA H200", in_dev: bool = True
) -> None:
    information = (
        f"Model: \t\t {model}\nIRQ:   \t\t 81\nGPU UUID: \t {nvidia_uuid(minor) if uuid is None else uuid}\n"
        f"Video BIOS: \t 96.00.af.00.01\nBus Type: \t PCIe\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
        "GPU Firmware: \t 570.86\nGPU Excluded:\t No\n"
    )
    write(root / "proc/driver/nvidia/gpus" / bus / "information", information)
    if in_dev:
        write(root / f"dev/nvidia{minor}")


def nvidia_node(root: Path, count: int = 8, in_dev: Sequence[int] | None = None) -> None:
    """GPUs 0 to count-1 by bus id, with the minors in the opposite order; half of them on each of two NUMA nodes."""
    for number in range(count):
        minor = count - 1 - number
        nvidia_gpu(root, bus_id(number), minor, in_dev=in_dev is None or minor in in_dev)
        numa_of_device(root, bus_id(number), number * 2 // count)


def mig_instances(root: Path, minor: int, count: int) -> None:
    for number in range(count):
        write(root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{number + 1}/access", "DeviceFileMinor: 12\n")


def amd_gpu(root: Path, node: int, *, unique: int, bus: int, render: int, in_dev: bool = True) -> None:
    write(root / "dev/kfd")
    properties = (
        f"cpu_cores_count 0\nsimd_count 304\nvendor_id 4098\nlocation_id {bus << 8}\ndomain 0\n"
        f"drm_render_minor {render}\ngfx_target_version 90402\nunique_id {unique}\n"
    )
    write(root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", properties)
    if in_dev:
        write(root / f"dev/dri/renderD{render}")


def amd_node(root: Path, count: int = 4) -> None:
    write(root / "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\n")
    for number in range(count):
        amd_gpu(root, number + 1, unique=0xA0B0 + number, bus=0x11 * (number + 1), render=128 + number)


def intel_gpu(root: Path, render: int, bus: str, *, pci_class: str = "0x038000", tiles: int = 1) -> None:
    device = root / "sys/devices/pci0000:00" / bus
    write(device / "vendor", "0x8086\n")
    write(device / "class", pci_class + "\n")
    write(device / "device", "0x0bd5\n")
    for tile in range(tiles):
        write(device / f"tile{tile}/gt0/id", "0\n")
    node = root / f"sys/class/drm/renderD{render}"
    node.mkdir(parents=True)
    (node / "device").symlink_to(device)
    slot = root / "sys/bus/pci/devices" / bus
    slot.parent.mkdir(parents=True, exist_ok=True)
    slot.symlink_to(device)
    write(root / f"dev/dri/renderD{render}")


def numa_of_device(root: Path, bus: str, numa: int) -> None:
    write(root / "sys/bus/pci/devices" / bus / "numa_node", f"{numa}\n")


def cpus(root: Path, *, sockets: int = 2, cores: int = 4, threads: int = 2, old_kernel: bool = False) -> int:
    """Cores per socket and threads per core, numbered as Linux does on x86: first all first threads, then the second ones.

    One NUMA node per socket. Returns the number of hardware threads.
    """
    names = ("thread_siblings_list", "core_siblings_list") if old_kernel else ("core_cpus_list", "package_cpus_list")
    total = sockets * cores
    for socket in range(sockets):
        first = socket * cores
        package = ",".join(f"{first + thread * total}-{first + cores - 1 + thread * total}" for thread in range(threads))
        write(root / f"sys/devices/system/node/node{socket}/cpulist", package + "\n")
        for core in range(first, first + cores):
            siblings = ",".join(str(core + thread * total) for thread in range(threads))
            for thread in range(threads):
                topology = root / f"sys/devices/system/cpu/cpu{core + thread * total}/topology"
                write(topology / names[0], siblings + "\n")
                write(topology / names[1], package + "\n")
                write(topology / "physical_package_id", f"{socket}\n")
                write(topology / "core_id", f"{core - first}\n")
    return total * threads


def caches(root: Path, level: int, index: int, groups: Sequence[str], kind: str = "Unified") -> None:
    """Caches of one level, each with the kernel's list of the CPUs that share it; `index` is their directory on each CPU."""
    for group in groups:
        for part in group.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                place = root / f"sys/devices/system/cpu/cpu{number}/cache/index{index}"
                write(place / "level", f"{level}\n")
                write(place / "type", kind + "\n")
                write(place / "shared_cpu_list", group + "\n")


def interface(root: Path, name: str, device: bool = False, **files: str) -> None:
    """An interface as /sys/class/net shows it; each of its files is a line, and `device` a link to the hardware."""
    for file, line in {"flags": "0x1003", "operstate": "up", "mtu": "1500", "type": "1", "uevent": "", **files}.items():
        write(root / "sys/class/net" / name / file, line + "\n")
    if device:
        write(root / "sys/class/net" / name / "device/vendor")


def routes(root: Path, *rows: tuple[str, str, str, int]) -> None:
    """Routes of IPv4: (interface, network, mask, metric), in dotted form."""
    lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    lines += [f"{name}\t{_hex(to)}\t00000000\t0001\t0\t0\t{metric}\t{_hex(mask)}\t0\t0\t0" for name, to, mask, metric in rows]
    write(root / "proc/net/route", "\n".join(lines) + "\n")


def pci_device(root: Path, path: str) -> Path:
    """A device at the end of a path of bridges, as /sys shows it by its address too; return its directory."""
    device = root / "sys/devices" / path
    device.mkdir(parents=True, exist_ok=True)
    slot = root / "sys/bus/pci/devices" / device.name
    slot.parent.mkdir(parents=True, exist_ok=True)
    slot.symlink_to(device)
    return device


def infiniband(
    root: Path, device: str, path: str = "", *, numa: int | None = None, state: str = "4: ACTIVE", layer: str = "InfiniBand",
    rate: str = "200 Gb/sec",
) -> None:  # fmt: skip
    """A device of one port, at the end of a path of bridges."""
    place = root / "sys/class/infiniband" / device
    for file, line in {"state": state, "link_layer": layer, "rate": rate}.items():
        write(place / "ports/1" / file, line + "\n")
    if path:
        (place / "device").symlink_to(pci_device(root, path))
        write(root / "sys/devices" / path / "numa_node", f"{numa}\n")


def _hex(address: str) -> str:
    """As a little-endian machine's kernel prints it."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


class FakeNvml:
    """Stands for libnvidia-ml.so.1: MIG instances by bus id, and its functions as ctypes would call them."""

    def __init__(self, instances: Mapping[str, Sequence[tuple[str, str]]], uuids: Mapping[str, str] | None = None) -> None:
        self._gpus = list(dict.fromkeys([*instances, *(uuids or {})]))
        self._instances = instances
        self._uuids = uuids or {}
        self._handles: list[tuple[str, str]] = []

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, handle: object) -> int:
        if bus.decode() not in self._gpus:
            return 6
        return self._open(handle, (self._uuids.get(bus.decode(), ""), bus.decode()))

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: object, count: object) -> int:
        count._obj.value = 7  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: object, number: int, instance: object) -> int:
        instances = self._instances.get(self._at(handle)[1], ())
        return self._open(instance, instances[number]) if number < len(instances) else 6

    def nvmlDeviceGetUUID(self, handle: object, buffer: object, size: int) -> int:
        return self._give(buffer, self._at(handle)[0])

    def nvmlDeviceGetName(self, handle: object, buffer: object, size: int) -> int:
        return self._give(buffer, self._at(handle)[1])

    def _open(self, handle: object, what: tuple[str, str]) -> int:
        self._handles.append(what)
        handle._obj.value = len(self._handles)  # type: ignore[attr-defined]
        return 0

    def _at(self, handle: object) -> tuple[str, str]:
        return self._handles[handle.value - 1]  # type: ignore[attr-defined]

    def _give(self, buffer: object, text: str) -> int:
        buffer.value = text.encode()  # type: ignore[attr-defined]
        return 0
