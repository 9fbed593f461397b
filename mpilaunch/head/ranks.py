"""The ranks of a job: the node of each, and how a world of ranks is prepared and started on its nodes.

A world starts on all of its nodes or on none. The first world is the job itself; MPI_Comm_spawn adds others while it runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, MOST_NOTES, NodeLink
from mpilaunch.head.nodes.preparation import common_preparation, mpi_description, preparations, world_facts
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.environment.forward import explain_size
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.worlds import World
from mpilaunch.placement.binding import RankBinding, bind_ranks
from mpilaunch.placement.mapping import JobMap, Placement
from mpilaunch.wire.frames import STDERR, STDIN, STDOUT, WireError, stream_channel
from mpilaunch.wire.session import encode_shared


class Ranks:
    """The ranks of one job, by their number in the job.

    Attributes:
        worlds: the worlds that were added, in order.
        bindings: the CPUs and GPUs that each rank is bound to.
        worlds_sent: node index -> number of worlds that the node was sent to prepare and has not refused.
    """

    def __init__(
        self, job: JobSpec, daemons: Daemons, output: OutputForwarder, state: JobState, say: Callable[[str], None]
    ) -> None:
        self.worlds: list[World] = []
        self.bindings: dict[int, RankBinding] = {}
        self.worlds_sent: Counter[int] = Counter()
        self._job, self._daemons, self._output, self._state, self._say = job, daemons, output, state, say
        self._places: list[Placement] = []
        self._worlds: dict[str, World] = {}
        self._on: defaultdict[int, list[int]] = defaultdict(list)
        self._counts: Counter[tuple[str, int]] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._descriptions: dict[str, bytes] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._prepared: dict[int, list[tuple[int, bool]]] = {}

    def place(self, rank: int) -> Placement:
        """Return the placement of a rank; `Placement.rank` is its number in its world."""
        return self._places[rank]

    def explain_size(self, rank: int) -> str:
        """Return why the kernel refused the environment or the arguments of a rank as too long."""
        world = next(world for world in self.worlds if world.first <= rank < world.first + world.size)
        app = world.apps[self.place(rank).app]
        return explain_size({**self._job.environment, **app.environment}, app.program)

    def is_on(self, rank: int, index: int) -> bool:
        """Return whether the rank exists and is on this node."""
        return rank < len(self._places) and self._places[rank].node == index

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

    async def prepare(self, world: World) -> None:
        """Send every node of a world its ranks and await all answers; raises LaunchError when a node refuses."""
        job = self._job
        whole = world
        links = {index: link for index in world.job_map.nodes if (link := self._daemons.links.get(index)) is not None}
        if len(links) < len(world.job_map.nodes):  # some were skipped: their ranks keep their numbers
            places = tuple(place for place in world.job_map.placements if place.node in links)
            world = world._replace(job_map=JobMap(places, tuple(links)))
        facts = {index: facts for index, link in links.items() if (facts := link.facts) is not None}
        bindings = bind_ranks(job.allocation, world.job_map, facts, job.gpu, job.cpu)
        self._answers = {index: asyncio.get_running_loop().create_future() for index in links}
        self._prepared = {}
        known = world_facts(job, world, facts)
        shared = encode_shared(common_preparation(job, whole, known, self._output.window))
        for index, message in preparations(job, whole, known, bindings):
            if index not in links:
                continue
            self._prepared[index] = [(spec["rank"], spec["stdin"]) for spec in message["ranks"]]
            link = links[index]
            self.worlds_sent[index] += 1
            self._unanswered[index] += 1
            if link.state != "running":
                link.state = "preparing"
            if link.given_up:
                self.gone(link, "its daemon ended")
            else:
                link.send({**message, "attach": link.attach}, shared)
        await asyncio.wait(self._answers.values(), timeout=job.deadlines.start)
        failures: list[tuple[str, str, str, float, int]] = []
        notes: dict[str, list[str]] = {}
        for index, future in self._answers.items():
            link, name = links[index], links[index].node.name
            if not future.done():
                failures.append((name, "timeout", "no answer to the preparation", job.deadlines.start, index))
                continue
            answer = future.result()
            if answer["type"] == "refused":
                for problem in answer["problems"][:MOST_NOTES]:
                    failures.append((name, problem["cause"], problem["detail"][:LONGEST_NOTE], 0.0, index))
            elif link.given_up:  # lost after it was ready, while other nodes were preparing
                failures.append((name, _cause(link), link.broke or link.last_output, 0.0, index))
            else:
                lines = answer["notes"]
                if job.output.verbose:
                    lines = [*lines, *facts[index].notes, *(f"runs {path}" for path in answer["programs"])]
                for note in lines[:MOST_NOTES]:
                    notes.setdefault(note[:LONGEST_NOTE], []).append(name)
        if failures:
            from mpilaunch.head.nodes.failures import NodeFailure, fold_failures  # most launches have no failure

            self._cancel()
            raise fold_failures([NodeFailure(*failure) for failure in failures], len(self._answers))
        for note, names in notes.items():
            self._say(f"{fold(names)}: {note}")
        self.bindings |= {world.first + rank: binding for rank, binding in bindings.items()}

    def introduce(self, world: World) -> None:
        """Describe a world to the nodes without a rank of it, and all earlier worlds to nodes that have just joined."""
        for index, link in self._daemons.links.items():
            if not self.worlds_sent[index]:
                for known in self.worlds:
                    self._send_world(link, known)
            if index not in world.job_map.nodes:
                self._send_world(link, world)

    def _send_world(self, link: NodeLink, world: World) -> None:
        if world.name not in self._descriptions:
            description = mpi_description(self._job, world)
            self._descriptions[world.name] = b"" if description is None else encode_shared({"mpi": description})
        shared = self._descriptions[world.name]
        if shared:
            link.send({"type": "world"}, shared)

    def add(self, world: World) -> None:
        """Add the ranks of a world to the job; raises LaunchError when their output files cannot be opened."""
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
        """Tell the nodes to drop the ranks that were prepared last."""
        for index in self._prepared:
            self._daemons.links[index].send({"type": "cancel"})

    def launch(self) -> None:
        """Start the ranks that were prepared last."""
        window = self._output.window
        for index, ranks in self._prepared.items():
            link = self._daemons.links[index]
            for rank, stdin in ranks:
                link.session.open_receiving(stream_channel(rank, STDOUT), window)
                if not self._job.output.merge_stderr:
                    link.session.open_receiving(stream_channel(rank, STDERR), window)
                if stdin:
                    link.session.open_sending(stream_channel(rank, STDIN), window)
            link.keep()
            link.state = "running"
            link.send({"type": "launch"})
        self._prepared = {}

    # Events of links

    def answered(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record `ready` or `refused`; raises WireError when no `prepare` is unanswered."""
        if not self._unanswered[link.node.index]:
            raise WireError(f"{message['type']!r} without a `prepare`")
        self._unanswered[link.node.index] -= 1
        self._set_answer(link, message)

    def _set_answer(self, link: NodeLink, message: dict[str, Any]) -> None:
        answer = self._answers.get(link.node.index)
        if answer is not None and not answer.done():
            if message["type"] == "refused":
                self.worlds_sent[link.node.index] -= 1
            settle(answer, message)

    def gone(self, link: NodeLink, reason: str) -> None:
        """Take the loss of a node for its refusal where its answer is awaited."""
        problem = {"cause": _cause(link), "detail": link.broke or f"{reason}\n{link.last_output}".strip()}
        self._set_answer(link, {"type": "refused", "problems": [problem]})


def _cause(link: NodeLink) -> str:
    return "protocol" if link.broke else "daemon-failed"
