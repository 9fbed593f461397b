"""A child process with three pipes, no other inherited descriptor, and a session of its own; or one that another process forks.

It exists because importing `subprocess` takes longer than starting a daemon.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

DISMISS_SECONDS = 2.0
"""Seconds that dismissed children have to exit after their stdin is closed; then they are killed."""
KILL_SECONDS = 2.0
"""Seconds that killed children have to exit; one that is blocked in the kernel is left behind."""
DISMISS_POLL_SECONDS = 0.002
ANSWER_SECONDS = 2.0
"""Seconds that a fork server may take to start, and to answer: it takes 0.05 and 0.002 where nothing is wrong."""

_REQUEST, _ANSWER = struct.Struct("i"), struct.Struct("ii")
_READY, _FORK = -1, 0
Ends = tuple[int, int, int]
"""The descriptors that become a child's stdin, stdout and stderr."""

DEFAULT_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD]
"""Signals that this process may ignore (Python does, or its parent did) and that programs expect at their default."""


class Child:
    """A child process; raises OSError when it cannot be started.

    `pid` is also the id of its process group; `stdin`, `stdout` and `stderr` are this side's ends of its pipes.

    Args:
        argv: the program, looked up in PATH, and its arguments.
        descriptor_3: a descriptor, above 3, that the child gets as its number 3.
        environ: its variables, those of this process without.
    """

    def __init__(
        self, argv: Sequence[str], descriptor_3: int | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._begin(lambda ends: _spawn(argv, ends, descriptor_3, environ))

    def _begin(self, start: Callable[[Ends], int]) -> None:
        """Make the pipes, and have a process started with the other ends of them."""
        pipes: list[tuple[int, int]] = []
        started = False
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            (child_stdin, self.stdin), (self.stdout, child_stdout), (self.stderr, child_stderr) = pipes
            self.pid = start((child_stdin, child_stdout, child_stderr))
            started = True
        finally:
            kept = (self.stdin, self.stdout, self.stderr) if started else ()
            for descriptor in {end for pipe in pipes for end in pipe}.difference(kept):
                os.close(descriptor)

    @property
    def reserves_id(self) -> bool:
        """Whether no other process can have its id, since it is not reaped before `wait`."""
        return True

    @property
    def ended(self) -> bool:
        """Whether the process has exited, reaped or not."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def wait(self) -> int:
        """Reap the process; return its exit code, or -N when signal N ended it."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return 0  # SIGCHLD was ignored when this process started: the kernel has reaped the child and kept no status
        return os.waitstatus_to_exitcode(status)


class ForkServer:
    """A process that forks itself for each request, as `mpilaunch.daemon.fork_server` describes; raises OSError."""

    def __init__(self, argv: Sequence[str]) -> None:
        import socket

        os.close(os.pidfd_open(os.getpid()))  # how a process that is not our child is waited for, since Linux 5.3
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_SECONDS)
        self._ready = self._failed = False
        try:
            with theirs:
                self._process = Child(argv, theirs.fileno())
        except OSError:
            self._socket.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether it has exited, so that what it forked is reaped by init."""
        return self._process.ended

    def ask(self, number: int, descriptors: Sequence[int] = ()) -> int:
        """Return the answer to a request, `_FORK` or the process id of what was forked and has exited; raises OSError.

        After a missing answer nothing is asked any more: the next one might be late too.
        """
        import socket

        answer = -errno.EPIPE
        if not self._failed:
            self._failed = True  # until it has answered
            if not self._ready:
                self._ready = self._receive(_READY) == 0
            socket.send_fds(self._socket, [_REQUEST.pack(number)], descriptors)
            answer = self._receive(number)
            self._failed = False
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _receive(self, number: int) -> int:
        """Return the answer to a request; raises OSError for none."""
        data = self._socket.recv(_ANSWER.size)
        if len(data) != _ANSWER.size:
            raise ConnectionResetError(errno.ECONNRESET, "the fork server has ended")
        answered, answer = _ANSWER.unpack(data)
        if answered != number:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the fork server answers another request")
        return int(answer)

    def close(self) -> None:
        """End the server; what it has forked lives on."""
        self._socket.close()
        dismiss([self._process])


class ForkedChild(Child):
    """The same, forked by a server; `ended` cannot tell of it."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._begin(lambda ends: server.ask(_FORK, ends))

    @property
    def reserves_id(self) -> bool:
        return not self._server.ended

    def wait(self) -> int:
        try:
            return os.waitstatus_to_exitcode(self._server.ask(self.pid))
        except OSError:
            return 0  # the server was killed, and the status has gone to init


def _spawn(argv: Sequence[str], ends: Ends, descriptor_3: int | None, environ: Mapping[str, str]) -> int:
    """Start a program with these as its stdin, stdout and stderr; return its process id."""
    actions = [*((os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends)), *_close_inherited()]
    if descriptor_3 is not None:
        actions.append((os.POSIX_SPAWN_DUP2, descriptor_3, 3))
    try:
        return os.posix_spawnp(argv[0], list(argv), environ, file_actions=actions, setsid=True, setsigdef=DEFAULT_SIGNALS)
    except NotImplementedError:
        return _popen(argv, actions, environ)


def _popen(argv: Sequence[str], actions: Sequence[tuple[int, ...]], environ: Mapping[str, str]) -> int:
    """Start a child where posix_spawn cannot make a session (glibc before 2.26)."""
    import subprocess

    def begin() -> None:
        for action in actions:
            with suppress(OSError):
                if action[0] == os.POSIX_SPAWN_DUP2:
                    os.dup2(action[1], action[2])
                else:
                    os.close(action[1])
        for signal_number in DEFAULT_SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)

    process = subprocess.Popen(argv, env=environ, close_fds=False, start_new_session=True, preexec_fn=begin)
    process.returncode = 0  # keep Popen from reaping the child; `Child.wait` does
    return process.pid


def dismiss(children: Iterable[Child]) -> None:
    """Close the stdin of children, wait until they have exited, and kill those that do not; close their pipes.

    Takes at most DISMISS_SECONDS and KILL_SECONDS.
    """
    children = list(children)
    for child in children:
        os.close(child.stdin)
    kill_from = time.monotonic() + DISMISS_SECONDS
    while not all(child.ended for child in children) and time.monotonic() < kill_from + KILL_SECONDS:
        if time.monotonic() > kill_from:
            for child in children:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        time.sleep(DISMISS_POLL_SECONDS)
    for child in children:
        if child.ended:
            child.wait()
        os.close(child.stdout)
        os.close(child.stderr)


@lru_cache(None)
def _close_inherited() -> list[tuple[int, int]]:
    """Return actions that close the descriptors this process inherited; all others are close-on-exec (PEP 446)."""
    closing = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if descriptor > 2 and os.get_inheritable(descriptor):
                closing.append((os.POSIX_SPAWN_CLOSE, descriptor))
    return closing


def find_program(name: str, path: str) -> str | None:
    """Return the first program of this name in a PATH that is not mpilaunch itself by another launcher's name; None without."""
    own = os.path.realpath(sys.argv[0])
    found = (os.path.join(folder, name) for folder in path.split(os.pathsep) if folder)
    return next((file for file in found if os.access(file, os.X_OK) and os.path.realpath(file) != own), None)
