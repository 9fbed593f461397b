"""Restarts: whether a failed job is restarted, when, and on which nodes.

Pure. The pool holds all nodes that a job may ever use; a node's number is its index there. In each attempt, a replacement node
takes the index of the node that it replaces, so that every rank keeps its number, local rank and node rank; idle nodes have no
slots. The ranks are mapped again only when the size of the job changes (`--nnodes MIN:MAX`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, Node
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.settings import Settings
from mpilaunch.job.spec import RestartPolicy
from mpilaunch.job.verdict import Verdict
from mpilaunch.placement.mapping import JobMap, MappingPolicy, Placement, map_ranks
from mpilaunch.text import plural

RESTARTED = ("rank-failed", "node-lost", "mpi-failed", "hang", "too-few-nodes")
"""Causes after which another attempt may succeed; failed starts of later attempts (`start-...`) count as well."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first restart, doubled for each further one, and the most."""
REST_AFTER = 2
"""Failures after which a node is used only as a last resort."""


class Layout(NamedTuple):
    """The nodes and the map of one attempt: `numbers` has the number in the pool of each node; idle nodes have no slots."""

    numbers: tuple[int, ...]
    allocation: Allocation
    job_map: JobMap

    @property
    def used(self) -> tuple[int, ...]:
        """The numbers of the nodes that run ranks."""
        return tuple(self.numbers[index] for index in self.job_map.nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes that run ranks."""
        return tuple(self.allocation.nodes[index].name for index in self.job_map.nodes)


class Health(NamedTuple):
    """The failures and losses of nodes, by their numbers in the pool.

    Attributes:
        failures: how often each was lost, was not reached, or ran the rank that failed first.
        lost: nodes lost in the last attempt: they may be back, but others are preferred.
        unusable: nodes that were not reached in this attempt, or are no longer among the discovered hosts.
    """

    failures: Mapping[int, int] = {}
    lost: frozenset[int] = frozenset()
    unusable: frozenset[int] = frozenset()

    def with_failures(self, numbers: Collection[int]) -> Health:
        """Return a copy with one more failure for each of these nodes."""
        more = {number: self.failures.get(number, 0) + 1 for number in numbers}
        return self._replace(failures={**self.failures, **more})

    def tier(self, number: int, used: Collection[int]) -> int:
        """Return the preference of a node, lowest first: 0 in use, 1 idle, 2 idle that failed once, 3 lost, 4 and 5 tired."""
        failures = self.failures.get(number, 0)
        if failures >= REST_AFTER:
            return 4 + (number in self.lost)
        return 3 if number in self.lost else 0 if number in used else 1 + bool(failures)


# Policy


def restart_policy(settings: Settings, pool: Allocation, mapping: MappingPolicy) -> RestartPolicy:
    """Return the policy that the settings ask for; raises UsageError if the nodes do not allow it."""
    command, unit, spares = settings["host-discovery-script"], settings["node-unit"], settings["spares"]
    limit, nnodes = settings["max-restarts"], settings["nnodes"]
    if unit > 1 and ":" not in (nnodes or ""):
        raise UsageError("option-conflict", "--node-unit needs --nnodes MIN:MAX")
    least, most = _node_limits(nnodes, unit)
    if command is not None and pool.elastic_slots:
        hint = "name the initial hosts with --host or --hostfile"
        raise UsageError("option-conflict", "--host-discovery-script without hosts", hint=hint)
    if least != most and mapping.ranks is not None:
        hint = "omit -np: each slot gets one rank, or each node the ranks of -N"
        raise UsageError("option-conflict", f"--nnodes {nnodes} with -np {mapping.ranks}", hint=hint)
    excluded_codes = _exit_codes(settings["no-restart-codes"])
    if not limit and not spares and most is None:
        return RestartPolicy()
    available = sum(bool(node.slots) for node in pool.nodes)
    required = least or 1
    if required + spares > available:
        and_spares = f" and {spares} spare" if spares else ""
        message = f"{plural(required, 'node')}{and_spares} requested, but {pool.source} has {available}"
        hint = "name more hosts, or request fewer nodes or spares"
        if pool.elastic_slots:
            hint = "run it once with --host or --hostfile, which name the nodes; or on each machine with --node-rank R"
        raise UsageError("node-count", message, hint=hint)
    if most is not None and spares:
        most = min(most, (available - spares) // unit * unit)
    return RestartPolicy(
        limit=limit,
        excluded_codes=excluded_codes,
        spares=spares,
        min_nodes=least,
        max_nodes=most,
        node_unit=unit,
        elastic=":" in (nnodes or "") and mapping.ranks is None,
        pool=pool,
        mapping=mapping,
        discovery=command,
    )


def _node_limits(text: str | None, unit: int) -> tuple[int | None, int | None]:
    """Return MIN and MAX of `--nnodes`, rounded to multiples of the unit; (None, None) without it."""
    if text is None:
        return None, None
    match = re.fullmatch("([1-9][0-9]{0,6})(?::([1-9][0-9]{0,6}))?", text, re.ASCII)
    if match is None:
        raise UsageError("option-value", f"--nnodes: '{text}' is not N or MIN:MAX", hint="like --nnodes 4, or --nnodes 2:4")
    least, most = -(-int(match[1]) // unit) * unit, int(match[2] or match[1]) // unit * unit
    if least > most:
        multiples = f" in multiples of {unit}" if unit > 1 else ""
        raise UsageError("option-value", f"--nnodes: there is no number from {text.replace(':', ' to ')}{multiples}")
    return least, most


def _exit_codes(text: str | None) -> frozenset[int]:
    """Return the exit codes of a list like 2,64-78."""
    codes: set[int] = set()
    for word in (text or "").split(",") if text else ():
        match = re.fullmatch("([0-9]{1,3})(?:-([0-9]{1,3}))?", word.strip(), re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]) <= 255:
            raise UsageError("option-value", f"--no-restart-codes: '{word}' is not an exit code", hint="like 2 or 2,64-78")
        codes.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(codes)


# Nodes


def first_layout(policy: RestartPolicy, pool: Allocation, mapping: MappingPolicy) -> Layout:
    """Return the first layout: the nodes in order, without the spares; raises UsageError if the ranks do not fit."""
    numbers = tuple(range(len(pool.nodes)))
    if not policy.reserves_nodes:
        return Layout(numbers, pool, map_ranks(pool, mapping))
    able = [node.index for node in pool.nodes if node.slots]
    count = min(policy.max_nodes or len(able), len(able) - policy.spares) // policy.node_unit * policy.node_unit
    return _mapped(pool, numbers, able[:count], mapping)


def next_layout(policy: RestartPolicy, pool: Allocation, layout: Layout, health: Health) -> Layout | None:
    """Return the layout of the next attempt, with as few changes as possible; None if there are not enough nodes."""
    usable = [node.index for node in pool.nodes if node.slots and node.index not in health.unusable]
    before = (*layout.numbers, *range(len(layout.numbers), len(pool.nodes)))
    if policy.elastic:
        usable = _choose(policy, usable, layout.used, health)
        if not usable:
            return None
    same_size = not policy.elastic or len(usable) == len(layout.used)
    numbers = _replace(pool, before, layout.job_map, usable, health) if same_size else None
    if numbers is None:
        return _mapped(pool, before, usable, policy.mapping) if policy.elastic else None
    used = {numbers[index] for index in layout.job_map.nodes}
    idle = set(numbers) - used
    resting = idle if policy.reserves_nodes else idle & (health.lost | health.unusable)
    return Layout(numbers, _allocation(pool, numbers, resting), layout.job_map)


def _choose(policy: RestartPolicy, usable: list[int], used: Collection[int], health: Health) -> list[int]:
    """Return the nodes of an elastic job: all healthy ones within its limits; none if fewer than its minimum are usable."""
    assert policy.min_nodes is not None and policy.max_nodes is not None
    tiers = {number: health.tier(number, used) for number in usable}
    healthy = sum(tier <= 2 for tier in tiers.values())
    count = max(policy.min_nodes, min(policy.max_nodes, healthy) // policy.node_unit * policy.node_unit)
    ordered = sorted(usable, key=lambda number: (tiers[number], number))
    return ordered[:count] if len(ordered) >= count else []


def _replace(
    pool: Allocation, before: Sequence[int], job_map: JobMap, usable: Collection[int], health: Health
) -> tuple[int, ...] | None:
    """Return the numbers with failed nodes replaced; None if an unusable node has no replacement."""
    numbers = list(before)
    places_of = job_map.by_node()
    used = [numbers[index] for index in job_map.nodes]
    free = [number for number in usable if number not in used]
    tiers = {number: health.tier(number, used) for number in numbers}
    # A node that was discovered with fewer slots may be too small now.
    able_to_stay = {
        index
        for index in job_map.nodes
        if numbers[index] in usable and _fits(pool.nodes[numbers[index]], places_of[index])
    }
    # Nodes that cannot stay are replaced first, then lost ones.
    leaving = [index for index in job_map.nodes if index not in able_to_stay or tiers[numbers[index]]]
    leaving.sort(key=lambda index: (index in able_to_stay, numbers[index] not in health.lost, index))
    for index in leaving:
        own = numbers[index]
        able = [number for number in free if _fits(pool.nodes[number], places_of[index])] + [own] * (index in able_to_stay)
        if not able:
            return None
        best = min(able, key=lambda number: (tiers[number], number != own, number))
        if best != own:
            free.remove(best)
            other = numbers.index(best)
            numbers[index], numbers[other] = best, own
    return tuple(numbers)


def _fits(node: Node, places: Collection[Placement]) -> bool:
    """Return whether a node has the slots for these placements of another node."""
    return len(node.slots) > max(place.slot for place in places) and len(places) <= (node.max_slots or len(places))


def _mapped(pool: Allocation, numbers: tuple[int, ...], chosen: Collection[int], mapping: MappingPolicy) -> Layout:
    """Return the layout with the ranks mapped onto the chosen nodes."""
    allocation = _allocation(pool, numbers, set(numbers) - set(chosen))
    return Layout(numbers, allocation, map_ranks(allocation, mapping))


def _allocation(pool: Allocation, numbers: tuple[int, ...], resting: Collection[int]) -> Allocation:
    """Return the nodes of the pool in this order; resting nodes have no slots."""
    nodes = [
        pool.nodes[number]._replace(index=index, slots=() if number in resting else pool.nodes[number].slots)
        for index, number in enumerate(numbers)
    ]
    return pool._replace(nodes=tuple(nodes))


def merge_discovered(
    pool: Allocation, discovered: Allocation, bare: Collection[str] = ()
) -> tuple[Allocation, frozenset[int]]:
    """Return the pool with the discovered nodes, new ones last, and the numbers of the nodes that were not discovered.

    Args:
        bare: the names that were discovered without a number of slots, which known nodes keep.
    """
    by_name = {node.name: node for node in discovered.nodes}
    nodes = []
    for node in pool.nodes:
        current = by_name.pop(node.name, node)
        # If the number of slots is unchanged, the known slots stay: they may name GPUs and CPUs.
        same = node.name in bare or len(current.slots) == len(node.slots)
        nodes.append(node if same else node._replace(slots=current.slots))
    names = {node.name for node in discovered.nodes}
    nodes += [node._replace(index=len(nodes) + place) for place, node in enumerate(by_name.values())]
    return pool._replace(nodes=tuple(nodes)), frozenset(node.index for node in nodes if node.name not in names)


def describe_changes(old: Layout, new: Layout) -> str:
    """Describe how the nodes of two attempts differ: "node04 for node02", "2 nodes instead of 3: node[01,03]", "" if equal."""
    if len(old.names) != len(new.names):
        return f"{plural(len(new.names), 'node')} instead of {len(old.names)}: {fold(new.names)}"
    nodes = zip(old.names, new.names, old.used, new.used, strict=True)
    return ", ".join(f"{now} for {before}" for before, now, one, other in nodes if one != other)


# Decision and delay


def is_restartable(verdict: Verdict) -> bool:
    """Return whether another attempt may succeed after this verdict."""
    return verdict.cause in RESTARTED or verdict.cause.startswith("start-")


def reason_not_to_restart(policy: RestartPolicy, verdict: Verdict, restart: int) -> str:
    """Return why the job is not restarted after this verdict, "" if it is; `restart` is the number of restarts so far."""
    if not is_restartable(verdict):
        return f"a job that ended by '{verdict.cause}' is not restarted"
    if verdict.first is not None and verdict.first.errno is not None:
        return "a program that cannot be executed is not restarted"
    if verdict.cause == "rank-failed" and verdict.exit_code in policy.excluded_codes:
        return f"exit code {verdict.exit_code} is among --no-restart-codes"
    if restart >= policy.limit:
        return f"--max-restarts {policy.limit} is reached"
    return ""


def pause_before(restart: int) -> float:
    """Return the seconds, without jitter, before the `restart`-th restart, counted from 1."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(restart - 1, 16))
