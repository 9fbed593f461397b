"""Upcalls of libpmix, which pass on what ranks request: fence, connect, group, publish, spawn, abort.

They are the functions of pmix_server_module_t, which are documented in pmix_server.h of OpenPMIx. libpmix calls them on its
own thread. They check and copy the arguments there, and post a call to the loop, which gives every answer. A fence or other
request among ranks of this node is answered here, all others go to the daemon. Ranks are not trusted: the size of requests is
limited, and values that JSON cannot carry are refused.

libpmix listens on a TCP port of the loopback device, where every user of the node can connect. It takes any process that
knows a rank's namespace for the rank, so the namespace is a secret, and it serves any tool unless its host refuses. Messages
name a world by its public name and never by its namespace.
"""

from __future__ import annotations

import base64
import ctypes
import os
import traceback
from ctypes import c_void_p

from mpilaunch.daemon.pmix import library as pmix
from mpilaunch.daemon.pmix.library import BAD_PARAMETER, NOT_SUPPORTED, OPERATION_SUCCEEDED, OUT_OF_RESOURCE, SUCCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answer = Callable[[int, dict[str, Any], bytes], None]
    """Answer a rank: (status, message of the daemon, its data)."""

LONGEST_BLOB = 64 << 20
"""Bytes that the ranks of one node may exchange in one collective."""
ALL, HERE = -1, -2
"""Ranks that mean all of a world, and those on this node."""
_CONSTRUCT = 0
"""The value of pmix_group_operation_t for construction; the other one is for destruction."""


class World:
    """A world: its name in libpmix, its size, and its ranks on this node."""

    def __init__(self, namespace: str, size: int, local: list[int]) -> None:
        self.namespace, self.size, self.local = namespace.encode("ascii"), size, frozenset(local)


class Upcalls:
    """The functions of `library.UPCALLS`, and the part of each that runs in the loop.

    Attributes:
        module: the argument of PMIx_server_init; this object must live as long as the library.
        worlds: by name; only the loop adds worlds, by `add_world`.

    Args:
        post: calls a function in the loop, from any thread; returns False when too many calls wait.
        send, ask: send a message to the daemon from the loop; `ask` has a timeout in seconds, 0 for none.
    """

    def __init__(
        self,
        post: Callable[..., bool],
        send: Callable[[dict[str, Any]], object],
        ask: Callable[[dict[str, Any], bytes, Answer, float], None],
    ) -> None:
        self._post, self._send, self._ask = post, send, ask
        self.worlds: dict[str, World] = {}
        self._names: dict[bytes, str] = {}
        self._lent: dict[int, Any] = {}
        self._lent_count = 0
        # libpmix holds addresses only: Python must keep the objects.
        self._called: list[Any] = [pmix.Release(self._take_back)]
        self._take_back_address = ctypes.cast(self._called[0], c_void_p)
        functions: dict[str, Callable[..., int | None]] = {
            "client_finalized": self.client_finalized, "abort": self.abort, "fence": self.fence,
            "direct_modex": self.direct_modex, "publish": self.publish, "lookup": self.lookup, "unpublish": self.unpublish,
            "spawn": self.spawn, "connect": self.connect, "disconnect": self.disconnect,
            "register_events": self.register_events, "deregister_events": self.register_events,
            "tool_connected": self.tool_connected, "job_control": self.job_control, "group": self.group,
            "client_connected2": self.client_connected2,
        }  # fmt: skip
        self.module = (c_void_p * pmix.MODULE_POINTERS)()
        for index, (name, kind) in enumerate(pmix.UPCALLS.items()):
            if kind is not None:
                self._called.append(kind(self._guarded(functions[name])))
                self.module[index] = ctypes.cast(self._called[-1], c_void_p).value

    def _guarded(self, method: Callable[..., int | None]) -> Callable[..., int | None]:
        """Return a function that never raises: ctypes would drop the exception, and the rank would hang."""

        def call(*arguments: Any) -> int | None:
            try:
                return method(*arguments)
            except Exception:
                os.write(2, traceback.format_exc().encode("utf-8", "replace"))
                return pmix.ERROR

        return call

    def _later(self, function: Callable[..., object], *arguments: Any) -> int:
        """Post a call to the loop; return the status for an answer that will follow."""
        return SUCCESS if self._post(function, *arguments) else OUT_OF_RESOURCE

    def add_world(self, name: str, world: World) -> None:
        """Add a world before it is registered with libpmix."""
        self.worlds[name] = world
        self._names[world.namespace] = name

    def _proc(self, proc: Any) -> dict[str, Any]:
        """Return a process, or all of a world, as members of a message; raises KeyError and ValueError."""
        special = {pmix.WILDCARD: ALL, pmix.LOCAL_NODE: HERE}
        if proc.rank > pmix.LARGEST_RANK and proc.rank not in special:
            raise ValueError("rank %d" % proc.rank)
        return {"world": self._names[proc.namespace], "rank": special.get(proc.rank, proc.rank)}

    def _caller(self, proc: Any) -> dict[str, Any]:
        """Return the calling rank as members of a message; raises KeyError and ValueError unless it is on this node."""
        caller = self._proc(proc)
        if caller["rank"] not in self.worlds[caller["world"]].local:
            raise ValueError("rank %d is not on this node" % caller["rank"])
        return caller

    # Connection and end of ranks

    def tool_connected(self, *_: Any) -> None:
        """Refuse a tool by never answering it.

        An answer that refuses it would crash the helper: libpmix 4.2 then removes the tool's namespace from a list to which
        it was never added (process_cbfunc, ptl_base_connection_hdlr.c).
        """

    def client_connected2(self, proc: Any, *_: Any) -> int:
        self._post(self._send, {"type": "connected", **self._caller(proc[0])})
        return OPERATION_SUCCEEDED  # the rank does not wait for the daemon

    def client_finalized(self, proc: Any, _: Any, done: int, token: int) -> int:
        # The rank waits for an answer, so that the daemon knows of this before the rank can exit.
        return self._request({"type": "finalized", **self._caller(proc[0])}, _status_to(done, token))

    def abort(self, proc: Any, _: Any, code: int, *rest: Any) -> int:
        # Never answered: the rank waits until it is killed, and cannot exit with another code.
        return self._later(self._send, {"type": "abort", **self._caller(proc[0]), "code": code})

    def register_events(self, *_: Any) -> int:
        return OPERATION_SUCCEEDED

    def job_control(self, *_: Any) -> int:
        # It must exist: without it libpmix does not record the files to remove after the death of a rank.
        return NOT_SUPPORTED

    # Collectives

    def fence(self, procs: Any, count: int, infos: Any, info_count: int, data: int, size: int, done: int, token: int) -> int:
        return self._collect("fence", procs, count, data, size, lambda *answer: self._give_data(done, token, *answer))

    def connect(self, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        return self._collect("connect", procs, count, 0, 0, _status_to(done, token))

    def disconnect(self, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        return self._collect("disconnect", procs, count, 0, 0, _status_to(done, token))

    def group(self, what: int, name: bytes, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        """Construct or destruct a group; MPI sessions make their communicators this way."""
        values = {infos[index].key: infos[index].value for index in range(info_count)}
        if what == _CONSTRUCT:
            data, size = pmix.bytes_of(values[b"pmix.grp.endpt"]) if b"pmix.grp.endpt" in values else (0, 0)
            keys = {key for key in (b"pmix.grp.actxid", b"pmix.grp.endpt") if key in values}
            members = [(procs[index].namespace.decode("ascii"), procs[index].rank) for index in range(count)]
            kind = "group-construct " + pmix.text(name)
            give = self._give_group
            return self._collect(kind, procs, count, data, size, lambda *answer: give(done, token, keys, members, *answer))
        if b"pmix.grp.lcl" in values:
            # libpmix 5.0.11 calls twice for a group of this node only, and would crash on a second answer.
            return OPERATION_SUCCEEDED
        kind = "group-destruct " + pmix.text(name)
        return self._collect(kind, procs, count, 0, 0, lambda *answer: self._give_group(done, token, set(), [], *answer))

    def _collect(self, kind: str, procs: Any, count: int, data: int, size: int, answer: Answer) -> int:
        if size > LONGEST_BLOB:
            return OUT_OF_RESOURCE
        # The order of members differs between nodes.
        members = sorted((proc["world"], proc["rank"]) for proc in (self._proc(procs[index]) for index in range(count)))
        return self._later(self._join, kind, members, ctypes.string_at(data, size) if size else b"", answer)

    def _join(self, kind: str, members: list[tuple[str, int]], data: bytes, answer: Answer) -> None:
        """Complete a collective of this node only; send any other to the daemon."""
        here, everywhere = 0, 0
        for name, rank in members:
            world = self.worlds.get(name)
            if world is None:
                everywhere += 1  # at least
            elif rank in (ALL, HERE):
                here += len(world.local)
                everywhere += world.size if rank == ALL else len(world.local)
            else:
                here += rank in world.local
                everywhere += 1
        if here == everywhere and not kind.startswith("group-construct"):  # the head numbers those
            answer(SUCCESS, {}, data)
        else:
            self._ask({"type": "collective", "kind": kind, "members": members, "ranks": here}, data, answer, 0)

    def _give_data(self, done: int, token: int, status: int, message: dict[str, Any], data: bytes) -> None:
        buffer = ctypes.create_string_buffer(data, max(1, len(data)))
        pmix.ModexDone(done)(status, ctypes.addressof(buffer), len(data), token, self._take_back_address, self._lend(buffer))

    def _give_group(self, done: int, token: int, keys: set[bytes], members: list[tuple[str, int]], *answer: Any) -> None:
        status, message, data = answer
        items: list[tuple[str, Any, Any]] = []
        if status == SUCCESS and members:
            if b"pmix.grp.actxid" in keys:
                items.append(("pmix.grp.ctxid", pmix.SIZE, message["context"]))
            if b"pmix.grp.endpt" in keys:
                items.append(("pmix.grp.endpt", pmix.OWNED_BYTES, data))
            items.append(("pmix.grp.mbrs", pmix.PROC, members))
        infos = pmix.Infos(items)
        array = infos.array if items else None
        pmix.InfoDone(done)(status, array, infos.count, token, self._take_back_address, self._lend(infos))

    def _lend(self, thing: Any) -> int:
        """Keep an object until libpmix releases it; return the number that libpmix passes to the release function."""
        self._lent_count += 1
        self._lent[self._lent_count] = thing
        return self._lent_count

    def _take_back(self, number: int) -> None:
        self._lent.pop(number, None)

    # Data of one rank for others

    def direct_modex(self, proc: Any, infos: Any, count: int, done: int, token: int) -> int:
        message = {"type": "modex", **self._proc(proc[0])}
        return self._request(message, lambda *answer: self._give_data(done, token, *answer), _timeout(infos, count))

    def publish(self, proc: Any, infos: Any, count: int, done: int, token: int) -> int:
        values = {}
        for index in range(count):
            key = pmix.text(infos[index].key)
            if not key.startswith("pmix."):  # else a directive, as range or persistence
                values[key] = pmix.get_value(infos[index].value)
        if None in values.values():
            return NOT_SUPPORTED
        return self._request({"type": "publish", **self._caller(proc[0]), "values": values}, _status_to(done, token))

    def unpublish(self, proc: Any, keys: Any, infos: Any, count: int, done: int, token: int) -> int:
        message = {"type": "unpublish", **self._caller(proc[0]), "keys": pmix.texts(keys)}
        return self._request(message, _status_to(done, token))

    def lookup(self, proc: Any, keys: Any, infos: Any, count: int, done: int, token: int) -> int:
        wait = any(infos[index].key == b"pmix.wait" for index in range(count))
        message = {"type": "lookup", **self._caller(proc[0]), "keys": pmix.texts(keys), "wait": wait}
        return self._request(message, lambda *answer: self._give_values(done, token, *answer), _timeout(infos, count))

    def _request(self, message: dict[str, Any], answer: Answer, timeout: float = 0) -> int:
        return self._later(self._ask, message, b"", answer, timeout)

    def _give_values(self, done: int, token: int, status: int, message: dict[str, Any], data: bytes) -> None:
        published = message.get("found", {})
        array = (pmix.PublishedData * max(1, len(published)))()
        kept: list[Any] = []
        for place, (key, (world, rank, (kind, value))) in zip(array, published.items()):
            place.proc.namespace, place.proc.rank = self.worlds[world].namespace, rank
            place.key = key.encode("utf-8", "surrogateescape")
            pmix.set_value(place.value, kind, base64.b64decode(value) if kind == pmix.BYTE_OBJECT else value, kept)
        if status == SUCCESS and not published:
            status = pmix.NOT_FOUND
        # libpmix copies the array before this returns (lookup_cbfunc of OpenPMIx 4.2 and 5.0), and never releases it.
        pmix.LookupDone(done)(status, array if published else None, len(published), token)

    # More ranks

    def spawn(self, proc: Any, infos: Any, count: int, apps: Any, app_count: int, done: int, token: int) -> int:
        if not app_count:
            return BAD_PARAMETER
        common = _plain_infos(infos, count)
        programs = [
            {
                "program": pmix.text(app.program),
                "arguments": pmix.texts(app.arguments)[1:],
                "count": app.count,
                "environment": _variables(pmix.texts(app.environment)),
                "wdir": pmix.text(app.directory),
                "info": {**common, **_plain_infos(app.infos, app.info_count)},
            }
            for app in (apps[index] for index in range(app_count))
        ]
        message = {"type": "spawn", **self._caller(proc[0]), "apps": programs}
        return self._request(message, lambda *answer: self._give_world(done, token, *answer))

    def _give_world(self, done: int, token: int, status: int, message: dict[str, Any], data: bytes) -> None:
        name = self.worlds[message["world"]].namespace if status == SUCCESS else b""
        pmix.SpawnDone(done)(status, name.ljust(pmix.LONGEST_NAMESPACE + 1, b"\0") if name else None, token)


def _status_to(done: int, token: int) -> Answer:
    """Return a function that answers a rank with a status only."""
    return lambda status, *_: pmix.OperationDone(done)(status, token)


def _plain_infos(infos: Any, count: int) -> dict[str, Any]:
    """Return the values that JSON can carry, without their types."""
    values = ((pmix.text(infos[index].key), pmix.get_value(infos[index].value)) for index in range(count))
    return {key: value[1] for key, value in values if value is not None}


def _variables(lines: list[str]) -> dict[str, str]:
    """Return `NAME=VALUE` lines as variables; lines without a name are left out."""
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name}


def _timeout(infos: Any, count: int) -> float:
    value = _plain_infos(infos, count).get("pmix.timeout", 0)
    return value if isinstance(value, (int, float)) and value > 0 else 0
