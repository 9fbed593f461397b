"""The messages between the daemon and its PMIx helper: a table for each side; JSON with a block of bytes over a socket pair.

Neither side ever waits for the other, and neither trusts it: a message that breaks a rule ends the channel with a reason. A
message of the helper has exactly the members of its row, which become the arguments of the handler. Ranks are any numbers here:
the handlers know the worlds.
"""

from __future__ import annotations

import json
import struct

from mpilaunch.wire.frames import WireError
from mpilaunch.wire.messages import anything, code, exactly, flag, having, listed, maybe, named, row, text, whole, without_nul
from mpilaunch.wire.session import decode_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.poller import Poller
    from mpilaunch.wire.messages import Table

    Receive = Callable[[dict[str, Any], bytes], None]

MAX_TEXT = 16 << 20
MAX_DATA = 256 << 20
"""Bytes of JSON and of data that one message may have: a world of ten thousand ranks, and what so many exchange in a fence."""
MAX_UNSENT = 2 * MAX_DATA
"""Bytes that may wait for a side that does not read."""
READ_SIZE = 256 << 10
_HEADER = struct.Struct(">II")
SERVING = "serving"
"""The only state of either side."""


def integer(value: Any) -> bool:
    """A number that a rank chose."""
    return type(value) is int


def encodable(value: Any) -> bool:
    """A string that can be an argument, a path or a variable."""
    try:
        return without_nul(value) and value.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def variables(value: Any) -> bool:
    """Variables of a process."""
    return named(encodable)(value) and all(name and "=" not in name and encodable(name) for name in value)


def scalar(value: Any) -> bool:
    """A value of PMIx in JSON."""
    return type(value) in (str, int, float, bool)


_app = exactly(
    program=encodable, arguments=listed(encodable), count=integer, environment=variables, wdir=encodable, info=named(scalar)
)  # fmt: skip

HELPER_SENDS: Table = {
    "registered": (SERVING, exactly(world=text, environments=listed(row(integer, variables)))),
    "connected": (SERVING, exactly(world=text, rank=integer)),
    "finalized": (SERVING, exactly(world=text, rank=integer, token=integer)),
    "abort": (SERVING, exactly(world=text, rank=integer, code=code)),
    "collective": (SERVING, exactly(kind=text, members=listed(row(text, integer)), ranks=integer, token=integer)),
    "modex": (SERVING, exactly(world=text, rank=integer, token=integer)),
    "modex_ready": (SERVING, exactly(token=integer, found=flag)),
    "publish": (SERVING, exactly(world=text, rank=integer, values=named(row(whole, scalar)), token=integer)),
    "lookup": (SERVING, exactly(world=text, rank=integer, keys=listed(text), wait=flag, token=integer)),
    "unpublish": (SERVING, exactly(world=text, rank=integer, keys=listed(text), token=integer)),
    "spawn": (SERVING, exactly(world=text, rank=integer, apps=listed(_app), token=integer)),
    "failed": (SERVING, exactly(reason=text)),
}  # fmt: skip
"""Messages of the helper; `helper_process.HelperProcess` calls a handler for each.

A `token` stands for a waiting rank: the daemon answers each once (`HelperProcess.answer`), in any order.

registered: the ranks of a world can be started, each with the variables by which it finds its server.
connected, finalized: a rank has called MPI_Init; MPI_Finalize, and cannot exit before the answer.
abort: a rank has called MPI_Abort, and waits to be killed.
collective, with data: all `ranks` members on this node have joined; the others are on other nodes. Equal `kind` and `members`
    on two nodes name the same collective; rank -1 is all of a world. The answer has the data of all nodes, joined in any order,
    and for a `kind` that begins with `group-construct` also `context`, a unique number.
modex: a rank asks for the data that a rank of another node has put (-1: the data of the world itself).
modex_ready, with data: the answer to `modex_request`.
publish: keep (type, value) under each key for `lookup`; the error `exists` means that a key is taken.
lookup: the answer has `found`, {key: [publisher's world, its rank, [type, value]]}; `wait` for missing keys.
unpublish: remove what this rank has published under the keys, or all of it when no keys are given.
spawn: MPI_Comm_spawn; the answer has the name of the `world`. `environment` is added to that of all ranks, `wdir` is "" for
    none, `info` has the caller's info keys in PMIx (`pmix.host`, ...) or MPI.
failed: no library can be used; the server reports it after the helper's end.
"""

DAEMON_SENDS: Table = {
    "register": (SERVING, having(world=having(name=text, node=maybe(whole)))),
    "answer": (SERVING, having(token=whole, error=text)),
    "modex_request": (SERVING, having(world=text, rank=integer, token=whole)),
    "end": (SERVING, anything),
}
"""Messages of the daemon, which `server.Helper` handles."""


class Channel:
    """One side, over a socket that becomes its own.

    Args:
        receive: called with each message; may raise WireError.
        lost: called once when the other side is gone, with the reason, "" for an orderly end.
    """

    def __init__(self, connection: socket.socket, poller: Poller, receive: Receive, lost: Callable[[str], None]) -> None:
        self._connection, self._poller = connection, poller
        self._receive, self._lost = receive, lost
        self._unread = bytearray()
        self._unsent = bytearray()
        self._open = True
        self._writing = False
        connection.setblocking(False)
        poller.watch(connection, self.ready)

    def send(self, message: dict[str, Any], data: bytes = b"", longest: int = MAX_TEXT) -> bool:
        """Send a message unless the other side is gone; return False when it is longer than `longest`."""
        text = json.dumps(message, separators=(",", ":")).encode("ascii")
        if len(text) > longest or len(data) > MAX_DATA:
            return False
        if self._open:
            self._unsent += _HEADER.pack(len(text), len(data)) + text + data
            self._flush()
            if len(self._unsent) > MAX_UNSENT:
                self._end("the other side does not read")
        return True

    def ready(self) -> None:
        """Write and read what is possible now."""
        self._flush()
        try:
            data = self._connection.recv(READ_SIZE) if self._open else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end("")
            return
        self._unread += data
        try:
            while self._open:
                message = self._next()
                if message is None:
                    return
                self._receive(*message)
        except WireError as error:
            self._end(str(error))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._poller.forget(self._connection)
            self._connection.close()

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next whole message; raises WireError."""
        if len(self._unread) < _HEADER.size:
            return None
        text_size, data_size = _HEADER.unpack_from(self._unread)
        if text_size > MAX_TEXT or data_size > MAX_DATA:
            raise WireError("a message of %d and %d bytes" % (text_size, data_size))
        begin, end = _HEADER.size + text_size, _HEADER.size + text_size + data_size
        if len(self._unread) < end:
            return None
        with memoryview(self._unread) as view:
            text, data = bytes(view[_HEADER.size : begin]), bytes(view[begin:end])
        del self._unread[:end]
        return decode_message(text), data

    def _flush(self) -> None:
        try:
            while self._open and self._unsent:
                with memoryview(self._unsent) as view:
                    sent = self._connection.send(view[: 1 << 20])
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the next read reports the end, after the other side's last messages
        if self._open and self._writing != bool(self._unsent):
            self._writing = bool(self._unsent)
            self._poller.watch(self._connection, self.ready, writing=self._writing)

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._lost(reason)
