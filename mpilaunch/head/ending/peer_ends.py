"""The failures of independent hosts in the words of pdsh and clush, for scripts that read these; each as soon as it is known.

The lines are those of pdsh 2.34 and ClusterShell 1.9, whose worker `pdsh` finds exit codes and timeouts by the number of words.
A host that was not reached has the line that tells why, as ssh prints it there, before the one with ssh's exit code.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

from mpilaunch.head.ending.host_ends import HostEnd, HostEnds, HostState
from mpilaunch.head.nodes.failures import DETAILS_SHOWN, LONGEST_LINE, hint_of
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.spec import OutputPolicy
from mpilaunch.job.verdict import Verdict

TIMEOUT = "command timeout"
ENDED = 1
"""Exit code of pdsh after an interrupt, and after a failure that ended all commands."""
VAGUE = ("agent-failed", "connection-closed", "daemon-failed")
"""Causes of which only the output of the node, or of the agent, tells what happened."""


class PeerEnds(HostEnds):
    """Failures that are reported in lines of a peer's, and not again in the message at the end.

    Attributes:
        interrupted: the last line after an interrupt.
    """

    interrupted = "Keyboard interrupt."

    def __init__(self, hosts: int, say: Callable[[str], None], end_all: Callable[[], None] | None = None) -> None:
        super().__init__(hosts, say, end_all)
        self._explained: set[str] = set()

    def record(self, end: HostEnd) -> None:
        super().record(end)
        self._explain(end)
        self._tell(end)

    def verdict(self, stopped: Sequence[str] = ()) -> Verdict:
        return super().verdict(stopped)._replace(instead=tuple(self._last_lines()))

    def verdict_of_stop(self, outcome: Verdict, stopped: Sequence[str]) -> Verdict:
        verdict = super().verdict_of_stop(outcome, stopped)
        if outcome.cause != "interrupted":
            return verdict
        return verdict._replace(instead=(*self._last_lines(), self.interrupted))

    def _tell(self, end: HostEnd) -> None:
        """Tell a failure in the peer's words, now or at the end."""
        raise NotImplementedError

    def _last_lines(self) -> list[str]:
        """Return the lines that are printed at the end."""
        return []

    def _explain(self, end: HostEnd) -> None:
        """Say why a host was not reached or was lost, with a hint the first time."""
        if end.failure is None:
            if end.lost:
                self._say(f"{end.host}: {end.text}")
            return
        cause = end.failure.cause
        for line in end.failure.detail.splitlines()[-DETAILS_SHOWN:] if cause in VAGUE else ():
            self._say(f"{end.host}: {line[:LONGEST_LINE]}")
        hint = "" if cause in self._explained else f" ({hint_of(cause, [end.failure])})"
        self._explained.add(cause)
        self._say(f"{end.host}: {end.text}{hint}")


def with_host(name: str) -> str:
    """Return how pdsh, pdcp and rpdcp call themselves: by their name and that of this machine, up to its first dot."""
    return f"{name}@{socket.gethostname().partition('.')[0]}"


class PdshEnds(PeerEnds):
    """pdsh@HEAD: HOST: ssh exited with exit code 3.

    Args:
        program: what runs the command: "ssh", or with `-R exec` the command itself.
        name: of the command: pdsh, pdcp or rpdcp.
    """

    def __init__(
        self,
        hosts: int,
        say: Callable[[str], None],
        program: str,
        end_all: Callable[[], None] | None = None,
        name: str = "pdsh",
    ) -> None:
        super().__init__(hosts, say, end_all)
        self._program, self._name = program, with_host(name)
        self.interrupted = f"{self._name}: interrupt, aborting."

    def _tell(self, end: HostEnd) -> None:
        exited = f"{self._program} exited with exit code {end.code}"
        for how in [exited] if not end.timeout else [TIMEOUT, exited] if self._program == "ssh" else [TIMEOUT]:
            self._say(f"{self._name}: {end.host}: {how}")

    def tell_at_work(self, states: Iterable[HostState]) -> None:
        self._say(f"{self._name}: interrupt (one more within 1 sec to abort)")
        for host, state in states:
            self._say(f"{self._name}: {host}: {state}")

    def verdict_of_stop(self, outcome: Verdict, stopped: Sequence[str]) -> Verdict:
        verdict = super().verdict_of_stop(outcome, stopped)
        return verdict._replace(exit_code=ENDED) if outcome.cause == "interrupted" else verdict

    def verdict(self, stopped: Sequence[str] = ()) -> Verdict:
        verdict = super().verdict(stopped)
        return verdict._replace(exit_code=ENDED) if self._end_all is not None and self._ends else verdict

    def _last_lines(self) -> list[str]:
        return [f"{self._name}: terminating all processes"] if self._end_all is not None and self._ends else []


class ClushEnds(PeerEnds):
    """clush: HOST: exited with exit code 3; with folded output equal codes of several hosts at the end."""

    def __init__(
        self, hosts: int, say: Callable[[str], None], output: OutputPolicy, end_all: Callable[[], None] | None = None
    ) -> None:
        super().__init__(hosts, say, end_all)
        self._quiet, self._folded = output.quiet, output.fold in ("lines", "blocks", "diff")
        self._later: dict[str, list[str]] = {}

    def _tell(self, end: HostEnd) -> None:
        how = TIMEOUT if end.timeout else f"exited with exit code {end.code}"
        if end.timeout or self._folded:
            self._later.setdefault(how, []).append(end.host)
        elif not self._quiet:
            self._say(f"clush: {end.host}: {how}")

    def _last_lines(self) -> list[str]:
        lines = []
        for how, hosts in self._later.items() if not self._quiet else ():
            count = f" ({len(hosts)})" if len(hosts) > 1 and how != TIMEOUT else ""
            lines.append(f"clush: {fold(sorted(hosts))}{count}: {how}")
        return lines


def host_ends(
    hosts: int, output: OutputPolicy, say: Callable[[str], None], end_all: Callable[[], None] | None = None
) -> HostEnds:
    """Return the failures of a job of so many hosts, in the style of its --host-failures; a failure calls `end_all`."""
    style, _, program = output.host_failures.partition(":")
    if style in ("pdsh", "pdcp", "rpdcp"):
        return PdshEnds(hosts, say, program or "ssh", end_all, style)
    return ClushEnds(hosts, say, output, end_all) if style == "clush" else HostEnds(hosts, say, end_all)
