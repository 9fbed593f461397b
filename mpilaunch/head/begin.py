"""The first step of a launch, taken before an event loop is loaded: this machine's daemons start now.

They get ready while the head imports the rest of itself, which takes as long as they do. Where it is likely enough that this
machine is a node, a daemon starts before there is even a job; one that is not wanted goes. It imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from mpilaunch import agent
from mpilaunch.errors import UsageError, reason_of
from mpilaunch.head.nodes import bundle
from mpilaunch.head.output import safe_files

if TYPE_CHECKING:
    from mpilaunch.head.observe.observer import Observer
    from mpilaunch.job.spec import JobSpec
    from mpilaunch.job.state import Verdict


@contextmanager
def local_agent(daemons: int) -> Iterator[agent.Eager]:
    """Give the agent of this machine, on which so many daemons start now; those that no launch has used go with it."""
    local = cast(agent.Eager, agent.load(bundle.LOCAL, agent.AgentOptions()))
    local.begin(bundle.local_command(), daemons)
    try:
        yield local
    finally:
        local.dismiss()


def launch(job: JobSpec, observer: Observer, local: agent.Eager) -> Verdict:
    """Run a job to its end; return how it ended; raises LaunchError when it did not start.

    Args:
        local: the agent of this machine.
    """
    make_room(job)
    nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
    agents = Agents(job, job.job_map.nodes)
    if bundle.LOCAL in agents and bundle.LOCAL not in job.agent.call_back:
        agents[bundle.LOCAL] = local
        count = sum(node.agent == bundle.LOCAL for node in nodes)
        local.begin(bundle.local_command(), min(count, job.fanout))
    else:
        local.dismiss()

    import asyncio  # while the daemons get ready

    return asyncio.run(_launch(job, agents, observer))


async def _launch(job: JobSpec, agents: Agents, observer: Observer) -> Verdict:
    import asyncio

    from mpilaunch.head.launch import Launch
    from mpilaunch.head.signals import SignalRelay

    loop = asyncio.get_running_loop()
    if any(node.agent != bundle.LOCAL for node in job.allocation.nodes):
        from mpilaunch.head.nodes.threads import Threads  # a local launch asks nobody

        loop.set_default_executor(Threads())
    if job.report_file is not None or job.restarts.may_restart:
        from mpilaunch.head.attempts import Attempts  # most jobs have one attempt, of which nobody keeps a record

        return await Attempts(job, observer).run(agents)
    try:
        with SignalRelay(loop) as signals:
            return await Launch(job, agents, observer).run(signals)
    finally:
        for one in agents.values():
            await one.close()


class Agents(dict[str, "agent.Agent"]):
    """The agents of these nodes of the allocation, by their names; another, for spawned ranks, is loaded when it is looked up.

    Both raise UsageError when there is no such agent.
    """

    def __init__(self, job: JobSpec, indexes: Iterable[int]) -> None:
        self._options = job.agent
        names = [job.allocation.nodes[index].agent for index in indexes]
        super().__init__((name, agent.load(name, job.agent, names.count(name))) for name in dict.fromkeys(names))

    def __missing__(self, name: str) -> agent.Agent:
        self[name] = loaded = agent.load(name, self._options)
        return loaded


def make_room(job: JobSpec) -> None:
    """See to it that what the job is to write can be written; raises UsageError before anything is started."""
    if job.output.directory is not None:
        try:
            safe_files.make_directory(job.output.directory)
        except OSError as error:
            told = f"--output-filename {job.output.directory}: {error.strerror}"
            raise UsageError("output-directory", told, hint=safe_files.hint_of(error)) from error
    if job.checkpoint_directory is not None:
        try:
            safe_files.make_new_directory(job.checkpoint_directory)
        except OSError as error:
            told = f"--checkpoint-prefix {job.checkpoint_directory}: {reason_of(error)}"
            raise UsageError("checkpoint-prefix", told, hint=safe_files.hint_of(error)) from error
    if job.report_file is not None:
        try:
            safe_files.check_file(job.report_file)
        except OSError as error:
            told = f"--report {job.report_file}: {error.strerror}"
            raise UsageError("report-file", told, hint=safe_files.hint_of(error)) from error
