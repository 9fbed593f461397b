"""The processes of `mpilaunch-rsh`: a script on the node, the process here that leads to it, and the signals that end us.

The script takes the command from its stdin, so that it stands in no audit log, runs it in a session of its own, and marks its
start and its exit on both streams. Only these marks count, never the exit code of kubectl. Light, as `rsh` is.
"""

from __future__ import annotations

import os
import select
import signal
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
"""Runs as `sh -c NODE_SCRIPT sh TOKEN MODE GRACE`; then its stdin is the number of lines of the command, these lines, and `end`
to have it ended. At the end of stdin the command is ended too, unless MODE is `keep`. No newline and no `!` stands in it: a
login shell may be a csh."""

WATCH_SCRIPT = 'while grep -q "$1" /proc/$2/cmdline 2>/dev/null; do sleep 1; done; printf "\\036%s exit 0\\n" "$1"'
"""Runs as `sh -c WATCH_SCRIPT sh TOKEN PID` until the script above has ended, whose arguments hold the token."""

LAST_WORDS = 4096
"""Bytes that are kept of what was said before the command's start."""

PR_SET_PDEATHSIG = 1


class Stream:
    """One of a script's streams: the command's bytes between the marks are written to `target`, others are not.

    Attributes:
        pid: the script's process id on the node, empty before the mark of its start.
        exit: the command's exit code, None before the mark of its exit.
        before: the last of what came before the start: a banner, or why there was none.
    """

    def __init__(self, token: bytes, target: int) -> None:
        self.pid = ""
        self.exit: int | None = None
        self.before = b""
        self._mark = MARK.encode() + token + b" "
        self._target = target
        self._held = b""

    def take(self, data: bytes) -> None:
        """Take what has come; the beginning of what may become a mark waits for the rest of it."""
        data, self._held = self._held + data, b""
        while data:
            place = data.find(self._mark[:1])
            self._hand_on(data if place < 0 else data[:place])
            data = b"" if place < 0 else data[place:]
            if data.startswith(self._mark):
                line, newline, rest = data[len(self._mark) :].partition(b"\n")
                if not newline:
                    self._held, data = data, b""
                    break
                what, _, number = line.decode("ascii", "replace").partition(" ")
                if what == "started":
                    self.pid = number
                else:
                    self.exit = int(number)
                data = rest
            elif self._mark.startswith(data):
                self._held, data = data, b""
            else:
                self._hand_on(data[:1])
                data = data[1:]

    def _hand_on(self, data: bytes) -> None:
        if not self.pid:
            self.before = (self.before + data)[-LAST_WORDS:]
        elif self.exit is None:
            write(self._target, data)


class Remote:
    """A process of ours that runs a script on the node; raises OSError when it cannot be started.

    Attributes:
        stdout, stderr: the script's.
    """

    def __init__(self, argv: Sequence[str], token: bytes, woken: int) -> None:
        self.stdout, self.stderr = Stream(token, 1), Stream(token, 2)
        self._pid, self._stdin, stdout, stderr = _spawn(argv)
        self._streams = {stdout: self.stdout, stderr: self.stderr}
        self._woken = woken
        self._poll = select.poll()
        for descriptor in (stdout, stderr, woken):
            self._poll.register(descriptor, select.POLLIN)

    @property
    def words(self) -> str:
        """What was said before the command's start."""
        return (self.stderr.before.strip() or self.stdout.before.strip()).decode("utf-8", "replace")

    def send(self, data: bytes) -> None:
        """Write to the script."""
        write(self._stdin, data)

    def run(self, left: Callable[[], float | None]) -> int | None:
        """Hand on output until the process has ended; return its exit code, None when the time was over first.

        `left` is asked before each wait for the seconds that are left, None for no limit.
        """
        while self._streams:
            seconds = left()
            if seconds is not None and seconds <= 0:
                return None
            for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000 + 1):
                data = os.read(descriptor, 1 << 16)
                if descriptor == self._woken:
                    continue
                if data:
                    self._streams[descriptor].take(data)
                else:
                    self._poll.unregister(descriptor)
                    del self._streams[descriptor]
                    os.close(descriptor)
        return self._reap()

    def end(self) -> None:
        """Kill the process if it lives, and give back all that it held."""
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
    """The signals that end us: each is noted, and ends a wait; what we were told to ignore stays ignored.

    Attributes:
        told: their numbers, in order.
        woken: a descriptor that becomes readable with each.
    """

    def __init__(self) -> None:
        self.told: list[int] = []
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self.told.append(number))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit codes along


def close_leaked() -> None:
    """Close what a launcher has leaked to us: Hydra's pipes to other nodes would be held open here."""
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
    """Write all; a reader that has gone is no reason to end."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass


def _spawn(argv: Sequence[str]) -> tuple[int, int, int, int]:
    """Start a process that dies when we do; return its id, and our ends of its stdin, stdout and stderr; raises OSError."""
    (theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err) = os.pipe(), os.pipe(), os.pipe()
    failed, tell = os.pipe()
    ours = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for target, descriptor in enumerate((theirs_in, theirs_out, theirs_err)):
                os.dup2(descriptor, target)
            # A signal to the launcher's group is for us: we end the command first.
            os.setpgid(0, 0)
            import ctypes  # In the child, where it costs nothing: the start on the node takes longer.

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == ours:
                os.execvp(argv[0], list(argv))
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        finally:
            os._exit(255)
    for descriptor in (theirs_in, theirs_out, theirs_err, tell):
        os.close(descriptor)
    errno = os.read(failed, 16)
    os.close(failed)
    if errno:
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        os.waitpid(pid, 0)
        raise OSError(int(errno), os.strerror(int(errno)))
    return pid, stdin, stdout, stderr
