"""The head's side of one connection: it must be this user's, sends one request, and gets one answer."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from mpilaunch.head.control import answers, requests
from mpilaunch.head.control.requests import ANSWER, REFUSED, REQUEST, BadMessage
from mpilaunch.head.tasks import start
from mpilaunch.relay import FrameProtocol

if TYPE_CHECKING:
    from mpilaunch.head.control.subject import Subject

MOST_SERVED = 32
"""Requests that are served at a time."""
REQUEST_SECONDS = 5.0
"""Seconds in which a request must have come."""


class ControlConnection(FrameProtocol):
    """One connection.

    Args:
        serving: the tasks of all connections.
    """

    max_data = requests.LONGEST_REQUEST

    def __init__(self, subject: Subject, serving: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._subject, self._serving = subject, serving
        self._deadline: asyncio.TimerHandle | None = None
        self._peer = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit this user's processes."""
        super().connection_made(transport)
        self._peer, user, _ = self.peer_credentials
        if user != os.geteuid():
            self.transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.transport.abort)

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the request; anything after it ends the connection."""
        if self._deadline is None or kind != REQUEST or len(self._serving) >= MOST_SERVED:
            self.transport.abort()
            return
        self._deadline.cancel()
        self._deadline = None
        start(self._serving, self._serve(data), self._crashed)

    async def _serve(self, data: bytes) -> None:
        try:
            message = requests.decode_request(data)
            answer = await answers.HANDLERS[message["request"]](self._subject, self._peer, message)
        except (BadMessage, answers.Refused) as error:
            self._send(REFUSED, {"error": str(error)})
        except asyncio.CancelledError:
            self._send(REFUSED, {"error": "it has ended, or begins another attempt"})
            raise
        else:
            self._send(ANSWER, answer)

    def _crashed(self, error: BaseException) -> None:
        """Refuse what a fault of our own has ended: a request never ends the job."""
        self._send(REFUSED, {"error": f"internal error: {type(error).__name__}: {error}"})

    def _send(self, kind: int, message: dict[str, Any]) -> None:
        if not self.transport.is_closing():
            self.send_frame(kind, requests.encode(message))
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
