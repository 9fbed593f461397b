"""The ranks of this node that use PMIx: passes requests of the PMIx helper to the head, and the answers back.

The helper starts with the first world that may need it, and again for a later world after its end. Every world of the job is
registered with it, also those without ranks here: a rank may ask for any of them.
"""

from __future__ import annotations

import base64
import os

from mpilaunch.daemon.mpi.pmi import ABORTED, CONNECTED, FINALIZED
from mpilaunch.daemon.pmix.helper import PmixServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import Ask, Collective
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
        self._server: PmixServer | None = None
        self._worlds: list[dict[str, Any]] = []
        self._environments: dict[str, dict[int, dict[str, str]]] = {}
        self._ready: dict[str, Callable[[], None]] = {}
        self._modex: dict[int, int] = {}
        self._published: dict[tuple[str, int], list[str]] = {}
        self._tokens = 0

    # From the wire-up

    def know(self, description: dict[str, Any]) -> None:
        """Register a world, the `mpi` member of `prepare`, with or without ranks here."""
        world = _registration(description)
        self._worlds.append(world)
        if self._server is not None:
            self._server.register(world)

    def start(self, world: str, libpmix: Libpmix, hostname: str, ready: Callable[[], None]) -> None:
        """Call `ready` when the ranks of a registered world can start, with PMIx or, for a `reason`, without."""
        self._ready[world] = ready
        if self._server is None:
            self.reason = ""
            try:
                self._server = PmixServer(self._poller, self, libpmix, hostname, self._directory)
            except OSError as error:
                self.reason = "no process or directory for PMIx: %s" % error
                self._all_ready()
                return
            for known in self._worlds:
                self._server.register(known)
        self._set_timer("pmix", START_SECONDS, self._start_timed_out)

    def environment(self, world: str, rank: int) -> dict[str, str]:
        """Return the variables by which a rank finds its server; empty without a server."""
        return self._environments.get(world, {}).get(rank, {})

    def give_modex(self, ask: dict[str, Any]) -> None:
        """Answer the head's request for the data of a rank here."""
        if self._server is None:
            self._send({"type": "answer", "id": ask["id"], "error": "not-found"})
            return
        self._tokens += 1
        self._modex[self._tokens] = ask["id"]
        self._server.modex_request(ask["world"], ask["rank"], self._tokens)

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child of the daemon that is no rank."""
        if self._server is not None:
            self._server.child_ended(pid, status)

    def close(self) -> None:
        """End the helper after the last rank; it removes the shared memory that ranks left."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    # The handlers of `channel.HELPER_SENDS`

    def registered(self, world: str, environments: dict[int, dict[str, str]]) -> None:
        self._environments[world] = environments
        ready = self._ready.pop(world, None)
        if ready is not None:
            ready()

    def connected(self, world: str, rank: int) -> None:
        self.states[world, rank] = CONNECTED
        self._connected(world)

    def finalized(self, world: str, rank: int) -> None:
        self.states[world, rank] = FINALIZED

    def abort(self, world: str, rank: int, code: int) -> None:
        self.states[world, rank] = ABORTED
        self._abort(world, rank, code & 255)

    def collective(self, kind: str, members: list[tuple[str, int]], ranks: int, data: bytes, token: int) -> None:
        sizes = {world["name"]: world["size"] for world in self._worlds}
        whole = {name for name, number in members if number < 0}
        valid = all(-1 <= number < sizes.get(name, -1) and (number < 0 or name not in whole) for name, number in members)
        if not valid or len(set(members)) < len(members):
            self._answer(token, error="not-found")
            return

        def done(answer: dict[str, Any]) -> None:
            parts = b"".join(base64.b64decode(part) for part in answer["parts"])
            self._answer(token, parts, context=answer["number"])

        self._collective("pmix " + kind, [list(member) for member in members], ranks, _base64(data), done)

    def modex(self, world: str, rank: int, token: int) -> None:
        def done(answer: dict[str, Any]) -> None:
            self._answer(token, base64.b64decode(answer.get("data", "")), answer["error"])

        if not -1 <= rank < max((known["size"] for known in self._worlds if known["name"] == world), default=0):
            self._answer(token, error="not-found")  # a rank may name any
            return
        self._ask("modex", {"world": world, "rank": rank}, done)

    def modex_ready(self, token: int, found: bool, data: bytes) -> None:
        error = "" if found else "not-found"
        self._send({"type": "answer", "id": self._modex.pop(token), "error": error, "data": _base64(data)})

    def publish(self, world: str, rank: int, values: dict[str, list[Any]], token: int) -> None:
        self._published.setdefault((world, rank), []).extend(values)
        details = {"space": "pmix", "values": {key: [world, rank, value] for key, value in values.items()}}
        self._ask("publish", details, lambda answer: self._answer(token, error="exists" if answer["error"] else ""))

    def lookup(self, world: str, rank: int, keys: list[str], wait: bool, token: int) -> None:
        details = {"space": "pmix", "names": keys, "wait": wait}
        self._ask("lookup", details, lambda answer: self._answer(token, found=answer["values"]))

    def unpublish(self, world: str, rank: int, keys: list[str], token: int) -> None:
        details = {"space": "pmix", "names": keys or self._published.pop((world, rank), [])}
        self._ask("unpublish", details, lambda answer: self._answer(token))

    def spawn(self, world: str, rank: int, apps: list[dict[str, Any]], token: int) -> None:
        def done(answer: dict[str, Any]) -> None:
            if answer["error"]:
                self._answer(token, error="not-started")
            else:
                self._answer(token, world=answer["world"])

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
        self._server = None
        self.reason = reason
        if CONNECTED in self.states.values():
            self._broken(reason)
        self._all_ready()

    def _answer(self, token: int, data: bytes = b"", error: str = "", **members: Any) -> None:
        if self._server is not None:
            self._server.answer(token, data, error, **members)

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
    """Return the argument of `PmixServer.register`."""
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
