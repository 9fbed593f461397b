"""Have processes of Python write the stacks of all their threads to stderr, as they end.

With PYTHONFAULTHANDLER, which ranks get, Python does so at SIGABRT (the module faulthandler); nothing else is put into a rank.
A process that handles SIGTERM is left to that: it may have something to save.
"""

from __future__ import annotations

import os
import resource
import signal

from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = b"PYTHONFAULTHANDLER="


def ask(pids: Iterable[int]) -> bool:
    """Ask these processes for their stacks, as far as they write them; return whether any does."""
    asked = [pid for pid in pids if _tells(pid)]
    for pid in asked:
        try:
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))  # a core file of a rank would fill the disk
            os.kill(pid, signal.SIGABRT)
        except (OSError, ValueError):
            pass  # it has just gone, or is another user's now
    return bool(asked)


def _tells(pid: int) -> bool:
    name = os.path.basename(_program(pid))
    if not name.startswith(("python", "pypy")):
        return False
    variables = reaper.process_file(pid, "environ").split(b"\0")
    enabled = any(each.startswith(VARIABLE) and len(each) > len(VARIABLE) for each in variables)
    return enabled and reaper.catches(pid, signal.SIGABRT) and not reaper.catches(pid, signal.SIGTERM)


def _program(pid: int) -> str:
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return ""
