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
        place: where it is in its code, "" where that is unknown; `steady`, whether it was there twice.
        fenced: it is known to wait in a fence, in which an MPI library waits for the other ranks beside its own messages.
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
    place: str = ""
    steady: bool = True
    fenced: bool = False

    @property
    def words(self) -> str:
        """What it did."""
        return self._words + (FENCED if self.fenced else "")

    @property
    def _words(self) -> str:
        """Its place where that is known, which says more than the kernel, except of one that was stopped or blocked."""
        if not self.place:
            return self._state
        place = f"{'in' if self.steady else 'running, seen in'} {printable(self.place)[:LONGEST_PLACE]}"
        return f"{self._state}; {place}" if self.state in STATES else place

    @property
    def _state(self) -> str:
        wait = f" in {printable(self.wait)[:LONGEST_WAIT]}" if self.wait else ""
        if self.state in STATES:
            return STATES[self.state].format(wait=wait)
        if self.cpus >= BUSY:
            return f"busy on {count(round(self.cpus))}"
        if self.state == "R":
            return "busy on a part of a CPU"
        return f"idle, waits{wait}"


FENCED = ", in a fence of MPI (MPI_Init, MPI_Finalize)"
STATES = {
    "T": "stopped by a signal; kill -CONT lets it continue",
    "t": "stopped by a debugger",
    "D": "blocked{wait} of the kernel, as on a file server or a device that does not answer",
    "Z": "ended, but not yet collected",
}
"""States that tell enough."""


def count(cpus: int) -> str:
    return f"{cpus} CPUs" if cpus > 1 else "a CPU"


def autopsy(observed: Sequence[Observed], hosts: Mapping[int, str], unknown: Collection[int]) -> list[str]:
    """Return lines such as "rank 7 on node03: stopped by a signal, no output for 49 s".

    Args:
        hosts: rank -> the name of its node.
        unknown: ranks of which their nodes have told nothing in time.
    """
    groups: dict[str, list[Observed]] = {}
    for each in sorted(observed):
        groups.setdefault(each.words, []).append(each)
    lines = [
        f"{ranks_on([each.rank for each in group], hosts)}: {words}, {silence([each.silent for each in group])}"
        for words, group in sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0].rank))
    ]
    if unknown:
        lines.append(f"{ranks_on(sorted(unknown), hosts)}: no answer from the daemon")
    left = len(lines) - MOST_LINES
    return lines if left <= 0 else [*lines[:MOST_LINES], f"and {left} more groups of ranks"]


def nccl_lines(report: str) -> list[str]:
    """Return the report of NCCL in lines for the user, none without one."""
    return ["the report of NCCL:", *(f"    {printable(line)}" for line in report.splitlines())] if report else []


def ranks_on(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return "ranks 0-5 on node[01-03]"."""
    return f"{name_ranks(ranks)} on {fold(dict.fromkeys(hosts[rank] for rank in ranks))}"


def silence(seconds: Sequence[float]) -> str:
    """Return for how long ranks have printed nothing: "no output for 30 to 35 s"."""
    least, most = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return f"no output for {most} s" if least == most else f"no output for {least} to {most} s"
