"""The head's limit of open files: raised, and compared with what the launch needs, before anything is started."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.failures import HINTS
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.text import plural

OWN_FILES = 32
"""Descriptors the head needs besides those of nodes and ranks, including those for starting an agent's process."""
FILES_OF_AGENTS = {"ssh": 1}
"""Descriptors per node for agents that hold a connection."""
FILES_OF_PROCESS = 4
"""Descriptors per node for agents that run a process: three pipes and a pidfd."""


def raise_file_limit(job: JobSpec, nodes: Sequence[Node]) -> None:
    """Raise this process's limit of open files to the hard limit; raises LaunchError when that is too low for the nodes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = OWN_FILES + sum(FILES_OF_AGENTS.get(node.agent, FILES_OF_PROCESS) for node in nodes)
    if job.output.directory is not None:
        needed += len(job.job_map.placements) * (1 if job.output.merge_stderr else 2)
    if hard < needed:
        ranks = len(job.job_map.placements)
        what = plural(len(nodes), "node") + (f" and {plural(ranks, 'rank')}" if ranks else "")
        message = f"this machine: limit of open files too low: {what} need {needed} open files, the limit is {hard}"
        raise LaunchError("start-file-limit", message, hint=HINTS["file-limit"])
