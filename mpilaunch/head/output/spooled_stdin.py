"""Forward stdin to independent commands, each at its own pace: a host that starts late or reads slowly delays no other.

What was read is kept in a file without a name, for the hosts that come later, unless stdin is a file itself. More is read only
when a command that has been sent everything can take more.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from mpilaunch.errors import LaunchError, reason_of
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.head.safe_files import write_all
from mpilaunch.wire.frames import MAX_DATA


class SpooledStdin(StdinForwarder):
    """Copies stdin to several ranks; raises LaunchError where it cannot be kept."""

    def __init__(self, targets: Mapping[int, int], links: Mapping[int, NodeLink]) -> None:
        super().__init__(targets, links)
        self._complete = False
        self._sent_to = dict.fromkeys(self._targets, 0)
        self._spool: IO[bytes] | None = None
        if self._start is None:  # a file keeps what was read itself
            with _explained():
                self._spool = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by close()

    def credit(self, channel: int) -> None:
        if channel in self._targets:
            self._feed_one(channel)
            if self._sent_to[channel] == self._sent and self._credit(channel):
                super().more_credit()

    def more_credit(self) -> None:
        self._feed()
        super().more_credit()

    def close(self) -> None:
        super().close()
        if self._spool is not None:
            self._spool.close()

    def _room(self) -> int:
        waiting = (channel for channel in self._targets if self._sent_to[channel] == self._sent)
        return max(map(self._credit, waiting), default=0)

    def _pass_on(self, data: bytes) -> None:
        self._complete = not data
        if self._spool is not None:
            with _explained():
                write_all(self._spool.fileno(), data)
        self._feed()

    def _feed(self) -> None:
        for channel in self._targets:
            self._feed_one(channel)

    def _feed_one(self, channel: int) -> None:
        """Send a rank what it can take of what was read, and the end after the last byte."""
        source, start = (self._spool.fileno(), 0) if self._spool is not None else (0, self._start or 0)
        link = self._links[self._targets[channel]]
        while (credit := self._credit(channel)) and self._sent_to[channel] < self._sent:
            size = min(credit, MAX_DATA, self._sent - self._sent_to[channel])
            try:
                data = os.pread(source, size, start + self._sent_to[channel])
            except OSError as error:
                raise LaunchError("stdin-lost", f"cannot read stdin: {reason_of(error)}") from error
            if not data:
                raise LaunchError("stdin-lost", "the file on stdin has become shorter while hosts were to read it")
            link.send_input(channel, data)
            self._sent_to[channel] += len(data)
        if self._complete and credit:
            link.send_input(channel, b"")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"cannot keep stdin for the hosts that start later: {reason_of(error)}"
        hint = f"make room in {tempfile.gettempdir()}, or set TMPDIR; --stdin none gives the commands no input"
        raise LaunchError("stdin-lost", message, hint=hint) from error
