"""`mpilaunch-rsh`: the remote shell for the real mpirun and mpiexec, backed by the ways in which mpilaunch reaches nodes.

It is called as ssh is, once for each node, and the environment alone configures it. Its laws, from how those launchers behave:
it never exits with 0 before the command runs; once it runs, it exits with another code only when the command has; it tries
again what time may cure. A launcher's daemon outlives a lost stream, since it sees by itself when its launcher has gone; any
other command ends with its stream. It starts in milliseconds: no asyncio, no click, nothing imported that is not used.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from mpilaunch_agents.rsh.command_line import BadCall, Call, parse, rewrite
from mpilaunch_agents.rsh.process import NODE_SCRIPT, WATCH_SCRIPT, Remote, Signals, close_leaked, write
from mpilaunch_agents.rsh.routes import Route, route_name, route_to

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 255
"""Exit code when the command was not started, or its end is not known; ssh's."""

GONE = 137
"""Exit code of a daemon that went with its pod."""

START_TIMEOUT, START_IN_POD, GRACE = 60.0, 300.0, 10.0
"""Seconds, where MPILAUNCH_START_TIMEOUT and MPILAUNCH_GRACE do not say it: as the options of these names."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before something is tried again; doubled each time."""

DRAIN = 0.5
"""Seconds for the rest of the output once the command's exit has been told."""

RETRIED = (
    *("connection-closed", "pod-unknown", "pod-starting", "cluster-unreachable"),
    *("host-unknown", "connection-refused", "unreachable", "timeout"),
)
DEAD = ("pod-unknown", "pod-completed", "container-unknown")
"""Causes that say of a command that was running that it does not any more."""


class Shell:
    """One call: attempts until the command runs, and then until it has ended.

    Args:
        call: what is to run where.
        way: to the node.
        environ: our settings.
    """

    def __init__(self, call: Call, way: Route, environ: Mapping[str, str]) -> None:
        self._call, self._way = call, way
        default = START_IN_POD if "KUBERNETES_SERVICE_HOST" in environ else START_TIMEOUT
        self._start_timeout = _seconds(environ, "MPILAUNCH_START_TIMEOUT", default)
        self._grace = _seconds(environ, "MPILAUNCH_GRACE", GRACE)
        self._token = os.urandom(8).hex()
        self._signals = Signals()

    def run(self) -> int:
        """Return the exit code; raises OSError when our own side cannot be started."""
        deadline = time.monotonic() + self._start_timeout
        pause, said, failed_with = FIRST_PAUSE, "", FAILED
        while True:
            remote = self._remote(NODE_SCRIPT, "keep" if self._call.has_lifeline else "end", str(int(self._grace)))
            try:
                code = self._run_command(remote, deadline)
            finally:
                remote.end()
            if self._signals.told:
                return 128 + self._signals.told[0]
            if remote.stdout.pid:
                return self._end(remote)
            if code is None:  # what the deadline cuts off tells less than the attempt before it
                return self._failed(said or f"no answer within {self._start_timeout:g} s", failed_with)
            failed_with = code
            cause, said = self._way.explain(code, remote.words)
            # A stream that was lost at once gives kubectl's 0, and not a word.
            if (cause and cause not in RETRIED) or time.monotonic() + pause > deadline:
                return self._failed(said or f"exit code {code}", code)
            if cause == "pod-unknown":
                self._search(deadline)
            pause = self._wait(pause)

    def _search(self, deadline: float) -> None:
        """Look for the node elsewhere than where it should be; what cannot be found may be there later."""
        argv = self._way.search()
        if argv is None:
            return
        remote = Remote(argv, self._token.encode(), self._signals.woken)
        try:
            if remote.run(lambda: 0.0 if self._signals.told else deadline - time.monotonic()) == 0:
                self._way.use_search_result(remote.stdout.before.decode("utf-8", "replace"))
        finally:
            remote.end()

    def _run_command(self, remote: Remote, deadline: float) -> int | None:
        """Send the command and hand on its output; return the exit code of our side, None when it did not end in time."""
        lines = os.fsencode(self._call.command).split(b"\n")
        remote.send(b"%d\n%s\n" % (len(lines), b"\n".join(lines)))
        until = 0.0

        def left() -> float | None:
            nonlocal until
            now, told = time.monotonic(), self._signals.told
            if remote.stdout.exit is not None:
                until = min(until or now + DRAIN, now + DRAIN)
            elif told and (not remote.stdout.pid or len(told) > 1):
                until = now
            elif told and not until:
                until = now + self._grace + 2
                remote.send(b"end\n")
            if until:
                return until - now
            return None if remote.stdout.pid else deadline - now

        return remote.run(left)

    def _end(self, remote: Remote) -> int:
        """Return the exit code of a command that has run."""
        if remote.stdout.exit is not None:
            return remote.stdout.exit
        if not self._call.has_lifeline:
            return self._failed("the connection was lost, and the command ended with it")
        return self._watch(remote.stdout.pid)

    def _watch(self, pid: str) -> int:
        """Wait for the end of a daemon whose stream is lost; its launcher would take our end for its end."""
        pause = FIRST_PAUSE
        while not self._signals.told:
            began = time.monotonic()
            remote = self._remote(WATCH_SCRIPT, pid)
            code = remote.run(lambda: 0.0 if self._signals.told else None)
            remote.end()
            if remote.stdout.exit is not None:
                return remote.stdout.exit
            if code and self._way.explain(code, remote.words)[0] in DEAD:
                return self._failed("the node has gone, and the daemon with it", GONE)
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else self._wait(pause)
        return 128 + self._signals.told[0]

    def _wait(self, pause: float) -> float:
        """Wait before another attempt; return how long to wait before the one after it."""
        time.sleep(pause)
        return min(2 * pause, LONGEST_PAUSE)

    def _remote(self, script: str, *arguments: str) -> Remote:
        argv = self._way.argv(["/bin/sh", "-c", script, "sh", self._token, *arguments])
        return Remote(argv, self._token.encode(), self._signals.woken)

    def _failed(self, what: str, code: int = FAILED) -> int:
        _say(f"{self._call.host}: {what}")
        return code or FAILED


def _own_address() -> str:
    import socket

    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return "" if address.startswith("127.") else address


def _seconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    text = environ.get(variable, "")
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:])
    try:
        return float(text[:-1]) * unit if unit else float(text or default)
    except ValueError:
        raise BadCall(f"{variable}: '{text}' is not a time") from None


def _say(what: str) -> None:
    write(2, f"mpilaunch-rsh: {what}\n".encode("utf-8", "replace"))


def main() -> NoReturn:
    """Do what the arguments say."""
    close_leaked()
    try:
        call = parse(sys.argv[1:])
        chosen = route_to(route_name(sys.argv[0], os.environ), call, os.environ)
        rewrite(call, chosen.node_shell, os.uname().nodename, _own_address)
        sys.exit(Shell(call, chosen, os.environ).run())
    except BadCall as error:
        _say(str(error))
    except OSError as error:
        _say(f"{call.host}: {chosen.argv([])[0]}: {error.strerror}")
    sys.exit(FAILED)
