"""The first step of a launch: start this machine's daemons before the head has imported asyncio and the rest of itself.

The daemons load while the head does. `local_agent` may start one before the job is built, where this machine is likely to be a
node; unused daemons are dismissed. This module must import nothing slow at its top level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from mpilaunch import agent
from mpilaunch.head.nodes import bundle
from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.output.destinations import prepare_destinations
from mpilaunch_agents.registry import load

if TYPE_CHECKING:
    from mpilaunch.head.observe import Observer
    from mpilaunch.job.spec import JobSpec
    from mpilaunch.job.verdict import Verdict


@contextmanager
def local_agent(begin: bool) -> Iterator[agent.PrestartedAgent]:
    """Yield this machine's agent, with its first daemon started if asked; one that no launch has used is ended on exit."""
    local = cast(agent.PrestartedAgent, load(agent.LOCAL, agent.AgentOptions()))
    if begin:
        local.begin(bundle.local_command())
    try:
        yield local
    finally:
        local.dismiss()


def launch(job: JobSpec, observer: Observer, local: agent.PrestartedAgent) -> Verdict:
    """Run a job to its end, with this machine's agent; return how it ended; raises LaunchError when it did not start."""
    from mpilaunch.head.os_limits import raise_file_limit

    prepare_destinations(job)
    nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
    agents = Agents(job, job.job_map.nodes)
    if agent.LOCAL in agents and agent.LOCAL not in job.agent.call_back:
        agents[agent.LOCAL] = local
        several = sum(node.here for node in nodes) > 1
        local.begin(bundle.local_command(), bundle.local_command(bundle.FORK_SERVER) if several else ())
    else:
        local.dismiss()
    raise_file_limit(job, nodes)  # after the daemons, whose ranks keep our limit, and before asyncio opens files of its own

    if job.output.has_files:
        from mpilaunch.head.output.earlier_runs import notes_on_earlier_runs  # few launches write files

        for note in notes_on_earlier_runs(job):
            observer.note(note)
    from mpilaunch.head.tasks import run  # asyncio is imported while the daemons load

    return run(_launch(job, agents, observer))


async def _launch(job: JobSpec, agents: Agents, observer: Observer) -> Verdict:
    import asyncio

    from mpilaunch.head.control.control import Control
    from mpilaunch.head.control.subject import Subject
    from mpilaunch.head.launch import Launch
    from mpilaunch.head.signals import SignalRelay

    loop = asyncio.get_running_loop()
    if any(not node.here for node in job.allocation.nodes):
        from mpilaunch.head.threads import use_daemon_threads  # a local launch looks up no host name

        use_daemon_threads()
    with SignalRelay(loop) as signals:
        subject = Subject(job, signals)
        async with Control(subject, observer.note):
            if job.report_file is not None or job.restarts.limit or job.restarts.reserves_nodes:
                from mpilaunch.head.attempts import Attempts  # most jobs have one attempt and no report

                verdict = await Attempts(job, observer, subject).run(agents)
            else:
                try:
                    verdict = await subject.run(Launch(job, agents, observer))
                finally:
                    await agents.close()
            subject.end(verdict)
            return verdict
