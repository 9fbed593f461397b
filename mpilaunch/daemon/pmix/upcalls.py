"""What libpmix asks its host, which is us: the functions of pmix_server_module_t.

libpmix calls on a thread of its own. There, arguments are checked and copied, and the loop is told; every answer is given from
the loop. What only concerns ranks of this node is answered here, all else goes to the daemon. The ranks behind it are not
trusted: what they ask is bounded, and what cannot be carried is refused.

libpmix listens on a TCP port of the loopback device, where every user of the node can connect. It takes for a rank whoever
knows the rank's namespace, which is therefore a secret, and serves whoever says that it is a tool unless its host refuses.
Messages name a world by its public name and never by its namespace.

What each function means: pmix_server.h of OpenPMIx.
"""

from __future__ import annotations

import base64
import ctypes
import os
import traceback
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

from mpilaunch.daemon.pmix import library as pmix
from mpilaunch.daemon.pmix.library import BAD_PARAMETER, NOT_SUPPORTED, OPERATION_SUCCEEDED, OUT_OF_RESOURCE, SUCCESS

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = Callable[[int, dict[str, Any], bytes], None]
    """Answer a rank with a status, and with the words and the bytes that the daemon has for it."""

LONGEST_BLOB = 64 << 20
"""Bytes that the ranks of one node may exchange at once."""
ALL, HERE = -1, -2
"""Ranks that stand for all of a world, and for those of it on this node."""
_CONSTRUCT = 0
"""pmix_group_operation_t: the other one is to destruct."""


class World:
    """A world as far as this node must know it: its name in libpmix, its size, and its ranks here."""

    def __init__(self, namespace: str, size: int, local: list[int]) -> None:
        self.namespace, self.size, self.local = namespace.encode("ascii"), size, frozenset(local)


class Upcalls:
    """The functions, in the order and under the names of pmix_library.UPCALLS, and the half of each that runs in the loop.

    Attributes:
        module: what PMIx_server_init takes; this object must live as long as the library.
        worlds: by their names; only the loop adds to them, by `add_world`.

    Args:
        post: has the loop call a function, from any thread; false when too much waits there already.
        tell: sends the daemon a message; in the loop.
        ask: sends one that it will answer, with the seconds after which a timeout is the answer, 0 for never; in the loop.
    """

    def __init__(
        self,
        post: Callable[..., bool],
        tell: Callable[[dict[str, Any]], object],
        ask: Callable[[dict[str, Any], bytes, Answer, float], None],
    ) -> None:
        self._post, self._tell, self._ask = post, tell, ask
        self.worlds: dict[str, World] = {}
        self._names: dict[bytes, str] = {}
        self._lent: dict[int, Any] = {}
        self._lent_count = 0
        # libpmix knows addresses only: Python must keep what they belong to.
        self._called: list[Any] = [pmix.Release(self._take_back)]
        self._take_back_address = ctypes.cast(self._called[0], c_void_p)
        self.module = (c_void_p * pmix.MODULE_POINTERS)()
        for index, (name, kind) in enumerate(pmix.UPCALLS.items()):
            if kind is not None:
                self._called.append(kind(self._guarded(getattr(self, name))))
                self.module[index] = ctypes.cast(self._called[-1], c_void_p).value

    def _guarded(self, method: Callable[..., int]) -> Callable[..., int]:
        """Return a function that never raises: ctypes would drop the exception, and the rank would wait for ever."""

        def call(*arguments: Any) -> int:
            try:
                return method(*arguments)
            except Exception:
                os.write(2, traceback.format_exc().encode("utf-8", "replace"))
                return pmix.ERROR

        return call

    def _later(self, function: Callable[..., object], *arguments: Any) -> int:
        """Have the loop take over; return what tells libpmix that an answer will come."""
        return SUCCESS if self._post(function, *arguments) else OUT_OF_RESOURCE

    def add_world(self, name: str, world: World) -> None:
        """Take note of a world before libpmix is told of it."""
        self.worlds[name] = world
        self._names[world.namespace] = name

    def _proc(self, proc: Any) -> dict[str, Any]:
        """Return a process, or all of a world, as messages name it; raises KeyError and ValueError."""
        special = {pmix.WILDCARD: ALL, pmix.LOCAL_NODE: HERE}
        if proc.rank > pmix.LARGEST_RANK and proc.rank not in special:
            raise ValueError("rank %d" % proc.rank)
        return {"world": self._names[proc.namespace], "rank": special.get(proc.rank, proc.rank)}

    def _caller(self, proc: Any) -> dict[str, Any]:
        """Return the rank that asks for something; raises KeyError and ValueError when it is none of this node's."""
        who = self._proc(proc)
        if who["rank"] not in self.worlds[who["world"]].local:
            raise ValueError("rank %d is not on this node" % who["rank"])
        return who

    # Ranks come and go

    def tool_connected(self, infos: int, count: int, done: int, token: int) -> None:
        """Refuse a process that says that it is a tool, and no rank.

        It is never answered, and so it can ask for nothing. An answer that refuses it would end the helper: libpmix 4.2 then
        takes the tool's namespace out of a list to which it was never added (process_cbfunc, ptl_base_connection_hdlr.c).
        """

    def client_connected2(self, proc: Any, _: Any, infos: Any, count: int, done: int, token: int) -> int:
        self._post(self._tell, {"type": "connected", **self._caller(proc[0])})
        return OPERATION_SUCCEEDED  # libpmix waits for nothing else here

    def client_finalized(self, proc: Any, _: Any, done: int, token: int) -> int:
        # Answered like a question, so that the daemon knows of it before the rank can exit.
        return self._request({"type": "finalized", **self._caller(proc[0])}, done, token)

    def abort(self, proc: Any, _: Any, code: int, text: bytes, procs: Any, count: int, done: int, token: int) -> int:
        # It is never answered: the rank waits here for its end, and cannot go on with a code of its own.
        return self._later(self._tell, {"type": "abort", **self._caller(proc[0]), "code": code})

    def register_events(self, codes: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        return OPERATION_SUCCEEDED

    def deregister_events(self, codes: Any, count: int, done: int, token: int) -> int:
        return OPERATION_SUCCEEDED

    def job_control(self, proc: Any, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        # It must be there all the same: without it libpmix will not remember which files to remove for a rank that has died.
        return NOT_SUPPORTED

    # Collectives

    def fence(self, procs: Any, count: int, infos: Any, info_count: int, data: int, size: int, done: int, token: int) -> int:
        return self._collect("fence", procs, count, data, size, lambda *answer: self._give_data(done, token, *answer))

    def connect(self, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        return self._collect("connect", procs, count, 0, 0, lambda status, *_: pmix.OperationDone(done)(status, token))

    def disconnect(self, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        return self._collect("disconnect", procs, count, 0, 0, lambda status, *_: pmix.OperationDone(done)(status, token))

    def group(self, what: int, name: bytes, procs: Any, count: int, infos: Any, info_count: int, done: int, token: int) -> int:
        """MPI sessions make their communicators by this."""
        given = {infos[index].key: infos[index].value for index in range(info_count)}
        if what == _CONSTRUCT:
            data, size = pmix.bytes_of(given[b"pmix.grp.endpt"]) if b"pmix.grp.endpt" in given else (0, 0)
            wanted = {key for key in (b"pmix.grp.actxid", b"pmix.grp.endpt") if key in given}
            members = [(procs[index].namespace.decode("ascii"), procs[index].rank) for index in range(count)]
            kind = "group-construct " + pmix.text(name)
            return self._collect(
                kind, procs, count, data, size, lambda *answer: self._give_group(done, token, wanted, members, *answer)
            )
        if b"pmix.grp.lcl" in given:
            # libpmix 5.0.11 asks twice about a group that is only on this node, and a second answer would crash it.
            return OPERATION_SUCCEEDED
        kind = "group-destruct " + pmix.text(name)
        return self._collect(kind, procs, count, 0, 0, lambda *answer: self._give_group(done, token, set(), [], *answer))

    def _collect(self, kind: str, procs: Any, count: int, data: int, size: int, answer: Answer) -> int:
        if size > LONGEST_BLOB:
            return OUT_OF_RESOURCE
        # Nodes name the members in different order.
        members = sorted((proc["world"], proc["rank"]) for proc in (self._proc(procs[index]) for index in range(count)))
        return self._later(self._join, kind, members, ctypes.string_at(data, size) if size else b"", answer)

    def _join(self, kind: str, members: list[tuple[str, int]], data: bytes, answer: Answer) -> None:
        """All members on this node are there: go on when there are no others, else tell the daemon."""
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
        if here == everywhere and not kind.startswith("group-construct"):  # whose number is the head's to give
            answer(SUCCESS, {}, data)
        else:
            self._ask({"type": "collective", "kind": kind, "members": members, "ranks": here}, data, answer, 0)

    def _give_data(self, done: int, token: int, status: int, words: dict[str, Any], data: bytes) -> None:
        buffer = ctypes.create_string_buffer(data, max(1, len(data)))
        pmix.ModexDone(done)(status, ctypes.addressof(buffer), len(data), token, self._take_back_address, self._lend(buffer))

    def _give_group(
        self,
        done: int,
        token: int,
        wanted: set[bytes],
        members: list[tuple[str, int]],
        status: int,
        words: dict[str, Any],
        data: bytes,
    ) -> None:
        items: list[tuple[str, Any, Any]] = []
        if status == SUCCESS and members:
            if b"pmix.grp.actxid" in wanted:
                items.append(("pmix.grp.ctxid", pmix.SIZE, words["context"]))
            if b"pmix.grp.endpt" in wanted:
                items.append(("pmix.grp.endpt", pmix.OWNED_BYTES, data))
            items.append(("pmix.grp.mbrs", pmix.PROC, members))
        infos = pmix.Infos(items)
        pmix.InfoDone(done)(
            status, infos.array if items else None, infos.count, token, self._take_back_address, self._lend(infos)
        )

    def _lend(self, thing: Any) -> int:
        """Keep something until libpmix gives it back; return the number by which it will."""
        self._lent_count += 1
        self._lent[self._lent_count] = thing
        return self._lent_count

    def _take_back(self, number: int) -> None:
        self._lent.pop(number, None)

    # Data of one rank for others

    def direct_modex(self, proc: Any, infos: Any, count: int, done: int, token: int) -> int:
        return self._later(
            self._ask,
            {"type": "modex", **self._proc(proc[0])},
            b"",
            lambda *answer: self._give_data(done, token, *answer),
            _timeout(infos, count),
        )

    def publish(self, proc: Any, infos: Any, count: int, done: int, token: int) -> int:
        values = {}
        for index in range(count):
            key = pmix.text(infos[index].key)
            if not key.startswith("pmix."):  # else a wish: how far, for how long
                values[key] = pmix.get_value(infos[index].value)
        if None in values.values():
            return NOT_SUPPORTED
        return self._request({"type": "publish", **self._caller(proc[0]), "values": values}, done, token)

    def unpublish(self, proc: Any, keys: Any, infos: Any, count: int, done: int, token: int) -> int:
        return self._request({"type": "unpublish", **self._caller(proc[0]), "keys": pmix.texts(keys)}, done, token)

    def lookup(self, proc: Any, keys: Any, infos: Any, count: int, done: int, token: int) -> int:
        wait = any(infos[index].key == b"pmix.wait" for index in range(count))
        message = {"type": "lookup", **self._caller(proc[0]), "keys": pmix.texts(keys), "wait": wait}
        return self._later(
            self._ask, message, b"", lambda *answer: self._give_found(done, token, *answer), _timeout(infos, count)
        )

    def _request(self, message: dict[str, Any], done: int, token: int) -> int:
        """Ask what is answered by a status only."""
        return self._later(self._ask, message, b"", lambda status, *_: pmix.OperationDone(done)(status, token), 0)

    def _give_found(self, done: int, token: int, status: int, words: dict[str, Any], data: bytes) -> None:
        found = words.get("found", {})
        array = (pmix.PublishedData * max(1, len(found)))()
        kept: list[Any] = []
        for place, (key, (world, rank, (kind, value))) in zip(array, found.items()):
            place.proc.namespace, place.proc.rank = self.worlds[world].namespace, rank
            place.key = key.encode("utf-8", "surrogateescape")
            pmix.set_value(place.value, kind, base64.b64decode(value) if kind == pmix.BYTE_OBJECT else value, kept)
        if status == SUCCESS and not found:
            status = pmix.NOT_FOUND
        # Copied before it returns (lookup_cbfunc of OpenPMIx 4.2 and 5.0): there is no way to give it back.
        pmix.LookupDone(done)(status, array if found else None, len(found), token)

    # More ranks

    def spawn(self, proc: Any, infos: Any, count: int, apps: Any, app_count: int, done: int, token: int) -> int:
        if not app_count:
            return BAD_PARAMETER
        common = _plain_infos(infos, count)
        message = {
            "type": "spawn",
            **self._caller(proc[0]),
            "apps": [
                {
                    "program": pmix.text(app.program),
                    "arguments": pmix.texts(app.arguments)[1:],
                    "count": app.count,
                    "environment": dict(line.partition("=")[::2] for line in pmix.texts(app.environment)),
                    "wdir": pmix.text(app.directory),
                    "info": {**common, **_plain_infos(app.infos, app.info_count)},
                }
                for app in (apps[index] for index in range(app_count))
            ],
        }
        return self._later(self._ask, message, b"", lambda *answer: self._give_world(done, token, *answer), 0)

    def _give_world(self, done: int, token: int, status: int, words: dict[str, Any], data: bytes) -> None:
        name = self.worlds[words["world"]].namespace if status == SUCCESS else b""
        pmix.SpawnDone(done)(status, name.ljust(pmix.LONGEST_NAMESPACE + 1, b"\0") if name else None, token)


def _plain_infos(infos: Any, count: int) -> dict[str, Any]:
    """Return what can be said in JSON, without the types."""
    values = ((pmix.text(infos[index].key), pmix.get_value(infos[index].value)) for index in range(count))
    return {key: value[1] for key, value in values if value is not None}


def _timeout(infos: Any, count: int) -> float:
    """Return the seconds that a rank is ready to wait, 0 for ever."""
    value = _plain_infos(infos, count).get("pmix.timeout", 0)
    return value if isinstance(value, (int, float)) and value > 0 else 0
