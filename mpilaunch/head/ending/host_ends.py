"""How the commands of independent hosts failed, and the verdict on all of them.

Each failure is one fact of one host: no host's changes that of another, and none ends the others unless that is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.failures import CONFIGURED, DETAILS_SHOWN, WORDS, NodeFailure, hint_of, output_of_nodes
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import LOST_CODE, Verdict


class HostEnd(NamedTuple):
    """The failure of a command, or of a host.

    Attributes:
        text: what happened: "exit code 3", "connection refused".
        exit_code: of mpilaunch, if nothing failed before.
        code: the command's, or as ssh has it; --exit-code can take the largest.
        failure: why the host was not reached, or cannot run the command.
        timeout, lost: the command took too long, or the connection to the host broke.
    """

    host: str
    text: str
    exit_code: int
    code: int = LOST_CODE
    failure: NodeFailure | None = None
    timeout: bool = False
    lost: bool = False


HostState = tuple[str, str]
"""The name of a host at work, and what it does."""


class HostEnds:
    """The failures of one job of independent hosts, in the order in which they became known.

    Args:
        say: takes a line for the user.
        end_all: ends the commands of all hosts, where a failure is to do so.
    """

    def __init__(self, hosts: int, say: Callable[[str], None], end_all: Callable[[], None] | None = None) -> None:
        self._hosts, self._say, self._end_all = hosts, say, end_all
        self._ends: list[HostEnd] = []
        self._left: list[str] = []

    def record(self, end: HostEnd) -> None:
        """Record a failure."""
        self._ends.append(end)
        if self._end_all is not None:
            self._end_all()

    def exited(self, host: str, end: RankEnd) -> None:
        """Record the end of a command; one that we have stopped is recorded by the reason."""
        if end.failed and not end.stopped:
            text = end.description if end.code is None else f"exit code {end.code}"
            self.record(HostEnd(host, text, end.exit_code, end.exit_code))

    def unreached(self, failures: Sequence[NodeFailure]) -> None:
        """Record why a host could not be reached, or cannot run the command."""
        for failure in failures:
            text = failure.detail if failure.cause in CONFIGURED else WORDS[failure.cause]
            self.record(HostEnd(failure.name, text, ExitCode.START_FAILED, failure=failure))

    def timed_out(self, host: str, seconds: float) -> None:
        """Record that a host was not done within --timeout."""
        self.record(HostEnd(host, f"time limit of {seconds:g} s exceeded", ExitCode.TIMEOUT, timeout=True))

    def lost(self, host: str, reason: str) -> None:
        """Record that the connection to a host was lost while its command ran."""
        self.record(HostEnd(host, f"lost: {reason}; its command may still run", ExitCode.NODE_LOST, lost=True))

    def not_started(self, hosts: Sequence[str]) -> None:
        """Record that nothing was started on these hosts, since the job ends."""
        self._left += hosts

    def verdict(self, stopped: Sequence[str] = ()) -> Verdict:
        """Return the verdict on all hosts, when each is done: hosts with the same failure share a line.

        Args:
            stopped: hosts whose commands were ended.
        """
        if not self._ends:
            return Verdict(ExitCode.OK, "ok")
        hosts = {end.host for end in self._ends}
        failed = len(hosts)
        lines = self._lines() + self._lines_of_others([name for name in stopped if name not in hosts])
        lines = lines if len(lines) == 1 else [f"{failed} of {self._hosts} hosts failed", *lines]
        failures = [end.failure for end in self._ends if end.failure is not None]
        shown = [failure for failure in failures if failure.cause not in CONFIGURED]
        detail = "\n".join((*lines, *output_of_nodes(shown)))
        causes = dict.fromkeys(failure.cause for failure in failures)
        hints = dict.fromkeys(hint_of(cause, failures) for cause in list(causes)[:DETAILS_SHOWN])
        largest = max(end.code for end in self._ends)
        return Verdict(
            self._ends[0].exit_code, "hosts-failed", detail=detail, hint="; ".join(hints) or None, largest=largest
        )

    def verdict_of_stop(self, outcome: Verdict, stopped: Sequence[str]) -> Verdict:
        """Return the verdict when all commands were asked to end, and on which hosts they were stopped."""
        return outcome._replace(detail="\n".join((outcome.detail, *self._lines(), *self._lines_of_others(stopped))))

    def tell_at_work(self, states: Iterable[HostState]) -> None:
        """Tell which hosts are at work, and what each does."""
        self._say(f"note: waiting for {at_work_text(states)}; a second interrupt within a second ends the commands")

    def _lines(self) -> list[str]:
        """Return a line for each failure with its hosts, the most frequent first."""
        hosts_of: dict[str, list[str]] = {}
        for end in self._ends:
            hosts_of.setdefault(end.text, []).append(end.host)
        return [f"{fold(names)}: {text}" for text, names in sorted(hosts_of.items(), key=_frequency)]

    def _lines_of_others(self, stopped: Sequence[str]) -> list[str]:
        """Return a line for the hosts whose commands were ended, and one for those on which none was started."""
        return [f"{fold(names)}: {how}" for names, how in ((stopped, "stopped"), (self._left, "not started")) if names]


def at_work_text(states: Iterable[HostState]) -> str:
    """Return "node[02-03] (command in progress), node07 (connecting)"."""
    hosts_in: dict[str, list[str]] = {}
    for host, state in states:
        hosts_in.setdefault(state, []).append(host)
    return ", ".join(f"{fold(hosts)} ({state})" for state, hosts in hosts_in.items()) or "no host"


def _frequency(item: tuple[str, list[str]]) -> tuple[int, str]:
    text, names = item
    return -len(names), text
