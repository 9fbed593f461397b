"""Daemons that stand by on the nodes for launches to come (`mpilaunch --up`), as a launch sees them: ask for one, talk with it.

They are kept by a process of the user's, `head.keeper`, at a socket in a directory that is the user's alone. A daemon is handed
out only for the very same node, agent, options, python and bundle; where there is none, the launch starts one as ever. One
connection is one daemon, and ends with it.
"""

from __future__ import annotations

import asyncio
import binascii
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.allocation import Node
from mpilaunch.relayed import RelayedChannel

TAKE, DOWN = 1, 2
"""What a launch asks for: the daemon that the data stands for; that nothing stands by any more."""
YES, NO = 11, 12
"""What the keeper answers. All else is as in `relayed`."""
REACHED_BY = ("HOME", "KUBECONFIG")
"""Variables that decide where a node's name leads."""


def socket_path(make: bool = False) -> str:
    """Return where the keeper listens; raises OSError when there is no such place, or not for the user alone.

    Args:
        make: make the directory.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    has_own = os.path.isabs(base) and os.path.isdir(base)
    folder = os.path.join(base, "mpilaunch") if has_own else f"/tmp/mpilaunch-{os.geteuid()}"
    if make:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a directory of this user's alone")
    return os.path.join(folder, "standby")


def request_for(node: Node, options: AgentOptions, command: Sequence[str], bundle: bytes) -> str:
    """Return what stands for a daemon: two are the same when nothing that they were started by differs."""
    reached = node.name, node.agent, node.user, node.port, node.namespace, node.container, options
    return repr((reached, command, binascii.crc32(bundle), [os.environ.get(name) for name in REACHED_BY]))


class Standby:
    """The way to the keeper, where there is one.

    Args:
        options: what the user says to every agent.
    """

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._path = ""
        with suppress(OSError):
            path = socket_path()
            self._path = path if os.path.exists(path) else ""

    async def take(self, node: Node, command: Sequence[str], bundle: bytes, events: ChannelEvents) -> StandbyChannel | None:
        """Return the channel to a daemon that stands by on a node, None when there is none."""
        if not self._path:
            return None
        try:
            _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: StandbyChannel(events), self._path)
        except OSError:
            self._path = ""
            return None
        return channel if await channel.ask(TAKE, request_for(node, self._options, command, bundle)) else None


class StandbyChannel(RelayedChannel):
    """A daemon that has been handed out, as an agent's channel."""

    def __init__(self, events: ChannelEvents) -> None:
        super().__init__(None, "the process that kept its daemon has gone")
        self._taker = events
        self._answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def ask(self, what: int, request: str = "") -> bool:
        """Ask the keeper; return its answer. The daemon is ours from then on, or there is none."""
        self.tell(what, request.encode())
        return await self._answer

    def frame(self, kind: int, data: bytes) -> None:
        """Take the answer, and hand on what the daemon says."""
        if self._answer.done():
            super().frame(kind, data)
        else:
            self.events = self._taker if kind == YES else None
            self._answer.set_result(kind == YES)

    def connection_lost(self, error: Exception | None) -> None:
        """Take it for an answer, or tell the end."""
        if not self._answer.done():
            self._answer.set_result(False)
        super().connection_lost(error)


class _Farewell:
    """The events of a connection that only waits for its end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None: ...

    def stderr_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def closed(self, end: ChannelEnd) -> None:
        self.ended.set()


def take_down() -> bool:
    """End all that stands by, and return when it has gone, and the keeper if it serves no launch; False when there was none."""

    async def ask() -> bool:
        loop, farewell = asyncio.get_running_loop(), _Farewell()
        try:
            path = socket_path()
            _, channel = await loop.create_unix_connection(lambda: StandbyChannel(farewell), path)
        except ConnectionRefusedError:
            os.unlink(path)  # its keeper was killed
            return False
        except OSError:
            return False
        taken = await channel.ask(DOWN)
        if taken:
            await farewell.ended.wait()
        return taken

    return asyncio.run(ask())
