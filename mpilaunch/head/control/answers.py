"""Serves the requests about a job: what it is, what its ranks do, a signal for them, its end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import mpilaunch
from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.head.ending.stop import OVERDUE
from mpilaunch.hosts.nodeset import name_ranks
from mpilaunch.job.plan import outline

if TYPE_CHECKING:
    from mpilaunch.head.control.running import RunningJob
    from mpilaunch.head.control.subject import Subject
    from mpilaunch.job.verdict import Verdict

UNREAD_SECONDS = 20.0
"""Seconds that the end of a job may take beyond its limits, for output whose reader is slow."""


class Refused(Exception):
    """Why a request is not served, for the user."""


async def job(subject: Subject, peer: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return what the job is."""
    spec, age = subject.job, asyncio.get_running_loop().time() - subject.began
    running = None if subject.launch is None else subject.launch.running
    return {
        **outline(spec),
        "state": ("restarting" if subject.restarts else "starting") if running is None else running.phase,
        "began": time.time() - age,
        "age": age,
        "silent": None if running is None else running.silent,
        "pid": os.getpid(),
        "restart": subject.restarts,
        "version": mpilaunch.__version__,
        "stop_seconds": 2 * spec.deadlines.grace + OVERDUE + UNREAD_SECONDS,
    }


async def ranks(subject: Subject, peer: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return what each rank does."""
    running = _running(subject)
    return {"ranks": running.rows(await running.look())}


async def stacks(subject: Subject, peer: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return what each rank does, with the stacks of its processes, and if asked those in C and the report of NCCL."""
    running = _running(subject)
    named = _named(running, message["ranks"])
    look = await running.look(ask_nccl=message["nccl"])
    native = await running.backtraces(named) if message["native"] else {}
    places = {rank: backtrace.place for rank, backtrace in native.items()}
    observed = [each._replace(place=each.place or places.get(each.rank, "")) for each in look.observed]
    rows = [row for row in running.rows(look._replace(observed=observed)) if row["rank"] in named]
    for row in rows:
        row["processes"] = [process.as_data() for process in look.stacks.get(row["rank"], ())]
        row["native"] = native[row["rank"]].as_data() if row["rank"] in native else None
    return {"ranks": rows, "nccl": look.nccl}


async def signal(subject: Subject, peer: int, message: dict[str, Any]) -> dict[str, Any]:
    """Send a signal to some ranks, or to all that run."""
    running = _running(subject)
    alive = set(running.alive)
    chosen = _named(running, message["ranks"]) if message["ranks"] is not None else alive
    if ended := sorted(chosen - alive):
        raise Refused(f"{name_ranks(ended)} {'does' if len(ended) == 1 else 'do'} not run")
    if not chosen:
        raise Refused("no rank runs")
    running.signal(message["signal"], chosen)
    return {"ranks": sorted(chosen)}


async def end(subject: Subject, peer: int, message: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of the job; return how it ended."""
    return _outcome(await asyncio.shield(subject.ended))


async def stop(subject: Subject, peer: int, message: dict[str, Any]) -> dict[str, Any]:
    """End the job; return how it ended, and where processes of it may be left."""
    subject.signals.stop(f"mpilaunch stop by process {peer}", now=message["now"])
    outcome = await asyncio.shield(subject.ended)
    swept = not (subject.job.independent or subject.job.leave_running)
    return {**_outcome(outcome), "lost": list(subject.lost), "swept": swept}


def _outcome(outcome: Verdict | LaunchError | None) -> dict[str, Any]:
    if outcome is None:
        return {"exit_code": int(ExitCode.INTERNAL), "cause": "internal"}
    cause = outcome.reference if isinstance(outcome, LaunchError) else outcome.cause
    return {"exit_code": outcome.exit_code, "cause": cause}


def _named(running: RunningJob, ranges: list[list[int]] | None) -> set[int]:
    """Return the ranks in these ranges, all for None; raises Refused."""
    if ranges is None:
        return set(running.all)
    named, before = set[int](), -1
    for first, last in ranges:
        if not (running.has(first) and running.has(last)):
            raise Refused(f"there is no rank {first if running.has(last) else last}: it has {running.names}")
        if not before < first <= last:  # so that no request asks for more than each rank once
            raise Refused("the ranges of ranks are not in ascending order")
        named.update(range(first, last + 1))
        before = last
    return named


def _running(subject: Subject) -> RunningJob:
    if subject.launch is None:
        raise Refused("no rank runs: the job is about to start")
    return subject.launch.running


HANDLERS: dict[str, Callable[[Subject, int, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "job": job,
    "ranks": ranks,
    "stacks": stacks,
    "signal": signal,
    "end": end,
    "stop": stop,
}
"""The handler of each request; the second argument is the process that asks."""
