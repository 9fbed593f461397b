"""Asks the nodes for the C stacks of ranks, which takes longer than another look. A node that does not tell in time holds
nothing up. One request is under way at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mpilaunch.asyncio_timeouts import wait_at_most
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.ranks import Ranks
from mpilaunch.wire.frames import WireError

if TYPE_CHECKING:
    from mpilaunch.head.nodes.link import NodeLink
    from mpilaunch.job.hangs.native import Backtrace

LONGEST_READ = 18.0
"""Seconds in which the nodes may tell; a daemon gives up after 15."""


class Backtraces:
    """The C stacks of the ranks of one job."""

    def __init__(self, daemons: Daemons, ranks: Ranks) -> None:
        self._daemons, self._ranks = daemons, ranks
        self._turn = asyncio.Lock()
        self._unanswered: Counter[int] = Counter()
        self._awaited: set[int] = set()
        self._found: dict[int, Backtrace] = {}
        self._all_told = asyncio.Event()
        self._closed = False

    async def read(self, chosen: Collection[int]) -> dict[int, Backtrace]:
        """Return what the nodes tell of these ranks, which run."""
        async with self._turn:
            if self._closed or not chosen:
                return {}
            self._awaited, self._found = set(chosen), {}
            self._all_told.clear()
            of_node: defaultdict[int, list[int]] = defaultdict(list)
            for rank in chosen:
                of_node[self._ranks.place(rank).node].append(rank)
                self._unanswered[rank] += 1
            for index, ranks in of_node.items():
                self._daemons.links[index].send({"type": "backtrace", "ranks": ranks})
            await wait_at_most(LONGEST_READ, self._all_told.wait())
            return self._found

    def take(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take the stacks of a rank; raises WireError for another node's, and for one that was not asked for."""
        from mpilaunch.job.hangs.native import Backtrace  # most jobs end before

        rank = message["rank"]
        self._ranks.check_rank(rank, link.node.index)
        if not self._unanswered[rank]:
            raise WireError("'backtrace' that was not asked for")
        self._unanswered[rank] -= 1
        if rank in self._awaited and not self._unanswered[rank]:  # else it answers an earlier request
            self._found[rank] = Backtrace.read(message)
            self._awaited.discard(rank)
            if not self._awaited:
                self._all_told.set()

    def close(self) -> None:
        """Stop waiting for nodes."""
        self._closed = True
        self._all_told.set()
