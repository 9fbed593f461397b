"""The first interrupt of independent hosts, as pdsh handles it: it tells which hosts are at work, and a second one soon after
ends their commands."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

from mpilaunch.head.ending.host_ends import HostState
from mpilaunch.head.ending.interrupts import Interrupts
from mpilaunch.head.ending.stop import Stop
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.job.spec import JobSpec

SOON = 1.0
"""Seconds within which a second interrupt ends the commands."""


class HostInterrupts(Interrupts):
    """Signals to mpilaunch while independent commands run.

    Args:
        at_work: returns the hosts at work.
        tell_hosts: tells the user of them.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        stop: Stop,
        say: Callable[[str], None],
        tell: Callable[[str], None],
        at_work: Callable[[], Iterable[HostState]],
        tell_hosts: Callable[[Iterable[HostState]], None],
    ) -> None:
        super().__init__(job, daemons, stop, say, tell)
        self._at_work, self._tell_hosts, self._told = at_work, tell_hosts, -SOON

    def interrupt(self, number: int, times: int) -> bool:
        now = time.monotonic()
        if number == signal.SIGINT and times == 1 and now - self._told > SOON:
            self._told = now
            self._tell_hosts(self._at_work())
            return False
        return super().interrupt(number, times)
