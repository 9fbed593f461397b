"""The head's own limits: found before anything is started, and told with the numbers."""

from __future__ import annotations

import resource

from mpilaunch.errors import LaunchError
from mpilaunch.head.failures import HINTS
from mpilaunch.jobspec import JobSpec

OWN_FILES = 32
"""Descriptors of the head beside those of nodes and ranks, and those that it needs while it starts an agent's process."""
FILES_OF_AGENTS = {"ssh": 1}
"""Descriptors that a node takes: a connection, or else, of a process, three pipes and its end."""
FILES_OF_PROCESS = 4


def raise_file_limit(job: JobSpec) -> None:
    """Let the head open as many files as it may; raises LaunchError where they cannot be enough."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
    needed = OWN_FILES + sum(FILES_OF_AGENTS.get(node.agent, FILES_OF_PROCESS) for node in nodes)
    if job.output.directory is not None:
        needed += len(job.job_map.placements) * (1 if job.output.merge_stderr else 2)
    if hard < needed:
        what = f"{len(nodes)} nodes and {len(job.job_map.placements)} ranks"
        message = f"this machine: limit of open files too low: {what} need {needed} open files, the limit is {hard}"
        raise LaunchError("start-file-limit", message, hint=HINTS["file-limit"])
