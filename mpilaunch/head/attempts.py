"""The attempts of a job: launch it again after a failure, until one attempt succeeds or another would make no sense.

Every attempt is a separate launch with its own daemons. Nothing of an attempt is left when the next begins, except what a lost
node runs until it notices the loss. `job.restarts` decides; this module carries the decisions out, and writes the report.
"""

from __future__ import annotations

import asyncio
import os
import random
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.errors import ExitCode, LaunchError, UsageError
from mpilaunch.head.checkpoints import find_newest_set
from mpilaunch.head.control.subject import Subject
from mpilaunch.head.launch import Launch
from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.observe import Observer
from mpilaunch.head.output.destinations import prepare_destinations
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import allocate
from mpilaunch.hosts.hostfile import parse_hostfile
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job import restarts
from mpilaunch.job.restarts import Health, Layout
from mpilaunch.job.spec import CheckpointPolicy, JobSpec
from mpilaunch.job.verdict import Verdict
from mpilaunch.text import plural
from mpilaunch_agents.process import ProcessAgent

DISCOVERY_SECONDS = 30.0
"""Time limit of the host discovery script."""
EARLIER_SHOWN = 5
"""Number of earlier attempts that the final message lists."""


class Attempt(NamedTuple):
    """One attempt that has ended, as the report lists it."""

    job: JobSpec
    layout: Layout
    verdict: Verdict


class Attempts:
    """A job with all its attempts; create it inside a running event loop."""

    def __init__(self, job: JobSpec, observer: Observer, subject: Subject) -> None:
        self._first = self._job = job
        self._policy = job.restarts
        self._observer, self._subject, self._signals = observer, subject, subject.signals
        self._pool = job.restarts.pool or job.allocation
        self._layout = Layout(tuple(range(len(job.allocation.nodes))), job.allocation, job.job_map)
        self._health, self._gone = Health(), frozenset[int]()
        self._ended: list[Attempt] = []
        self._launch: Launch | None = None
        self._ran: Launch | None = None
        self._began = time.monotonic()
        self._stdin_start = os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(0).st_mode) else None

    async def run(self, agents: Agents) -> Verdict:
        """Run the attempts, the first with these agents; return how the last one ended; raises LaunchError if none started."""
        verdict = await self._attempt(agents)
        while not (reason := self._reason_to_end(verdict)):
            self._job = self._next_job()
            try:
                await self._signals.until_interrupted(self._prepare_next(verdict))
            except LaunchError as error:
                verdict = self._not_started(error)
            else:
                verdict = await self._attempt(None)
        verdict = verdict._replace(earlier=self._history(reason))
        if self._first.report_file is not None and self._ran is not None:
            from mpilaunch.head.observe.report import attempt_as_data, write_report  # few launches write one

            attempts = [attempt_as_data(attempt.job, attempt.layout, attempt.verdict) for attempt in self._ended]
            write_report(self._first.report_file, self._ran.report(verdict) | {"attempts": attempts})
        return verdict

    async def _attempt(self, agents: Agents | None) -> Verdict:
        """Run one attempt; nodes that do not start are replaced as long as there are other nodes."""
        while True:
            try:
                verdict = await self._launch_once(agents)
                break
            except LaunchError as error:
                if not self._replace_nodes(error):
                    if not self._job.restart:
                        raise
                    return self._not_started(error)
                agents = None
        assert self._launch is not None
        self._ran = self._launch
        lost = failed = self._numbers(self._launch.nodes_done.lost)
        if not lost and verdict.first is not None:
            cause = verdict.first if verdict.likely is None else verdict.likely.end
            failed = self._numbers([self._launch.ranks.place(cause.rank).node])
        self._health = self._health._replace(lost=lost, unusable=frozenset()).with_failures(failed)
        self._ended.append(Attempt(self._job, self._layout, verdict))
        return verdict

    def _numbers(self, indexes: Iterable[int]) -> frozenset[int]:
        return frozenset(self._layout.numbers[index] for index in indexes)

    async def _launch_once(self, agents: Agents | None) -> Verdict:
        if agents is None:
            agents = Agents(self._job, self._job.job_map.nodes)
        try:
            self._launch = Launch(self._job, agents, self._observer)
            return await self._subject.run(self._launch)
        finally:
            await agents.close()

    def _replace_nodes(self, error: LaunchError) -> bool:
        """Replace the nodes that did not start by others; return whether that was possible."""
        failed = self._numbers(error.nodes)
        self._health = self._health._replace(unusable=self._health.unusable | failed).with_failures(failed)
        if not failed or not (self._job.restart or self._policy.reserves_nodes):
            return False
        layout = self._next_layout()
        if layout is None:
            return False
        names = fold(error.nodes.values())
        message = error.message if names in error.message else f"{error.message} ({names})"
        self._observer.note(f"{message}; continues with {restarts.describe_changes(self._layout, layout)}")
        self._adopt(layout)
        return True

    def _not_started(self, error: LaunchError) -> Verdict:
        """Record a later attempt that did not start. Ranks have run before, so it counts as an end and not as a start error."""
        last = self._ended[-1].verdict
        if error.reference in ("interrupted", "preempted"):
            detail = f"{self._signals.ended_by} before attempt {len(self._ended) + 1}"
            verdict = Verdict(error.exit_code, error.reference, detail=detail)
        else:
            detail = "\n".join((error.message, *error.context))
            verdict = Verdict(last.exit_code, error.reference, detail=detail, hint=error.hint)
        self._health = self._health._replace(unusable=frozenset(), lost=self._health.lost | self._health.unusable)
        self._ended.append(Attempt(self._job, self._layout, verdict))
        return verdict

    def _reason_to_end(self, verdict: Verdict) -> str:
        """Return why there is no further attempt, or "" when there is one."""
        if verdict.exit_code == ExitCode.OK:
            return "it succeeded"
        reason = restarts.reason_not_to_restart(self._policy, verdict, self._job.restart)
        limit = self._first.deadlines.timeout
        pause = restarts.pause_before(self._job.restart + 1)
        if not reason and limit is not None and time.monotonic() - self._began + pause >= limit:
            reason = f"the time limit of {limit:g} s leaves no time for it"
        return reason

    async def _prepare_next(self, verdict: Verdict) -> None:
        """Pause, then choose the nodes of the next attempt; raises LaunchError when there are not enough."""
        restart = self._job.restart
        pause = restarts.pause_before(restart) * random.uniform(0.75, 1.0)
        next_one = f"attempt {restart + 1} of {self._policy.limit + 1}"
        self._observer.note(f"attempt {restart}: {verdict.headline}; {next_one} in {pause:.1f} s")
        await asyncio.sleep(pause)
        if self._policy.discovery is not None:
            await self._discover(self._policy.discovery)
        layout = self._next_layout()
        if layout is None:
            needed = self._policy.min_nodes if self._policy.elastic else len(self._layout.job_map.nodes)
            usable = [node.name for node in self._pool.nodes if node.slots and node.index not in self._unusable]
            available = f"{plural(len(usable), 'node')} can be used" + (f": {fold(usable)}" if usable else "")
            request = f"{next_one} needs {plural(needed or 0, 'node')} with enough slots"
            raise LaunchError("too-few-nodes", f"{request}, and {available}")
        changed = restarts.describe_changes(self._layout, layout)
        self._observer.note(f"{next_one} begins" + (f", with {changed}" if changed else ""))
        self._adopt(layout)
        self._job = self._job._replace(time_spent=time.monotonic() - self._began)
        prepare_destinations(self._job)
        if self._stdin_start is not None:
            os.lseek(0, self._stdin_start, os.SEEK_SET)

    def _next_job(self) -> JobSpec:
        first, restart = self._first, self._job.restart + 1
        directory = first.output.directory and os.path.join(first.output.directory, f"restart-{restart}")
        return self._job._replace(
            job_id=f"{first.job_id}-{restart}",
            restart=restart,
            checkpoints=first.checkpoints and _renewed(first.checkpoints),
            last_port=self._ran.port if self._ran is not None else None,
            output=first.output._replace(directory=directory),
        )

    @property
    def _unusable(self) -> frozenset[int]:
        """The nodes that did not start, and those that the discovery script has not named."""
        return self._health.unusable | self._gone

    def _next_layout(self) -> Layout | None:
        health = self._health._replace(unusable=self._unusable)
        try:
            return restarts.next_layout(self._policy, self._pool, self._layout, health)
        except UsageError:
            # The user's options may not allow fewer nodes, for instance a slot map with fixed ranks.
            return None

    def _adopt(self, layout: Layout) -> None:
        self._layout = layout
        self._job = self._job._replace(allocation=layout.allocation, job_map=layout.job_map)

    async def _discover(self, command: str) -> None:
        """Run the discovery script for the current list of hosts; when it fails, the known hosts stay."""
        try:
            entries = parse_hostfile(await _output_of(command), command)
            discovered = allocate(entries, command, self._pool.defaults)
        except LaunchError as error:
            self._observer.note(f"--host-discovery-script: {error.message}; the hosts stay as they were")
            return
        bare = {entry.name for entry in entries if entry.slots is None and entry.gpus is None}
        self._pool, self._gone = restarts.merge_discovered(self._pool, discovered, bare)

    def _history(self, reason: str) -> tuple[str, ...]:
        """Return lines on the attempts before the last, and why there is no further one."""
        lines = [f"attempt {number}: {attempt.verdict.headline}" for number, attempt in enumerate(self._ended[:-1], 1)]
        hidden = len(lines) - EARLIER_SHOWN
        if lines:
            more = f" {hidden} more, and" if hidden > 0 else ""
            lines = [f"this was attempt {len(self._ended)}; before it:{more}", *lines[-EARLIER_SHOWN:]]
        if self._policy.limit and restarts.is_restartable(self._ended[-1].verdict):
            lines.append(f"not started again: {reason}")
        return tuple(lines)


def _renewed(policy: CheckpointPolicy) -> CheckpointPolicy:
    """Return the policy with the newest complete set in its directory."""
    with suppress(OSError):
        return policy._replace(restart=find_newest_set(policy.prefix))
    return policy


class _Reply:
    """What a script prints, until its end; what it reports goes to our stderr."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.end: asyncio.Future[ChannelEnd] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.output += data

    def stderr_received(self, data: bytes) -> None:
        with suppress(OSError):
            os.write(2, data)

    def pause_writing(self) -> None:
        """It gets no input."""

    def resume_writing(self) -> None:
        """It gets no input."""

    def closed(self, end: ChannelEnd) -> None:
        settle(self.end, end)


async def _output_of(command: str) -> str:
    """Return what a shell command prints; raises LaunchError. Its process group is killed when this returns."""
    processes, reply = ProcessAgent(AgentOptions()), _Reply()
    try:
        processes.run(["/bin/sh", "-c", command], reply).write_eof()
        async with timeout(DISCOVERY_SECONDS):
            end = await reply.end
    except asyncio.TimeoutError:
        raise LaunchError("too-few-nodes", f"'{command}' took longer than {DISCOVERY_SECONDS:g} s") from None
    except AgentFailure as failure:
        raise LaunchError("too-few-nodes", f"'{command}' cannot be started: {failure.detail}") from failure
    finally:
        await processes.close()
    if end.exit_code:
        raise LaunchError("too-few-nodes", f"'{command}' ended with exit code {end.exit_code}")
    return reply.output.decode("utf-8", "replace")
