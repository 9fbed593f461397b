"""The channel of the agent `ssh`, and the causes of failed and lost connections."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from contextlib import suppress

import asyncssh

from mpilaunch.agent import AgentFailure, ChannelEnd, ChannelEvents
from mpilaunch_agents.openssh import classify_ssh_message

HIGH_WATER = 1 << 18
"""Unwritten bytes above which writing pauses."""

ERROR_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "host-unknown"),
    (UnicodeError, "host-unknown"),  # not a DNS name: a label is empty or too long
    (asyncio.TimeoutError, "timeout"),
    (asyncssh.HostKeyNotVerifiable, "host-key-unknown"),
    (asyncssh.PermissionDenied, "key-refused"),
    (asyncssh.ConnectionLost, "connection-closed"),
)


class SshChannel(asyncssh.SSHClientSession[bytes]):
    """A command on a node, with a connection of its own."""

    def __init__(self, connection: asyncssh.SSHClientConnection, events: ChannelEvents) -> None:
        self._connection = connection
        self._events = events
        self._channel: asyncssh.SSHClientChannel[bytes]
        self._live = False
        self._exit_code: int | None = None

    # Methods of a channel

    def write(self, data: bytes) -> None:
        if self._live:
            with suppress(OSError):
                self._channel.write(data)

    def write_eof(self) -> None:
        if self._live:
            with suppress(OSError):
                self._channel.write_eof()

    def pause_reading(self) -> None:
        if self._live:
            self._channel.pause_reading()

    def resume_reading(self) -> None:
        if self._live:
            self._channel.resume_reading()

    def abort(self) -> None:
        if self._live:
            self._connection.abort()

    # Callbacks of asyncssh

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan
        chan.set_write_buffer_limits(HIGH_WATER)

    def session_started(self) -> None:
        self._live = True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._events.stderr_received(data)
        else:
            self._events.data_received(data)

    def eof_received(self) -> bool:
        """Keep the input open: a command may close its stdout and keep reading."""
        return True

    def pause_writing(self) -> None:
        if self._live:
            self._events.pause_writing()

    def resume_writing(self) -> None:
        if self._live:
            self._events.resume_writing()

    def exit_status_received(self, status: int) -> None:
        self._exit_code = status

    def exit_signal_received(self, signal_name: str, core_dumped: bool, msg: str, lang: str) -> None:
        number = getattr(signal, f"SIG{signal_name}", None)
        self._exit_code = 128 + number if number is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the channel, and the connection with it."""
        if not self._live:
            return
        self._live = False
        self._connection.close()
        lost = failure(exc) if exc is not None else None
        self._events.closed(ChannelEnd(self._exit_code, lost.detail if lost else "", lost.cause if lost else ""))


def failure(error: BaseException) -> AgentFailure:
    """Return the failure for an error that prevented or ended a connection."""
    if isinstance(error, AgentFailure):
        return error
    message = one_line(error)
    cause = next((cause for kind, cause in ERROR_CAUSES if isinstance(error, kind)), "")
    if not cause and isinstance(error, OSError):
        # For a host with several addresses, asyncio joins the errors into one message.
        number = error.errno or next(map(int, re.findall(r"\[Errno (\d+)\]", message)), 0)
        cause = classify_ssh_message(os.strerror(number))  # ssh's messages end with these
    return AgentFailure(cause or classify_ssh_message(message) or "agent-failed", message)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
