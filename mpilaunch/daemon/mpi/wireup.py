"""MPI wire-up on the node: what the ranks of every world here ask of PMI and PMIx, and the way to the head.

For PMI a rank finds its end of a socket pair at a fixed descriptor, served in the daemon's loop; for PMIx there is a helper
process, where a program may need it. Programs that are not MPI look at neither. What ranks ask of other nodes goes to the head
as one `collective` message for each node, or as an `ask` that it answers.
"""

from __future__ import annotations

import fcntl
import socket
from typing import TYPE_CHECKING, Any

from mpilaunch.daemon.mpi.pmi import ABORTED, ABSENT, CONNECTED, FINALIZED, PmiWorld, ProtocolError, Upward
from mpilaunch.daemon.mpi.pmi1 import Pmi1
from mpilaunch.daemon.ranks import reaper

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.mpi.pmi_port import PmiPort
    from mpilaunch.daemon.mpi.singletons import SingletonWatch
    from mpilaunch.daemon.pmix.ranks import PmixRanks
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory
    from mpilaunch.daemon.ranks.spawn import App

READ_SIZE = 64 << 10
PMI, PMIX = "pmi", "pmix"
"""What the ranks of a world may be offered."""


class WireUp:
    """All worlds, as far as this node has to do with them. Ranks are named by their number in the job.

    Args:
        poller: the loop's.
        send: sends a control message to the head.
        abort: ends a rank that called MPI_Abort with this code.
        set_timer: (name, seconds, action) of the loop.
        directory: where PMIx and the MPI libraries may put files.
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
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._joined: set[str] = set()
        self._late: set[str] = set()
        self._world_of: dict[int, str] = {}
        self._connections: dict[int, tuple[socket.socket, Pmi1]] = {}
        self._pmix: PmixRanks | None = None
        self._why_no_pmix = ""
        self._collectives: dict[str, list[Callable[[dict[str, Any]], None]]] = {}
        self._asked: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._last_ask = 0
        self._ports: dict[str, PmiPort] = {}
        self._harmless: set[bytes] = set()
        self._memory: set[bytes] = set()
        self._watches: list[SingletonWatch] = []

    # Worlds

    def open_world(self, description: dict[str, Any], specs: list[dict[str, Any]]) -> None:
        """Make a world known: the `mpi` member of `prepare` with its `node`, and those of its ranks that are here."""
        name, first = description["world"], description["first"]
        self._descriptions[name] = description
        upward = Upward(
            self._collective,
            self._ask,
            lambda rank, code: self._abort_rank(first + rank, code),
            lambda rank: self._connected(name),
        )
        self._worlds[name] = PmiWorld(description, {spec["rank"] - first: spec["app"] for spec in specs}, upward)
        self._world_of.update((spec["rank"], name) for spec in specs)
        if description["port"] and specs:
            from mpilaunch.daemon.mpi.pmi_port import PmiPort

            self._ports[name] = PmiPort(
                name,
                description["size"],
                self._poller,
                self._set_timer,
                lambda number, connection, data: self._came_by_port(first + number, connection, data),
                self._note,
            )
        if self._pmix is not None:
            self._pmix.know(description)

    def load(self) -> None:
        """Load what most programs are looked at with."""
        import mpilaunch.daemon.pmix.search  # noqa: F401

    def offer_pmix(self, description: dict[str, Any], apps: list[App], ready: Callable[[str], None]) -> None:
        """Offer PMIx to the ranks of a world that run these apps; call `ready` when they can start.

        `ready` gets the reason why they cannot: there is no PMIx, and nothing else was to be offered.
        """
        if PMIX not in description["offer"]:
            ready("")
            return
        from mpilaunch.daemon.pmix.search import Program, cannot_use_mpi

        self._harmless.update(app.path for app in apps if cannot_use_mpi(app.path, app.environment))
        users = [
            Program(app.path, app.arguments, app.environment, app.directory)
            for app in apps
            if app.path not in self._harmless
        ]
        if PMI in description["offer"]:
            users = [program for program in users if not program.takes_pmi()]
        if not users:
            ready("")
            return
        libpmix = users[0].libpmix(description["library"])
        only_pmix = PMI not in description["offer"]
        hostname = description["hosts"][description["node"]]

        def start() -> None:
            pmix = self._pmix = self._pmix or self._make_pmix()
            pmix.start(description["world"], libpmix, hostname, lambda: ready(pmix.reason if only_pmix else ""))

        if not libpmix.libraries:
            self._why_no_pmix = "no libpmix is installed"
            ready(self._why_no_pmix if only_pmix else "")
            return
        start()

    def _make_pmix(self) -> PmixRanks:
        from mpilaunch.daemon.pmix.ranks import PmixRanks

        pmix = PmixRanks(
            self._poller,
            self._set_timer,
            self._directory,
            Upward(self._collective, self._ask, lambda rank, code: None, lambda rank: None),
            self._send,
            lambda name, rank, code: self._abort_rank(self._descriptions[name]["first"] + rank, code),
            self._connected,
            self._broken,
        )
        for description in self._descriptions.values():
            pmix.know(description)
        return pmix

    def _broken(self, reason: str) -> None:
        self.note_memory(reaper.descendants())
        self._send({"type": "broken", "text": reason})

    # Ranks

    def open_rank(self, rank: int, descriptor: int) -> int:
        """Make the PMI connection of a rank; return the descriptor that becomes its end, which the caller closes.

        It is above `descriptor`, so that it is never the number under which the rank gets it: a copy onto itself would be
        closed at exec.
        """
        ours, theirs = socket.socketpair()
        self._serve(rank, ours)
        number = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, descriptor + 1)
        theirs.close()
        return int(number)

    def _came_by_port(self, rank: int, connection: socket.socket, data: bytes) -> None:
        """A rank has connected by its world's port; `data` came behind its first line."""
        self._serve(rank, connection)
        self._receive(rank, data)

    def _serve(self, rank: int, connection: socket.socket) -> None:
        world = self._worlds[self._world_of[rank]]
        protocol = Pmi1(world, self._number(rank), lambda data: self._answer(rank, data))
        self._connections[rank] = connection, protocol
        self._poller.watch(connection, lambda: self._read_ready(rank))

    def watch(self, pids: dict[int, int], program: bytes) -> None:
        """Look after ranks of one world that run this program: if it is an MPI program, they must come."""
        name = self._world_of.get(next(iter(pids), -1))
        if name is not None and self._descriptions[name]["size"] > 1 and program not in self._harmless:
            from mpilaunch.daemon.mpi.singletons import SingletonWatch

            key = "%s %d" % (name, len(self._watches))
            self._watches.append(SingletonWatch(key, pids, program, self._set_timer, self._came, self._tell_singleton))

    def environment(self, rank: int, app: App) -> dict[str, str]:
        """Return the variables by which a rank finds what is only known here: PMIx, and the port of PMI."""
        name = self._world_of.get(rank)
        if name is None:
            return {}
        found = {} if self._pmix is None else dict(self._pmix.environment(name, self._number(rank)))
        if found:
            defaults = self._descriptions[name]["pmix_defaults"].items()
            found.update((key, value) for key, value in defaults if key.encode() not in app.environment)
        if name in self._ports:
            found.update(PMI_PORT=self._ports[name].address, PMI_ID=self._ports[name].expect(self._number(rank)))
        return found

    def close_rank(self, rank: int) -> str:
        """A rank has exited: close its connection; return how far it came (`pmi`)."""
        name = self._world_of.get(rank)
        if name is None:
            return ABSENT
        if name in self._ports:
            self._ports[name].refuse(self._number(rank))
        if rank in self._connections:
            self._read_ready(rank)  # its last words, MPI_Abort perhaps; once, for a child of its may go on writing for ever
            self._close(rank)
        self._worlds[name].end(self._number(rank))
        states = self._states(rank)
        if states == {ABSENT}:
            for watch in self._watches:
                watch.ended(rank)
        return next(state for state in (ABORTED, CONNECTED, FINALIZED, ABSENT) if state in states)

    def _states(self, rank: int) -> set[str]:
        """Return how far a rank has come by PMI, and by PMIx."""
        name, number = self._world_of[rank], self._number(rank)
        pmix = ABSENT if self._pmix is None else self._pmix.states.get((name, number), ABSENT)
        return {self._worlds[name].states[number], pmix}

    def _came(self, rank: int) -> bool:
        return self._states(rank) != {ABSENT}

    def child_ended(self, pid: int, status: int) -> None:
        """A child of the daemon's that is no rank has ended."""
        if self._pmix is not None:
            self._pmix.child_ended(pid, status)

    def note_memory(self, pids: list[int]) -> None:
        """Processes are about to be killed, and cannot remove the shared memory that MPI has made for them."""
        if self._descriptions:
            from mpilaunch.daemon.mpi import segments

            self._memory |= segments.mapped_by(pids)

    def close(self) -> None:
        """No rank runs here."""
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
        return rank - int(self._descriptions[self._world_of[rank]]["first"])

    # From the head

    def take(self, message: dict[str, Any]) -> None:
        """Take `collective`, `answer` or `ask`."""
        if message["type"] == "answer":
            self._asked.pop(message["id"])(message)
        elif message["type"] == "collective":
            key = _key(message)
            waiting = self._collectives[key]
            done = waiting.pop(0)
            if not waiting:
                del self._collectives[key]  # tags and groups may differ from one barrier to the next
            done(message)
        elif self._pmix is not None:
            self._pmix.give_modex(message)
        else:
            self._send({"type": "answer", "id": message["id"], "error": "not-found"})

    # To the head

    def _collective(
        self, kind: str, members: list[Any], ranks: int, data: Any, done: Callable[[dict[str, Any]], None]
    ) -> None:
        message = {"type": "collective", "kind": kind, "members": members, "ranks": ranks, "data": data}
        self._collectives.setdefault(_key(message), []).append(done)
        self._send(message)

    def _ask(self, what: str, details: dict[str, Any], done: Callable[[dict[str, Any]], None]) -> None:
        self._last_ask += 1
        self._asked[self._last_ask] = done
        self._send({"type": "ask", "id": self._last_ask, "what": what, **details})

    def _connected(self, name: str) -> None:
        """A rank of a world has called MPI_Init: the others must come too, or it waits for ever."""
        if name not in self._joined:
            self._joined.add(name)
            self._send({"type": "joined", "world": name})
            after = self._descriptions[name]["tell_after"]
            self._set_timer("waiting " + name, after, lambda: self._tell_waiting(name))
        elif name in self._late:
            self._tell_waiting(name)

    def _tell_waiting(self, name: str) -> None:
        come = () if self._pmix is None else self._pmix.states
        states = self._worlds[name].states.items()
        absent = [number for number, state in states if state == ABSENT and (name, number) not in come]
        if absent or name in self._late:
            self._late.add(name)
            self._send({"type": "waiting", "world": name, "absent": absent})

    def _tell_singleton(self, rank: int, library: str, family: str) -> None:
        offer = self._descriptions[self._world_of[rank]]["offer"]
        why_no_pmix = self._why_no_pmix if self._pmix is None else self._pmix.reason
        message = {"type": "singleton", "rank": rank, "library": library, "family": family}
        self._send({**message, "offer": offer, "why_no_pmix": why_no_pmix})

    # PMI connections

    def _read_ready(self, rank: int) -> None:
        """Serve what a rank has asked."""
        try:
            data = self._connections[rank][0].recv(READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._receive(rank, data)
        else:
            self._close(rank)

    def _receive(self, rank: int, data: bytes) -> None:
        try:
            self._connections[rank][1].receive(data)
        except ProtocolError as error:
            text = "rank %d broke the PMI protocol and was cut off from it: %s" % (rank, error)
            self._note(text)
            self._close(rank)

    def _note(self, text: str) -> None:
        self._send({"type": "note", "text": text})

    def _answer(self, rank: int, data: bytes) -> None:
        # Answers are short, and a rank waits for each: one that lets them pile up is one that has broken off.
        if rank not in self._connections:
            return  # cut off, or ended
        try:
            sent = self._connections[rank][0].send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            sent = 0
        if sent < len(data):
            self._close(rank)

    def _close(self, rank: int) -> None:
        if rank in self._connections:
            ours, _ = self._connections.pop(rank)
            self._poller.forget(ours)
            ours.close()


def _key(message: dict[str, Any]) -> str:
    return repr([message["kind"], [list(member) for member in message["members"]]])
