"""What a launch reports: progress, timeline, explanation of a failure, JSON report. Nothing here changes what a launch does.

`Observer` is the interface through which a launch reports to the user; `cli.console` implements it. All times of a `Timeline`
are monotonic, and mapped to wall-clock time by a single offset, so that they keep their order when the clock is set.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.spec import JobSpec
from mpilaunch.text import plural


class Observer(Protocol):
    """Receives progress, warnings and notes of a launch."""

    def progress(self, done: int, total: int, waiting: Collection[str]) -> None:
        """Report that `done` of `total` nodes have started; `waiting` holds the names of the others."""

    def started(self) -> None:
        """Leave the terminal to the ranks, which are about to run."""

    def note(self, text: str) -> None:
        """Print a message at once; called only while no rank runs."""

    def warning_line(self, text: str) -> str:
        """Return a warning as a line for stderr, with its newline."""

    def note_line(self, text: str) -> str:
        """Return a note as a line for stderr, with its newline; empty when the user has turned notes off."""


class Timeline:
    """Times of phases and, in `rank_starts`, of ranks, in seconds of the head's monotonic clock."""

    def __init__(self) -> None:
        self._wall = time.time() - time.monotonic()
        self._phases: list[tuple[str, float]] = []
        self.rank_starts: dict[int, float] = {}

    def begin(self, phase: str) -> None:
        """End the current phase and begin the next; the name "" only ends."""
        self._phases.append((phase, time.monotonic()))

    def phases(self) -> dict[str, float]:
        """Return the duration of each phase that has ended, in order."""
        pairs = zip(self._phases, self._phases[1:], strict=False)
        return {name: round(after - begun, 6) for (name, begun), (_, after) in pairs}

    def seconds_to(self, ends: Iterable[float]) -> float:
        """Return the seconds from the first rank's start to the latest of `ends`, or to now when there is none."""
        now = time.monotonic()
        return round(max(0.0, max(ends, default=now) - min(self.rank_starts.values(), default=now)), 6)

    def wall(self, clock: float | None) -> float | None:
        """Map a monotonic time to seconds since 1970; None for None."""
        return None if clock is None else round(clock + self._wall, 6)


def node_notes(job: JobSpec, facts: Mapping[int, NodeFacts], seconds: float) -> Iterator[str]:
    """Yield what -v and -vv tell of the nodes that have reported, `seconds` after the first was contacted."""
    if job.output.verbose >= 1:
        yield f"{plural(len(facts), 'node')} reported after {seconds:.1f} s"
    for index, one in facts.items() if job.output.verbose >= 2 else ():
        size = f"{plural(len(one.cpus), 'CPU')}, {plural(len(one.gpus), 'GPU')}"
        python = f"python {one.python} ({one.executable})"
        yield f"{job.allocation.nodes[index].name}: {one.hostname}, {size}, {python}, {', '.join(one.network.addresses)}"
