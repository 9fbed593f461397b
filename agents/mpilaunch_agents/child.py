"""A child process with three pipes and no other descriptor of ours, in a session of its own.

`subprocess` has all of this, and takes longer to load than a launch takes to start its daemon.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

DISMISS_SECONDS = 2.0
"""Seconds in which children that are not wanted must have gone when their stdin ends."""
DISMISS_POLL_SECONDS = 0.002

NOT_IGNORED = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD]
"""What an interpreter ignores, or whoever has started it, and programs do not expect to find so."""


class Child:
    """A process.

    Attributes:
        pid: of it, and of its process group.
        stdin, stdout, stderr: our ends of its pipes.

    Args:
        argv: of the program, which is looked for as a shell does; raises OSError when it cannot be started.
        fourth: a descriptor that it gets as its number 3; ours is above that.
    """

    def __init__(self, argv: Sequence[str], fourth: int | None = None) -> None:
        pipes: list[tuple[int, int]] = []
        started = False
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            (its_stdin, self.stdin), (self.stdout, its_stdout), (self.stderr, its_stderr) = pipes
            its = (its_stdin, its_stdout, its_stderr)
            actions = [*((os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(its)), *_close_inherited()]
            if fourth is not None:
                actions.append((os.POSIX_SPAWN_DUP2, fourth, 3))
            try:
                self.pid = os.posix_spawnp(
                    argv[0], list(argv), os.environ, file_actions=actions, setsid=True, setsigdef=NOT_IGNORED
                )
            except NotImplementedError:
                self.pid = _spawn_slowly(argv, actions)
            started = True
        finally:
            ours = (self.stdin, self.stdout, self.stderr) if started else ()
            for descriptor in {end for pipe in pipes for end in pipe}.difference(ours):
                os.close(descriptor)

    @property
    def ended(self) -> bool:
        """It has exited, reaped or not."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def wait(self) -> int:
        """Reap it; return its exit code, or -N when signal N has ended it."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return 0  # whoever started us lets the kernel reap: nobody knows
        return os.waitstatus_to_exitcode(status)


def _spawn_slowly(argv: Sequence[str], actions: Sequence[tuple[int, ...]]) -> int:
    """Do the same where Python was built for a C library whose posix_spawn makes no session, glibc before 2.26."""
    import subprocess

    def begin() -> None:
        for action in actions:
            with suppress(OSError):
                if action[0] == os.POSIX_SPAWN_DUP2:
                    os.dup2(action[1], action[2])
                else:
                    os.close(action[1])
        for signal_number in NOT_IGNORED:
            signal.signal(signal_number, signal.SIG_DFL)

    process = subprocess.Popen(argv, close_fds=False, start_new_session=True, preexec_fn=begin)
    process.returncode = 0  # its end is for `Child.wait`
    return process.pid


def dismiss(children: Iterable[Child]) -> None:
    """Let children go that wait for our word, or live by it, and kill what does not; their pipes are closed."""
    children = list(children)
    for child in children:
        os.close(child.stdin)
    until = time.monotonic() + DISMISS_SECONDS
    while not all(child.ended for child in children):
        if time.monotonic() > until:
            for child in children:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        time.sleep(DISMISS_POLL_SECONDS)
    for child in children:
        child.wait()
        os.close(child.stdout)
        os.close(child.stderr)


@lru_cache(None)
def _close_inherited() -> list[tuple[int, int]]:
    """Return how to close what we were ourselves started with, a shell's lock perhaps: all else is close-on-exec (PEP 446)."""
    closing = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the one that the list was read by
            if descriptor > 2 and os.get_inheritable(descriptor):
                closing.append((os.POSIX_SPAWN_CLOSE, descriptor))
    return closing
