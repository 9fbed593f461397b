"""The first step of a launch, taken before an event loop is loaded: this machine's daemons start now.

They get ready while the head imports the rest of itself, which takes as long as they do. It imports nothing heavy.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping

from mpilaunch import agent
from mpilaunch.errors import UsageError
from mpilaunch.head import bundle
from mpilaunch.head.observer import Observer
from mpilaunch.jobspec import JobSpec
from mpilaunch.jobstate import Verdict


def launch(job: JobSpec, observer: Observer) -> Verdict:
    """Run a job to its end; return how it ended; raises LaunchError when it did not start."""
    _make_room(job)
    nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
    agents = {name: agent.load(name, job.agent) for name in dict.fromkeys(node.agent for node in nodes)}
    local = agents.get(bundle.LOCAL)
    if isinstance(local, agent.Eager):
        for node in [node for node in nodes if node.agent == bundle.LOCAL][: job.deadlines.fanout]:
            local.begin(node, bundle.local_command())

    import asyncio

    return asyncio.run(_launch(job, agents, observer))


async def _launch(job: JobSpec, agents: Mapping[str, agent.Agent], observer: Observer) -> Verdict:
    from mpilaunch.head.launch import Launch

    gc.enable()
    try:
        return await Launch(job, agents, observer).run()
    finally:
        for one in agents.values():
            await one.close()


def _make_room(job: JobSpec) -> None:
    """See to it that what the job is to write can be written; raises UsageError before anything is started."""
    if job.output.directory is not None:
        try:
            os.makedirs(job.output.directory, exist_ok=True)
        except OSError as error:
            raise UsageError("output-directory", f"--output-filename {job.output.directory}: {error.strerror}") from error
    if job.report_file is not None:
        folder = os.path.dirname(os.path.abspath(job.report_file))
        if os.path.isdir(job.report_file) or not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError("report-file", f"--report {job.report_file}: no file can be written there")
