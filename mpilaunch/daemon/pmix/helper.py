"""PMIx for the ranks of this node, as the daemon sees it: a helper process that hosts the node's libpmix, and what it tells.

The daemon never loads libpmix and never waits for it. The helper is started here and runs beside; whatever becomes of it is an
event. It serves ranks and may have been broken by one, so what it says is checked before it is believed.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Protocol

from mpilaunch.daemon.pmix.channel import Channel

if TYPE_CHECKING:
    from mpilaunch.daemon.pmix.search import Libpmix
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private import PrivateDirectory

    class PmixEvents(Protocol):
        """What the helper tells; called in the daemon's loop.

        A `token` stands for a rank that waits: each is to be answered once, by `PmixServer.answer`, in any order.
        """

        def registered(self, world: str, environments: dict[int, dict[str, str]]) -> None:
            """The ranks of a world can be started: the variables by which each rank of this node finds its server."""

        def connected(self, world: str, rank: int) -> None:
            """A rank has come (MPI_Init)."""

        def finalized(self, world: str, rank: int) -> None:
            """A rank has gone as it should (MPI_Finalize); always told before it can exit."""

        def abort(self, world: str, rank: int, code: int) -> None:
            """A rank has called MPI_Abort, and waits to be killed."""

        def collective(self, kind: str, members: list[tuple[str, int]], ranks: int, data: bytes, token: int) -> None:
            """All members on this node are there, `ranks` of them, and the others are elsewhere.

            Two nodes mean the same when `kind` and `members` are equal; rank -1 is all of a world. When there are as many ranks
            as there are members, each node is answered with the data of all nodes, one after another in any order. A `kind`
            that begins with `group-construct` is also answered with `context`, a number that no other has.
            """

        def modex(self, world: str, rank: int, token: int) -> None:
            """A rank asks for what a rank of another node has put (-1: what is known of the world itself).

            To be handed to `modex_request` on a node that has the rank, and answered with its data, or with not-found.
            """

        def modex_ready(self, token: int, found: bool, data: bytes) -> None:
            """The answer to a `modex_request` of ours."""

        def publish(self, world: str, rank: int, values: dict[str, list[Any]], token: int) -> None:
            """Keep (type, value) under each key for `lookup`; the error is `exists` when another has published it."""

        def lookup(self, world: str, rank: int, keys: list[str], wait: bool, token: int) -> None:
            """Answer with `found`: {key: [world, rank, [type, value]]}, who published what; `wait` until all are there."""

        def unpublish(self, world: str, rank: int, keys: list[str], token: int) -> None:
            """Forget what this rank has published under the keys, or all of it when there are none."""

        def spawn(self, world: str, rank: int, apps: list[dict[str, Any]], token: int) -> None:
            """MPI_Comm_spawn: start a new world, registered on all nodes before; answer with its name as `world`.

            An app has program, arguments, count, environment (beside the one that all ranks get), wdir ("" for none) and info,
            the wishes of the caller by their keys in PMIx (`pmix.host`, ...) or MPI.
            """

        def failed(self, reason: str) -> None:
            """There is no PMIx on this node, now or any more: no library can be used, or the helper has died."""


LAST_WORDS = 2000
TOLD_LINES = 4
"""Bytes of what the helper wrote last that are kept, and lines of it that are told if it dies."""
CLOSE_SECONDS = 2.0
"""How long the helper may take to clean up before it is killed."""

_RANK = {"world": str, "rank": int}
_APP = {"program": str, "arguments": [str], "count": int, "environment": {str: str}, "wdir": str, "info": {str: object}}
_SHAPES: dict[str, Any] = {
    "registered": {"world": str, "environments": [(int, {str: str})]},
    "connected": _RANK,
    "finalized": {**_RANK, "token": int},
    "abort": {**_RANK, "code": int},
    "collective": {"kind": str, "members": [(str, int)], "ranks": int, "token": int},
    "modex": {**_RANK, "token": int},
    "modex_ready": {"token": int, "found": bool},
    "publish": {**_RANK, "values": {str: (int, object)}, "token": int},
    "lookup": {**_RANK, "keys": [str], "wait": bool, "token": int},
    "unpublish": {**_RANK, "keys": [str], "token": int},
    "spawn": {**_RANK, "apps": [_APP], "token": int},
    "failed": {"reason": str},
}
"""The messages of the helper, which are the events, and what each must look like; see `_fits`."""
_WITH_DATA = {"collective", "modex_ready"}


def _fits(value: Any, shape: Any) -> bool:
    """Tell whether a value of JSON has a shape: a type; `object` for anything; a list of any length of one shape, written
    [shape]; a list of one shape for each place, (shape, ...); an object of any names, {str: shape}, or of just these names."""
    if isinstance(shape, type):
        return shape is object or type(value) is shape
    if isinstance(shape, list):
        return type(value) is list and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return type(value) is list and len(value) == len(shape) and all(map(_fits, value, shape))
    if type(value) is not dict:
        return False
    if str in shape:
        return all(_fits(item, shape[str]) for item in value.values())
    return value.keys() == shape.keys() and all(_fits(value[name], shape[name]) for name in shape)


class PmixServer:
    """The helper of this node. It is started at once, and loads its library while the caller goes on.

    Attributes:
        pid: of the helper.

    Args:
        poller: of the daemon's loop.
        events: see PmixEvents.
        libpmix: that serves the ranks.
        hostname: this node's name in the worlds to come; two nodes never have the same.
        directory: for the files of libpmix and the MPI libraries; made here, and removed after the helper's end.

    Raises:
        OSError: the directory cannot be made, or no process can be started.
    """

    def __init__(
        self,
        poller: Poller,
        events: PmixEvents,
        libpmix: Libpmix,
        hostname: str,
        directory: PrivateDirectory,
    ) -> None:
        self._poller = poller
        self._events = events
        self._directory = directory
        self._reason = ""
        self._last_words = b""
        self._closing = False
        directory.make()
        ours, theirs = socket.socketpair()
        self._words, words = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            for descriptor in (ours.detach(), theirs.detach(), self._words, words):
                os.close(descriptor)
            directory.remove()
            raise
        if self.pid == 0:
            _be_helper(theirs, words, parent, libpmix, hostname, directory)
        theirs.close()
        os.close(words)
        os.set_blocking(self._words, False)
        poller.watch(self._words, self._read_words)
        self._channel = Channel(ours, poller, self._take, self._lost)

    # To the helper; nothing happens once it has failed

    def register(self, world: dict[str, Any]) -> None:
        """Make a world known to libpmix; `registered` follows. Every node does this, before any rank of the world starts.

        Args:
            world: name (no other world's), namespace (its name in libpmix: ASCII, at most 255 bytes, and impossible to guess,
                because who knows it is believed to be a rank), size, universe_size, hosts (the name of each node that has
                ranks), ranks_by_node (in the same order), node (which of them is this one, None for none), appnums (the app
                of each rank), spawned (whether MPI_Comm_spawn made it).
        """
        self._channel.send({"type": "register", "world": world})

    def answer(self, token: int, data: bytes = b"", error: str = "", **words: Any) -> None:
        """Let a rank go on.

        Args:
            token: of the event; one that is unknown, or has been answered, is left alone.
            data: for collective and modex.
            error: "", or one of not-found, exists, not-supported, not-started, timeout; anything else is just an error.
            words: what the event wants to be answered with.
        """
        if not self._channel.send({"type": "answer", "token": token, "error": error, **words}, data):
            self._channel.send({"type": "answer", "token": token, "error": "too-much"})

    def modex_request(self, world: str, rank: int, token: int) -> None:
        """Ask for what a rank of this node has put; `modex_ready` follows with the caller's token, once it has put it."""
        self._channel.send({"type": "modex_request", "world": world, "rank": rank, "token": token})

    def close(self) -> None:
        """End the helper and wait until it is gone, with all that it and dead ranks left; at most CLOSE_SECONDS.

        To be called when the ranks have ended, for it is the helper that removes what they left in shared memory.
        """
        if not self.pid:
            return
        import select
        import time

        self._closing = True
        self._channel.close()  # it reads end of file, cleans up and goes
        poll = select.poll()
        poll.register(self._words, select.POLLIN)
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._words >= 0:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                os.kill(self.pid, signal.SIGKILL)
                break
            self._read_words()
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            status = 0  # somebody has collected it
        self.child_ended(self.pid, status)

    def child_ended(self, pid: int, status: int) -> bool:
        """Take the end of a child of the daemon's, with its wait status; False when it was not the helper."""
        if pid != self.pid:
            return False
        self._channel.ready()  # what it has still said
        self._channel.close()
        self._read_words()
        self._close_words()
        self.pid = 0
        self._directory.remove()
        if not self._closing:
            self._closing = True
            self._events.failed(self._reason or _end_of_helper(status, self._last_words))
        return True

    # From the helper

    def _take(self, message: dict[str, Any], data: bytes) -> None:
        name = message.pop("type", None)
        if not isinstance(name, str) or name not in _SHAPES or not _fits(message, _SHAPES[name]):
            self._lost("it said %.200r with %.200r" % (name, message))
        elif name == "failed":
            self._reason = message["reason"]  # told when it has ended, in a moment
        else:
            if name == "registered":
                message["environments"] = dict(message["environments"])
            elif name == "collective":
                message["members"] = [tuple(member) for member in message["members"]]
            if name in _WITH_DATA:
                message["data"] = data
            waiting = message.pop("token") if name == "finalized" else None
            getattr(self._events, name)(**message)
            if waiting is not None:
                self.answer(waiting)  # now that it is known here, the rank may exit

    def _lost(self, reason: str) -> None:
        """The helper speaks no more, or nonsense: whatever it does now, it is of no use. Its end is the event."""
        if reason:
            self._reason = self._reason or "the PMIx helper broke off: " + reason
        self._channel.close()
        if self.pid and not self._closing and reason:
            os.kill(self.pid, signal.SIGKILL)

    def _read_words(self) -> None:
        """Keep the end of what it writes."""
        try:
            data = os.read(self._words, 65536) if self._words >= 0 else b""
        except BlockingIOError:
            return
        if not data:
            self._close_words()
        self._last_words = (self._last_words + data)[-LAST_WORDS:]

    def _close_words(self) -> None:
        if self._words >= 0:
            self._poller.forget(self._words)
            os.close(self._words)
            self._words = -1


def _be_helper(*arguments: Any) -> None:
    """Run the helper in the child that has just been forked, with the arguments of `pmix_server.run`; never return."""
    code = 1
    try:
        from mpilaunch.daemon.pmix import server as pmix_server

        pmix_server.run(*arguments)
        code = 0
    except BaseException:
        # Whatever it is, it must not reach the daemon's loop a second time. Its end is told by the daemon, with these words.
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(code)


def _end_of_helper(status: int, last_words: bytes) -> str:
    """Return how the helper ended, in words, and what it said last."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = {known.value: known.name for known in signal.Signals}.get(number, "a signal without a name")
        how = "was killed by %s (signal %d)" % (name, number)
    else:
        how = "ended with code %d" % os.WEXITSTATUS(status)
    lines = [line.strip() for line in last_words.decode("utf-8", "replace").split("\n") if line.strip()]
    said = " / ".join(lines[-TOLD_LINES:])
    return "the PMIx helper %s%s" % (how, "; its last words: " + said if said else "")
