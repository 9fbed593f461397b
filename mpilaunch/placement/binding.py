"""Binding: which GPUs and CPUs each rank may use.

Pure: a job map, the facts of each node and two policies give a binding per rank, or an error that names ranks, slots and
nodes before any rank runs. An inherited mask is in the facts already; nothing here ever widens it. The CPUs are `cpubinding`'s.

GPUs are named by UUID wherever they have one, as their numbers mean different things to different tools. What a slot
names is exact, also when two slots name one GPU: that is the user's word. Everything else is shared only on request.
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
from mpilaunch.text import plural


class GpuPolicy(NamedTuple):
    """What the user asked for.

    Attributes:
        per_rank: `--gpus-per-rank`, 0 or more; None when not said. In "slot" and "virtual" mode a slot that names no GPUs then
            gets one.
        bind: "slot" (a rank sees its slot's GPUs only), "node" (a rank sees all GPUs of the node's used slots in slot order,
            LOCAL_RANK indexes them), "virtual" (as slot, with LOCAL_RANK=0 for frameworks that index the visible GPUs),
            "none" (touch nothing); None: "slot" on nodes where used slots name GPUs or when per_rank is said, else "node".
        oversubscribe: several ranks may share a GPU.
    """

    per_rank: int | None = None
    bind: str | None = None
    oversubscribe: bool = False


class RankBinding(NamedTuple):
    """What one rank gets.

    Attributes:
        cpus: CPU numbers for sched_setaffinity, None to leave the daemon's own.
        gpus: labels of its GPUs for reports ("nvidia 0 GPU-8a1b..."), in the order the rank sees them.
        environment: variables that make it so (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, ...; LOCAL_RANK for "virtual").
        unset: variables that must be absent or the rank would see other GPUs.
    """

    cpus: tuple[int, ...] | None = None
    gpus: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    unset: tuple[str, ...] = ()


class _Visibility(NamedTuple):
    """How one vendor's runtime is told which GPUs to show.

    Attributes:
        variable: takes the list.
        settings: what makes the list mean what it says.
        unset: variables that would be applied on top of the list.
        uuids: the list may name UUIDs.
        ordered: the runtime keeps the order of the list; otherwise it counts upwards whatever the list says.
        leave_whole: set nothing when the rank sees all that the node has.
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
        "ROCR_VISIBLE_DEVICES",
        unset=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
        uuids=True,
    ),
    "ascend": _Visibility("ASCEND_RT_VISIBLE_DEVICES", ordered=False),
    # COMPOSITE: a number is a whole GPU, as in the facts; the usual FLAT would make it a tile. As that changes what a
    # framework counts, a rank that sees the whole node anyway is left as it is.
    "intel": _Visibility(
        "ZE_AFFINITY_MASK",
        {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"},
        ordered=False,
        leave_whole=True,
    ),
}
# Every runtime takes an invalid number for "no GPU"; an empty list is "all" to Level Zero and to many a shell script.
_NO_GPU = "-1"


def bind_ranks(
    allocation: Allocation, job_map: JobMap, facts: Mapping[int, NodeFacts], gpu: GpuPolicy, cpu: CpuPolicy
) -> dict[int, RankBinding]:
    """Bind every rank of the job; `facts` is keyed by `Node.index`. Raises LaunchError for what the nodes cannot give."""
    bindings: dict[int, RankBinding] = {}
    placements_of: dict[int, list[Placement]] = {index: [] for index in job_map.nodes}
    for placement in job_map.placements:
        placements_of[placement.node].append(placement)
    for index, placements in placements_of.items():
        node, found = allocation.nodes[index], facts[index]
        visible, own = _bind_gpus(node, placements, found.gpus, gpu)
        cpus = bind_cpus(node, placements, found.cpus, own, cpu)
        bindings |= {rank: binding._replace(cpus=cpus[rank]) for rank, binding in visible.items()}
    return bindings


def describe_binding(binding: RankBinding, cpus: Iterable[Cpu] = ()) -> str:
    """Say a binding in words for a report: "cpus 0-3 [BB/BB/../..], gpus nvidia 0 GPU-8a1b"; `cpus` are the node's."""
    parts = []
    if binding.cpus is not None:
        parts.append(f"cpus {fold_numbers(binding.cpus)} {picture(binding.cpus, cpus)}".rstrip())
    if binding.gpus:
        shortened = (" ".join((*label.split()[:2], *(uuid[:8] for uuid in label.split()[2:]))) for label in binding.gpus)
        parts.append("gpus " + " + ".join(shortened))
    elif binding.environment:
        parts.append("no gpus")
    return ", ".join(parts) or "not bound"


# GPUs.


def _bind_gpus(
    node: Node, placements: Sequence[Placement], gpus: Sequence[Gpu], policy: GpuPolicy
) -> tuple[dict[int, RankBinding], dict[int, Gpu]]:
    """Return each rank's binding without CPUs, and the GPU that each rank is likely to compute on."""
    named = any(node.slots[placement.slot].gpus is not None for placement in placements)
    mode = policy.bind or ("slot" if named or policy.per_rank is not None else "node")
    if mode == "none":
        return {placement.rank: RankBinding() for placement in placements}, {}
    whole = mode == "node" and not named and policy.per_rank is None
    chosen = {p.rank: list(gpus) for p in placements} if whole else _choose_gpus(node, placements, gpus, policy, mode)
    if mode == "node":
        together = list(dict.fromkeys(gpu for placement in placements for gpu in chosen[placement.rank]))
        chosen = {placement.rank: together for placement in placements}
    bindings, own = {}, {}
    for placement in placements:
        seen = _as_seen(chosen[placement.rank])
        bindings[placement.rank] = _show(seen, gpus, placement, virtual=mode == "virtual")
        place = placement.local_rank if mode == "node" else 0
        if place < len(seen):
            own[placement.rank] = seen[place]
    return bindings, own


def _choose_gpus(
    node: Node, placements: Sequence[Placement], gpus: Sequence[Gpu], policy: GpuPolicy, mode: str
) -> dict[int, list[Gpu]]:
    """Give each rank the GPUs that its slot names, or else the next ones that no slot of the node names."""
    # A job computes on one vendor's GPUs: a workstation's integrated one is not a second GPU.
    main = [gpu for gpu in gpus if gpu.vendor == gpus[0].vendor]
    chosen: dict[int, list[Gpu]] = {}
    first_in_slot: dict[int, int] = {}
    unnamed: list[Placement] = []
    for placement in placements:
        said = node.slots[placement.slot].gpus
        if said is None:
            unnamed.append(placement)
            continue
        names = _enough(said, node, placement, policy)
        own = chosen[placement.rank] = [_look_up(name, gpus, main, node, placement) for name in names]
        if len(set(own)) < len(own):
            raise LaunchError(
                "gpu-twice",
                f"slot {placement.slot} of {node.name} names a GPU twice: {','.join(names)}",
                hint=f"name each GPU of the slot once ({node.origin or node.name})",
            )
        first = first_in_slot.setdefault(placement.slot, placement.rank)
        if first != placement.rank and own and mode != "node" and not policy.oversubscribe:
            raise LaunchError(
                "gpu-shared",
                f"ranks {first} and {placement.rank} on {node.name} are in one slot and would share "
                + ", ".join(_label(gpu) for gpu in own),
                hint="give each rank a slot of its own, or say --oversubscribe-gpus",
            )
    each = policy.per_rank if policy.per_rank is not None else 0 if mode == "node" else 1
    taken = {gpu for gpus_of_rank in chosen.values() for gpu in gpus_of_rank}
    free = [gpu for gpu in main if gpu not in taken]
    needed = len(unnamed) * each
    if needed > len(free) and not (policy.oversubscribe and len(free) >= each):
        raise _too_few(node, len(unnamed), each, len(free), len(taken))
    for place, placement in enumerate(unnamed):
        chosen[placement.rank] = [free[number % len(free)] for number in range(place * each, (place + 1) * each)]
    return chosen


def _enough(names: tuple[str, ...], node: Node, placement: Placement, policy: GpuPolicy) -> tuple[str, ...]:
    """Cut what a slot names to `--gpus-per-rank`."""
    if policy.per_rank is not None and len(names) < policy.per_rank:
        raise LaunchError(
            "gpu-count",
            f"rank {placement.rank} needs {plural(policy.per_rank, 'GPU')}, but slot {placement.slot} of {node.name} "
            f"names {len(names)}",
            hint=f"name more GPUs for the slot ({node.origin or node.name}) or lower --gpus-per-rank",
        )
    return names[: policy.per_rank]


def _look_up(name: str, gpus: Sequence[Gpu], main: Sequence[Gpu], node: Node, placement: Placement) -> Gpu:
    """Find the GPU that a slot names by index among the main vendor's GPUs, or by UUID or its unique beginning."""
    if name.isdigit():
        matches = [gpu for gpu in main if gpu.index == int(name)]
    else:
        matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(name.lower())]
    if len(matches) == 1:
        return matches[0]
    problem = f"matches {len(matches)} GPUs there" if matches else "is not there"
    raise LaunchError(
        "gpu-unknown",
        f"rank {placement.rank} on {node.name}: GPU '{name}' {problem}",
        context=[f"GPUs of {node.name}: " + (", ".join(_label(gpu) for gpu in gpus) or "none")],
        hint=f"name one of these for slot {placement.slot} ({node.origin or node.name})",
    )


def _too_few(node: Node, ranks: int, each: int, free: int, taken: int) -> LaunchError:
    have = f"{plural(free, 'GPU')} that no slot names" if taken else plural(free, "GPU") if free else "no GPU"
    return LaunchError(
        "gpu-count",
        f"{node.name} has {have}, {plural(ranks, 'rank')} with {each} each need {ranks * each}",
        hint="start fewer ranks there, lower --gpus-per-rank, or say --oversubscribe-gpus to let ranks share",
    )


def _as_seen(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Put the GPUs in the order in which the rank will count them."""
    seen: list[Gpu] = []
    for vendor, visibility in _VISIBILITY.items():
        own = [gpu for gpu in gpus if gpu.vendor == vendor]
        seen += own if visibility.ordered else sorted(own, key=lambda gpu: gpu.index)
    return seen


_NOTHING = RankBinding()
"""What ranks get where nobody has GPUs, one for all of them."""


def _show(seen: Sequence[Gpu], gpus: Sequence[Gpu], placement: Placement, virtual: bool) -> RankBinding:
    """Make the variables that show `seen` and hide the rest of the node's `gpus`."""
    environment: dict[str, str] = {}
    unset: list[str] = []
    for vendor, visibility in _VISIBILITY.items():
        present = [gpu for gpu in gpus if gpu.vendor == vendor]
        own = [gpu for gpu in seen if gpu.vendor == vendor]
        if not present or (visibility.leave_whole and len(own) == len(present)):
            continue
        by_uuid = visibility.uuids and all(gpu.uuid for gpu in own)
        names = [gpu.uuid if by_uuid else str(gpu.index) for gpu in own]
        environment |= {**visibility.settings, visibility.variable: ",".join(names) or _NO_GPU}
        unset += visibility.unset
    if virtual and seen:
        environment |= {
            "LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "JAX_LOCAL_DEVICE_IDS": ",".join(str(number) for number in range(len(seen))),
            "MPILAUNCH_LOCAL_RANK": str(placement.local_rank),
        }
    if not seen and not environment and not unset:
        return _NOTHING
    return RankBinding(
        gpus=tuple(_label(gpu) for gpu in seen),
        environment=environment,
        unset=tuple(name for name in unset if name not in environment),
    )


def _label(gpu: Gpu) -> str:
    return f"{gpu.vendor} {gpu.index} {gpu.uuid}".rstrip()
