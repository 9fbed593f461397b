"""Binds ranks to GPUs: chooses those that each rank sees.

Pure: a job map, the facts of each node and two policies give a binding per rank, or an error before any rank runs. The facts
include inherited masks, which are never widened. `cpu_binding` chooses the CPUs.

GPUs are named by UUID if they have one, because tools number them differently. The GPUs of a slot are used as named, even if
two slots name the same one. Other GPUs are shared only on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Allocation, Node
from mpilaunch.hosts.node_facts import Cpu, Gpu, NodeFacts
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.placement.cpu_binding import CpuPolicy, bind_cpus, picture
from mpilaunch.placement.mapping import JobMap, Placement
from mpilaunch.placement.nic_binding import bind_nics
from mpilaunch.text import plural


class GpuPolicy(NamedTuple):
    """How GPUs are assigned to ranks.

    Attributes:
        per_rank: `--gpus-per-rank`, 0 or more; None if not given: in the modes "slot" and "virtual", a slot that names no GPUs
            then gets one.
        bind: "slot" (a rank sees only its slot's GPUs), "node" (a rank sees all GPUs of the node's used slots in slot order,
            indexed by LOCAL_RANK), "ranks" (as node, with one GPU for each rank whose slot names none; nothing on a node
            without GPUs), "virtual" (as slot, with LOCAL_RANK=0 for frameworks that index the visible GPUs; nothing else
            in a job without GPUs), "none" (set nothing); None: "slot" if used slots of the node name GPUs or per_rank is
            given, else "node".
        oversubscribe: several ranks may share a GPU.
        nics: each rank is given the ports of InfiniBand or RoCE nearest to its GPU.
    """

    per_rank: int | None = None
    bind: str | None = None
    oversubscribe: bool = False
    nics: bool = False


class RankBinding(NamedTuple):
    """The CPUs and GPUs of one rank, and the variables that select them.

    Attributes:
        cpus: numbers for sched_setaffinity, None to keep the daemon's affinity.
        gpus: labels for reports ("nvidia 0 GPU-8a1b..."), in the order the rank sees them.
        together: the other ranks of the node see the same GPUs, indexed by LOCAL_RANK.
        nics: the ports of InfiniBand or RoCE that it is to use; none for all of them.
        environment, unset: variables to set (CUDA_VISIBLE_DEVICES, ...), and to remove because they would select other GPUs.
    """

    cpus: tuple[int, ...] | None = None
    gpus: tuple[str, ...] = ()
    together: bool = False
    nics: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    unset: tuple[str, ...] = ()


class _Visibility(NamedTuple):
    """How the visible GPUs of one vendor's runtime are selected.

    Attributes:
        variable: holds the list of GPUs.
        settings, unset: variables on which the meaning of the list depends, and variables that would filter it further.
        uuids: the list may contain UUIDs.
        ordered: the runtime keeps the order of the list; otherwise it sorts by number.
        leave_whole: set nothing if the rank sees all GPUs of the node.
    """

    variable: str
    settings: Mapping[str, str] = {}
    unset: tuple[str, ...] = ()
    uuids: bool = False
    ordered: bool = True
    leave_whole: bool = False


_VISIBILITY = {
    "nvidia": _Visibility("CUDA_VISIBLE_DEVICES", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, uuids=True),
    "amd": _Visibility(
        "ROCR_VISIBLE_DEVICES", {}, ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"), uuids=True
    ),
    "ascend": _Visibility("ASCEND_RT_VISIBLE_DEVICES", ordered=False),
    # COMPOSITE numbers whole GPUs, as the facts do; FLAT, the default, numbers tiles. As this changes the count that a
    # framework sees, nothing is set for a rank that sees all GPUs.
    "intel": _Visibility(
        "ZE_AFFINITY_MASK",
        {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"},
        ordered=False,
        leave_whole=True,
    ),
}
MASKS = frozenset(name for one in _VISIBILITY.values() for name in (one.variable, *one.unset))
"""Variables that select the visible GPUs."""
_NO_GPU = "-1"
"""Every runtime reads an invalid number as "no GPU"; Level Zero and some scripts read an empty list as "all"."""


def bind_ranks(
    allocation: Allocation, job_map: JobMap, facts: Mapping[int, NodeFacts], gpu: GpuPolicy, cpu: CpuPolicy
) -> dict[int, RankBinding]:
    """Return the binding of every rank; `facts` is keyed by `Node.index`. Raises LaunchError if a node lacks resources."""
    bindings: dict[int, RankBinding] = {}
    any_gpus = any(facts[index].gpus for index in job_map.nodes)
    for index, placements in job_map.by_node().items():
        node = allocation.nodes[index]
        gpu_bindings, gpu_of = _bind_gpus(node, placements, facts[index].gpus, gpu, any_gpus)
        settled = cpu.settled(len(job_map.placements), facts[index].cpus)
        cpus = bind_cpus(node, placements, facts[index].cpus, gpu_of, settled)
        nics: Mapping[int, tuple[str, ...]] = {}
        if gpu.nics:
            by_label = {_label(one): one for one in facts[index].gpus}
            own = {
                rank: [gpu_of[rank]] if binding.together and rank in gpu_of else [by_label[label] for label in binding.gpus]
                for rank, binding in gpu_bindings.items()
            }
            nics = bind_nics(node.name, own, cpus, facts[index])
        for rank, binding in gpu_bindings.items():
            bindings[rank] = binding._replace(cpus=cpus[rank], nics=nics.get(rank, ()))
    return bindings


def describe_binding(binding: RankBinding, cpus: Iterable[Cpu] = ()) -> str:
    """Return a binding as text: "cpus 0-3 [BB/BB/../..], gpus nvidia 0 GPU-8a1b"; `cpus` are the node's."""
    parts = []
    if binding.cpus is not None:
        parts.append(f"cpus {fold_numbers(binding.cpus)} {picture(binding.cpus, cpus)}".rstrip())
    if binding.gpus:
        shortened = (" ".join((*label.split()[:2], *(uuid[:8] for uuid in label.split()[2:]))) for label in binding.gpus)
        parts.append("gpus " + " + ".join(shortened))
    elif binding.environment:
        parts.append("no gpus")
    if binding.nics:
        parts.append(f"nics {' + '.join(binding.nics)}")
    return ", ".join(parts) or "not bound"


# GPUs


def _bind_gpus(
    node: Node, placements: Sequence[Placement], gpus: Sequence[Gpu], policy: GpuPolicy, any_gpus: bool
) -> tuple[dict[int, RankBinding], dict[int, Gpu]]:
    """Return the binding of each rank without CPUs, and the GPU that each rank is likely to compute on.

    Args:
        any_gpus: some node of the job has GPUs.
    """
    named = any(node.slots[placement.slot].gpus is not None for placement in placements)
    mode = policy.bind or ("slot" if named or policy.per_rank is not None else "node")
    if mode == "none" or (mode == "ranks" and not gpus):
        return {placement.rank: RankBinding() for placement in placements}, {}
    if mode == "virtual" and not (any_gpus or named or policy.per_rank):
        return {placement.rank: RankBinding(environment=_as_rank_0(placement)) for placement in placements}, {}
    if mode == "ranks":
        mode, policy = "node", policy._replace(per_rank=1 if policy.per_rank is None else policy.per_rank)
    whole = mode == "node" and not named and policy.per_rank is None
    chosen = {p.rank: list(gpus) for p in placements} if whole else _choose_gpus(node, placements, gpus, policy, mode)
    if mode == "node":
        together = list(dict.fromkeys(gpu for placement in placements for gpu in chosen[placement.rank]))
        chosen = {placement.rank: together for placement in placements}
    bindings, gpu_of = {}, {}
    for placement in placements:
        visible = _in_runtime_order(chosen[placement.rank])
        binding = _make_visible(visible, gpus, placement, virtual=mode == "virtual")
        shared = bool(visible) and mode == "node" and len(placements) > 1
        bindings[placement.rank] = binding._replace(together=True) if shared else binding
        index = placement.local_rank if mode == "node" else 0
        if index < len(visible):
            gpu_of[placement.rank] = visible[index]
    return bindings, gpu_of


def _choose_gpus(
    node: Node, placements: Sequence[Placement], gpus: Sequence[Gpu], policy: GpuPolicy, mode: str
) -> dict[int, list[Gpu]]:
    """Return the GPUs of each rank: those that its slot names, else the next ones that no slot names."""
    # A job uses the GPUs of one vendor: the integrated GPU of a workstation does not count.
    main = [gpu for gpu in gpus if gpu.vendor == gpus[0].vendor]
    chosen: dict[int, list[Gpu]] = {}
    first_in_slot: dict[int, int] = {}
    unnamed: list[Placement] = []
    for placement in placements:
        slot_gpus = node.slots[placement.slot].gpus
        if slot_gpus is None:
            unnamed.append(placement)
            continue
        if policy.per_rank is not None and len(slot_gpus) < policy.per_rank:
            needs = f"rank {placement.rank} needs {plural(policy.per_rank, 'GPU')}"
            message = f"{needs}, but slot {placement.slot} of {node.name} names {len(slot_gpus)}"
            hint = f"name more GPUs for the slot ({node.origin or node.name}) or lower --gpus-per-rank"
            raise LaunchError("gpu-count", message, hint=hint)
        names = slot_gpus[: policy.per_rank]
        own = chosen[placement.rank] = [_look_up(name, gpus, main, node, placement) for name in names]
        if len(set(own)) < len(own):
            message = f"slot {placement.slot} of {node.name} names a GPU twice: {','.join(names)}"
            raise LaunchError("gpu-twice", message, hint=f"name each GPU of the slot once ({node.origin or node.name})")
        first = first_in_slot.setdefault(placement.slot, placement.rank)
        if first != placement.rank and own and mode != "node" and not policy.oversubscribe:
            shared = ", ".join(_label(gpu) for gpu in own)
            message = f"ranks {first} and {placement.rank} on {node.name} are in one slot and would share {shared}"
            raise LaunchError("gpu-shared", message, hint="give each rank a slot of its own, or use --oversubscribe-gpus")
    each = policy.per_rank if policy.per_rank is not None else 0 if mode == "node" else 1
    taken = {gpu for gpus_of_rank in chosen.values() for gpu in gpus_of_rank}
    free = [gpu for gpu in main if gpu not in taken]
    needed = len(unnamed) * each
    if needed > len(free) and not (policy.oversubscribe and len(free) >= each):
        have = (plural(len(free), "GPU") if free or taken else "no GPU") + (" that no slot names" if taken else "")
        message = f"{node.name} has {have}, {plural(len(unnamed), 'rank')} with {each} each need {needed}"
        hint = "start fewer ranks there, lower --gpus-per-rank, or use --oversubscribe-gpus to let ranks share"
        raise LaunchError("gpu-count", message, hint=hint)
    for index, placement in enumerate(unnamed):
        chosen[placement.rank] = [free[number % len(free)] for number in range(index * each, (index + 1) * each)]
    return chosen


def _look_up(name: str, gpus: Sequence[Gpu], main: Sequence[Gpu], node: Node, placement: Placement) -> Gpu:
    """Return the GPU of a name: an index among the main vendor's GPUs, or a unique prefix of a UUID."""
    if name.isdigit():
        matches = [gpu for gpu in main if gpu.index == int(name)]
    else:
        matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(name.lower())]
    if len(matches) == 1:
        return matches[0]
    problem = f"matches {len(matches)} GPUs there" if matches else "is not there"
    message = f"rank {placement.rank} on {node.name}: GPU '{name}' {problem}"
    context = [f"GPUs of {node.name}: " + (", ".join(map(_label, gpus)) or "none")]
    hint = f"name one of these for slot {placement.slot} ({node.origin or node.name})"
    raise LaunchError("gpu-unknown", message, context=context, hint=hint)


def _in_runtime_order(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs in the order in which the rank's runtime numbers them."""
    ordered: list[Gpu] = []
    for vendor, visibility in _VISIBILITY.items():
        own = [gpu for gpu in gpus if gpu.vendor == vendor]
        ordered += own if visibility.ordered else sorted(own, key=lambda gpu: gpu.index)
    return ordered


_NO_BINDING = RankBinding()
"""The binding shared by all ranks of nodes without GPUs."""


def _make_visible(visible: Sequence[Gpu], gpus: Sequence[Gpu], placement: Placement, virtual: bool) -> RankBinding:
    """Return the binding that makes the `visible` ones of the node's GPUs visible and hides the others."""
    environment: dict[str, str] = {}
    unset: list[str] = []
    for vendor, visibility in _VISIBILITY.items():
        present = [gpu for gpu in gpus if gpu.vendor == vendor]
        own = [gpu for gpu in visible if gpu.vendor == vendor]
        if not present or (visibility.leave_whole and len(own) == len(present)):
            continue
        by_uuid = visibility.uuids and all(gpu.uuid for gpu in own)
        names = [gpu.uuid if by_uuid else str(gpu.index) for gpu in own]
        environment |= {**visibility.settings, visibility.variable: ",".join(names) or _NO_GPU}
        unset += visibility.unset
    if virtual and visible:
        environment |= _as_rank_0(placement)
    if not visible and not environment and not unset:
        return _NO_BINDING
    return RankBinding(
        gpus=tuple(map(_label, visible)),
        environment=environment,
        unset=tuple(name for name in unset if name not in environment),
    )


def without_masks(binding: RankBinding, names: frozenset[str]) -> RankBinding:
    """Return the binding without the GPUs that these masks of the user select, instead of what it would set for them."""
    set_here = {vendor: one for vendor, one in _VISIBILITY.items() if one.variable in binding.environment}
    left = {vendor: one for vendor, one in set_here.items() if names & {one.variable, *one.unset}}
    dropped = {name for one in left.values() for name in (one.variable, *one.settings)}
    kept = {name for one in left.values() for name in one.unset}
    return binding._replace(
        gpus=tuple(label for label in binding.gpus if label.split()[0] not in left),
        environment={name: value for name, value in binding.environment.items() if name not in dropped},
        unset=tuple(name for name in binding.unset if name not in kept),
    )


def _as_rank_0(placement: Placement) -> dict[str, str]:
    """Return the variables of a rank that sees only its own GPU."""
    return {"LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MPILAUNCH_LOCAL_RANK": str(placement.local_rank)}


def _label(gpu: Gpu) -> str:
    return f"{gpu.vendor} {gpu.index} {gpu.uuid}".rstrip()
