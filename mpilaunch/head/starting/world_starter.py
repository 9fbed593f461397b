"""Prepares worlds of ranks on their nodes and starts them: a world starts on all of its nodes or on none.

A job begins with one world, or one for each role. MPI_Comm_spawn adds others while it runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, MOST_NOTES, NodeLink
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.preparation.gpu_masks import keep_masks
from mpilaunch.job.preparation.messages import common_preparation, mpi_description, preparations
from mpilaunch.job.preparation.world_facts import world_facts
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.worlds import World, neighbours
from mpilaunch.placement.gpu_binding import bind_ranks
from mpilaunch.placement.mapping import JobMap
from mpilaunch.wire.frames import STDERR, STDIN, STDOUT, WireError, stream_channel
from mpilaunch.wire.session import encode_shared

if TYPE_CHECKING:
    from mpilaunch.head.nodes.failures import NodeFailure


class WorldStarter:
    """Starts the worlds of one job.

    Attributes:
        worlds_sent: node index -> number of worlds that the node was sent to prepare and has not refused.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        output: OutputForwarder,
        ranks: Ranks,
        state: JobState,
        say: Callable[[str], None],
    ) -> None:
        self.worlds_sent: Counter[int] = Counter()
        self._job, self._daemons, self._output, self._ranks, self._state, self._say = job, daemons, output, ranks, state, say
        self._unanswered: Counter[int] = Counter()
        self._descriptions: dict[str, bytes] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._prepared: dict[int, dict[int, list[tuple[int, bool]]]] = {}
        self._noted: set[str] = set()

    async def prepare_job(self) -> None:
        """Prepare the worlds that the job begins with; raises LaunchError when a node refuses."""
        for world in self._ranks.worlds:
            self._describe(world)
            await self.prepare(world)

    async def prepare(self, world: World) -> None:
        """Send every node of a world its ranks and await all answers; raises LaunchError when a node refuses."""
        job = self._job
        near, whole = neighbours(job, world), world
        apart = near is not world.job_map
        reached = self._daemons.links
        links = {index: reached[index] for index in world.job_map.nodes if index in reached}
        if len(links) < len(world.job_map.nodes):  # some were skipped: their ranks keep their numbers
            places = tuple(place for place in world.job_map.placements if place.node in links)
            near = JobMap(places, tuple(links))
            world = world._replace(job_map=near)
        facts = {index: facts for index, link in reached.items() if (facts := link.facts) is not None}
        bindings = bind_ranks(job.allocation, near, facts, job.gpu, job.cpu)
        if apart:
            bindings = {rank: bindings[world.first + rank] for rank in range(world.size)}
        bindings = keep_masks(job, world, bindings)
        known = world_facts(job, world, facts)
        if known.note and not world.parent and known.note not in self._noted:  # roles share it; a terminal is its ranks' later
            self._noted.add(known.note)
            self._say(known.note)
        shared = encode_shared(common_preparation(job, whole, known, self._output.window))
        self._prepared[world.number] = {}
        for index, message in preparations(job, whole, known, bindings):
            if index in links:
                self.send_preparation(links[index], world.number, message, shared)
        failures = await self.await_answers(world.number, links, job.deadlines.start)
        if failures:
            from mpilaunch.head.nodes.failures import fold_failures  # most launches have no failure

            raise fold_failures(failures, len(links))
        self._ranks.bindings |= {world.first + rank: binding for rank, binding in bindings.items()}

    def send_preparation(self, link: NodeLink, number: int, message: dict[str, Any], shared: bytes) -> None:
        """Send a node the ranks of a world that it will run, the parts of its `prepare`; `await_answers` has its answer."""
        index = link.node.index
        self._answers[index] = asyncio.get_running_loop().create_future()
        self._prepared.setdefault(number, {})[index] = [(spec["rank"], spec["stdin"]) for spec in message["ranks"]]
        self.worlds_sent[index] += 1
        self._unanswered[index] += 1
        if link.state != "running":
            link.state = "preparing"
        if link.given_up:
            self.gone(link, "its daemon ended")
        else:
            link.send({**message, "attach": link.attach}, shared)

    async def await_answers(self, number: int, links: Mapping[int, NodeLink], seconds: float) -> list[NodeFailure]:
        """Await the answers of these nodes to the preparation of a world; return the refusals, with which it is cancelled."""
        job = self._job
        answers = {index: self._answers[index] for index in links}
        await asyncio.wait(answers.values(), timeout=seconds)
        failures: list[tuple[str, str, str, float, int]] = []
        notes: dict[str, list[str]] = {}
        for index, future in answers.items():
            link, name = links[index], links[index].node.name
            if not future.done():
                failures.append((name, "timeout", "no answer to the preparation", seconds, index))
                continue
            answer = future.result()
            if answer["type"] == "refused":
                for problem in answer["problems"][:MOST_NOTES]:
                    failures.append((name, problem["cause"], problem["detail"][:LONGEST_NOTE], 0.0, index))
            elif link.given_up:  # lost after it was ready, while other nodes were preparing
                failures.append((name, _cause(link), link.broke or link.channel.last_output, 0.0, index))
            else:
                lines = answer["notes"]
                if job.output.verbose and link.facts is not None:
                    lines = [*lines, *link.facts.notes, *(f"runs {path}" for path in answer["programs"])]
                for note in lines[:MOST_NOTES]:
                    notes.setdefault(note[:LONGEST_NOTE], []).append(name)
        if failures:
            from mpilaunch.head.nodes.failures import NodeFailure  # most launches have no failure

            self._cancel(number, links)
            return [NodeFailure(*failure) for failure in failures]
        for note, names in notes.items():
            self._say(f"{fold(names)}: {note}")
        return []

    def introduce(self, world: World) -> None:
        """Describe a world to the nodes without a rank of it, and all earlier worlds to nodes that have just joined."""
        for index, link in self._daemons.links.items():
            if not self.worlds_sent[index]:
                for known in self._ranks.worlds:
                    self._send_world(link, known)
        self._describe(world)

    def _describe(self, world: World) -> None:
        """Describe a world to the nodes without a rank of it."""
        for index, link in self._daemons.links.items():
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
            self._cancel(world.number, self._prepared.get(world.number, {}))
            raise
        self._ranks.add(world)
        self._state.add(range(world.first, world.first + world.size))

    def _cancel(self, number: int, indexes: Iterable[int]) -> None:
        """Tell nodes to drop the ranks of a world, which were prepared."""
        prepared = self._prepared.get(number, {})
        for index in list(indexes):
            prepared.pop(index, None)
            self._daemons.links[index].send({"type": "cancel", "number": number})
        if not prepared:
            self._prepared.pop(number, None)

    @property
    def waiting(self) -> list[World]:
        """The worlds that the job begins with and that have not started."""
        return [world for world in self._ranks.worlds if world.number in self._prepared]

    def launch(self, worlds: Sequence[World]) -> None:
        """Start the ranks of worlds that were prepared; nodes whose ranks all wait for others are told that the job runs."""
        starting: defaultdict[int, dict[int, list[tuple[int, bool]]]] = defaultdict(dict)
        for number, prepared in self._prepared.items():
            for index, ranks in prepared.items():
                starting[index] |= {number: ranks} if any(world.number == number for world in worlds) else {}
        for index, of_worlds in starting.items():
            self._launch_on(self._daemons.links[index], of_worlds)
        for world in worlds:
            del self._prepared[world.number]

    def launch_on(self, link: NodeLink, number: int) -> None:
        """Start the ranks of a world on one node."""
        self._launch_on(link, {number: self._prepared[number].pop(link.node.index)})

    def _launch_on(self, link: NodeLink, of_worlds: Mapping[int, Sequence[tuple[int, bool]]]) -> None:
        window = self._output.window
        for rank, stdin in chain.from_iterable(of_worlds.values()):
            link.session.open_receiving(stream_channel(rank, STDOUT), window)
            if not self._job.output.merge_stderr:
                link.session.open_receiving(stream_channel(rank, STDERR), window)
            if stdin:
                link.session.open_sending(stream_channel(rank, STDIN), window)
        link.keep()
        link.state = "running"
        link.send({"type": "launch", "numbers": list(of_worlds)})

    def drop_waiting(self) -> None:
        """Give up the ranks that have not started, since the job ends; their nodes drop them when they are told to stop."""
        for world in self.waiting:
            del self._prepared[world.number]
            for rank in self._ranks.of_world(world.name):
                self._state.apply(rank, "lost")

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
        problem = {"cause": _cause(link), "detail": link.broke or f"{reason}\n{link.channel.last_output}".strip()}
        self._set_answer(link, {"type": "refused", "problems": [problem]})


def _cause(link: NodeLink) -> str:
    return "protocol" if link.broke else "daemon-failed"
