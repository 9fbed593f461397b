"""The attempts of a job: one launch after the other, until one ends well or another would make no sense.

Every attempt is a launch of its own with daemons of its own: nothing of the last one is left when the next begins, but for what
a lost node still runs until it notices. `restarts` decides, this module does what it says.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mpilaunch.errors import ExitCode, LaunchError, UsageError
from mpilaunch.head.begin import Agents, make_room
from mpilaunch.head.launch import Launch
from mpilaunch.head.observe.observer import Observer
from mpilaunch.head.signals import SignalRelay
from mpilaunch.hosts.allocation import allocate
from mpilaunch.hosts.hostfile import parse_hostfile
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job import checkpoints, restarts
from mpilaunch.job.restarts import Health, Lineup
from mpilaunch.job.spec import CheckpointPolicy, Discovery, JobSpec
from mpilaunch.job.state import Verdict, signal_name

DISCOVERY_SECONDS = 30.0
"""How long the host discovery script may take."""
EARLIER_SHOWN = 5
"""Earlier attempts of which the report at the end tells."""


@dataclass(frozen=True)
class Attempt:
    """One attempt that has ended."""

    job: JobSpec
    lineup: Lineup
    verdict: Verdict


class Attempts:
    """A job with all its attempts, made inside a running event loop."""

    def __init__(self, job: JobSpec, observer: Observer) -> None:
        self._first = self._job = job
        self._policy = job.restarts
        self._observer = observer
        self._pool = job.restarts.pool or job.allocation
        self._lineup = Lineup(tuple(range(len(job.allocation.nodes))), job.allocation, job.job_map)
        self._health = Health()
        self._ended: list[Attempt] = []
        self._launch: Launch | None = None
        self._ran: Launch | None = None
        self._began = time.monotonic()
        self._stdin_start = os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(0).st_mode) else None

    async def run(self, agents: Agents) -> Verdict:
        """Return how the last attempt ended; raises LaunchError when the first did not start. `agents` are for the first."""
        with SignalRelay(asyncio.get_running_loop()) as signals:
            verdict = await self._attempt(signals, agents)
            while not (reason := self._why_not(verdict)):
                self._job = self._next_job()
                try:
                    await signals.until_interrupted(self._get_ready(verdict))
                except LaunchError as error:
                    verdict = self._not_started(error)
                else:
                    verdict = await self._attempt(signals, None)
        verdict = replace(verdict, earlier=self._story(reason))
        if self._first.report_file is not None and self._ran is not None:
            from mpilaunch.head.report import write_report  # few launches write one

            write_report(self._first.report_file, self._ran.report(verdict) | {"attempts": [*map(_as_data, self._ended)]})
        return verdict

    # One attempt

    async def _attempt(self, signals: SignalRelay, agents: Agents | None) -> Verdict:
        """Run one attempt, with other nodes for those that do not start as long as there are any."""
        while True:
            try:
                verdict = await self._launch_once(signals, agents)
                break
            except LaunchError as error:
                if not self._replaced(error):
                    if not self._job.restart:
                        raise
                    return self._not_started(error)
                agents = None
        assert self._launch is not None
        self._ran = self._launch
        lost = frozenset(self._lineup.numbers[index] for index in self._launch.lost_nodes)
        blamed = lost
        if not lost and verdict.first is not None:
            blamed = frozenset({self._lineup.numbers[self._launch.node_of(verdict.first.rank)]})
        self._health = replace(self._health, lost=lost, unusable=frozenset()).with_failures(blamed)
        self._ended.append(Attempt(self._job, self._lineup, verdict))
        return verdict

    async def _launch_once(self, signals: SignalRelay, agents: Agents | None) -> Verdict:
        if agents is None:
            agents = Agents(self._job, self._job.job_map.nodes)
        try:
            self._launch = Launch(self._job, agents, self._observer)
            return await self._launch.run(signals)
        finally:
            for one in agents.values():
                await one.close()

    def _replaced(self, error: LaunchError) -> bool:
        """Find other nodes for those that did not start; say whether there are any."""
        failed = frozenset(self._lineup.numbers[index] for index in error.nodes)
        self._health = replace(self._health, unusable=self._health.unusable | failed).with_failures(failed)
        if not failed or not (self._job.restart or self._policy.reserves_nodes):
            return False
        lineup = self._next_lineup()
        if lineup is None:
            return False
        names = fold(self._lineup.allocation.nodes[index].name for index in error.nodes)
        what = error.message if names in error.message else f"{error.message} ({names})"
        self._observer.remark(f"{what}; goes on with {restarts.changes(self._lineup, lineup)}")
        self._use(lineup)
        return True

    def _not_started(self, error: LaunchError) -> Verdict:
        """Take a later attempt's failed start as its end: ranks have run before, so the job ends as a job."""
        last = self._ended[-1].verdict
        if error.reference in ("interrupted", "preempted"):
            detail = f"{signal_name(error.exit_code - 128)} to mpilaunch before attempt {len(self._ended) + 1}"
            verdict = Verdict(error.exit_code, error.reference, detail=detail)
        else:
            detail = "\n".join((error.message, *error.context))
            verdict = Verdict(last.exit_code, error.reference, detail=detail, hint=error.hint)
        self._health = replace(self._health, unusable=frozenset(), lost=self._health.lost | self._health.unusable)
        self._ended.append(Attempt(self._job, self._lineup, verdict))
        return verdict

    # Between two

    def _why_not(self, verdict: Verdict) -> str:
        """Return why there is no other attempt, "" when there is one."""
        if verdict.exit_code == ExitCode.OK:
            return "it ended well"
        reason = restarts.reason_against(self._policy, verdict, self._job.restart)
        limit = self._first.deadlines.timeout
        pause = restarts.pause_before(self._job.restart + 1)
        if not reason and limit is not None and time.monotonic() - self._began + pause >= limit:
            reason = f"the time limit of {limit:g} s leaves no time for it"
        return reason

    async def _get_ready(self, verdict: Verdict) -> None:
        """Wait a while, then find the nodes of the next attempt; raises LaunchError when there are not enough."""
        restart = self._job.restart
        pause = restarts.pause_before(restart) * random.uniform(0.75, 1.0)
        next_one = f"attempt {restart + 1} of {self._policy.limit + 1}"
        self._observer.remark(f"attempt {restart}: {verdict.headline}; {next_one} in {pause:.1f} s")
        await asyncio.sleep(pause)
        if self._policy.discovery is not None:
            await self._discover(self._policy.discovery)
        lineup = self._next_lineup()
        if lineup is None:
            wanted = self._policy.least if self._policy.elastic else len(self._lineup.job_map.nodes)
            left = [node.name for node in self._pool.nodes if node.slots and node.index not in self._health.unusable]
            there = f"there are {len(left)}: {fold(left)}" if left else "there is none"
            raise LaunchError("too-few-nodes", f"{next_one} needs {wanted} nodes with enough slots, and {there}")
        changed = restarts.changes(self._lineup, lineup)
        self._observer.remark(f"{next_one} begins" + (f", with {changed}" if changed else ""))
        self._use(lineup)
        self._job = replace(self._job, time_spent=time.monotonic() - self._began)
        make_room(self._job)
        if self._stdin_start is not None:
            os.lseek(0, self._stdin_start, os.SEEK_SET)

    def _next_job(self) -> JobSpec:
        first, restart = self._first, self._job.restart + 1
        directory = first.output.directory and os.path.join(first.output.directory, f"restart-{restart}")
        return replace(
            self._job,
            job_id=f"{first.job_id}-{restart}",
            restart=restart,
            checkpoints=None if first.checkpoints is None else renewed(first.checkpoints),
            last_port=self._ran.port if self._ran is not None else None,
            output=first.output._replace(directory=directory),
        )

    def _next_lineup(self) -> Lineup | None:
        try:
            return restarts.next_lineup(self._policy, self._pool, self._lineup, self._health)
        except UsageError:
            # What the user said does not go with fewer nodes, such as a slot map with fixed ranks.
            return None

    def _use(self, lineup: Lineup) -> None:
        self._lineup = lineup
        self._job = replace(self._job, allocation=lineup.allocation, job_map=lineup.job_map)

    async def _discover(self, discovery: Discovery) -> None:
        """Ask which hosts there are; what is known stands when nobody can tell."""
        try:
            text = await _output_of(discovery.command)
            entries = parse_hostfile(text, discovery.command)
            found = allocate(
                entries,
                source=discovery.command,
                agent=discovery.agent,
                remote_agent=discovery.remote_agent,
                per_node=discovery.per_node,
                local_names=discovery.local_names,
            )
        except LaunchError as error:
            self._observer.remark(f"--host-discovery-script: {error.message}; the hosts stay as they were")
            return
        self._pool, gone = restarts.with_discovered(self._pool, found)
        self._health = replace(self._health, unusable=gone)

    def _story(self, reason: str) -> tuple[str, ...]:
        """Tell of the attempts before the last, and why there is no other."""
        told = [f"attempt {number}: {attempt.verdict.headline}" for number, attempt in enumerate(self._ended[:-1], 1)]
        more = len(told) - EARLIER_SHOWN
        if told:
            counted = f"this was attempt {len(self._ended)}; before it:" + (f" {more} more, and" if more > 0 else "")
            told = [counted, *told[-EARLIER_SHOWN:]]
        if self._policy.limit and restarts.is_restartable(self._ended[-1].verdict):
            told.append(f"not started again: {reason}")
        return tuple(told)


def renewed(policy: CheckpointPolicy) -> CheckpointPolicy:
    """Return the policy with the newest set that there is now."""
    with suppress(OSError):
        return policy._replace(restart=checkpoints.find_set(policy.prefix))
    return policy


async def _output_of(command: str) -> str:
    """Return what a shell command prints; raises LaunchError. Nothing of it is left when this returns."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), DISCOVERY_SECONDS)
    except asyncio.TimeoutError:
        raise LaunchError("too-few-nodes", f"'{command}' took longer than {DISCOVERY_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise LaunchError("too-few-nodes", f"'{command}' ended with exit code {process.returncode}")
    return output.decode("utf-8", "replace")


def _as_data(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as docs/report.md describes it."""
    verdict = attempt.verdict
    return {
        "restart": attempt.job.restart,
        "job_id": attempt.job.job_id,
        "nodes": list(attempt.lineup.names),
        "exit_code": int(verdict.exit_code),
        "cause": verdict.cause,
        "first_rank": None if verdict.first is None else verdict.first.rank,
        "host": verdict.host or None,
        "detail": verdict.headline or None,
        "seconds": verdict.seconds,
    }
