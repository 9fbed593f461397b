"""The daemon's side of the PMIx helper, the process that hosts this node's libpmix for the ranks.

The daemon never loads libpmix and never waits for it: everything that happens to the helper is an event. The helper serves
ranks, and a rank may have broken it, so its messages are checked (`channel.HELPER_SENDS`) before they are used.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time

from mpilaunch.daemon.pmix.channel import HELPER_SENDS, SERVING, Channel
from mpilaunch.wire.frames import WireError
from mpilaunch.wire.messages import accepts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.pmix.search import Libpmix
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory

    Handlers = dict[str, Callable[..., None]]

KEPT_OUTPUT = 2000
"""Last bytes of the helper's output that are kept."""
REPORTED_LINES = 4
"""Lines of them that are reported if it dies."""
MOST_WAITING = 1 << 17
"""Requests of the helper that may wait for an answer; more than it sends itself (`helper.MOST_WAITING`)."""
CLOSE_SECONDS = 2.0
"""How long the helper may take to clean up before it is killed."""
FILES = "pmix"
"""Entry of the private directory that holds the helper's files."""


class HelperProcess:
    """The helper of this node. It starts at once, and loads its library while the caller continues.

    Args:
        handlers: called with the members of each message of `channel.HELPER_SENDS`; `failed` also when the helper died.
        hostname: this node's unique name in the worlds to come.
        directory: for the files of libpmix and the MPI libraries, which are removed after the helper's end.

    Raises:
        OSError: the directory cannot be made, or no process can be started.
    """

    def __init__(
        self, poller: Poller, handlers: Handlers, libpmix: Libpmix, hostname: str, directory: PrivateDirectory
    ) -> None:
        self._poller, self._handlers, self._directory = poller, handlers, directory
        self._reason = ""
        self._last_output = b""
        self._closing = False
        self._waiting: set[int] = set()
        folder = directory.reserve(FILES)
        ours, theirs = socket.socketpair()
        self._output, output = os.pipe()
        try:
            os.mkdir(folder, 0o700)
            self.pid = os.fork()
        except OSError:
            for descriptor in (ours.detach(), theirs.detach(), self._output, output):
                os.close(descriptor)
            directory.release(FILES)
            raise
        if self.pid == 0:
            _be_helper(theirs, output, libpmix, hostname, folder, directory.descriptors)
        theirs.close()
        os.close(output)
        os.set_blocking(self._output, False)
        poller.watch(self._output, self._read_output)
        self._channel = Channel(ours, poller, self._receive, self._lost)

    # To the helper; ignored once it has failed

    def register(self, world: dict[str, Any]) -> None:
        """Register a world with libpmix; `registered` follows. Every node does this before any rank of the world starts.

        Args:
            world: name (unique), namespace (its name in libpmix: at most 255 bytes of ASCII, and a secret, because libpmix
                takes any process that knows it for a rank), size, universe_size, hosts (the name of each node that has
                ranks), ranks_by_node (in the same order), node (the index of this one, None for none), appnums (the app of
                each rank), spawned (whether MPI_Comm_spawn made it).
        """
        self._channel.send({"type": "register", "world": world})

    def answer(self, token: int, data: bytes = b"", error: str = "", **members: Any) -> None:
        """Answer a waiting rank.

        Args:
            token: of the event; ignored when it is unknown, or has been answered.
            data: for collective and modex.
            error: "", a key of `helper.STATUSES`, or any other text for a general error.
            members: further members that the answer to this event has.
        """
        self._waiting.discard(token)
        if not self._channel.send({"type": "answer", "token": token, "error": error, **members}, data):
            self._channel.send({"type": "answer", "token": token, "error": "too-much"})

    def modex_request(self, world: str, rank: int, token: int) -> None:
        """Ask for the data of a rank of this node; `modex_ready` follows with this token once the rank has put it."""
        self._channel.send({"type": "modex_request", "world": world, "rank": rank, "token": token})

    def close(self) -> None:
        """End the helper after its ranks; wait at most CLOSE_SECONDS while it removes the shared memory that they left."""
        if not self.pid:
            return
        self._closing = True
        self._channel.send({"type": "end"})  # the helper cleans up and exits
        self._channel.close()
        poll = select.poll()
        if self._output >= 0:
            poll.register(self._output, select.POLLIN)
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._output >= 0:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                break
            self._read_output()
        try:
            os.kill(self.pid, signal.SIGKILL)  # it has exited, unless it is too slow or has closed its output
            _, status = os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            status = 0  # already collected
        self.child_ended(self.pid, status)

    def child_ended(self, pid: int, status: int) -> bool:
        """Handle the end of a child of the daemon; return False when it was not the helper."""
        if pid != self.pid:
            return False
        self.pid = 0  # reaped: another process may get the number
        self._channel.ready()  # its last messages
        self._channel.close()
        self._read_output()
        self._close_output()
        self._directory.release(FILES)
        if not self._closing:
            self._closing = True
            self._handlers["failed"](reason=self._reason or _describe_end(status, self._last_output))
        return True

    # From the helper

    def _receive(self, message: dict[str, Any], data: bytes) -> None:
        if not accepts(SERVING, message, HELPER_SENDS):
            raise WireError("unknown message %.200r" % message)
        name = message.pop("type")
        if name != "modex_ready" and "token" in message:
            if message["token"] in self._waiting or len(self._waiting) >= MOST_WAITING:
                raise WireError("too many requests wait, or two have the same token")
            self._waiting.add(message["token"])
        if name == "registered":
            message["environments"] = dict(message["environments"])
        elif name == "collective":
            message["members"] = [tuple(member) for member in message["members"]]
        if name in ("collective", "modex_ready"):
            message["data"] = data
        waiting = message.pop("token") if name == "finalized" else None
        (self._note_failure if name == "failed" else self._handlers[name])(**message)
        if waiting is not None:
            self.answer(waiting)  # the daemon knows now, and the rank may exit

    def _note_failure(self, reason: str) -> None:
        self._reason = reason  # reported when the helper has ended, in a moment

    def _lost(self, reason: str) -> None:
        """Give the helper up: its channel has ended, with a reason if it broke the protocol. Its exit is the event."""
        if reason:
            self._reason = self._reason or "the PMIx helper broke off: " + reason
            if self.pid and not self._closing:
                os.kill(self.pid, signal.SIGKILL)

    def _read_output(self) -> None:
        try:
            data = os.read(self._output, 65536) if self._output >= 0 else b""
        except BlockingIOError:
            return
        if not data:
            self._close_output()
        self._last_output = (self._last_output + data)[-KEPT_OUTPUT:]

    def _close_output(self) -> None:
        if self._output >= 0:
            self._poller.forget(self._output)
            os.close(self._output)
            self._output = -1


def _be_helper(*arguments: Any) -> None:
    """Run `helper.run` in the forked child; never return."""
    code = 1
    # Its descriptors are closed by number, and the numbers used again: an inherited object that is collected would close them.
    gc.freeze()
    try:
        from mpilaunch.daemon.pmix import helper

        helper.run(*arguments)
        code = 0
    except BaseException:
        # No exception may unwind into the daemon's loop, which this child has inherited. The daemon reports this output.
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(code)


def _describe_end(status: int, last_output: bytes) -> str:
    """Return how the helper ended, with the last lines of its output."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = {known.value: known.name for known in signal.Signals}.get(number, "a signal without a name")
        end = "was killed by %s (signal %d)" % (name, number)
    else:
        end = "ended with code %d" % os.WEXITSTATUS(status)
    lines = [line.strip() for line in last_output.decode("utf-8", "replace").split("\n") if line.strip()]
    quoted = " / ".join(lines[-REPORTED_LINES:])
    return "the PMIx helper %s%s" % (end, "; its last words: " + quoted if quoted else "")
