"""MPI wire-up on the node: serves PMI and PMIx to the ranks of every world, and exchanges their requests with the head.

PMI is a socket pair at a fixed descriptor of the rank, served in the daemon's loop (`pmi` counts fences and barriers); PMIx
is served by a helper process where a program may need it (`pmix.upcalls` receives its fences). Requests to other nodes go to
the head as one `collective` message for each node, or as an `ask` that the head answers.
"""

from __future__ import annotations

import fcntl
import socket

from mpilaunch.daemon.mpi.pmi import ABORTED, ABSENT, CONNECTED, FINALIZED, PmiWorld, ProtocolError
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import Answered
    from mpilaunch.daemon.mpi.pmi1 import Pmi1
    from mpilaunch.daemon.mpi.pmi_port import PmiPort
    from mpilaunch.daemon.mpi.singletons import SingletonWatch
    from mpilaunch.daemon.pmix.ranks import PmixRanks
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory
    from mpilaunch.daemon.ranks.spawn import App

READ_SIZE = 64 << 10
PMI, PMIX = "pmi", "pmix"
"""The offers to the ranks of a world."""


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
        self._connections: dict[int, socket.socket] = {}
        self._protocols: dict[int, Pmi1] = {}
        self._pmix: PmixRanks | None = None
        self._no_pmix_reason = ""
        self._collectives: dict[str, list[Answered]] = {}
        self._asked: dict[int, Answered] = {}
        self._last_ask = 0
        self._ports: dict[str, PmiPort] = {}
        self._harmless: set[bytes] = set()
        self._memory: set[bytes] = set()
        self._watches: list[SingletonWatch] = []

    # Worlds

    def open_world(self, description: dict[str, Any], specs: list[dict[str, Any]]) -> None:
        """Add a world: the `mpi` member of `prepare` with its `node`, and its ranks on this node."""
        name, first = description["world"], description["first"]
        self._worlds[name] = PmiWorld(
            description,
            {spec["rank"] - first: spec["app"] for spec in specs},
            self._collective,
            self._ask,
            lambda rank, code: self._abort_rank(first + rank, code),
            lambda rank: self._connected(name),
        )
        self._world_of.update((spec["rank"], name) for spec in specs)
        if description["port"] and specs:
            from mpilaunch.daemon.mpi.pmi_port import PmiPort

            self._ports[name] = PmiPort(
                name,
                description["size"],
                self._poller,
                self._set_timer,
                lambda number, connection, data: self._opened_by_port(first + number, connection, data),
                self._note,
            )
        if self._pmix is not None:
            self._pmix.know(description)

    def offer_pmix(self, description: dict[str, Any], apps: list[App], ready: Callable[[str], None]) -> None:
        """Start PMIx for the ranks of a world that run these apps; call `ready` when they can start.

        `ready` gets "", or the reason why they cannot: there is no PMIx, and it is the only offer.
        """
        if PMIX not in description["offer"]:
            ready("")
            return
        from mpilaunch.daemon.pmix.search import Program, cannot_use_mpi

        self._harmless.update(app.path for app in apps if cannot_use_mpi(app.path, app.environment))
        users = [
            Program(app.path, app.arguments, app.environment, app.directory) for app in apps if app.path not in self._harmless
        ]
        if PMI in description["offer"]:
            users = [program for program in users if not program.takes_pmi()]
        if not users:
            ready("")
            return
        libpmix = users[0].libpmix(description["library"])
        only_pmix = PMI not in description["offer"]
        if not libpmix.libraries:
            self._no_pmix_reason = "no libpmix is installed"
            ready(self._no_pmix_reason if only_pmix else "")
            return
        pmix = self._pmix = self._pmix or self._make_pmix()
        hostname = description["hosts"][description["node"]]
        pmix.start(description["world"], libpmix, hostname, lambda: ready(pmix.reason if only_pmix else ""))

    def _make_pmix(self) -> PmixRanks:
        from mpilaunch.daemon.pmix.ranks import PmixRanks

        pmix = PmixRanks(
            self._poller,
            self._set_timer,
            self._directory,
            self._collective,
            self._ask,
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

    def open_rank(self, rank: int, descriptor: int) -> int:
        """Make the PMI connection of a rank; return the descriptor of its end, which the caller closes.

        The number is above `descriptor`, under which the rank gets it: a copy onto itself would be closed at exec.
        """
        ours, theirs = socket.socketpair()
        self._serve(rank, ours)
        number = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, descriptor + 1)
        theirs.close()
        return int(number)

    def _opened_by_port(self, rank: int, connection: socket.socket, data: bytes) -> None:
        """Serve a rank that has connected by its world's port, and sent `data` after its first line."""
        self._serve(rank, connection)
        self._receive(rank, data)

    def _serve(self, rank: int, connection: socket.socket) -> None:
        self._connections[rank] = connection
        self._poller.watch(connection, lambda: self._read_ready(rank))

    def watch(self, pids: dict[int, int], program: bytes) -> None:
        """Watch the ranks of one world that run this program: if it uses MPI, they must connect."""
        name = self._world_of.get(next(iter(pids), -1))
        if name is not None and self._worlds[name].description["size"] > 1 and program not in self._harmless:
            from mpilaunch.daemon.mpi.singletons import OPEN_MPI, SingletonWatch

            timer, offer = "%s %d" % (name, len(self._watches)), self._worlds[name].description["offer"]

            def lacks(family: str) -> bool:
                return bool(self._pmix_error()) or PMIX not in offer if family == OPEN_MPI else PMI not in offer

            functions = self._set_timer, self._has_connected, lacks, self._send_singleton
            self._watches.append(SingletonWatch(timer, pids, program, *functions))

    def environment(self, rank: int, app: App) -> dict[str, str]:
        """Return the variables of a rank that are known on this node only: PMIx, and the port of PMI."""
        name = self._world_of.get(rank)
        if name is None:
            return {}
        variables = {} if self._pmix is None else dict(self._pmix.environment(name, self._number(rank)))
        if variables:
            defaults = self._worlds[name].description["pmix_defaults"].items()
            variables.update((key, value) for key, value in defaults if key.encode() not in app.environment)
        if name in self._ports:
            variables.update(PMI_PORT=self._ports[name].address, PMI_ID=self._ports[name].expect(self._number(rank)))
        return variables

    def close_rank(self, rank: int, by_itself: bool) -> str:
        """Close the connection of a rank that has exited, `by_itself` or killed; return its PMI state."""
        name = self._world_of.get(rank)
        if name is None:
            return ABSENT
        if name in self._ports:
            self._ports[name].refuse(self._number(rank))
        if rank in self._connections:
            self._read_ready(rank)  # perhaps MPI_Abort; once, since a child of it may write for ever
            self._close(rank)
        self._worlds[name].end(self._number(rank))
        states = self._states(rank)
        if states == {ABSENT} and by_itself:
            for watch in self._watches:
                watch.ended(rank)
        return next(state for state in (ABORTED, CONNECTED, FINALIZED, ABSENT) if state in states)

    def _states(self, rank: int) -> set[str]:
        name, number = self._world_of[rank], self._number(rank)
        pmix = ABSENT if self._pmix is None else self._pmix.states.get((name, number), ABSENT)
        return {self._worlds[name].states[number], pmix}

    def _has_connected(self, rank: int) -> bool:
        return self._states(rank) != {ABSENT}

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child of the daemon that is no rank."""
        if self._pmix is not None:
            self._pmix.child_ended(pid, status)

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
        for port in self._ports.values():
            port.close()
        self._ports.clear()
        if self._pmix is not None:
            self._pmix.close()

    def _number(self, rank: int) -> int:
        """Return the number of a rank in its world."""
        return rank - int(self._worlds[self._world_of[rank]].description["first"])

    # From the head

    def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "answer":
            self._asked.pop(message["id"])(message)
        elif message["type"] == "collective":
            key = _key(message)
            waiting = self._collectives[key]
            done = waiting.pop(0)
            if not waiting:
                del self._collectives[key]  # each barrier may have a new tag and group
            done(message)
        elif self._pmix is not None:
            self._pmix.give_modex(message)
        else:
            self._send({"type": "answer", "id": message["id"], "error": "not-found"})

    # To the head

    def _collective(self, kind: str, members: list[Any], ranks: int, data: Any, done: Answered) -> None:
        message = {"type": "collective", "kind": kind, "members": members, "ranks": ranks, "data": data}
        self._collectives.setdefault(_key(message), []).append(done)
        self._send(message)

    def _ask(self, what: str, details: dict[str, Any], done: Answered) -> None:
        self._last_ask += 1
        self._asked[self._last_ask] = done
        self._send({"type": "ask", "id": self._last_ask, "request": what, **details})

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
        connected = () if self._pmix is None else self._pmix.states
        states = self._worlds[name].states.items()
        absent = [number for number, state in states if state == ABSENT and (name, number) not in connected]
        if absent or name in self._late:
            self._late.add(name)
            self._send({"type": "waiting", "world": name, "absent": absent})

    def _send_singleton(self, rank: int, library: str, family: str) -> None:
        offer = self._worlds[self._world_of[rank]].description["offer"]
        message = {"type": "singleton", "rank": rank, "library": library, "family": family}
        self._send({**message, "offer": offer, "pmix_error": self._pmix_error()})

    def _pmix_error(self) -> str:
        return self._no_pmix_reason if self._pmix is None else self._pmix.reason

    # PMI connections

    def _read_ready(self, rank: int) -> None:
        try:
            data = self._connections[rank].recv(READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._receive(rank, data)
        else:
            self._close(rank)

    def _receive(self, rank: int, data: bytes) -> None:
        if rank not in self._protocols:
            from mpilaunch.daemon.mpi.pmi1 import Pmi1  # most programs send nothing

            world = self._worlds[self._world_of[rank]]
            self._protocols[rank] = Pmi1(world, self._number(rank), lambda data: self._answer(rank, data))
        try:
            self._protocols[rank].receive(data)
        except ProtocolError as error:
            self._note("rank %d broke the PMI protocol and was cut off from it: %s" % (rank, error))
            self._close(rank)

    def _note(self, text: str) -> None:
        self._send({"type": "note", "text": text})

    def _answer(self, rank: int, data: bytes) -> None:
        # Answers are short, and a rank waits for each: one that does not read them is cut off.
        if rank not in self._connections:
            return  # cut off, or ended
        try:
            sent = self._connections[rank].send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            sent = 0
        if sent < len(data):
            self._close(rank)

    def _close(self, rank: int) -> None:
        if rank in self._connections:
            ours = self._connections.pop(rank)
            self._protocols.pop(rank, None)
            self._poller.forget(ours)
            ours.close()


def _key(message: dict[str, Any]) -> str:
    return repr([message["kind"], [list(member) for member in message["members"]]])
