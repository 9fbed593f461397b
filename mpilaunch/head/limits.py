"""The head's own limits: found before anything is started, and told with the numbers."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.failures import HINTS
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.text import plural

OWN_FILES = 32
"""Descriptors of the head beside those of nodes and ranks, and those that it needs while it starts an agent's process."""
FILES_OF_AGENTS = {"ssh": 1}
"""Descriptors that a node takes: a connection, or else, of a process, three pipes and its end."""
FILES_OF_PROCESS = 4


def raise_file_limit(job: JobSpec, nodes: Sequence[Node]) -> None:
    """Let this process open as many files as it may; raises LaunchError where they cannot be enough for these nodes."""
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
