"""Finds out whether a node died before the first rank failed: ranks notice the end of its connections sooner than the head.

Every node is asked for a sign of life when a rank fails. The job's end waits for a node that gives none, at most for the
shorter of --heartbeat and --reconnect-timeout. A node that is lost then is to blame, unless the failed rank's own node broke
too, or is as silent: then it is the head that lost its network, or the rank that cut its node off. `job.verdict` has the rule
of time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import first_failure, is_suspect

NOTICE_SECONDS = 2.0
"""Seconds after which the user is told of the nodes that the end waits for."""


class Suspects:
    """The nodes of one job that may have died before its first failure."""

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        say: Callable[[str], None],
        node_done: Callable[[int], bool],
    ) -> None:
        self._daemons, self._ranks, self._state, self._say, self._node_done = daemons, ranks, state, say, node_done
        self._seconds = job.deadlines.heartbeat
        self._asked = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def ask(self) -> None:
        """Ask every node for a sign of life, since a rank has failed."""
        if self._timers:
            return
        for link in self._daemons.links.values():
            link.ping()
            self._seconds = min(self._seconds, link.replacement.seconds or self._seconds)
        self._asked = time.monotonic()
        loop = asyncio.get_running_loop()
        notice = min(NOTICE_SECONDS, self._seconds / 2)
        self._timers = [loop.call_later(notice, self._notice), loop.call_later(self._seconds, self._give_up)]

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def is_to_blame(self, link: NodeLink) -> bool:
        """Return whether a node that is lost now is what the first rank failed of."""
        first = first_failure(self._state)
        if first is None:
            return False
        own = self._daemons.links.get(self._ranks.place(first.rank).node)
        if own is None or own is link or not own.channel.living:
            return False
        if link.channel.end is None:  # the head cuts it off, since it is silent
            return own.channel.last_heard > self._asked and is_suspect(first.clock, link.channel.last_heard)
        broke = link.replacement.lost_at if link.replacement.lost_at >= link.channel.last_heard else time.monotonic()
        return is_suspect(first.clock, link.channel.last_heard, broke)

    def _silent(self) -> list[NodeLink]:
        """Return the nodes that have given no sign of life since the first failure."""
        first = first_failure(self._state)
        links = self._daemons.links.items()
        waiting = (link for index, link in links if not self._node_done(index))
        return [link for link in waiting if first is not None and is_suspect(first.clock, link.channel.last_heard)]

    def _notice(self) -> None:
        first, silent = first_failure(self._state), self._silent()
        if first is not None and silent:
            failure = f"rank {first.rank} on {self._ranks.node_name(first.rank)} {first.description}"
            names = fold(link.node.name for link in silent)
            self._say(f"{failure}; {names} has been silent since before it: waiting {self._seconds:g} s for a sign of life")

    def _give_up(self) -> None:
        for link in self._silent():
            link.give_up(f"no sign of life for {time.monotonic() - link.channel.last_heard:.0f} s")
