"""Faults of our own: the first one ends the job, and is raised when nothing of the job is left. No node is blamed for them.

A fault shows in a handler of what a node sends (`head.nodes.link`), in a callback of the loop, or in the daemon of a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mpilaunch.errors import DaemonFault
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.text import printable

LONGEST_TRACEBACK = 16 << 10
"""Characters kept of the traceback of a daemon."""


class Faults:
    """The faults of one launch.

    Attributes:
        first: the first fault, None while there is none.
        starting: the task that starts the job, None before and after; a fault cancels it.

    Args:
        end: ends the job when its ranks have started; called with None.
    """

    def __init__(self, end: Callable[[None], None]) -> None:
        self.first: BaseException | None = None
        self.starting: asyncio.Task[None] | None = None
        self._end = end

    def take(self, error: BaseException) -> None:
        """Record a fault, and end the job."""
        self.first = self.first or error
        if self.starting is not None:
            self.starting.cancel()
        else:
            self._end(None)

    def take_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what a timer or another callback of the loop has raised, as its exception handler; asyncio reports the rest."""
        if "handle" in context and "exception" in context:
            self.take(context["exception"])
        else:
            loop.default_exception_handler(context)

    def take_daemon(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take the traceback of a daemon, which has ended itself and its ranks."""
        lines = message["text"][-LONGEST_TRACEBACK:].splitlines()
        self.take(DaemonFault(link.node.name, [printable(line) for line in lines]))
        link.give_up("its daemon has failed")
