"""Which independent hosts are at work, and what each does: told at an interrupt, and shown on a terminal if it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from itertools import islice

from mpilaunch.head.ending.host_ends import HostState
from mpilaunch.hosts.nodeset import fold

SHOWN_AFTER, SHOWN_EVERY = 2.0, 0.5
"""Seconds until a terminal shows how many hosts are done, and between its changes."""
NAMED = 20
"""Hosts at work that it names."""


class HostsAtWork:
    """The hosts at work.

    Attributes:
        states: the name of each and what it does, by its index: one host may be named twice.

    Args:
        show: shows a line on the terminal, if there is one, in place of the one before.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.states: dict[int, HostState] = {}
        self._show = show

    def show(self, total: int, left: Sized) -> None:
        """Begin to show how many of so many hosts are done, until none is left."""
        asyncio.get_running_loop().call_later(SHOWN_AFTER, self._update, total, left)

    def _update(self, total: int, left: Sized) -> None:
        if not left:
            self._show("")
            return
        more = len(self.states) - NAMED
        named = fold(host for host, _ in islice(self.states.values(), NAMED)) + (f" and {more} more" if more > 0 else "")
        self._show(f"{total - len(left)}/{total}, waiting for {named}")
        asyncio.get_running_loop().call_later(SHOWN_EVERY, self._update, total, left)
