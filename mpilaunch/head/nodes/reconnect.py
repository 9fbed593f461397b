"""Replace a lost channel: run ATTACH on the node to reach its daemon, and prove both sides before the link uses the channel.

Meanwhile the daemon and its ranks continue (docs/wire.md). A node that is not reached within `--reconnect-timeout` is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mpilaunch.agent import Agent, AgentFailure, Channel, ChannelEnd, python_command
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.head.nodes.link import FIRST_PAUSE, LONGEST_PAUSE, LOST, NodeLink
from mpilaunch.head.nodes.link_channel import LAST_OUTPUT
from mpilaunch.wire.challenge import ANSWER_SIZE, NONCE_SIZE, PROOF_SIZE, Caller
from mpilaunch.wire.frames import MARKER, WireError
from mpilaunch.wire.session import RESUME_SIZE, resume_count, resume_frame

NO_DAEMON = 96
"""Exit code of ATTACH when no daemon answers."""
RELAY_SECONDS = 20
"""Seconds after which ATTACH gives up a daemon or a head that does not prove itself."""
ATTACH = (
    "import array,os,select,signal,socket,struct,sys\n"
    "for name in 'HUP INT QUIT USR1 USR2 ALRM TERM TSTP XCPU'.split():\n"
    " signal.signal(getattr(signal,'SIG'+name),signal.SIG_IGN)\n"
    "daemon=socket.socket(socket.AF_UNIX)\n"
    f"daemon.settimeout({RELAY_SECONDS})\n"
    "def exactly(read,size):\n"
    " data=b''\n"
    " while len(data)<size:\n"
    "  more=read(size-len(data))\n"
    "  if not more:raise OSError('it has ended')\n"
    "  data+=more\n"
    " return data\n"
    "def head(size):\n"
    f" if not select.select([0],[],[],{RELAY_SECONDS})[0]:raise OSError('no answer')\n"
    " return os.read(0,size)\n"
    "try:\n"
    " os.chdir(os.path.dirname(sys.argv[1]))\n"  # the path may be longer than the address of a socket
    " daemon.connect(os.path.basename(sys.argv[1]))\n"
    " _,user,_=struct.unpack('3i',daemon.getsockopt(socket.SOL_SOCKET,socket.SO_PEERCRED,12))\n"
    " if user==os.geteuid():\n"
    f"  os.write(1,{MARKER!r}+exactly(daemon.recv,{NONCE_SIZE}))\n"
    f"  daemon.sendall(exactly(head,{ANSWER_SIZE}))\n"
    f"  os.write(1,exactly(daemon.recv,{PROOF_SIZE}))\n"
    "  daemon.sendmsg([b'.'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[0,1,2]))])\n"
    "  daemon.settimeout(None)\n"
    "  daemon.recv(1)\n"
    "except OSError:pass\n"
    f"sys.exit({NO_DAEMON})"
)
"""Run by `python_command` with the path of the daemon's socket. It relays the proofs between daemon and head, and then
passes its stdin, stdout and stderr to the daemon. A process that listens there without the secret only gets a channel that the
head does not use. Signals that a batch system sends to every process do not end it."""
HOPELESS = ("pod-unknown", "pod-completed", "container-unknown", "python-missing")
"""Causes that mean that the node's daemon no longer exists. They must occur twice in a row: after the first an agent may look
for a pod in another way, or the result may belong to an abandoned attempt."""
GONE = "its daemon is gone"
ATTEMPTS, SHORTEST_ATTEMPT, STARTS = 3, 2.0, 2
"""Number of hanging attempts that fit into a node's reconnect time; the shortest time of one, in seconds, and in multiples of
the time that the node took to start. A new attempt may succeed where the old one still waits for a retransmission over a
network that was down, but over a slow network an attempt needs its time."""


async def reconnect(
    link: NodeLink, loss: str, agent: Agent, python: str, contacts: asyncio.Semaphore, say: Callable[[str], None]
) -> None:
    """Replace the channel of a node, or give the node up.

    Args:
        loss: why the channel was lost, "" when only the exit code is known.
    """
    ended = loss or link.how_ended
    if not link.replacement.path:
        link.give_up(f"{ended}; {link.replacement.error or 'it did not say where it can be reached again'}")
        return
    command = python_command(python, "mpilaunch attach", ATTACH, link.replacement.path)
    until = link.replacement.lost_at + link.replacement.seconds
    longest = max(SHORTEST_ATTEMPT, link.replacement.seconds / ATTEMPTS, STARTS * link.start_seconds)
    pause, failure, hopeless = FIRST_PAUSE, "", 0
    if time.monotonic() - link.replacement.lost_at > pause:
        await asyncio.sleep(pause)  # the last replacement was lost before it carried anything
    while True:
        try:
            async with timeout(until - time.monotonic()):
                await contacts.acquire()
            try:
                async with timeout(min(longest, until - time.monotonic())):
                    failure, is_hopeless = await _try(link, agent, command)
            finally:
                contacts.release()
        except asyncio.TimeoutError:
            failure, is_hopeless = failure or "no answer", False
        if not failure:
            # The daemon lives, so the exit code was not the daemon's.
            say(f"{link.node.name}: {loss or LOST}; connected again after {time.monotonic() - link.replacement.lost_at:.1f} s")
            return
        hopeless = hopeless + 1 if is_hopeless else 0
        if hopeless == 2:
            link.give_up(ended if failure == GONE and not loss and ended != LOST else f"{ended}; {failure}")
            return
        pause = FIRST_PAUSE if is_hopeless else pause  # what must occur twice is not waited for
        if time.monotonic() + pause >= until:
            link.give_up(f"{ended}; not reached again within {link.replacement.seconds:g} s: {failure}")
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _try(link: NodeLink, agent: Agent, command: list[str]) -> tuple[str, bool]:
    """Try once; return why it failed, or "", and whether that means that the daemon no longer exists."""
    attachment = Attachment(link)
    try:
        channel = await agent.open(link.node, command, attachment)
    except AgentFailure as failure:
        return failure.detail or failure.cause, failure.cause in HOPELESS
    try:
        caller = Caller(link.replacement.secret)
        channel.write(caller.answer(await attachment.read(NONCE_SIZE)))
        if not caller.check(await attachment.read(PROOF_SIZE)):
            return "another process than the daemon of this job answers", True
        channel.write(resume_frame(link.session.received))
        count = resume_count(await attachment.read(RESUME_SIZE))
        attachment.take(channel, count)
        return "", False
    except ConnectionError:
        return attachment.failure()
    except WireError as error:
        return str(error), True
    finally:
        if not attachment.taken:
            channel.abort()


class Attachment:
    """A channel that shall replace a link's lost one; the link uses it once it is `taken`."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._data = self._stderr = b""
        self._end: ChannelEnd | None = None
        self._news = asyncio.Event()
        self.taken = self._marked = False

    async def read(self, size: int) -> bytes:
        """Return the next `size` bytes after the marker; raises ConnectionError when the channel ends before them."""
        while not self._marked or len(self._data) < size:
            if self._end is not None:
                raise ConnectionError
            self._news.clear()
            await self._news.wait()
        data, self._data = self._data[:size], self._data[size:]
        return data

    def failure(self) -> tuple[str, bool]:
        """Return why the channel has ended, like `_try`."""
        end = self._end
        if end is None or end.exit_code == NO_DAEMON:
            return GONE, True
        output = self._stderr.strip().decode("utf-8", "replace")
        return output or end.error or f"exit code {end.exit_code}", end.cause in HOPELESS

    def take(self, channel: Channel, count: int) -> None:
        """Give the channel to the link, of whose bytes the daemon has received `count`; raises WireError."""
        self._link.resume(channel, count)
        self.taken = True
        if self._data:
            self._link.channel.data_received(self._data)
        if self._end is not None:
            self._link.channel.closed(self._end)

    # ChannelEvents

    def data_received(self, data: bytes) -> None:
        """Buffer the daemon's answer, or pass data on to the link."""
        if self.taken:
            self._link.channel.data_received(data)
            return
        self._data += data
        if not self._marked:
            banner, marker, rest = self._data.partition(MARKER)
            self._marked = bool(marker)
            self._data = rest if marker else banner[1 - len(MARKER) :]
        self._news.set()

    def stderr_received(self, data: bytes) -> None:
        if self.taken:
            self._link.channel.stderr_received(data)
        else:
            self._stderr = (self._stderr + data)[-LAST_OUTPUT:]

    def pause_writing(self) -> None:
        """Do nothing: an attempt sends only a few bytes."""

    resume_writing = pause_writing

    def closed(self, end: ChannelEnd) -> None:
        self._end = end
        self._news.set()
        if self.taken:
            self._link.channel.closed(end)
