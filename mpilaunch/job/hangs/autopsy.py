"""What ranks did when their job reached its time limit, in lines for the user: equal ones together, odd ones first. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.hosts.nodeset import fold, name_ranks
from mpilaunch.text import printable

MOST_LINES = 12
"""Lines that are shown; a job in which every rank does something else has more."""
BUSY = 0.5
"""CPUs in use from which a rank is called busy: one that waits in MPI or NCCL mostly spins."""
LONGEST_WAIT, LONGEST_PLACE = 60, 200
"""Characters of the name of a function of the kernel, and of a place in code."""


class Observed(NamedTuple):
    """One rank at that time.

    Attributes:
        state: the kernel's letter for the state of its process.
        cpus: CPUs in use over half a second, with those of its descendants.
        wait: what it waits in: the name of a function of the kernel, "" if unknown.
        silent: seconds since its last output, or since its start.
        pid: of that process on the node, the one that a shell waits for where the rank is one.
        processes, seconds, memory: those of the rank, the CPU time that they have used, and their resident bytes.
    """

    rank: int
    state: str
    cpus: float
    wait: str
    silent: float
    pid: int = 0
    processes: int = 1
    seconds: float = 0.0
    memory: int = 0

    @property
    def words(self) -> str:
        """What it did."""
        wait = f" in {printable(self.wait)[:LONGEST_WAIT]}" if self.wait else ""
        if self.state in STATES:
            return STATES[self.state].format(wait=wait)
        if self.cpus >= BUSY:
            return f"busy on {count(round(self.cpus))}"
        if self.state == "R":
            return "busy on a part of a CPU"
        return f"idle, waits{wait}"


STATES = {
    "T": "stopped by a signal; kill -CONT lets it go on",
    "t": "stopped by a debugger",
    "D": "blocked{wait} of the kernel, as on a file server or a device that does not answer",
    "Z": "ended, but not yet collected",
}
"""States that tell enough."""


def count(cpus: int) -> str:
    return f"{cpus} CPUs" if cpus > 1 else "a CPU"


def autopsy(
    observed: Sequence[Observed], hosts: Mapping[int, str], unknown: Collection[int], places: Mapping[int, str]
) -> list[str]:
    """Return lines such as "rank 7 on node03: stopped by a signal, no output for 49 s".

    Args:
        hosts: rank -> the name of its node.
        unknown: ranks of which their nodes have told nothing in time.
        places: rank -> the line of its code, "" where it is unknown; where it is known, it says more than the kernel, except of
            a rank that was stopped or blocked.
    """
    groups: dict[str, list[Observed]] = {}
    for each in sorted(observed):
        place = printable(places.get(each.rank, ""))[:LONGEST_PLACE]
        where = [f"in {place}"] if place else []
        words = [each.words] if not place or each.state in STATES else []
        groups.setdefault("; ".join((*words, *where)), []).append(each)
    lines = [
        f"{_where([each.rank for each in group], hosts)}: {words}, no output for {_range([each.silent for each in group])}"
        for words, group in sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0].rank))
    ]
    if unknown:
        lines.append(f"{_where(sorted(unknown), hosts)}: no answer from the daemon")
    left = len(lines) - MOST_LINES
    return lines if left <= 0 else [*lines[:MOST_LINES], f"and {left} more groups of ranks"]


def _where(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    return f"{name_ranks(ranks)} on {fold(dict.fromkeys(hosts[rank] for rank in ranks))}"


def _range(seconds: Sequence[float]) -> str:
    least, most = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return f"{most} s" if least == most else f"{least} to {most} s"
