"""A lost channel made again: what runs on the node to reach its daemon, and the channel until it is the link's own.

The daemon goes on meanwhile, and so do its ranks (docs/wire.md). What cannot be reached within the node's time is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mpilaunch.agent import Agent, AgentFailure, Channel, ChannelEnd
from mpilaunch.head.daemons import FIRST_PAUSE, LONGEST_PAUSE
from mpilaunch.head.link import LAST_WORDS, LOST, NodeLink, settle
from mpilaunch.wire.frames import MARKER, WireError
from mpilaunch.wire.resume import RESUME_SIZE, resume_count, resume_frame

NO_DAEMON = 96
"""Exit code of ATTACH when there is no daemon, or none any more."""
ATTACH = (
    "import array,os,socket,struct,sys\n"
    "way=socket.socket(socket.AF_UNIX)\n"
    "try:\n"
    " way.connect('\\0mpilaunch-'+sys.argv[1])\n"
    " _,user,_=struct.unpack('3i',way.getsockopt(socket.SOL_SOCKET,socket.SO_PEERCRED,12))\n"
    " if user==os.geteuid():\n"
    "  way.sendmsg([b'.'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[0,1,2]))])\n"
    "  way.recv(1)\n"
    "except OSError:pass\n"
    f"sys.exit({NO_DAEMON})"
)
"""Run by `python3 -I -S -B -c` with the name of the daemon's socket: it gives the daemon its own stdin, stdout and stderr, and
nobody else who may listen there when the daemon is gone: such names are for all to see."""
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
    command = [python, "-I", "-S", "-B", "-c", ATTACH, link.attach_name]
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
        channel.write(resume_frame(link.received))
        await asyncio.wait([attachment.decided])
        return attachment.take(channel)
    finally:
        if not attachment.taken:
            channel.abort()


class Attachment:
    """A channel that is to take the place of a link's lost one. It is the `ChannelEvents` of that channel.

    Attributes:
        decided: done when the daemon has answered, or the channel has ended.
        taken: it is the link's own now.
    """

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._said = b""
        self._words = b""
        self._end: ChannelEnd | None = None
        self.taken = False
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, channel: Channel) -> tuple[str, bool]:
        """Make the channel the link's, now that all is decided; return as `_try`."""
        end = self._end
        if end is not None:
            if end.exit_code == NO_DAEMON:
                return GONE, True
            words = self._words.strip().decode("utf-8", "replace")
            return words or end.error or f"exit code {end.exit_code}", end.cause in HOPELESS
        start = self._said.index(MARKER) + len(MARKER)
        said, rest = self._said[start : start + RESUME_SIZE], self._said[start + RESUME_SIZE :]
        try:
            self._link.resume(channel, resume_count(said))
        except WireError as error:
            return str(error), True
        self.taken = True
        if rest:
            self._link.data_received(rest)
        return "", False

    # ChannelEvents

    def data_received(self, data: bytes) -> None:
        """Take the daemon's answer, and keep what comes behind it."""
        if self.taken:
            self._link.data_received(data)
            return
        self._said += data
        start = self._said.find(MARKER)
        if start >= 0 and len(self._said) >= start + len(MARKER) + RESUME_SIZE:
            settle(self.decided)

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
        settle(self.decided)
        if self.taken:
            self._link.closed(end)
