"""What the ranks of this node ask of other nodes by PMIx, and what those ask of ranks here: passed between helper and head."""

from __future__ import annotations

import base64
import functools
import os

from mpilaunch.wire.frames import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import Ask, Collective
    from mpilaunch.daemon.pmix.helper_process import HelperProcess
    from mpilaunch.daemon.pmix.worlds import PmixWorlds


class PmixRequests:
    """The requests that are not answered yet; the handlers of the helper's messages raise WireError.

    Args:
        helper: returns the running helper, or None.
        send: sends a message to the head.
    """

    def __init__(
        self,
        worlds: PmixWorlds,
        helper: Callable[[], HelperProcess | None],
        collective: Collective,
        ask: Ask,
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._worlds, self._helper, self._collective, self._ask, self._send = worlds, helper, collective, ask, send
        self._modex: dict[int, int] = {}
        self._published: dict[tuple[str, int], set[str]] = {}
        self._tokens = 0

    def give_modex(self, ask: dict[str, Any]) -> None:
        """Answer the head's request for the data of a rank here."""
        helper = self._helper()
        if helper is None:
            self._send({"type": "answer", "id": ask["id"], "error": "not-found"})
            return
        self._tokens += 1
        self._modex[self._tokens] = ask["id"]
        helper.modex_request(ask["world"], ask["rank"], self._tokens)

    def helper_failed(self) -> None:
        """Answer what was asked of the helper."""
        for number in self._modex.values():
            self._send({"type": "answer", "id": number, "error": "not-found"})
        self._modex.clear()

    def collective(self, kind: str, members: list[tuple[str, int]], ranks: int, data: bytes, token: int) -> None:
        answer = self._answering(token)
        whole = {name for name, number in members if number < 0}
        valid = all(self._worlds.has(name, number) and (number < 0 or name not in whole) for name, number in members)
        if not ranks or not valid or len(set(members)) < len(members):
            answer(error="not-found")
            return
        local = self._worlds.local
        here = sum(len(local(name)) if number < 0 else number in local(name) for name, number in members)
        if ranks != here:
            raise WireError("a collective of %d ranks, of which this node has %d" % (ranks, here))

        def done(message: dict[str, Any]) -> None:
            answer(b"".join(base64.b64decode(part) for part in message["parts"]), context=message["number"])

        self._collective("pmix " + kind, [list(member) for member in members], ranks, _base64(data), done)

    def modex(self, world: str, rank: int, token: int) -> None:
        answer = self._answering(token)
        if not self._worlds.has(world, rank):
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
        self._worlds.check_rank(world, rank)
        answer = self._answering(token)

        def done(message: dict[str, Any]) -> None:
            if not message["error"]:
                self._published.setdefault((world, rank), set()).update(values)
            answer(error="exists" if message["error"] else "")

        details = {"space": "pmix", "values": {key: [world, rank, value] for key, value in values.items()}}
        self._ask("publish", details, done)

    def lookup(self, world: str, rank: int, keys: list[str], wait: bool, token: int) -> None:
        self._worlds.check_rank(world, rank)
        answer = self._answering(token)
        details = {"space": "pmix", "names": keys, "wait": wait}
        self._ask("lookup", details, lambda message: answer(found=message["values"]))

    def unpublish(self, world: str, rank: int, keys: list[str], token: int) -> None:
        self._worlds.check_rank(world, rank)
        answer = self._answering(token)
        published = self._published.get((world, rank), set())
        names = keys or sorted(published)
        published.difference_update(names)
        self._ask("unpublish", {"space": "pmix", "names": names}, lambda message: answer())

    def spawn(self, world: str, rank: int, apps: list[dict[str, Any]], token: int) -> None:
        self._worlds.check_rank(world, rank)
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

    def _answering(self, token: int) -> Callable[..., None]:
        """Return `HelperProcess.answer` for a request that is being handled: the next helper has the same tokens again."""
        helper = self._helper()
        assert helper is not None
        return functools.partial(helper.answer, token)


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


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
