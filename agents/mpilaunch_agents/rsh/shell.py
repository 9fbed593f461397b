"""The command `mpilaunch-rsh`: a remote shell for the real mpirun and mpiexec that reaches nodes as mpilaunch does.

Launchers run it like ssh, once for each node; only the environment configures it. Those launchers require that it never exits
with 0 before the command runs, that it then exits only when the command has, and that it retries temporary failures. A
launcher's daemon survives a lost stream, since it detects the end of its launcher itself; any other command ends with its
stream. It must start in milliseconds: no asyncio, no click, no unused import.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from mpilaunch.defaults import GRACE, RETRIED_PATIENTLY, START_IN_POD, START_TIMEOUT
from mpilaunch.hosts.remote_names import own_names
from mpilaunch.text import printable, seconds_of
from mpilaunch_agents.rsh.command_line import BadCall, Call, parse, rewrite
from mpilaunch_agents.rsh.process import NODE_SCRIPT, WATCH_SCRIPT, Remote, Signals, close_leaked, write
from mpilaunch_agents.rsh.routes import Route, route_name, route_to

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 255
"""Exit code, as ssh's, when the command was not started or its exit code is unknown."""

GONE = 137
"""Exit code of a daemon whose pod has gone."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between attempts; doubled each time."""

SILENCE = 10.0
"""Seconds after which it says once that it waits, and for what."""

IN_POD = "KUBERNETES_SERVICE_HOST"
"""A variable of every pod."""

DRAIN = 0.5
"""Seconds for the remaining output after the command's exit."""

DEAD = ("pod-unknown", "pod-completed", "container-unknown")
"""Causes that prove that a command no longer runs."""


class Shell:
    """Runs one command: retries until it has started, and waits until it has ended."""

    def __init__(self, call: Call, route: Route, environ: Mapping[str, str]) -> None:
        self._call, self._route = call, route
        default = START_IN_POD if IN_POD in environ else START_TIMEOUT
        self._start_timeout = _seconds(environ, "MPILAUNCH_START_TIMEOUT", default)
        self._grace = _seconds(environ, "MPILAUNCH_GRACE", GRACE)
        self._token = os.urandom(8).hex()
        self._signals = Signals()
        self._silent_until, self._message = time.monotonic() + SILENCE, ""

    def run(self) -> int:
        """Return the exit code; raises OSError when the local process cannot be started."""
        deadline = time.monotonic() + self._start_timeout
        pause, exit_code = FIRST_PAUSE, FAILED
        while True:
            remote = self._remote(NODE_SCRIPT, "keep" if self._call.has_lifeline else "end", str(int(self._grace)))
            try:
                code = self._run_command(remote, deadline)
            finally:
                remote.end()
            if self._signals.received:
                return 128 + self._signals.received[0]
            if remote.stdout.pid:
                return self._end(remote)
            if code is None:  # the attempt before this one explains more than the timeout
                return self._failed(self._message or f"no answer within {self._start_timeout:g} s", exit_code)
            exit_code = code
            cause, self._message = self._route.explain(code, remote.message)
            # After a stream that was lost at once, kubectl exits with 0 and without a message.
            if (cause and cause not in RETRIED_PATIENTLY) or time.monotonic() + pause > deadline:
                return self._failed(self._message or f"exit code {code}", code)
            if cause == "pod-unknown":
                self._search(deadline)
            self._say_waiting()
            pause = _wait(pause)

    def _search(self, deadline: float) -> None:
        """Look an unknown node up by its host name; a failed search is repeated after the next attempt."""
        if argv := self._route.search():
            remote = Remote(argv, self._token.encode(), self._signals.wakeup_fd)
            try:
                if remote.run(lambda: 0.0 if self._signals.received else deadline - time.monotonic()) == 0:
                    self._route.use_search_result(remote.stdout.preamble.decode("utf-8", "replace"))
            finally:
                remote.end()

    def _run_command(self, remote: Remote, deadline: float) -> int | None:
        """Send the command and relay its output; return the local process's exit code, None when its time is up."""
        lines = os.fsencode(self._call.command).split(b"\n")
        remote.send(b"%d\n%s\n" % (len(lines), b"\n".join(lines)))
        end_by = 0.0

        def left() -> float | None:
            nonlocal end_by
            now, received = time.monotonic(), self._signals.received
            if remote.stdout.exit is not None:
                end_by = min(end_by or now + DRAIN, now + DRAIN)
            elif received and (not remote.stdout.pid or len(received) > 1):
                end_by = now
            elif received and not end_by:
                end_by = now + self._grace + 2
                remote.send(b"end\n")
            if end_by:
                return end_by - now
            if remote.stdout.pid:
                return None
            self._say_waiting()
            return min(deadline, self._silent_until) - now

        return remote.run(left)

    def _end(self, remote: Remote) -> int:
        """Return the exit code of a command that was started."""
        if remote.stdout.exit is not None:
            return remote.stdout.exit
        if not self._call.has_lifeline:
            return self._failed("the connection was lost, and the command ended with it")
        return self._watch(remote.stdout.pid)

    def _watch(self, pid: str) -> int:
        """Wait for a daemon whose stream is lost: for its launcher, the end of this process is the end of the daemon."""
        pause = FIRST_PAUSE
        while not self._signals.received:
            started = time.monotonic()
            remote = self._remote(WATCH_SCRIPT, pid)
            code = remote.run(lambda: 0.0 if self._signals.received else None)
            remote.end()
            if remote.stdout.exit is not None:
                return remote.stdout.exit
            if code and self._route.explain(code, remote.message)[0] in DEAD:
                return self._failed("the node has gone, and the daemon with it", GONE)
            pause = FIRST_PAUSE if time.monotonic() - started > LONGEST_PAUSE else _wait(pause)
        return 128 + self._signals.received[0]

    def _remote(self, script: str, *arguments: str) -> Remote:
        argv = self._route.argv(["/bin/sh", "-c", script, "sh", self._token, *arguments])
        return Remote(argv, self._token.encode(), self._signals.wakeup_fd)

    def _say_waiting(self) -> None:
        """Say once, after a while, that the command has not started."""
        if time.monotonic() >= self._silent_until:
            self._silent_until = math.inf
            _report(f"waiting for {self._call.host} ({self._message or 'no answer'}), at most {self._start_timeout:g} s")

    def _failed(self, message: str, code: int = FAILED) -> int:
        _report(f"{self._call.host}: {message}")
        return code or FAILED


def _wait(pause: float) -> float:
    """Wait before an attempt; return the wait before the next one."""
    time.sleep(pause)
    return min(2 * pause, LONGEST_PAUSE)


def _own_address() -> str:
    import socket

    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return "" if address.startswith("127.") else address


def _names_of_pod(host: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the pod that this is; none outside of pods."""
    if IN_POD not in environ:
        return frozenset()
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            return own_names(host, file.read()) | {host}
    except OSError:
        return frozenset((host,))


def _seconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    text = environ.get(variable)
    seconds = seconds_of(text) if text else default
    if seconds is None:
        raise BadCall(f"{variable}: '{text}' is not a time")
    return seconds


def _report(message: str) -> None:
    text = "\n".join(map(printable, message.splitlines()))  # it may quote a node or a server
    write(2, f"mpilaunch-rsh: {text}\n".encode("utf-8", "replace"))


def main() -> NoReturn:
    """Run the command that the arguments describe."""
    close_leaked()
    try:
        call = parse(sys.argv[1:])
        host = os.uname().nodename
        route = route_to(route_name(sys.argv[0], os.environ), call, os.environ, _names_of_pod(host, os.environ))
        rewrite(call, route.node_shell, host, _own_address)
        sys.exit(Shell(call, route, os.environ).run())
    except BadCall as error:
        _report(str(error))
    except OSError as error:
        _report(f"{call.host}: {route.argv([])[0]}: {error.strerror}")
    sys.exit(FAILED)
