"""The head's limits of open files and processes: checked before anything is started, and named when one was reached."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.text import plural
from mpilaunch_agents.registry import row_of

OWN_FILES = 32
"""Descriptors the head needs besides those of nodes and ranks, including those for starting an agent's process."""
FILES_OF_CONNECTION, FILES_OF_PROCESS = 1, 4
"""Descriptors per node for agents that hold a connection, and for those that run a process: three pipes and a pidfd."""


def raise_file_limit(job: JobSpec, nodes: Sequence[Node]) -> None:
    """Raise this process's limit of open files to the hard limit; raises LaunchError when that is too low for the nodes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = OWN_FILES + sum(FILES_OF_CONNECTION if row_of(node.agent).in_process else FILES_OF_PROCESS for node in nodes)
    if job.output.directory is not None:
        needed += len(job.job_map.placements) * (1 if job.output.merge_stderr else 2)
    if hard < needed:
        from mpilaunch.head.nodes.failures import HINTS

        ranks = len(job.job_map.placements)
        what = plural(len(nodes), "node") + (f" and {plural(ranks, 'rank')}" if ranks else "")
        needs = "needs" if what == "1 node" else "need"
        message = f"this machine: limit of open files too low: {what} {needs} {needed} open files, the limit is {hard}"
        raise LaunchError("start-file-limit", message, hint=HINTS["file-limit"])


def start_thread(thread: threading.Thread) -> None:
    """Start a thread that the launch cannot do without; raises LaunchError when the limit of processes forbids it."""
    try:
        thread.start()
    except RuntimeError as error:
        raise process_limit_reached("no thread") from error


def fork() -> int:
    """Fork; raises LaunchError at the limit of processes."""
    try:
        return os.fork()
    except OSError as error:
        raise process_limit_reached("no process") from error


def process_limit_reached(what: str) -> LaunchError:
    """Return the error of a head that cannot start this; it names the limits."""
    from mpilaunch.head.nodes.failures import HINTS

    message = f"this machine: limit of processes reached: {what} can be started; {process_limits()}"
    return LaunchError("start-process-limit", message, hint=HINTS["process-limit"])


def process_limits() -> str:
    """Return the limits of processes and threads that hold for this process, as a phrase."""
    limits = []
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY:
        limits.append(f"the limit of this user is {soft}")
    groups = [limit for file in _pids_files() if (limit := _number_in(file)) is not None]
    if groups:
        limits.append(f"that of the control group is {min(groups)}")
    return ", ".join(limits) or "no limit is set for this user or its control group"


def _number_in(file: str) -> int | None:
    """Return the limit in a file; None for "max" and where there is no such file, as in the topmost group."""
    try:
        with open(file, encoding="ascii") as opened:
            return int(opened.read())
    except (OSError, ValueError):
        return None


def _pids_files() -> list[str]:
    """Return the files with the limits of this process's control group and of those above it, of versions 1 and 2."""
    files = []
    with suppress(OSError, ValueError), open("/proc/self/cgroup", encoding="utf-8") as lines:
        for line in lines:
            number, controllers, group = line.rstrip("\n").split(":", 2)
            if number == "0" or "pids" in controllers.split(","):
                top = "/sys/fs/cgroup" if number == "0" else "/sys/fs/cgroup/pids"
                parts = [part for part in group.split("/") if part]
                files += ["/".join([top, *parts[:depth], "pids.max"]) for depth in range(1, len(parts) + 1)]
    return files
