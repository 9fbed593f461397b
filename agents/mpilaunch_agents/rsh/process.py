"""The processes of `mpilaunch-rsh`: a script on the node, the local process that connects to it, and signal handling.

The script reads the command from its stdin, which keeps it out of audit logs, runs it in a session of its own, and marks its
start and exit on both streams. Only these marks count, never the exit code of kubectl. Cheap to import, like `main`.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARK = "\036"
"""The first character of a mark."""

NODE_SCRIPT = (
    'IFS= read -r n || exit 255; nl=$(printf "\\nx"); nl=${nl%x}; c=; '
    'while [ "$n" -gt 0 ]; do IFS= read -r l || exit 255; c=$c$l$nl; n=$((n-1)); done; '
    "exec 3<&0 </dev/null; s=; command -v setsid >/dev/null 2>&1 && s=setsid; "
    'm() { printf "\\036%s %s %s\\n" "$@"; }; m "$1" started $$; m "$1" started $$ >&2; '
    '$s /bin/sh -c "$c" 3<&- & p=$!; exec 4>&2 2>/dev/null; '
    '(while :; do IFS= read -r x || { [ "$2" = keep ] && exit 0; break; }; [ "$x" = end ] && break; done; trap "" TERM; '
    "kill -TERM -$p || kill -TERM $p; kill -CONT -$p; sleep 0.1 || sleep 1; i=0; "
    'while kill -0 -$p && [ $i -lt "$3" ]; do sleep 1; i=$((i+1)); done; kill -KILL -$p || kill -KILL $p) '
    '<&3 >/dev/null 4>&1 & w=$!; exec 3<&-; wait $p; r=$?; kill $w; wait $w; m "$1" exit $r >&4; m "$1" exit $r; exit $r'
)
"""Run as `sh -c NODE_SCRIPT sh TOKEN MODE GRACE`. Its stdin is the number of lines of the command, these lines, and later `end`
to terminate it. At the end of stdin it terminates the command too, unless MODE is `keep`. It contains no newline and no `!`,
because the login shell may be a csh."""

WATCH_SCRIPT = 'while grep -q "$1" /proc/$2/cmdline 2>/dev/null; do sleep 1; done; printf "\\036%s exit 0\\n" "$1"'
"""Run as `sh -c WATCH_SCRIPT sh TOKEN PID`; ends when the script above has ended, whose arguments contain the token."""

PREAMBLE_SIZE = 4096
"""Bytes kept of the output before the command's start."""

BROKEN_MARK = 255
"""Exit code of a command whose mark has none: another program wrote it."""

PR_SET_PDEATHSIG = 1


class Stream:
    """An output stream of the script: the command's bytes, between the marks, are written to `target`.

    Attributes:
        pid: the script's process id on the node, "" before the start mark.
        exit: the command's exit code, None before the exit mark.
        preamble: the end of the output before the start mark: a banner, or why the command did not start.
    """

    def __init__(self, token: bytes, target: int) -> None:
        self.pid = ""
        self.exit: int | None = None
        self.preamble = b""
        self._mark = MARK.encode() + token + b" "
        self._target = target
        self._held = b""

    def take(self, data: bytes) -> None:
        """Process output; the possible beginning of a mark is held back until the rest of it arrives."""
        data = self._held + data
        while (start := data.find(self._mark)) >= 0 and (end := data.find(b"\n", start)) >= 0:
            self._emit(data[:start])
            event, _, number = data[start + len(self._mark) : end].decode("ascii", "replace").partition(" ")
            if event == "started":
                self.pid = number
            else:
                self.exit = int(number) if number.isdigit() and len(number) < 4 else BROKEN_MARK
            data = data[end + 1 :]
        if start < 0:
            tails = range(max(0, len(data) - len(self._mark)), len(data))
            start = next((tail for tail in tails if self._mark.startswith(data[tail:])), len(data))
        self._emit(data[:start])
        self._held = data[start:]

    def _emit(self, data: bytes) -> None:
        if not self.pid:
            self.preamble = (self.preamble + data)[-PREAMBLE_SIZE:]
        elif self.exit is None:
            write(self._target, data)


class Remote:
    """A local process that runs a script on the node; raises OSError when it cannot be started."""

    def __init__(self, argv: Sequence[str], token: bytes, wakeup_fd: int) -> None:
        self.stdout, self.stderr = Stream(token, 1), Stream(token, 2)
        self._pid, self._stdin, stdout, stderr = _spawn(argv)
        self._streams = {stdout: self.stdout, stderr: self.stderr}
        self._wakeup_fd = wakeup_fd
        self._unsent = bytearray()
        os.set_blocking(self._stdin, False)
        self._poll = select.poll()
        for descriptor in (stdout, stderr, wakeup_fd):
            self._poll.register(descriptor, select.POLLIN)

    @property
    def message(self) -> str:
        """The output before the command's start, which explains a failure."""
        return (self.stderr.preamble.strip() or self.stdout.preamble.strip()).decode("utf-8", "replace")

    def send(self, data: bytes) -> None:
        """Write to the script's stdin; `run` writes what it does not take now."""
        self._unsent += data
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            self._poll.register(self._stdin, select.POLLOUT)
            return
        except OSError:  # its reader has gone
            self._unsent.clear()
        with suppress(KeyError):
            self._poll.unregister(self._stdin)

    def run(self, left: Callable[[], float | None]) -> int | None:
        """Relay output until the process has ended; return its exit code, None when the time is up first.

        Args:
            left: returns the seconds left, None for no limit; called before each wait.
        """
        while self._streams:
            seconds = left()
            if seconds is not None and seconds <= 0:
                return None
            for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000 + 1):
                if descriptor == self._stdin:
                    self._write()
                    continue
                data = os.read(descriptor, 1 << 16)
                if descriptor == self._wakeup_fd:
                    continue
                if data:
                    self._streams[descriptor].take(data)
                else:
                    self._poll.unregister(descriptor)
                    del self._streams[descriptor]
                    os.close(descriptor)
        return self._reap()

    def end(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        if self._pid:
            try:
                os.kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._reap()
        for descriptor in (self._stdin, *self._streams):
            os.close(descriptor)
        self._streams.clear()

    def _reap(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Signals:
    """Records the signals that end this process; each makes `wakeup_fd` readable. Signals ignored at the start stay ignored."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.wakeup_fd, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self.received.append(number))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, exit codes would be lost


def close_leaked() -> None:
    """Close descriptors inherited from the launcher: Hydra leaks its pipes to other nodes."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                os.close(int(name))
        except OSError:
            pass
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def write(descriptor: int, data: bytes) -> None:
    """Write all data; ignore a reader that has gone."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass


def _spawn(argv: Sequence[str]) -> tuple[int, int, int, int]:
    """Start a process that dies with this one; return its id and this side's ends of its three pipes; raises OSError."""
    (child_in, stdin), (stdout, child_out), (stderr, child_err) = os.pipe(), os.pipe(), os.pipe()
    error_reader, error_writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for target, descriptor in enumerate((child_in, child_out, child_err)):
                os.dup2(descriptor, target)
            # Signals to the launcher's group must reach only this process, which ends the command first.
            os.setpgid(0, 0)
            import ctypes  # imported in the child: it does not delay the parent

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                os.execvp(argv[0], list(argv))
        except OSError as error:
            os.write(error_writer, str(error.errno).encode())
        finally:
            os._exit(255)
    for descriptor in (child_in, child_out, child_err, error_writer):
        os.close(descriptor)
    errno = os.read(error_reader, 16)
    os.close(error_reader)
    if errno:
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        os.waitpid(pid, 0)
        raise OSError(int(errno), os.strerror(int(errno)))
    return pid, stdin, stdout, stderr
