"""Listens for requests about a job, from its start to its end; what serves them is loaded by the first connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from mpilaunch.errors import LaunchError
from mpilaunch.head.control import place
from mpilaunch.head.control.subject import Subject

if TYPE_CHECKING:
    from mpilaunch.head.control.connection import ControlConnection

LAST_ANSWERS = 1.0
"""Seconds in which those who wait for the end of the job must take the answer."""


class Control:
    """The socket of one head, open inside its `async with` block; without a place for it, the job runs without one."""

    def __init__(self, subject: Subject, note: Callable[[str], None]) -> None:
        self._subject, self._note = subject, note
        self._serving: set[asyncio.Task[None]] = set()
        self._entry: place.Entry | None = None
        self._server: asyncio.AbstractServer | None = None

    async def __aenter__(self) -> None:
        job = self._subject.job
        try:
            listening, self._entry = place.listen(job.run_id)
        except OSError as error:
            if job.output.verbose:
                self._note(f"'mpilaunch jobs' does not list this job: no socket for it: {error.strerror or error}")
        else:
            self._server = await asyncio.get_running_loop().create_unix_server(self._connected, sock=listening)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._subject.end(error if isinstance(error, LaunchError) else None)
        if self._server is not None:
            self._server.close()
        if self._entry is not None:
            place.remove(self._entry)
        if self._serving:
            await asyncio.wait(self._serving, timeout=LAST_ANSWERS)

    def _connected(self) -> ControlConnection:
        from mpilaunch.head.control.connection import ControlConnection  # most jobs end without a request

        return ControlConnection(self._subject, self._serving)
