"""MPI wire-up on the node: serves PMI and PMIx to the ranks of every world, and exchanges their requests with the head.

PMI is served in the daemon's loop (`pmi_connections`; `pmi` counts fences and barriers); PMIx is served by a helper process
where a program may need it (`pmix.upcalls` receives its fences). Requests to other nodes go to the head as one `collective`
message for each node, or as an `ask` that the head answers (`head_requests`).
"""

from __future__ import annotations

from mpilaunch.daemon.mpi.head_requests import HeadRequests
from mpilaunch.daemon.mpi.pmi import ABORTED, ABSENT, CONNECTED, FINALIZED, PmiWorld
from mpilaunch.daemon.mpi.pmi_connections import PmiConnections
from mpilaunch.daemon.pmix.offer import PMI, PMIX, PmixOffer
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.singletons import SingletonWatch
    from mpilaunch.daemon.pmix.ranks import PmixRanks
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory
    from mpilaunch.daemon.ranks.spawn import App


class WireUp:
    """This node's part of all worlds. Ranks have their number in the job.

    Args:
        abort: (rank, code): ends a rank that called MPI_Abort.
        set_timer: (name, seconds, action) of the loop.
        directory: for files of PMIx and the MPI libraries.
    """

    def __init__(
        self,
        poller: Poller,
        send: Callable[[dict[str, Any]], None],
        abort: Callable[[int, int], None],
        set_timer: Callable[[str, float, Callable[[], None]], None],
        directory: PrivateDirectory,
    ) -> None:
        self._poller, self._send, self._abort_rank, self._set_timer = poller, send, abort, set_timer
        self._directory = directory
        self._worlds: dict[str, PmiWorld] = {}
        self._joined: set[str] = set()
        self._late: set[str] = set()
        self._world_of: dict[int, str] = {}
        self._requests = HeadRequests(send)
        self._connections = PmiConnections(poller, self._find, set_timer, lambda text: send({"type": "note", "text": text}))
        self._pmix = PmixOffer(self._make_pmix)
        self._memory: set[bytes] = set()
        self._watches: list[SingletonWatch] = []

    # Worlds

    def open_world(self, description: dict[str, Any], specs: list[dict[str, Any]]) -> None:
        """Add a world: the `mpi` member of `prepare` with its `node`, and its ranks on this node."""
        name, first = description["world"], description["first"]
        self._worlds[name] = PmiWorld(
            description,
            {spec["rank"] - first: spec["app"] for spec in specs},
            self._requests.collective,
            self._requests.ask,
            lambda rank, code: self._abort_rank(first + rank, code),
            lambda rank: self._connected(name),
        )
        self._world_of.update((spec["rank"], name) for spec in specs)
        if description["port"] and specs:
            self._connections.listen(description)
        if self._pmix.ranks is not None:
            self._pmix.ranks.know(description)

    def offer_pmix(self, description: dict[str, Any], apps: list[App], ready: Callable[[str], None]) -> None:
        """Start PMIx for a world, as `PmixOffer.start` does."""
        self._pmix.start(description, apps, ready)

    def _make_pmix(self) -> PmixRanks:
        from mpilaunch.daemon.pmix.ranks import PmixRanks

        pmix = PmixRanks(
            self._poller,
            self._set_timer,
            self._directory,
            self._requests.collective,
            self._requests.ask,
            self._send,
            lambda name, rank, code: self._abort_rank(self._worlds[name].description["first"] + rank, code),
            self._connected,
            self._pmix_broken,
        )
        for world in self._worlds.values():
            pmix.know(world.description)
        return pmix

    def _pmix_broken(self, reason: str) -> None:
        self.note_memory(reaper.descendants())
        self._send({"type": "broken", "text": reason})

    # Ranks

    def _find(self, rank: int) -> tuple[PmiWorld, int]:
        """Return the world of a rank, and its number in it; raises KeyError for a rank of no world."""
        world = self._worlds[self._world_of[rank]]
        return world, rank - int(world.description["first"])

    def open_rank(self, rank: int, descriptor: int) -> int:
        """Make the PMI connection of a rank; return the descriptor of its end, as `PmiConnections.open` does."""
        return self._connections.open(rank, descriptor)

    def watch(self, pids: dict[int, int], program: bytes) -> None:
        """Watch the ranks of one world that run this program: if it uses MPI, they must connect."""
        name = self._world_of.get(next(iter(pids), -1))
        if name is not None and self._worlds[name].description["size"] > 1 and not self._pmix.is_harmless(program):
            from mpilaunch.daemon.mpi.singletons import OPEN_MPI, SingletonWatch

            timer, offer = "%s %d" % (name, len(self._watches)), self._worlds[name].description["offer"]

            def lacks(family: str) -> bool:
                return bool(self._pmix.error) or PMIX not in offer if family == OPEN_MPI else PMI not in offer

            functions = self._set_timer, self._has_connected, lacks, self._send_singleton
            self._watches.append(SingletonWatch(timer, pids, program, *functions))

    def fenced(self) -> list[int]:
        """Return the ranks of this node that are known to wait in a fence; what waits within libpmix for a rank here is not."""
        waiting = {(world.name, number) for world in self._worlds.values() for number in world.waiting}
        waiting.update((name, number) for name, number in self._requests.joined())
        found = ((rank, name, self._find(rank)[1]) for rank, name in self._world_of.items())
        return sorted(rank for rank, name, number in found if waiting & {(name, number), (name, -1)})

    def environment(self, rank: int, app: App) -> dict[str, str]:
        """Return the variables of a rank that are known on this node only: PMIx, and the port of PMI."""
        if rank not in self._world_of:
            return {}
        world, number = self._find(rank)
        variables = {} if self._pmix.ranks is None else dict(self._pmix.ranks.environment(world.name, number))
        if variables:
            defaults = world.description["pmix_defaults"].items()
            variables.update((key, value) for key, value in defaults if key.encode() not in app.environment)
        return {**variables, **self._connections.environment(rank)}

    def close_rank(self, rank: int, by_itself: bool) -> str:
        """Close the connection of a rank that has exited, `by_itself` or killed; return its PMI state."""
        if rank not in self._world_of:
            return ABSENT
        self._connections.end(rank)
        world, number = self._find(rank)
        world.end(number)
        states = self._states(rank)
        if states == {ABSENT} and by_itself:
            for watch in self._watches:
                watch.ended(rank)
        return next(state for state in (ABORTED, CONNECTED, FINALIZED, ABSENT) if state in states)

    def _states(self, rank: int) -> set[str]:
        world, number = self._find(rank)
        pmix = ABSENT if self._pmix.ranks is None else self._pmix.ranks.states.get((world.name, number), ABSENT)
        return {world.states[number], pmix}

    def _has_connected(self, rank: int) -> bool:
        return self._states(rank) != {ABSENT}

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child of the daemon that is no rank."""
        if self._pmix.ranks is not None:
            self._pmix.ranks.child_ended(pid, status)

    def note_memory(self, pids: list[int]) -> None:
        """Record the shared memory of processes that are about to be killed, and cannot remove it."""
        if self._worlds:
            from mpilaunch.daemon.mpi import segments

            self._memory |= segments.mapped_by(pids)

    def close(self) -> None:
        """Clean up after the last rank of this node."""
        if self._memory:
            from mpilaunch.daemon.mpi import segments

            segments.remove(self._memory)
            self._memory.clear()
        self._connections.close_ports()
        if self._pmix.ranks is not None:
            self._pmix.ranks.close()

    # From the head

    def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "answer":
            self._requests.take_answer(message)
        elif message["type"] == "collective":
            self._requests.take_collective(message)
        elif self._pmix.ranks is not None:
            self._pmix.ranks.requests.give_modex(message)
        else:
            self._send({"type": "answer", "id": message["id"], "error": "not-found"})

    # To the head

    def _connected(self, name: str) -> None:
        """Report the first MPI_Init of a world; the other ranks must follow, or this one waits for ever."""
        if name not in self._joined:
            self._joined.add(name)
            self._send({"type": "joined", "world": name})
            after = self._worlds[name].description["notice_after"]
            self._set_timer("waiting " + name, after, lambda: self._send_waiting(name))
        elif name in self._late:
            self._send_waiting(name)

    def _send_waiting(self, name: str) -> None:
        connected = () if self._pmix.ranks is None else self._pmix.ranks.states
        states = self._worlds[name].states.items()
        absent = [number for number, state in states if state == ABSENT and (name, number) not in connected]
        if absent or name in self._late:
            self._late.add(name)
            self._send({"type": "waiting", "world": name, "absent": absent})

    def _send_singleton(self, rank: int, library: str, family: str) -> None:
        offer = self._worlds[self._world_of[rank]].description["offer"]
        message = {"type": "singleton", "rank": rank, "library": library, "family": family}
        self._send({**message, "offer": offer, "pmix_error": self._pmix.error})
