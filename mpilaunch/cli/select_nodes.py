"""Selects the nodes of a job and the slots of each program: from hostfiles, lists, schedulers, slot maps and rankfiles.

Reads the files that the user names; `build_job` builds the job on these nodes. Contacts no node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import is_template
from mpilaunch.cli.files import check_trusted, expand_group, load_yaml, read_text, text_and_status
from mpilaunch.errors import UsageError
from mpilaunch.hosts import allocation, kubernetes, schedulers
from mpilaunch.hosts.allocation import Allocation
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile
from mpilaunch.job.settings import Layer, Section, Settings
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.mapping import MappingPolicy

if TYPE_CHECKING:
    from mpilaunch.placement.rankfile import RankLine


def rankfile_of(mapping: MappingPolicy) -> Sequence[RankLine] | None:
    """Return the lines of the policy's rankfile, None if it has none; raises UsageError."""
    if mapping.map_by != "rankfile" or mapping.file is None:
        return None
    from mpilaunch.placement.rankfile import parse_rankfile  # few jobs need it

    return parse_rankfile(read_text(mapping.file, "rankfile"), mapping.file)


def _read_hostfiles(paths: Sequence[str], *, named: bool) -> list[HostEntry]:
    """Return the entries of hostfiles; `named` as for `check_trusted`."""
    result = []
    for path in paths:
        text, status = text_and_status(path, "hostfile")
        entries = parse_hostfile(text, path, expand_group)
        _check_agents(entries, status, named=named)
        result += entries
    return result


def _parse_host_lists(texts: Sequence[str], source: str = "--host") -> list[HostEntry]:
    return [entry for text in texts for entry in parse_host_list(text, source, expand_group)]


def _check_agents(entries: Sequence[HostEntry], status: os.stat_result, *, named: bool) -> None:
    """Raise UsageError if entries contain commands and another user may have written their file."""
    for entry in entries:
        if is_template(entry.agent or ""):
            check_trusted(f"{entry.origin}: agent", status, named=named)


def _discover(environ: Mapping[str, str]) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of the scheduler or operator that the environment describes, and its name."""
    statuses: list[os.stat_result] = []

    def read_file(path: str) -> str:
        with open(path, encoding="utf-8") as file:
            statuses.append(os.fstat(file.fileno()))
            return file.read()

    result = schedulers.discover(environ, read_file) or kubernetes.find_hosts(environ, read_file, os.listdir)
    for status in statuses:
        _check_agents(result[0] if result else (), status, named=False)
    return result


def choose_nodes(
    settings: Settings,
    sections: Sequence[Section],
    mapping: MappingPolicy,
    lines: Sequence[RankLine] | None,
    environ: Mapping[str, str],
    agent: kubernetes.FoundAgent | None,
) -> tuple[Allocation, list[dict[int, int] | None]]:
    """Return the allocation, and for each program its slots by node index, None for all slots.

    Args:
        mapping: the policy of the whole job.
        lines: the lines of a rankfile, which names the nodes if nothing else does.
        agent: the operator's agent, for nodes without an agent of the user's.
    """
    hostfiles, host_lists = _named_hosts(settings)
    own_files = [path for section in sections for path in own_values(section, "hostfile")]
    own_lists = [text for section in sections for text in own_values(section, "host")]
    if own_files or own_lists:
        hostfiles, host_lists = tuple(dict.fromkeys(own_files)), () if own_files else tuple(own_lists)
    source = "--host" if own_lists else settings.source("host")
    on_command_line = bool(own_files) or settings.layer("hostfile") == Layer.COMMAND_LINE
    entries = _read_hostfiles(hostfiles, named=on_command_line)
    named = _parse_host_lists(host_lists, source)
    if slot_map_file := settings["slot-map"]:
        from mpilaunch.hosts import slot_map  # few jobs have one

        data, positions = load_yaml(slot_map_file)
    discovered = None
    if not (hostfiles or host_lists) or allocation.has_relative_names([*entries, *named]):
        from_slot_map = (slot_map.hosts(data, slot_map_file, positions), slot_map_file) if slot_map_file else None
        discovered = _discover(environ) or from_slot_map
        if discovered is None and lines is not None and not any(line.host.startswith("+") for line in lines):
            discovered = [HostEntry(line.host, origin=line.origin) for line in lines], mapping.file or ""
        if discovered is None and mapping.map_by == "seq" and mapping.file is not None:
            discovered = _read_hostfiles([mapping.file], named=settings.layer("map-by") == Layer.COMMAND_LINE), mapping.file
    # The user's setting overrides the operator's variables.
    inherited = agent if settings.layer("remote-agent") < 2 else None
    nodes = allocation.from_sources(
        entries,
        named,
        discovered,
        allocation.HostDefaults(
            agent=settings["agent"],
            remote_agent=inherited.name if inherited else settings["remote-agent"],
            per_node=mapping.per_node and mapping.per_node * len(sections),
            local_names=local_names(environ),
        ),
        hostfile_source=", ".join(hostfiles),
        local_slots=len(os.sched_getaffinity(0)),
    )
    if inherited and any(node.agent == inherited.name for node in nodes.nodes):
        nodes = nodes._replace(agent_source=inherited.source)
    if slot_map_file:
        nodes = slot_map.apply_slot_map(nodes, data, slot_map_file, positions)
    nodes = _filter(nodes, settings)
    if order := settings["order-nodes"]:
        if order.lower() not in ("ascending", "descending"):
            raise UsageError("option-value", f"--order-nodes: '{order}' is neither ascending nor descending")
        nodes = allocation.order_nodes(nodes, descending=order.lower() == "descending")
    own_slots = []
    for number, section in enumerate(sections, start=1):
        try:
            own_slots.append(_own_slots(nodes, section, bool(hostfiles)))
        except UsageError as error:
            raise error.within(f"program {number} ({section.program[0]})") from None
    return nodes, own_slots


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


def add_listed_nodes(
    mapping: MappingPolicy, cpu: CpuPolicy, lines: Sequence[RankLine] | None, settings: Settings, nodes: Allocation
) -> tuple[MappingPolicy, CpuPolicy]:
    """Return the policies with the node of each rank from --rankmap, the rankfile, or the hosts of `--map-by seq`."""
    if settings["rankmap"] is not None:
        if mapping.map_by != "slot":
            message = f"--rankmap and --map-by {mapping.map_by} cannot be used together"
            raise UsageError("option-conflict", message, hint="remove one of the two")
        from mpilaunch.placement.process_map import read_rankmap

        # An explicit map may exceed the slots of a node.
        return mapping._replace(listed=read_rankmap(settings["rankmap"], len(nodes.nodes)), oversubscribe=True), cpu
    if lines is not None:
        entries = [HostEntry(line.host, origin=line.origin) for line in lines]
        chosen = tuple(line.cores for line in lines)
        return mapping._replace(listed=allocation.node_indices(entries, nodes)), cpu._replace(chosen=chosen)
    if mapping.map_by == "seq":
        hostfiles, host_lists = ((mapping.file,), ()) if mapping.file else _named_hosts(settings)
        by = "map-by" if mapping.file else "hostfile"
        entries = _read_hostfiles(hostfiles, named=settings.layer(by) == Layer.COMMAND_LINE) or _parse_host_lists(host_lists)
        if not entries:
            hint = "add --hostfile FILE or --host LIST, or write --map-by seq:file=FILE"
            raise UsageError("map-by", "--map-by seq: no list of hosts", hint=hint)
        return mapping._replace(listed=allocation.node_indices(entries, nodes)), cpu
    return mapping, cpu


def own_values(section: Section, name: str) -> tuple[str, ...]:
    """Return the values that a program itself has for an option that may be repeated."""
    value = section.settings[name].value if name in section.settings else ()
    return value if isinstance(value, tuple) else ()


def _own_slots(nodes: Allocation, section: Section, of_file: bool) -> dict[int, int] | None:
    """Return the slots of a program by node index; None for all slots.

    Args:
        of_file: the nodes are from hostfiles, and a host list selects among their slots; else they are the union of the lists.
    """
    entries = _parse_host_lists(own_values(section, "host"))
    if entries and of_file:
        chosen = {node.name: len(node.slots) for node in allocation.filter_by_host_list(nodes, entries).nodes}
        return {node.index: chosen[node.name] for node in nodes.nodes if node.name in chosen}
    entries += _read_hostfiles(own_values(section, "hostfile"), named=True)
    if not entries:
        return None
    slots: dict[str, int] = {}
    for entry in entries:
        slots[entry.name] = slots.get(entry.name, 0) + (1 if entry.slots is None else entry.slots)
    return {node.index: slots[node.name] for node in nodes.nodes if node.name in slots}


def _named_hosts(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hostfiles and the host lists of the strongest layer that names hosts.

    So `--host` filters a `--hostfile` on the command line, and replaces one from a config file or MPILAUNCH_HOSTFILE.
    """
    by_file, by_list = settings.layer("hostfile"), settings.layer("host")
    return settings["hostfile"] if by_file >= by_list else (), settings["host"] if by_list >= by_file else ()


def local_names(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of this machine that are known without a name server."""
    own = os.uname().nodename
    names = frozenset({"localhost", "127.0.0.1", "::1", own, own.partition(".")[0]})
    if kubernetes.in_pod(environ):
        with suppress(OSError):
            names |= kubernetes.own_names(own, _plain_text("/etc/hosts"))
    return names


def operator_agent(settings: Settings, environ: Mapping[str, str]) -> kubernetes.FoundAgent | None:
    """Return the agent that an operator's variables name; None without an operator, or if the user names an agent."""

    def is_program(word: str) -> bool:
        import shutil  # takes 3 ms

        return shutil.which(word) is not None

    return None if settings["agent"] else kubernetes.find_agent(environ, _plain_text, is_program)


def _plain_text(path: str) -> str:
    """Return the text of a file; raises OSError, UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return file.read()
