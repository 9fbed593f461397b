"""The ranks of a job: the node of each, how a world of ranks is prepared and started on its nodes, and the order of roles.

A world starts on all of its nodes or on none. A job begins with one, or one for each role: all are prepared before the first
starts. MPI_Comm_spawn adds others while it runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, MOST_NOTES, NodeLink
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.environment.forwarded import explain_size
from mpilaunch.job.preparation.messages import common_preparation, mpi_description, preparations
from mpilaunch.job.preparation.world_facts import world_facts
from mpilaunch.job.roles import conditions, served, world_of
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict
from mpilaunch.job.worlds import World, neighbours
from mpilaunch.placement.gpu_binding import RankBinding, bind_ranks
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
        self._places: dict[int, Placement] = {}
        self._worlds: dict[str, World] = {}
        self._on: defaultdict[int, list[int]] = defaultdict(list)
        self._counts: Counter[tuple[str, int]] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._descriptions: dict[str, bytes] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._prepared: dict[int, dict[int, list[tuple[int, bool]]]] = {}

    def place(self, rank: int) -> Placement:
        """Return the placement of a rank; `Placement.rank` is its number in its world."""
        return self._places[rank]

    def gets_stdin(self, rank: int) -> bool:
        """Return whether the input of mpilaunch goes to a rank."""
        return self._job.gets_stdin(rank)

    def explain_size(self, rank: int) -> str:
        """Return why the kernel refused the environment or the arguments of a rank as too long."""
        world = next(world for world in self.worlds if world.first <= rank < world.first + world.size)
        app = world.apps[self.place(rank).app]
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

    async def prepare_job(self) -> None:
        """Prepare the worlds that the job begins with; raises LaunchError when a node refuses."""
        for world in self.worlds:
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
        facts = {index: facts for index in near.nodes if (facts := reached[index].facts) is not None}
        bindings = bind_ranks(job.allocation, near, facts, job.gpu, job.cpu)
        if apart:
            bindings = {rank: bindings[world.first + rank] for rank in range(world.size)}
        self._answers = {index: asyncio.get_running_loop().create_future() for index in links}
        prepared = self._prepared[world.number] = {}
        known = world_facts(job, world, facts)
        shared = encode_shared(common_preparation(job, whole, known, self._output.window))
        for index, message in preparations(job, whole, known, bindings):
            if index not in links:
                continue
            prepared[index] = [(spec["rank"], spec["stdin"]) for spec in message["ranks"]]
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
                failures.append((name, _cause(link), link.broke or link.channel.last_output, 0.0, index))
            else:
                lines = answer["notes"]
                if job.output.verbose:
                    lines = [*lines, *facts[index].notes, *(f"runs {path}" for path in answer["programs"])]
                for note in lines[:MOST_NOTES]:
                    notes.setdefault(note[:LONGEST_NOTE], []).append(name)
        if failures:
            from mpilaunch.head.nodes.failures import NodeFailure, fold_failures  # most launches have no failure

            self._cancel(world)
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
            self._cancel(world)
            raise
        self.worlds.append(world)
        self._worlds[world.name] = world
        for place in world.job_map.placements:
            self._places[world.first + place.rank] = place
            self._on[place.node].append(world.first + place.rank)
            self._counts[world.name, place.node] += 1
        self._state.add(range(world.first, world.first + world.size))

    def _cancel(self, world: World) -> None:
        """Tell the nodes of a world to drop its ranks, which were prepared."""
        for index in self._prepared.pop(world.number, {}):
            self._daemons.links[index].send({"type": "cancel", "number": world.number})

    @property
    def waiting(self) -> list[World]:
        """The worlds that the job begins with and that have not started."""
        return [world for world in self.worlds if world.number in self._prepared]

    def launch(self, worlds: Sequence[World]) -> None:
        """Start the ranks of worlds that were prepared; nodes whose ranks all wait for others are told that the job runs."""
        window = self._output.window
        starting: defaultdict[int, dict[int, list[tuple[int, bool]]]] = defaultdict(dict)
        for number, prepared in self._prepared.items():
            for index, ranks in prepared.items():
                starting[index] |= {number: ranks} if any(world.number == number for world in worlds) else {}
        for index, of_worlds in starting.items():
            link = self._daemons.links[index]
            for rank, stdin in chain.from_iterable(of_worlds.values()):
                link.session.open_receiving(stream_channel(rank, STDOUT), window)
                if not self._job.output.merge_stderr:
                    link.session.open_receiving(stream_channel(rank, STDERR), window)
                if stdin:
                    link.session.open_sending(stream_channel(rank, STDIN), window)
            link.keep()
            link.state = "running"
            link.send({"type": "launch", "numbers": list(of_worlds)})
        for world in worlds:
            del self._prepared[world.number]

    def drop_waiting(self) -> None:
        """Give up the ranks that have not started, since the job ends; their nodes drop them when they are told to stop."""
        for world in self.waiting:
            del self._prepared[world.number]
            for rank in self.of_world(world.name):
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


class StartOrder:
    """Starts the roles of a job in their order, and ends those that serve others when no other rank is left.

    A role waits until rank 0 of each role that it names after `--after` listens on its port. `end` is `Stop.begin`.
    """

    def __init__(
        self, job: JobSpec, daemons: Daemons, ranks: Ranks, state: JobState, end: Callable[[Verdict | None], None]
    ) -> None:
        self._daemons, self._ranks, self._state, self._end = daemons, ranks, state, end
        self._seconds = job.deadlines.start
        self._awaited: dict[tuple[int, int], tuple[str, asyncio.TimerHandle]] = {}
        self._listening: set[tuple[str, int]] = set()
        self._serving = served(ranks.worlds)
        self._others = set(self._serving_nobody())

    def launch(self) -> None:
        """Start the roles that wait for nothing more."""
        self._ranks.launch([world for world in self._ranks.waiting if conditions(world) <= self._listening])
        waiting = self._ranks.waiting
        loop = asyncio.get_running_loop()
        for role, port in sorted(frozenset[tuple[str, int]]().union(*map(conditions, waiting)) - self._listening):
            world = world_of(self._ranks.worlds, role)
            if world not in waiting and (world.first, port) not in self._awaited:
                timer = loop.call_later(self._seconds, self._give_up, world.first, port)
                self._awaited[world.first, port] = role, timer
                node = self._ranks.place(world.first).node
                self._daemons.links[node].send({"type": "await", "rank": world.first, "port": port})

    def take_listening(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record that rank 0 of a role listens on a port, and start the roles that waited for it."""
        rank, port = message["rank"], message["port"]
        self._ranks.check_rank(rank, link.node.index)
        if (rank, port) in self._awaited:
            role, timer = self._awaited.pop((rank, port))
            timer.cancel()
            self._listening.add((role, port))
            self.launch()

    def rank_ended(self, rank: int, *, failed: bool) -> None:
        """End the job when others wait in vain for this rank to listen, or when only ranks that serve others are left."""
        self._others.discard(rank)
        for (awaited, port), (role, _) in list(self._awaited.items()):
            if awaited == rank:
                detail = f"rank 0 of the role '{role}' on {self._ranks.node_name(rank)} ended before it listened on port {port}"
                hint = f"--after {role}:{port} needs a program that stays and listens there"
                self._end(None if failed else Verdict(ExitCode.START_FAILED, "role-not-ready", detail=detail, hint=hint))
        if self._serving and not self._others and not any(map(self._state.is_alive, self._serving_nobody())):
            self._end(None)

    def _serving_nobody(self) -> Iterable[int]:
        """Return the ranks of the other roles, with those that they have spawned."""
        worlds = self._ranks.worlds
        serving = served(worlds)
        return chain.from_iterable(self._ranks.of_world(world.name) for world in worlds if world.name not in serving)

    def _give_up(self, rank: int, port: int) -> None:
        role, host = self._awaited[rank, port][0], self._ranks.node_name(rank)
        detail = f"rank 0 of the role '{role}' on {host} does not listen on port {port} {self._seconds:g} s after its start"
        hint = f"--start-timeout TIME waits longer; 'ss -ltnp' on {host} shows which process has the port"
        self._end(Verdict(ExitCode.TIMEOUT, "role-not-ready", host=host, detail=detail, hint=hint))

    def close(self) -> None:
        """Start no further role, since the job ends."""
        for _, timer in self._awaited.values():
            timer.cancel()
        self._awaited.clear()
        self._ranks.drop_waiting()


def _cause(link: NodeLink) -> str:
    return "protocol" if link.broke else "daemon-failed"
