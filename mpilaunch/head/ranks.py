"""The ranks of a job by their number in it: the world and the node of each, and what a node may say of them. Pure table."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from mpilaunch.head.nodes.link import LONGEST_NOTE
from mpilaunch.job.environment.forwarded import explain_size
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.job.worlds import World
from mpilaunch.placement.gpu_binding import RankBinding
from mpilaunch.placement.mapping import Placement
from mpilaunch.wire.frames import WireError

SCRIPTS, INTERPRETERS = (".py", ".sh"), ("python", "sh", "bash", "dash", "zsh", "perl", "julia")
"""How the names of scripts end, and the names of their interpreters without a version: these hold no lines of C or Fortran."""


class Ranks:
    """The ranks of one job.

    Attributes:
        worlds: the worlds that were added, in order.
        bindings: the CPUs and GPUs that each rank is bound to, from its preparation on.
    """

    def __init__(self, job: JobSpec) -> None:
        self.worlds: list[World] = []
        self.bindings: dict[int, RankBinding] = {}
        self._job = job
        self._places: dict[int, Placement] = {}
        self._worlds: dict[str, World] = {}
        self._on: defaultdict[int, list[int]] = defaultdict(list)
        self._counts: Counter[tuple[str, int]] = Counter()

    def add(self, world: World) -> None:
        self.worlds.append(world)
        self._worlds[world.name] = world
        for place in world.job_map.placements:
            self._places[world.first + place.rank] = place
            self._on[place.node].append(world.first + place.rank)
            self._counts[world.name, place.node] += 1

    def place(self, rank: int) -> Placement:
        """Return the placement of a rank; `Placement.rank` is its number in its world."""
        return self._places[rank]

    def gets_stdin(self, rank: int) -> bool:
        """Return whether the input of mpilaunch goes to a rank."""
        return self._job.gets_stdin(rank)

    def holds_lines_back(self, rank: int) -> bool:
        """Return whether the library of a rank's program may hold back what it prints, as that of C does on a pipe."""
        program = os.path.basename(self._app(rank).program[0])
        is_script = program.endswith(SCRIPTS) or program.rstrip("0123456789.") in INTERPRETERS
        return self._job.output.stdout == "pipe" and not is_script

    def _app(self, rank: int) -> App:
        world = next(world for world in self.worlds if world.first <= rank < world.first + world.size)
        return world.apps[self.place(rank).app]

    def explain_size(self, rank: int) -> str:
        """Return why the kernel refused the environment or the arguments of a rank as too long."""
        app = self._app(rank)
        return explain_size({**self._job.environment, **app.environment}, app.program)

    def is_on(self, rank: int, index: int) -> bool:
        """Return whether the rank exists and is on this node."""
        return rank in self._places and self._places[rank].node == index

    def check_rank(self, rank: int, index: int) -> None:
        """Raise WireError unless the rank exists and is on this node."""
        if not self.is_on(rank, index):
            raise WireError(f"rank {rank} is not on this node")

    def of_node(self, index: int) -> list[int]:
        return self._on[index]

    def of_world(self, name: str) -> range:
        """Return the ranks of a world; raises KeyError."""
        world = self._worlds[name]
        return range(world.first, world.first + world.size)

    def own_rank(self, name: str, number: int, index: int) -> int:
        """Return the number in the job of rank `number` of a world; raises WireError unless it is on this node."""
        world = self._worlds.get(name)
        if world is None or not 0 <= number < world.size or not self.is_on(world.first + number, index):
            raise WireError(f"rank {number} of world {name[:LONGEST_NOTE]!r} is not on this node")
        return world.first + number

    def check_world(self, name: str, index: int) -> None:
        """Raise WireError where a node has no rank of a world."""
        if not self._counts[name, index]:
            raise WireError(f"this node has no rank of world {name[:LONGEST_NOTE]!r}")

    def count_members(self, members: Sequence[Sequence[Any]], index: int) -> tuple[int, int]:
        """Return how many ranks a collective has, and how many of them are on a node; raises WireError."""
        total = here = 0
        for name, number in members:
            world = self._worlds.get(name)
            if world is None or number >= world.size:
                raise WireError(f"a collective with rank {number} of world {name[:LONGEST_NOTE]!r}, which is not there")
            if number < 0:
                total, here = total + world.size, here + self._counts[name, index]
            else:
                total, here = total + 1, here + self.is_on(world.first + number, index)
        named = {(name, number) for name, number in members}
        whole = {name for name, number in named if number < 0}
        if len(named) < len(members) or any(name in whole and number >= 0 for name, number in named):
            raise WireError("a collective that names a rank twice")
        return total, here

    def node_name(self, rank: int) -> str:
        return self._job.allocation.nodes[self._places[rank].node].name
