"""Finds the GPUs that this process may use, from /proc, /sys and /dev, without a vendor's framework.

An inherited mask (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, ...) is applied and never widened: an invalid mask hides GPUs.
NVIDIA_VISIBLE_DEVICES is a request to a container runtime, and is never read. A broken driver tree never raises: the GPU is
left out, with a note. NVML (`nvml`) is called only for UUIDs that /proc does not show, as those of MIG instances. The head
gives the GPUs to ranks (`placement.gpu_binding`).
"""

from __future__ import annotations

import os

from mpilaunch.daemon.node.topology import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpilaunch.daemon.node.nvml import NvmlAnswer


class Gpu:
    """One GPU; the attributes are those of the message (docs/wire.md)."""

    def __init__(self, vendor: str, bus_id: str = "", uuid: str = "", name: str = "", numa: int = -1) -> None:
        self.vendor, self.index, self.uuid, self.bus_id, self.name, self.numa = vendor, -1, uuid, bus_id, name, numa


def find_gpus(
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    notes: list[str] | None = None,
    ask: Callable[[list[str]], NvmlAnswer] | None = None,
) -> list[dict[str, object]]:
    """List the usable GPUs, vendor by vendor, each vendor's in the order of its mask if there is one.

    `index` counts before masking, in PCI bus order, for AMD in the kernel's KFD order (what ROCR_VISIBLE_DEVICES counts
    by). Only GPUs whose device file this process may open count, as for the vendors' own tools: a container with two of a
    machine's eight GPUs has 0 and 1. `notes` gets a line for each GPU that is left out, and each surprise.
    """
    environ = os.environ if environ is None else environ
    notes = [] if notes is None else notes
    usable: list[Gpu] = []
    # Intel last: an integrated GPU must not precede the GPU that a workstation computes on.
    nvidia = _numbered(_nvidia(root, notes, ask))
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({gpu.name for gpu in nvidia}) > 1:
        if any(entry.strip().isdigit() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
            notes.append("CUDA_VISIBLE_DEVICES is read in PCI bus order, though this node has several models of GPU")
    usable += _masked(nvidia, "CUDA_VISIBLE_DEVICES", environ, notes)
    amd = _masked(_numbered(_amd(root, notes)), "ROCR_VISIBLE_DEVICES", environ, notes)
    # HIP counts within what ROCR left, and reads CUDA's variable where its own is not set.
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    usable += _masked(amd, hip, environ, notes)
    usable += _masked(_numbered(_ascend(root)), "ASCEND_RT_VISIBLE_DEVICES", environ, notes)
    usable += _intel_masked(_numbered(_intel(root, notes)), root, environ, notes)
    return [vars(gpu) for gpu in usable]


# Vendors: each function lists the GPUs that this process may open, in the vendor's order.


def _nvidia(root: str, notes: list[str], ask: Callable[[list[str]], NvmlAnswer] | None) -> list[Gpu]:
    tree = os.path.join(root, "proc/driver/nvidia")
    try:
        names = os.listdir(os.path.join(tree, "gpus"))
    except OSError:
        # Some sandboxes hide /proc/driver; a device file alone may outlive its driver, so here it must open.
        minors = _numbers_after(os.path.join(root, "dev"), "nvidia")
        return [Gpu("nvidia") for minor in minors if _opens(os.path.join(root, "dev/nvidia%d" % minor))]
    gpus: list[Gpu] = []
    split: list[Gpu] = []  # in MIG mode
    for name in names:
        try:
            facts = _pairs(read_text(os.path.join(tree, "gpus", name, "information")), ":")
            minor = int(facts["Device Minor"])
            _pci_order(name)
        except (OSError, ValueError, KeyError) as error:
            notes.append(_left_out(name, error))
            continue
        # A container's /proc may list all GPUs of the machine, but its /dev does not.
        if facts.get("GPU Excluded") == "Yes" or not _may_open(os.path.join(root, "dev/nvidia%d" % minor)):
            continue
        uuid = facts.get("GPU UUID", "")
        # Before its first use a GPU's UUID reads "GPU-????????-...".
        gpu = Gpu("nvidia", name, "" if "?" in uuid else uuid, facts.get("Model", ""), _numa(root, name))
        gpus.append(gpu)
        if _numbers_after(os.path.join(tree, "capabilities/gpu%d/mig" % minor), "gi"):
            split.append(gpu)
    gpus.sort(key=lambda gpu: _pci_order(gpu.bus_id))
    unclear = [gpu.bus_id for gpu in gpus if gpu in split or not gpu.uuid]
    if not unclear:
        return gpus
    # Add missing UUIDs, and replace each split GPU by its MIG instances.
    from mpilaunch.daemon.node.nvml import ask_nvml

    answer = (ask or ask_nvml)(unclear)
    result = []
    for gpu in gpus:
        uuid, instances = answer.get(gpu.bus_id, ("", []))
        if gpu not in split:
            gpu.uuid = gpu.uuid or uuid
            result.append(gpu)
        elif instances:
            result += [Gpu("nvidia", gpu.bus_id, mig_uuid, name, gpu.numa) for mig_uuid, name in instances]
        else:
            notes.append(_left_out(gpu.bus_id, "it is in MIG mode and NVML names no instance"))
    return result


def _amd(root: str, notes: list[str]) -> list[Gpu]:
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    if not _may_open(os.path.join(root, "dev/kfd")):
        return []
    gpus = []
    for number in _numbers_after(nodes, ""):
        try:
            facts = _pairs(read_text(os.path.join(nodes, str(number), "properties")), " ")
            if int(facts["simd_count"]) == 0:
                continue  # a CPU
            location, render = int(facts["location_id"]), int(facts["drm_render_minor"])
            domain, unique = int(facts.get("domain", 0)), int(facts.get("unique_id", 0))
            target = int(facts.get("gfx_target_version", 0))
        except (OSError, ValueError, KeyError) as error:
            notes.append(_left_out("KFD node %d" % number, error))
            continue
        if not _may_open(os.path.join(root, "dev/dri/renderD%d" % render)):
            continue
        bus_id = "%04x:%02x:%02x.%x" % (domain, location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7)
        name = "gfx%d%x%x" % (target // 10000, target // 100 % 100, target % 100) if target else ""
        gpus.append(Gpu("amd", bus_id, "GPU-%016x" % unique if unique else "", name, _numa(root, bus_id)))
    uuids = [gpu.uuid for gpu in gpus]
    for gpu in gpus:
        if uuids.count(gpu.uuid) > 1:
            gpu.uuid = ""  # partitions of a GPU share its UUID, which identifies none of them
    return gpus


def _ascend(root: str) -> list[Gpu]:
    dev = os.path.join(root, "dev")
    return [Gpu("ascend") for number in _numbers_after(dev, "davinci") if _may_open(os.path.join(dev, "davinci%d" % number))]


def _intel(root: str, notes: list[str]) -> list[Gpu]:
    """List discrete and integrated GPUs, as Level Zero: PCI class 0x0380 (data centre) or 0x0300 (Arc, integrated) with a
    render node. Level Zero's mask does not count other classes (neural processors, FPGAs)."""
    drm = os.path.join(root, "sys/class/drm")
    gpus = []
    for number in _numbers_after(drm, "renderD"):
        device = os.path.join(drm, "renderD%d" % number, "device")
        try:
            if read_text(os.path.join(device, "vendor")).strip() != "0x8086":
                continue
            if not read_text(os.path.join(device, "class")).startswith(("0x0300", "0x0380")):
                continue
            bus_id = os.path.basename(os.path.realpath(device))
            _pci_order(bus_id)
            model = read_text(os.path.join(device, "device")).strip()
        except (OSError, ValueError) as error:
            notes.append(_left_out("renderD%d" % number, error))
            continue
        if _may_open(os.path.join(root, "dev/dri/renderD%d" % number)):
            gpus.append(Gpu("intel", bus_id, "", model, _numa(root, bus_id)))
    return sorted(gpus, key=lambda gpu: _pci_order(gpu.bus_id))


# Inherited masks.


def _masked(gpus: list[Gpu], variable: str, environ: Mapping[str, str], notes: list[str]) -> list[Gpu]:
    """Apply a mask as CUDA and ROCr do: in its order, up to the first entry that names no GPU."""
    mask = environ.get(variable)
    if mask is None or not gpus:
        return gpus
    chosen: list[Gpu] = []
    for entry in map(str.strip, mask.split(",")):
        gpu = _named(gpus, entry)
        if gpu is None:
            if entry not in ("", "-1", "none"):
                notes.append("%s=%s: '%s' names no GPU here, the list ends before it" % (variable, mask, entry))
            return chosen
        if gpu in chosen:
            notes.append("%s=%s: '%s' is there twice, so no GPU is visible" % (variable, mask, entry))
            return []
        chosen.append(gpu)
    return chosen


def _named(gpus: list[Gpu], entry: str) -> Gpu | None:
    if entry.isdecimal() and len(entry) < 9:
        # A number means a whole GPU to CUDA: where instances are listed it would count other things.
        countable = not any(gpu.uuid.startswith("MIG-") for gpu in gpus)
        return gpus[int(entry)] if countable and int(entry) < len(gpus) else None
    matches = [gpu for gpu in gpus if entry and gpu.uuid.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None


def _intel_masked(gpus: list[Gpu], root: str, environ: Mapping[str, str], notes: list[str]) -> list[Gpu]:
    """Apply ZE_AFFINITY_MASK as Level Zero does: a set without order; invalid entries are ignored; empty is no mask."""
    mask = environ.get("ZE_AFFINITY_MASK", "")
    if mask in ("", "default") or not gpus:
        return gpus
    cards_count = environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE" or all(_tiles(root, gpu) < 2 for gpu in gpus)
    if "." in mask or not cards_count:
        notes.append("ZE_AFFINITY_MASK=%s chooses tiles of GPUs: these GPUs are left out" % mask)
        return []
    order = gpus
    if environ.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER") != "1":
        order = sorted(gpus, key=lambda gpu: gpu.bus_id.startswith("0000:00:"))  # integrated ones count last
    entries = {entry.strip() for entry in mask.split(",")}
    chosen = [gpu for number, gpu in enumerate(order) if str(number) in entries]
    return [gpu for gpu in gpus if gpu in chosen]


def _tiles(root: str, gpu: Gpu) -> int:
    """Count a GPU's tiles, which Level Zero usually treats as devices (drivers xe, i915)."""
    device = os.path.join(root, "sys/bus/pci/devices", gpu.bus_id)
    cards = ["drm/card%d/gt" % number for number in _numbers_after(os.path.join(device, "drm"), "card")]
    i915 = [len(_numbers_after(os.path.join(device, card), "gt")) for card in cards]
    return max([len(_numbers_after(device, "tile")), *i915])


# Helpers.


def _numbered(gpus: list[Gpu]) -> list[Gpu]:
    for index, gpu in enumerate(gpus):
        gpu.index = index
    return gpus


def _may_open(path: str) -> bool:
    """Return the result of access(2), which checks the device cgroup, and unlike open(2) does not wake the GPU for seconds."""
    return os.access(path, os.R_OK | os.W_OK)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _numbers_after(directory: str, prefix: str) -> list[int]:
    """List the numbers N of the names "<prefix>N" in a directory, ascending; empty without a directory."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(int(name[len(prefix) :]) for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit())


def _pairs(text: str, separator: str) -> dict[str, str]:
    pairs = (line.partition(separator) for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _pci_order(bus_id: str) -> tuple[int, ...]:
    """Return a sort key for "0000:3b:00.0"; raises ValueError."""
    domain, bus, rest = bus_id.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)


def _numa(root: str, bus_id: str) -> int:
    try:
        return int(read_text(os.path.join(root, "sys/bus/pci/devices", bus_id.lower(), "numa_node")))
    except (OSError, ValueError):
        return -1


def _left_out(what: str, why: object) -> str:
    return "GPU %s is left out: %s" % (what, why)
