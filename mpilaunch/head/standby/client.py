"""Daemons that stand by on the nodes for launches to come (`mpilaunch --up`), as a launch sees them: ask for one, talk with it.

They are kept by a process of the user's, `head.keeper`. Where its socket is, and the secret by which both sides prove
themselves, is written in a record that only the user can read (`head.standby_record`). A daemon is handed out only for the
very same node, agent, options, python and bundle; where there is none, the launch starts one as ever. One connection is one
daemon, and ends with it.
"""

from __future__ import annotations

import asyncio
import binascii
import os
from collections.abc import Sequence

from mpilaunch.agent import AgentOptions, ChannelEvents
from mpilaunch.errors import LaunchError
from mpilaunch.head.standby.record import Record, read_records, remove_record
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import FrameProtocol, RequestChannel
from mpilaunch.wire.challenge import Caller

TAKE, DOWN = 1, 2
"""What a launch asks for: the daemon that the data stands for; that nothing stands by any more."""
YES, NO = 11, 12
"""What the keeper answers. All else is as in `relayed`."""
NONCE, PROOF = 16, 17
"""What both say first, as `wire.challenge` has it: the keeper NONCE, the launch PROOF, the keeper PROOF."""
REACHED_BY = ("HOME", "KUBECONFIG", "MPILAUNCH_KUBECTL")
TEMPLATE_BY = ("PATH", "PWD")
"""Variables that decide where a node's name leads: always, and where the agent is a program of the user's."""
CONFIGURED_BY = ("~/.ssh/config", "~/.kube/config")
"""Files that do so too, beside those of KUBECONFIG."""
TAKE_PATIENCE = 5.0
"""Seconds in which the keeper has to answer: a little longer than it waits for a daemon that is on its way."""
DOWN_PATIENCE = 15.0
"""Seconds in which it has to end what stands by."""


class _Proving(FrameProtocol):
    """The side of a launch, which proves itself first, and goes on only with a keeper that has done so too.

    Attributes:
        proved: done when both have: True; with the end of the connection: False.
    """

    def prove_with(self, secret: bytes) -> None:
        """Use this secret."""
        self._caller: Caller | None = Caller(secret)
        self.proved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the keeper's part, and then what the connection is for."""
        if self._caller is None:
            super().frame_received(kind, data)
        elif kind == NONCE:
            self.send_frame(PROOF, self._caller.answer(data))
        elif kind == PROOF and self._caller.check(data):
            self._caller = None
            settle(self.proved, True)
        else:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell who waits."""
        settle(self.proved, False)
        super().connection_lost(error)


class _DaemonChannel(_Proving, RequestChannel):
    """The channel to a daemon that stands by."""


async def _connect(channel: _Proving, record: Record) -> None:
    """Connect to the keeper; raises OSError, and asyncio.TimeoutError, where it is not there or does not prove itself."""
    channel.prove_with(record.secret)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, record.socket)
    _, user, _ = channel.peer_credentials
    if user != os.geteuid() or not await asyncio.wait_for(channel.proved, TAKE_PATIENCE):
        channel.transport.abort()
        raise ConnectionRefusedError("what answers there is not this user's keeper")


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
        asked = options._replace(call_back=(), connectors=None)
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

    def __init__(self, record: Record, requests: Requests) -> None:
        self._record, self._requests = record, requests
        self._lost = False

    @classmethod
    def found(cls, options: AgentOptions, command: Sequence[str], bundle: bytes) -> Standby | None:
        """Return the way to the keeper, None where there is none; the arguments are those of Requests."""
        for record in read_records():
            if os.path.exists(record.socket):
                return cls(record, Requests(options, command, bundle))
        return None

    async def take(self, node: Node, events: ChannelEvents) -> RequestChannel | None:
        """Return the channel to a daemon that stands by on a node, None when there is none."""
        if self._lost:
            return None
        try:
            channel = _DaemonChannel(events, YES, "the process that kept its daemon has gone")
            await _connect(channel, self._record)
            answer, _ = await asyncio.wait_for(channel.request(TAKE, self._requests.of(node)), TAKE_PATIENCE)
        except (OSError, asyncio.TimeoutError):
            self._lost = True
            return None
        return channel if answer == YES else None


class _Goodbye(FrameProtocol):
    """A connection that waits for its end.

    Attributes:
        granted: the keeper has said yes.
        ended: the connection has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.granted = False
        self.ended = asyncio.Event()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the answer."""
        self.granted = kind == YES

    def connection_lost(self, error: Exception | None) -> None:
        """Keep the news."""
        self.ended.set()


class _Farewell(_Proving, _Goodbye):
    """One whose keeper has proved itself before."""


def take_down() -> bool:
    """End all that stands by, and return when it has gone, and the keeper if it serves no launch; False when there was none.

    Raises LaunchError when a keeper does not answer.
    """
    # Not `any`, which would stop at the first: one may have taken another place than its predecessor.
    return True in [asyncio.run(_take_down(record)) for record in read_records()]


async def _take_down(record: Record) -> bool:
    farewell = _Farewell()
    try:
        await _connect(farewell, record)
    except asyncio.TimeoutError:
        raise _silent(farewell.peer_credentials[0]) from None
    except OSError:
        remove_record(record)  # its keeper was killed
        return False
    farewell.send_frame(DOWN)
    try:
        await asyncio.wait_for(farewell.ended.wait(), DOWN_PATIENCE)
    except asyncio.TimeoutError:
        raise _silent(farewell.peer_credentials[0]) from None
    return farewell.granted


def _silent(pid: int) -> LaunchError:
    message = f"process {pid}, which keeps the daemons, does not answer"
    return LaunchError("standby-failed", message, hint=f"end it: kill -9 {pid}; its daemons go too")
