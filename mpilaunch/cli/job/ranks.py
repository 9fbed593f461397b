"""The map of a job: the policies of its programs, their ranks on the nodes, and the nodes kept for restarts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpilaunch.cli.job.inputs import Inputs
from mpilaunch.cli.job.nodes import select_nodes, slots_of_programs
from mpilaunch.cli.options import OPTIONS, RESTARTS
from mpilaunch.errors import UsageError
from mpilaunch.hosts import allocation
from mpilaunch.hosts.allocation import CORES, Allocation, merge_slots, resize
from mpilaunch.job.settings import Section, Settings
from mpilaunch.job.spec import Part, RestartPolicy
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.map_by import PlacementOptions, placement_policies
from mpilaunch.placement.mapping import JobMap, MappingPolicy
from mpilaunch.placement.program_shares import Share, map_apps


class MappedJob(NamedTuple):
    """The nodes and the map of a job; the attributes are those of `JobSpec`.

    Attributes:
        pending: shares to map when the topology of the nodes is known; `job_map` is empty until then.
    """

    allocation: Allocation
    job_map: JobMap
    cpu: CpuPolicy
    restarts: RestartPolicy
    pending: tuple[Share, ...]
    slots_by: str | None


def map_job(
    inputs: Inputs,
    settings: Settings,
    sections: Sequence[Section],
    of_each: Sequence[Settings],
    policies: tuple[MappingPolicy, CpuPolicy],
    part: Part | None,
    *,
    one_per_node: bool,
) -> MappedJob:
    """Map a job; raises UsageError.

    Args:
        of_each: the settings of each program.
        policies: of the whole job.
        part: this machine's part of a job that the user starts on each machine; None: the whole job.
        one_per_node: a rank takes all slots of its node.
    """
    mapping, cpu = policies
    nodes = select_nodes(inputs, settings, mapping, len(sections))
    own_slots = slots_of_programs(inputs, nodes, sections)
    listed = inputs.hosts.listed is not None or settings["rankmap"] is not None
    if (mapping.cycle or listed) and not any(own_slots[1:]):
        own_slots = [None] * len(own_slots)  # hosts that stand before the first program, as Hydra's -hosts and -f, are for all
    if one_per_node:
        nodes = merge_slots(nodes)
        own_slots = [slots and dict.fromkeys(slots, 1) for slots in own_slots]
    mapping, cpu = _with_listed_nodes(mapping, cpu, inputs, settings, nodes)
    if part is not None:  # whoever reads the messages and files of all parts sees where each comes from
        nodes = nodes._replace(nodes=tuple(node._replace(name=inputs.machine.name) for node in nodes.nodes))
    alone = len(sections) == 1
    of_programs = [mapping] if alone else [placement_policies(placement_options(own))[0] for own in of_each]
    if mapping.listed and not alone:  # the list has the ranks of all programs
        if any(own_slots) or not all(policy.ranks for policy in of_programs):
            message = "--rankmap, --rankfile and --map-by seq place the ranks of all programs together"
            raise UsageError("option-conflict", message, hint="give each program -np, and none of them hosts of its own")
        of_programs = [policy._replace(listed=mapping.listed, oversubscribe=mapping.oversubscribe) for policy in of_programs]
    if mapping.cycle and mapping.per_node and (alone or all(policy.ranks for policy in of_programs)):
        # Ranks go on to the next node after so many, those of all programs together.
        nodes, mapping = resize(nodes, mapping.per_node), mapping._replace(per_node=None)
        of_programs = [policy._replace(per_node=None) for policy in of_programs]
    shares: tuple[Share, ...] = (Share(sections[0].program[0], of_programs[0]),)
    if not alone:
        shares = tuple(map(_share, range(1, len(sections) + 1), sections, of_programs, own_slots))
    # A map that depends on the nodes' topology is made once the nodes have reported it.
    slots_by = settings["npernode"].lower() if isinstance(settings["npernode"], str) else None
    if slots_by is None and not mapping.listed and any(node.by_cores for node in nodes.nodes):
        slots_by = CORES
    pending = shares if slots_by or any(share.policy.needs_topology for share in shares) else ()
    restarts = _restarts(settings, nodes, mapping)
    if pending and restarts.max_nodes == restarts.min_nodes is not None and not restarts.spares:
        # A fixed number of nodes: the first of them, so that none is reserved.
        able = [node.index for node in nodes.nodes if node.slots]
        nodes = nodes._replace(nodes=nodes.nodes[: able[restarts.min_nodes - 1] + 1])
        restarts = restarts._replace(min_nodes=None, max_nodes=None, pool=nodes if restarts.limit else None)
    if not restarts.reserves_nodes:
        job_map = JobMap((), ()) if pending else map_apps(nodes, shares)
        return MappedJob(nodes, job_map, cpu, restarts, pending, slots_by)
    if pending or len(shares) > 1:
        message = "--spares and --nnodes need a job of one program whose map does not depend on the nodes' topology"
        raise UsageError("option-conflict", message, hint="use one program, and --map-by slot, node or ppr:N:node")
    from mpilaunch.job.restarts import first_layout

    layout = first_layout(restarts, nodes, mapping)
    return MappedJob(layout.allocation, layout.job_map, cpu, restarts, (), slots_by)


def placement_options(settings: Settings) -> PlacementOptions:
    """Return the options that map and bind ranks."""
    return PlacementOptions(
        npernode=None if isinstance(settings["npernode"], str) else settings["npernode"],
        map_by=settings["map-by"] if settings.layer("map-by") else None,
        bind_to=settings["bind-to"] if settings.layer("bind-to") else None,
        cpu_set_source=settings.source("cpu-set"),
        **settings.fields("np", "npersocket", "rank-by", "rankfile", "oversubscribe", "cycle", "nolocal"),
        **settings.fields("bind-order", "cpu-set", "use-hwthread-cpus", "cpus-per-rank"),
    )


def _with_listed_nodes(
    mapping: MappingPolicy, cpu: CpuPolicy, inputs: Inputs, settings: Settings, nodes: Allocation
) -> tuple[MappingPolicy, CpuPolicy]:
    """Return the policies with the node of each rank from --rankmap, the rankfile, or the hosts of `--map-by seq`."""
    if settings["rankmap"] is not None:
        if mapping.map_by != "slot":
            message = f"--rankmap and --map-by {mapping.map_by} cannot be used together"
            raise UsageError("option-conflict", message, hint="remove one of the two")
        from mpilaunch.placement.process_map import read_rankmap

        # An explicit map may exceed the slots of a node.
        return mapping._replace(listed=read_rankmap(settings["rankmap"], len(nodes.nodes)), oversubscribe=True), cpu
    if inputs.hosts.listed is None:
        return mapping, cpu
    if not inputs.hosts.listed:
        hint = "add --hostfile FILE or --host LIST, or write --map-by seq:file=FILE"
        raise UsageError("map-by", "--map-by seq: no list of hosts", hint=hint)
    if inputs.rank_lines is not None:
        cpu = cpu._replace(chosen=tuple(line.cores for line in inputs.rank_lines))
    return mapping._replace(listed=allocation.node_indices(inputs.hosts.listed, nodes)), cpu


def _restarts(settings: Settings, nodes: Allocation, mapping: MappingPolicy) -> RestartPolicy:
    if not any(settings.layer(option.key) for option in OPTIONS if option.group == RESTARTS):
        return RestartPolicy()
    from mpilaunch.job.restarts import restart_policy  # most jobs do not need it

    return restart_policy(settings, nodes, mapping)


def _share(number: int, section: Section, policy: MappingPolicy, slots: dict[int, int] | None) -> Share:
    name = section.program[0]
    if policy.ranks is None and policy.per_node is None:
        if slots is None or max(slots.values(), default=0) >= allocation.MAX_SLOTS:
            message = f"program {number} ({name}): in a job of several programs, each needs a number of ranks"
            hint = "add -np to each program, or '--' before a program that has ':' among its arguments"
            raise UsageError("rank-count", message, hint=hint)
        policy = policy._replace(ranks=sum(slots.values()))
    return Share(name, policy, slots)
