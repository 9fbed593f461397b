"""The ranks of a job on its nodes: where each one is, preparing a world on all nodes that run it, and starting it.

A world starts everywhere or nowhere. The first is the job itself; MPI_Comm_spawn adds others while it runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.failures import NodeFailure, fold_failures
from mpilaunch.head.nodes.link import LONGEST_NOTE, MOST_NOTES, NodeLink
from mpilaunch.head.nodes.preparation import mpi_description, preparation_of_all, preparations, surroundings
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.worlds import World
from mpilaunch.placement.binding import RankBinding, bind_ranks
from mpilaunch.placement.mapping import Placement
from mpilaunch.wire.frames import STDERR, STDIN, STDOUT, WireError, stream_channel
from mpilaunch.wire.session import encode_shared


class Ranks:
    """The ranks of one job, by their number in the job.

    Attributes:
        worlds: those that were started, in order.
        bindings: what each rank is bound to.
        worlds_told: how many worlds each node has been told to prepare and has not refused, by the node's index.

    Args:
        say: tells the user something.
    """

    def __init__(
        self, job: JobSpec, daemons: Daemons, output: OutputForwarder, state: JobState, say: Callable[[str], None]
    ) -> None:
        self.worlds: list[World] = []
        self.bindings: dict[int, RankBinding] = {}
        self.worlds_told: Counter[int] = Counter()
        self._job = job
        self._daemons = daemons
        self._output = output
        self._state = state
        self._say = say
        self._places: list[Placement] = []
        self._worlds: dict[str, World] = {}
        self._on: defaultdict[int, list[int]] = defaultdict(list)
        self._counts: Counter[tuple[str, int]] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._descriptions: dict[str, bytes] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._prepared: dict[int, list[tuple[int, bool]]] = {}

    # Where they are

    def place(self, rank: int) -> Placement:
        """Return where a rank is; `Placement.rank` is its number in its world."""
        return self._places[rank]

    def is_on(self, rank: int, index: int) -> bool:
        """Say whether there is such a rank, and it is on this node."""
        return rank < len(self._places) and self._places[rank].node == index

    def of_node(self, index: int) -> list[int]:
        """Return the ranks of a node."""
        return self._on[index]

    def of_world(self, name: str) -> range:
        """Return the ranks of a world; raises KeyError."""
        world = self._worlds[name]
        return range(world.first, world.first + world.size)

    def own_rank(self, name: str, number: int, index: int) -> int:
        """Return the number in the job of a rank of a world, which a node names as its own; raises WireError."""
        world = self._worlds.get(name)
        if world is None or not 0 <= number < world.size or not self.is_on(world.first + number, index):
            raise WireError(f"rank {number} of world {name[:LONGEST_NOTE]!r} is none of this node")
        return world.first + number

    def check_world(self, name: str, index: int) -> None:
        """Raise WireError where a node has no rank of a world."""
        if not self._counts[name, index]:
            raise WireError(f"this node has no rank of world {name[:LONGEST_NOTE]!r}")

    def count_members(self, members: Sequence[Sequence[Any]], index: int) -> tuple[int, int]:
        """Return how many ranks the members of a collective are, and how many of them a node has; raises WireError."""
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
        """Return the name of a rank's node."""
        return self._job.allocation.nodes[self._places[rank].node].name

    # Preparing and starting

    async def prepare(self, world: World) -> None:
        """Give every node of a world its ranks and hear that they can start; raises LaunchError when one cannot."""
        job = self._job
        facts = {index: facts_of(self._daemons.links[index]) for index in world.job_map.nodes}
        bindings = bind_ranks(job.allocation, world.job_map, facts, job.gpu, job.cpu)
        self._answers = {index: asyncio.get_running_loop().create_future() for index in world.job_map.nodes}
        self._prepared = {}
        around = surroundings(job, world, facts)
        shared = encode_shared(preparation_of_all(job, world, around, self._output.window))
        for index, message in preparations(job, world, around, bindings):
            self._prepared[index] = [(spec["rank"], spec["stdin"]) for spec in message["ranks"]]
            link = self._daemons.links[index]
            self.worlds_told[index] += 1
            self._unanswered[index] += 1
            if link.state != "running":
                link.state = "preparing"
            if link.given_up:
                self.gone(link, "its daemon ended")
            else:
                link.send({**message, "attach": link.attach}, shared)
        await asyncio.wait(self._answers.values(), timeout=job.deadlines.start)
        failures: list[NodeFailure] = []
        notes: dict[str, list[str]] = {}
        for index, answer in self._answers.items():
            name = job.allocation.nodes[index].name
            if not answer.done():
                failures.append(NodeFailure(name, "timeout", "no answer to the preparation", job.deadlines.start, index))
            elif self._daemons.links[index].given_up and answer.result()["type"] == "ready":
                # It was lost while others still prepared.
                link = self._daemons.links[index]
                cause = "protocol" if link.broke else "daemon-failed"
                failures.append(NodeFailure(name, cause, link.broke or link.last_words, 0.0, index))
            elif answer.result()["type"] == "refused":
                for problem in answer.result()["problems"][:MOST_NOTES]:
                    failures.append(NodeFailure(name, problem["cause"], problem["detail"][:LONGEST_NOTE], 0.0, index))
            else:
                lines = answer.result()["notes"]
                if job.output.verbose:
                    lines = [*lines, *facts[index].notes, *(f"runs {path}" for path in answer.result()["programs"])]
                for note in lines[:MOST_NOTES]:
                    notes.setdefault(note[:LONGEST_NOTE], []).append(name)
        if failures:
            self._cancel()
            raise fold_failures(failures, len(self._answers))
        for note, names in notes.items():
            self._say(f"{fold(names)}: {note}")
        self.bindings |= {world.first + rank: binding for rank, binding in bindings.items()}

    def introduce(self, world: World) -> None:
        """Make a world known to the nodes that have no rank of it; those that come later are told of all others."""
        for index, link in self._daemons.links.items():
            if not self.worlds_told[index]:
                for known in self.worlds:
                    self._tell_of(link, known)
            if index not in world.job_map.nodes:
                self._tell_of(link, world)

    def _tell_of(self, link: NodeLink, world: World) -> None:
        if world.name not in self._descriptions:
            description = mpi_description(self._job, world)
            self._descriptions[world.name] = b"" if description is None else encode_shared({"mpi": description})
        shared = self._descriptions[world.name]
        if shared:
            link.send({"type": "world"}, shared)

    def add(self, world: World) -> None:
        """Count the ranks of a prepared world among those of the job; raises LaunchError when their files cannot be made."""
        try:
            self._output.add_world(world)
        except LaunchError:
            self._cancel()
            raise
        self.worlds.append(world)
        self._worlds[world.name] = world
        self._places += world.job_map.placements
        for place in world.job_map.placements:
            self._on[place.node].append(world.first + place.rank)
            self._counts[world.name, place.node] += 1
        self._state.add(range(world.first, world.first + world.size))

    def _cancel(self) -> None:
        """Start nothing of what was prepared last."""
        for index in self._prepared:
            self._daemons.links[index].send({"type": "cancel"})

    def launch(self) -> None:
        """Start the ranks that were prepared last."""
        window = self._output.window
        for index, ranks in self._prepared.items():
            link = self._daemons.links[index]
            for rank, stdin in ranks:
                link.open_output(stream_channel(rank, STDOUT), window)
                if not self._job.output.merge_stderr:
                    link.open_output(stream_channel(rank, STDERR), window)
                if stdin:
                    link.open_input(stream_channel(rank, STDIN), window)
            link.keep()
            link.state = "running"
            link.send({"type": "launch"})
        self._prepared = {}

    # From the links

    def answered(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take `ready` or `refused`; raises WireError when nothing was asked."""
        if not self._unanswered[link.node.index]:
            raise WireError(f"{message['type']!r} without a `prepare`")
        self._unanswered[link.node.index] -= 1
        self._take_answer(link, message)

    def _take_answer(self, link: NodeLink, message: dict[str, Any]) -> None:
        answer = self._answers.get(link.node.index)
        if answer is not None and not answer.done():
            if message["type"] == "refused":
                self.worlds_told[link.node.index] -= 1
            answer.set_result(message)

    def gone(self, link: NodeLink, reason: str) -> None:
        """A node is gone: where it had to answer, that is its answer."""
        cause = "protocol" if link.broke else "daemon-failed"
        problem = {"cause": cause, "detail": link.broke or f"{reason}\n{link.last_words}".strip()}
        self._take_answer(link, {"type": "refused", "problems": [problem]})


def facts_of(link: NodeLink) -> NodeFacts:
    """Return the facts of a node that has reported."""
    assert link.facts is not None
    return link.facts
