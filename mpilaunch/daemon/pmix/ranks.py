"""The ranks of this node that use PMIx: passes requests of the PMIx helper to the head, and the answers back.

The helper starts with the first world that may need it, and again for a later world after its end. Every world of the job is
registered with it, also those without ranks here: a rank may ask for any of them.
"""

from __future__ import annotations

import base64
import functools
import os

from mpilaunch.daemon.mpi.pmi import ABORTED, CONNECTED, FINALIZED
from mpilaunch.daemon.pmix.helper_process import HelperProcess
from mpilaunch.wire.frames import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import Ask, Collective
    from mpilaunch.daemon.pmix.helper_process import Handlers
    from mpilaunch.daemon.pmix.search import Libpmix
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory

START_SECONDS = 10.0
"""Limit for loading libpmix and registering a world; then the ranks start without it."""


class PmixRanks:
    """The `events` of the helper.

    Attributes:
        states: PMI states of the ranks that have connected, by (world, number in it).
        reason: why there is no PMIx here, "" when there is.

    Args:
        broken: called with the reason when connected ranks have lost the helper.
    """

    def __init__(
        self,
        poller: Poller,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        directory: PrivateDirectory,
        collective: Collective,
        ask: Ask,
        send: Callable[[dict[str, Any]], None],
        abort: Callable[[str, int, int], None],
        connected: Callable[[str], None],
        broken: Callable[[str], None],
    ) -> None:
        self._poller, self._set_timer, self._directory = poller, set_timer, directory
        self._collective, self._ask, self._send = collective, ask, send
        self._abort, self._connected, self._broken = abort, connected, broken
        self.states: dict[tuple[str, int], str] = {}
        self.reason = ""
        self._helper: HelperProcess | None = None
        self._worlds: dict[str, dict[str, Any]] = {}
        self._environments: dict[str, dict[int, dict[str, str]]] = {}
        self._ready: dict[str, Callable[[], None]] = {}
        self._modex: dict[int, int] = {}
        self._published: dict[tuple[str, int], set[str]] = {}
        self._tokens = 0

    # From the wire-up

    def know(self, description: dict[str, Any]) -> None:
        """Register a world, the `mpi` member of `prepare`, with or without ranks here."""
        world = _registration(description)
        self._worlds[world["name"]] = world
        if self._helper is not None:
            self._helper.register(world)

    def start(self, world: str, libpmix: Libpmix, hostname: str, ready: Callable[[], None]) -> None:
        """Call `ready` when the ranks of a registered world can start, with PMIx or, for a `reason`, without."""
        self._ready[world] = ready
        if self._helper is None:
            self.reason = ""
            try:
                self._helper = HelperProcess(self._poller, self._handlers(), libpmix, hostname, self._directory)
            except OSError as error:
                self.reason = "no process or directory for PMIx: %s" % error
                self._all_ready()
                return
            for known in self._worlds.values():
                self._helper.register(known)
        self._set_timer("pmix", START_SECONDS, self._start_timed_out)

    def environment(self, world: str, rank: int) -> dict[str, str]:
        """Return the variables by which a rank finds its server; empty without a server."""
        return self._environments.get(world, {}).get(rank, {})

    def give_modex(self, ask: dict[str, Any]) -> None:
        """Answer the head's request for the data of a rank here."""
        if self._helper is None:
            self._send({"type": "answer", "id": ask["id"], "error": "not-found"})
            return
        self._tokens += 1
        self._modex[self._tokens] = ask["id"]
        self._helper.modex_request(ask["world"], ask["rank"], self._tokens)

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child of the daemon that is no rank."""
        if self._helper is not None:
            self._helper.child_ended(pid, status)

    def close(self) -> None:
        """End the helper after the last rank; it removes the shared memory that ranks left."""
        server, self._helper = self._helper, None
        if server is not None:
            server.close()

    # The messages of the helper (`channel.HELPER_SENDS`); the handlers raise WireError

    def _handlers(self) -> Handlers:
        return {
            "registered": self.registered, "connected": self.connected, "finalized": self.finalized, "abort": self.abort,
            "collective": self.collective, "modex": self.modex, "modex_ready": self.modex_ready, "publish": self.publish,
            "lookup": self.lookup, "unpublish": self.unpublish, "spawn": self.spawn, "failed": self.failed,
        }  # fmt: skip

    def registered(self, world: str, environments: dict[int, dict[str, str]]) -> None:
        for rank in environments:
            self._check_rank(world, rank)
        self._environments[world] = environments
        ready = self._ready.pop(world, None)
        if ready is not None:
            ready()

    def connected(self, world: str, rank: int) -> None:
        self._check_rank(world, rank)
        first = (world, rank) not in self.states
        self.states[world, rank] = CONNECTED
        if first:
            self._connected(world)

    def finalized(self, world: str, rank: int) -> None:
        self._check_rank(world, rank)
        self.states[world, rank] = FINALIZED

    def abort(self, world: str, rank: int, code: int) -> None:
        self._check_rank(world, rank)
        self.states[world, rank] = ABORTED
        self._abort(world, rank, code & 255)

    def collective(self, kind: str, members: list[tuple[str, int]], ranks: int, data: bytes, token: int) -> None:
        answer = self._answering(token)
        whole = {name for name, number in members if number < 0}
        valid = all(self._has(name, number) and (number < 0 or name not in whole) for name, number in members)
        if not ranks or not valid or len(set(members)) < len(members):
            answer(error="not-found")
            return
        here = sum(len(self._local(name)) if number < 0 else number in self._local(name) for name, number in members)
        if ranks != here:
            raise WireError("a collective of %d ranks, of which this node has %d" % (ranks, here))

        def done(message: dict[str, Any]) -> None:
            answer(b"".join(base64.b64decode(part) for part in message["parts"]), context=message["number"])

        self._collective("pmix " + kind, [list(member) for member in members], ranks, _base64(data), done)

    def modex(self, world: str, rank: int, token: int) -> None:
        answer = self._answering(token)
        if not self._has(world, rank):
            answer(error="not-found")  # a rank may name any
            return

        def done(message: dict[str, Any]) -> None:
            answer(base64.b64decode(message.get("data", "")), message["error"])

        self._ask("modex", {"world": world, "rank": rank}, done)

    def modex_ready(self, token: int, found: bool, data: bytes) -> None:
        if token not in self._modex:
            raise WireError("data that was not asked for")
        error = "" if found else "not-found"
        self._send({"type": "answer", "id": self._modex.pop(token), "error": error, "data": _base64(data)})

    def publish(self, world: str, rank: int, values: dict[str, list[Any]], token: int) -> None:
        self._check_rank(world, rank)
        answer = self._answering(token)

        def done(message: dict[str, Any]) -> None:
            if not message["error"]:
                self._published.setdefault((world, rank), set()).update(values)
            answer(error="exists" if message["error"] else "")

        details = {"space": "pmix", "values": {key: [world, rank, value] for key, value in values.items()}}
        self._ask("publish", details, done)

    def lookup(self, world: str, rank: int, keys: list[str], wait: bool, token: int) -> None:
        self._check_rank(world, rank)
        answer = self._answering(token)
        details = {"space": "pmix", "names": keys, "wait": wait}
        self._ask("lookup", details, lambda message: answer(found=message["values"]))

    def unpublish(self, world: str, rank: int, keys: list[str], token: int) -> None:
        self._check_rank(world, rank)
        answer = self._answering(token)
        published = self._published.get((world, rank), set())
        names = keys or sorted(published)
        published.difference_update(names)
        self._ask("unpublish", {"space": "pmix", "names": names}, lambda message: answer())

    def spawn(self, world: str, rank: int, apps: list[dict[str, Any]], token: int) -> None:
        self._check_rank(world, rank)
        answer = self._answering(token)

        def done(message: dict[str, Any]) -> None:
            if message["error"]:
                answer(error="not-started")
            else:
                answer(world=message["world"])

        programs = [
            {
                "program": [app["program"], *app["arguments"]],
                "count": app["count"],
                "environment": app["environment"],
                "info": _spawn_info(app["wdir"], app["info"]),
            }
            for app in apps
        ]
        self._ask("spawn", {"world": world, "rank": rank, "apps": programs, "pairs": {}}, done)

    def failed(self, reason: str) -> None:
        self._helper = None
        self.reason = reason
        for number in self._modex.values():
            self._send({"type": "answer", "id": number, "error": "not-found"})
        self._modex.clear()
        if CONNECTED in self.states.values():
            self._broken(reason)
        self._all_ready()

    def _answering(self, token: int) -> Callable[..., None]:
        """Return `HelperProcess.answer` for a request that is being handled: the next helper has the same tokens again."""
        assert self._helper is not None
        return functools.partial(self._helper.answer, token)

    def _has(self, world: str, rank: int) -> bool:
        """Return whether there is such a rank; -1 is all of a world."""
        return world in self._worlds and -1 <= rank < self._worlds[world]["size"]

    def _local(self, world: str) -> list[int]:
        """Return the ranks of a world on this node."""
        known = self._worlds[world]
        return [] if known["node"] is None else known["ranks_by_node"][known["node"]]

    def _check_rank(self, world: str, rank: int) -> None:
        if world not in self._worlds or rank not in self._local(world):
            raise WireError("rank %d of world %.100r is not on this node" % (rank, world))

    def _start_timed_out(self) -> None:
        if self._ready:
            self.reason = "libpmix was not ready within %g s" % START_SECONDS
            self._all_ready()

    def _all_ready(self) -> None:
        waiting, self._ready = self._ready, {}
        for ready in waiting.values():
            ready()


_INFO_KEYS = {
    "pmix.wdir": "wdir",
    "pmix.host": "host",
    "pmix.hostfile": "hostfile",
    "pmix.addhost": "add-host",
    "pmix.addhostfile": "add-hostfile",
    "pmix.mapby": "map_by",
    "pmix.rankby": "rank_by",
    "pmix.bindto": "bind_to",
    "pmix.ppr": "ppr",
    "pmix.mapper": "mapper",
}
"""Keys of pmix_common.h for the info keys of MPI_Comm_spawn; Open MPI passes no others on (ompi/dpm/dpm.c)."""


def _spawn_info(directory: str, info: dict[str, Any]) -> dict[str, str | None]:
    """Return the info of one program of a spawn; `directory` is that of the asking rank, to which `wdir` is relative."""
    named = {_INFO_KEYS[key]: str(value) for key, value in info.items() if key in _INFO_KEYS}
    return {**named, "wdir": os.path.join(directory, named["wdir"]) if "wdir" in named else directory or None}


def _registration(description: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of `HelperProcess.register`."""
    ranks_by_node: list[list[int]] = [[] for _ in description["hosts"]]
    rank = 0
    for first, nodes, each in description["blocks"]:
        for node in range(first, first + nodes):
            ranks_by_node[node] += range(rank, rank + each)
            rank += each
    return {
        "name": description["world"],
        "namespace": description["namespace"],
        "size": description["size"],
        "universe_size": description["universe_size"],
        "hosts": description["hosts"],
        "ranks_by_node": ranks_by_node,
        "node": description["node"],
        "appnums": [app for app, size in enumerate(description["app_sizes"]) for _ in range(size)],
        "spawned": bool(description["parent"]),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
