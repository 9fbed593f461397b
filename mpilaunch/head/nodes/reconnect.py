"""A lost channel made again: what runs on the node to reach its daemon, and the channel until it is the link's own.

The daemon goes on meanwhile, and so do its ranks (docs/wire.md). What cannot be reached within the node's time is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mpilaunch.agent import Agent, AgentFailure, Channel, ChannelEnd
from mpilaunch.head.nodes.link import FIRST_PAUSE, LAST_WORDS, LONGEST_PAUSE, LOST, NodeLink
from mpilaunch.wire.challenge import ANSWER_SIZE, NONCE_SIZE, PROOF_SIZE, Caller
from mpilaunch.wire.frames import MARKER, WireError
from mpilaunch.wire.resume import RESUME_SIZE, resume_count, resume_frame

NO_DAEMON = 96
"""Exit code of ATTACH when there is no daemon, or none any more."""
RELAY_SECONDS = 20
"""Seconds in which ATTACH gives up a daemon, or a head, that does not prove itself."""
ATTACH = (
    "import array,os,select,signal,socket,struct,sys\n"
    "for name in 'HUP INT QUIT USR1 USR2 ALRM TERM TSTP XCPU'.split():\n"
    " signal.signal(getattr(signal,'SIG'+name),signal.SIG_IGN)\n"
    "way=socket.socket(socket.AF_UNIX)\n"
    f"way.settimeout({RELAY_SECONDS})\n"
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
    " way.connect(sys.argv[1])\n"
    " _,user,_=struct.unpack('3i',way.getsockopt(socket.SOL_SOCKET,socket.SO_PEERCRED,12))\n"
    " if user==os.geteuid():\n"
    f"  os.write(1,{MARKER!r}+exactly(way.recv,{NONCE_SIZE}))\n"
    f"  way.sendall(exactly(head,{ANSWER_SIZE}))\n"
    f"  os.write(1,exactly(way.recv,{PROOF_SIZE}))\n"
    "  way.sendmsg([b'.'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[0,1,2]))])\n"
    "  way.settimeout(None)\n"
    "  way.recv(1)\n"
    "except OSError:pass\n"
    f"sys.exit({NO_DAEMON})"
)
"""Run by `python3 -I -S -B -c` with the path of the daemon's socket. It carries what daemon and head prove to each other,
which it cannot prove itself, and then gives the daemon its own stdin, stdout and stderr: who listens there without the secret
gets a channel that the head does not use. Signals that a batch system sends to every process do not end it."""
HOPELESS = ("pod-unknown", "pod-completed", "container-unknown", "python-missing")
"""Causes that say that the node's daemon is no more. Twice: an agent may need the first to look for a pod by other means, and
an attempt that was given up may take the place of the next."""
GONE = "its daemon is gone"
ATTEMPTS, SHORTEST_ATTEMPT = 3, 2.0
"""How many attempts that hang a node's time has room for, and the least seconds of one: what was sent to a link that is down is
sent again when it has long come back."""


async def reconnect(
    link: NodeLink, why_lost: str, agent: Agent, python: str, contacts: asyncio.Semaphore, say: Callable[[str], None]
) -> None:
    """Make the channel of a node again, or give the node up.

    Args:
        why_lost: what is known of it, "" for nothing but the exit code.
        contacts: bounds how many nodes are contacted at a time.
    """
    if not link.attach_path:
        why = link.why_no_attach or "it did not say where it can be reached again"
        link.give_up(f"{why_lost or link.how_ended}; {why}")
        return
    command = [python, "-I", "-S", "-B", "-c", ATTACH, link.attach_path]
    until = link.lost_at + link.reconnect_time
    longest = max(SHORTEST_ATTEMPT, link.reconnect_time / ATTEMPTS)
    ended = why_lost or link.how_ended
    pause, why, hopeless = FIRST_PAUSE, "", 0
    if time.monotonic() - link.lost_at > pause:
        await asyncio.sleep(pause)  # it was lost again before anything came
    while True:
        try:
            await asyncio.wait_for(contacts.acquire(), max(0.0, until - time.monotonic()))
            try:
                left = min(longest, until - time.monotonic())
                why, is_hopeless = await asyncio.wait_for(_try(link, agent, command), max(0.0, left))
            finally:
                contacts.release()
        except asyncio.TimeoutError:
            why, is_hopeless = why or "no answer", False
        if not why:
            # It lives, so what the exit code said was not of the daemon.
            say(f"{link.node.name}: {why_lost or LOST}; connected again after {time.monotonic() - link.lost_at:.1f} s")
            return
        hopeless = hopeless + 1 if is_hopeless else 0
        if hopeless == 2:
            link.give_up(ended if why == GONE and not why_lost and ended != LOST else f"{ended}; {why}")
            return
        if time.monotonic() + pause >= until:
            link.give_up(f"{ended}; not reached again within {link.reconnect_time:g} s: {why}")
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _try(link: NodeLink, agent: Agent, command: list[str]) -> tuple[str, bool]:
    """Try once; return why the channel was not made, "" when it was, and whether that says that it never will be."""
    attachment = Attachment(link)
    try:
        channel = await agent.open(link.node, command, attachment)
    except AgentFailure as failure:
        return failure.detail or failure.cause, failure.cause in HOPELESS
    try:
        caller = Caller(link.attach_secret)
        channel.write(caller.answer(await attachment.read(NONCE_SIZE)))
        if not caller.check(await attachment.read(PROOF_SIZE)):
            return "what answers there is not the daemon of this job", True
        channel.write(resume_frame(link.received))
        count = resume_count(await attachment.read(RESUME_SIZE))
        attachment.take(channel, count)
        return "", False
    except ConnectionError:
        return attachment.why_not()
    except WireError as error:
        return str(error), True
    finally:
        if not attachment.taken:
            channel.abort()


class Attachment:
    """A channel that is to take the place of a link's lost one. It is the `ChannelEvents` of that channel.

    Attributes:
        taken: it is the link's own now.
    """

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._data = b""
        self._words = b""
        self._end: ChannelEnd | None = None
        self._marked = False
        self._news = asyncio.Event()
        self.taken = False

    async def read(self, size: int) -> bytes:
        """Return so many bytes that came behind the marker; raises ConnectionError when the channel ends before."""
        while not self._marked or len(self._data) < size:
            if self._end is not None:
                raise ConnectionError
            self._news.clear()
            await self._news.wait()
        data, self._data = self._data[:size], self._data[size:]
        return data

    def why_not(self) -> tuple[str, bool]:
        """Return why the channel has ended, as `_try`."""
        end = self._end
        if end is None or end.exit_code == NO_DAEMON:
            return GONE, True
        words = self._words.strip().decode("utf-8", "replace")
        return words or end.error or f"exit code {end.exit_code}", end.cause in HOPELESS

    def take(self, channel: Channel, count: int) -> None:
        """Make the channel the link's, of which the daemon has received `count` bytes; raises WireError."""
        self._link.resume(channel, count)
        self.taken = True
        if self._data:
            self._link.data_received(self._data)
        if self._end is not None:
            self._link.closed(self._end)

    # ChannelEvents

    def data_received(self, data: bytes) -> None:
        """Take the daemon's answer, and keep what comes behind it."""
        if self.taken:
            self._link.data_received(data)
            return
        self._data += data
        if not self._marked:
            banner, marker, rest = self._data.partition(MARKER)
            self._marked = bool(marker)
            self._data = rest if marker else banner[1 - len(MARKER) :]
        self._news.set()

    def stderr_received(self, data: bytes) -> None:
        """Keep the last words."""
        if self.taken:
            self._link.stderr_received(data)
        else:
            self._words = (self._words + data)[-LAST_WORDS:]

    def pause_writing(self) -> None:
        """As for a link: credits bound what is on its way to a node."""

    def resume_writing(self) -> None:
        """As in `pause_writing`."""

    def closed(self, end: ChannelEnd) -> None:
        """The channel has ended."""
        self._end = end
        self._news.set()
        if self.taken:
            self._link.closed(end)
