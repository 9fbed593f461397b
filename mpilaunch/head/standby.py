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

from mpilaunch.agent import AgentOptions, ChannelEvents
from mpilaunch.allocation import Node
from mpilaunch.errors import LaunchError
from mpilaunch.records import replace
from mpilaunch.relayed import AskingChannel, Frames

TAKE, DOWN = 1, 2
"""What a launch asks for: the daemon that the data stands for; that nothing stands by any more."""
YES, NO = 11, 12
"""What the keeper answers. All else is as in `relayed`."""
REACHED_BY = ("HOME", "KUBECONFIG", "MPILAUNCH_KUBECTL")
TEMPLATE_BY = ("PATH", "PWD")
"""Variables that decide where a node's name leads: always, and where the agent is a program of the user's."""
CONFIGURED_BY = ("~/.ssh/config", "~/.kube/config")
"""Files that do so too, beside those of KUBECONFIG."""
LONGEST_PATH = 107
"""Bytes that the path of a socket may have (unix(7))."""
TAKE_PATIENCE = 5.0
"""Seconds in which the keeper has to answer: a little longer than it waits for a daemon that is on its way."""
DOWN_PATIENCE = 15.0
"""Seconds in which it has to end what stands by."""


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
    path = os.path.join(folder, "standby")
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"{path} is longer than the {LONGEST_PATH} bytes that a socket's path may have")
    return path


class Requests:
    """What stands for a daemon: two are the same when nothing that they were started by differs.

    Args:
        options: what the user says to every agent.
        command: that starts a daemon.
        bundle: that it is sent.
    """

    def __init__(self, options: AgentOptions, command: Sequence[str], bundle: bytes) -> None:
        files = [*map(os.path.expanduser, CONFIGURED_BY), *os.environ.get("KUBECONFIG", "").split(":")]
        surroundings = [os.environ.get(name) for name in REACHED_BY], [_state(file) for file in files]
        # Whether the daemon calls back, or who connects to it, changes how it is reached, and nothing of what it is.
        asked = replace(options, call_back=(), connectors=None)
        self._of_all = repr((asked, list(command), binascii.crc32(bundle), surroundings))

    def of(self, node: Node) -> bytes:
        """Return the request for a node's daemon."""
        reached = node.name, node.agent, node.user, node.port, node.namespace, node.container
        program = [os.environ.get(name) for name in TEMPLATE_BY] if " " in node.agent else []
        return f"{reached!r} {program!r} {self._of_all}".encode()


def _state(file: str) -> tuple[int, ...]:
    """Return what changes with a file."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Standby:
    """The way to the keeper."""

    def __init__(self, path: str, requests: Requests) -> None:
        self._path, self._requests = path, requests
        self._lost = False

    @classmethod
    def found(cls, options: AgentOptions, command: Sequence[str], bundle: bytes) -> Standby | None:
        """Return the way to the keeper, None where there is none; the arguments are those of Requests."""
        with suppress(OSError):
            path = socket_path()
            if os.path.exists(path):
                return cls(path, Requests(options, command, bundle))
        return None

    async def take(self, node: Node, events: ChannelEvents) -> AskingChannel | None:
        """Return the channel to a daemon that stands by on a node, None when there is none."""
        if self._lost:
            return None
        try:
            channel = AskingChannel(events, YES, "the process that kept its daemon has gone")
            await asyncio.get_running_loop().create_unix_connection(lambda: channel, self._path)
            answer, _ = await asyncio.wait_for(channel.ask(TAKE, self._requests.of(node)), TAKE_PATIENCE)
        except (OSError, asyncio.TimeoutError):
            self._lost = True
            return None
        return channel if answer == YES else None


class _Farewell(Frames):
    """A connection that waits for its end.

    Attributes:
        granted: the keeper has said yes.
        ended: the connection has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.granted = False
        self.ended = asyncio.Event()

    def frame(self, kind: int, data: bytes) -> None:
        """Take the answer."""
        self.granted = kind == YES

    def connection_lost(self, error: Exception | None) -> None:
        """Keep the news."""
        self.ended.set()


def take_down() -> bool:
    """End all that stands by, and return when it has gone, and the keeper if it serves no launch; False when there was none.

    Raises LaunchError when the keeper does not answer.
    """

    async def ask() -> bool:
        try:
            path = socket_path()
            _, farewell = await asyncio.get_running_loop().create_unix_connection(_Farewell, path)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                os.unlink(path)  # its keeper was killed
            return False
        except OSError:
            return False
        pid, _, _ = farewell.peer
        farewell.tell(DOWN)
        try:
            await asyncio.wait_for(farewell.ended.wait(), DOWN_PATIENCE)
        except asyncio.TimeoutError:
            told = f"process {pid}, which keeps the daemons, does not answer"
            raise LaunchError("standby-failed", told, hint=f"end it: kill -9 {pid}; its daemons go too") from None
        return farewell.granted

    return asyncio.run(ask())
