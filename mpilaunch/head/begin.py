"""The first step of a launch, taken before an event loop is loaded: this machine's daemons start now.

They get ready while the head imports the rest of itself, which takes as long as they do. It imports nothing heavy.
"""

from __future__ import annotations

import gc

from mpilaunch import agent
from mpilaunch.head import bundle
from mpilaunch.head.observer import Observer
from mpilaunch.jobspec import JobSpec
from mpilaunch.jobstate import Verdict


def launch(job: JobSpec, observer: Observer) -> Verdict:
    """Run a job to its end; return how it ended; raises LaunchError when it did not start."""
    nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
    agents = {name: agent.load(name, job.agent) for name in dict.fromkeys(node.agent for node in nodes)}
    local = agents.get(bundle.LOCAL)
    if isinstance(local, agent.Eager):
        for node in [node for node in nodes if node.agent == bundle.LOCAL][: job.deadlines.fanout]:
            local.begin(node, bundle.local_command())

    import asyncio

    from mpilaunch.head.launch import Launch

    gc.enable()
    return asyncio.run(Launch(job, agents, observer).run())
