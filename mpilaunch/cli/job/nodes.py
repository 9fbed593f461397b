"""The nodes of a job, and the slots of each program on them: from what hostfiles, lists, schedulers and slot maps say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.agent import LOCAL
from mpilaunch.cli.job.inputs import Hosts, Inputs, OwnHosts
from mpilaunch.errors import UsageError
from mpilaunch.hosts import allocation
from mpilaunch.hosts.allocation import Allocation
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.job.settings import Layer, Section, Settings
from mpilaunch.placement.mapping import MappingPolicy


def select_nodes(inputs: Inputs, settings: Settings, mapping: MappingPolicy, programs: int) -> Allocation:
    """Return the allocation; raises UsageError. `mapping` is the policy of the whole job."""
    hosts, agent, batch = inputs.hosts, inputs.agent, inputs.batch
    # The user's setting overrides the operator's variables, and the batch system's agent.
    is_free = settings.layer("remote-agent") < Layer.FILE
    inherited = agent if is_free else None
    # What a command of --independent leaves running stays, but the end of a batch system's step would end it.
    batch = None if settings["independent"] else batch
    scheduled = batch.hosts if batch is not None and batch.installed and is_free else frozenset[str]()
    # A step may have one CPU of a node of which the job has all: another step reaches the rest of it.
    confined = batch is not None and batch.in_step and settings["node-rank"] is None
    nodes = allocation.from_sources(
        hosts.entries,
        hosts.named,
        _discovered(hosts, settings, mapping),
        allocation.HostDefaults(
            agent=settings["agent"],
            remote_agent=inherited.name if inherited else settings["remote-agent"],
            scheduled={} if batch is None else dict.fromkeys(scheduled, batch.agent),
            per_node=mapping.per_node and mapping.per_node * programs,
            by_cores=settings["default-slots"] == allocation.CORES,
            local_names=inputs.machine.names - scheduled if confined else inputs.machine.names,
        ),
        hostfile_source=", ".join(hosts.hostfiles),
        local_slots=inputs.machine.cpus,
    )
    if inherited and any(node.agent == inherited.name for node in nodes.nodes):
        nodes = nodes._replace(agent_source=inherited.source)
    if batch is not None and any(node.name in batch.hosts for node in nodes.nodes if node.agent not in (LOCAL, batch.agent)):
        nodes = nodes._replace(unused_agent=batch.agent)
    if hosts.slot_map is not None:
        from mpilaunch.hosts import slot_map  # few jobs have one

        data, positions = hosts.slot_map
        nodes = slot_map.apply_slot_map(nodes, data, settings["slot-map"], positions)
    nodes = _filter(nodes, settings)
    if order := settings["order-nodes"]:
        if order.lower() not in ("ascending", "descending"):
            raise UsageError("option-value", f"--order-nodes: '{order}' is neither ascending nor descending")
        nodes = allocation.order_nodes(nodes, descending=order.lower() == "descending")
    return nodes


def slots_of_programs(inputs: Inputs, nodes: Allocation, sections: Sequence[Section]) -> list[dict[int, int] | None]:
    """Return for each program its slots by node index, None for all slots; raises UsageError."""
    result = []
    for number, (section, own) in enumerate(zip(sections, inputs.hosts.own, strict=True), start=1):
        try:
            result.append(_own_slots(nodes, own, bool(inputs.hosts.hostfiles)))
        except UsageError as error:
            raise error.within(f"program {number} ({section.program[0]})") from None
    return result


def _discovered(hosts: Hosts, settings: Settings, mapping: MappingPolicy) -> tuple[list[HostEntry], str] | None:
    """Return the hosts that count where the user names none, or relative ones, and their source."""
    if not hosts.need_others or hosts.found is not None:
        return hosts.found
    if hosts.slot_map is not None:
        from mpilaunch.hosts import slot_map

        data, positions = hosts.slot_map
        return slot_map.hosts(data, settings["slot-map"], positions), settings["slot-map"]
    if hosts.listed is None or mapping.file is None:
        return None
    relative = mapping.map_by == "rankfile" and any(entry.name.startswith("+") for entry in hosts.listed)
    return None if relative else (hosts.listed, mapping.file)


def _filter(nodes: Allocation, settings: Settings) -> Allocation:
    """Return the allocation with the slots that --include or --exclude leaves."""
    given = [name for name in ("include", "exclude") if settings[name]]
    if not given:
        return nodes
    if len(given) > 1:
        raise UsageError("option-conflict", "--include and --exclude cannot be used together", hint="leave one out")
    if nodes.elastic_slots or isinstance(settings["npernode"], str):
        message = f"--{given[0]} needs hosts with a number of slots"
        raise UsageError("option-conflict", message, hint="use --hostfile FILE, or --host HOST:SLOTS")
    from mpilaunch.hosts.slot_filter import filter_slots  # few jobs need it

    return filter_slots(nodes, settings[given[0]], f"--{given[0]}")


def _own_slots(nodes: Allocation, own: OwnHosts, of_file: bool) -> dict[int, int] | None:
    """Return the slots of a program by node index; None for all slots.

    Args:
        of_file: the nodes are from hostfiles, and a host list selects among their slots; else they are the union of the lists.
    """
    if own.named and of_file:
        chosen = {
            node.name: allocation.MAX_SLOTS if node.by_cores else len(node.slots)
            for node in allocation.filter_by_host_list(nodes, own.named).nodes
        }
        return {node.index: chosen[node.name] for node in nodes.nodes if node.name in chosen}
    if not (own.named or own.entries):
        return None
    by_cores = {node.name for node in nodes.nodes if node.by_cores}
    slots: dict[str, int] = {}
    for entry in (*own.named, *own.entries):
        unsaid = allocation.MAX_SLOTS if entry.name in by_cores else len(entry.gpus or ()) or nodes.defaults.per_node or 1
        slots[entry.name] = slots.get(entry.name, 0) + (unsaid if entry.slots is None else entry.slots)
    return {node.index: slots[node.name] for node in nodes.nodes if node.name in slots}
