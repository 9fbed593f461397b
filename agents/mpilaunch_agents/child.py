"""A child process with three pipes and no other descriptor of ours, in a session of its own.

`subprocess` has all of this, and takes longer to load than a launch takes to start its daemon.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

DISMISSAL = 2.0
"""Seconds in which a child that is not wanted must have gone when its stdin ends."""
DISMISSAL_STEP = 0.002

IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]
"""What an interpreter ignores, and programs do not expect to find so."""


class Child:
    """A process.

    Attributes:
        pid: of it, and of its process group.
        stdin, stdout, stderr: our ends of its pipes.

    Args:
        argv: of the program, which is looked for as a shell does; raises OSError when it cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (its_stdin, self.stdin), (self.stdout, its_stdout), (self.stderr, its_stderr) = pipes
        its = (its_stdin, its_stdout, its_stderr)
        actions = [*((os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(its)), *_close_inherited()]
        try:
            self.pid = os.posix_spawnp(
                argv[0], list(argv), os.environ, file_actions=actions, setsid=True, setsigdef=IGNORED_BY_PYTHON
            )
        except BaseException:
            for descriptor in (self.stdin, self.stdout, self.stderr):
                os.close(descriptor)
            raise
        finally:
            for descriptor in its:
                os.close(descriptor)

    def wait(self) -> int:
        """Reap it; return its exit code, or -N when signal N has ended it."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return 0  # whoever started us lets the kernel reap: nobody knows
        return os.waitstatus_to_exitcode(status)

    def dismiss(self) -> None:
        """Let it go, which waits for our first word, and kill it if it does not."""
        os.close(self.stdin)
        until = time.monotonic() + DISMISSAL
        with suppress(ChildProcessError):
            while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if time.monotonic() > until:
                    os.killpg(self.pid, signal.SIGKILL)
                time.sleep(DISMISSAL_STEP)
        self.wait()
        os.close(self.stdout)
        os.close(self.stderr)


@lru_cache(None)
def _close_inherited() -> list[tuple[int, int]]:
    """Return how to close what we were ourselves started with, a shell's lock perhaps: all else is close-on-exec (PEP 446)."""
    closing = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the one that the list was read by
            if descriptor > 2 and os.get_inheritable(descriptor):
                closing.append((os.POSIX_SPAWN_CLOSE, descriptor))
    return closing
