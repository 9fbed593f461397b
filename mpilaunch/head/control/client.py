"""Asks the heads of this user on this machine about their jobs. Each wait has a limit: a head may be stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.head.control import place, requests
from mpilaunch.head.control.requests import ANSWER, REFUSED, REQUEST, BadMessage
from mpilaunch.head.tasks import run, settle
from mpilaunch.hosts.nodeset import fold
from mpilaunch.relay import FrameProtocol, connect

ANSWER_SECONDS = 5.0
"""Seconds in which a head must answer; it may have to ask its nodes, which have three."""
MOST_ASKED = 64
"""Heads that are asked at a time."""


class Job(NamedTuple):
    """A job of this user.

    Attributes:
        about: the answer of its head to `job` (docs/jobs.md), None where it does not answer.
    """

    entry: place.Entry
    about: dict[str, Any] | None

    @property
    def run_id(self) -> str:
        return self.entry.run_id

    @property
    def pid(self) -> int:
        """The process of its head."""
        return self.entry.pid


class Asking(FrameProtocol):
    """A connection to a head, for one request.

    Attributes:
        answer: the frame that comes; kind 0 where the connection ends without one.
    """

    max_data = requests.LONGEST_ANSWER

    def __init__(self) -> None:
        super().__init__()
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def frame_received(self, kind: int, data: bytes) -> None:
        settle(self.answer, (kind, data))

    def connection_lost(self, error: Exception | None) -> None:
        settle(self.answer, (0, b""))


def find_all() -> list[Job]:
    """Return this user's jobs on this machine, the oldest first."""
    return run(_find_all())


def find(text: str) -> Job:
    """Return the job with this name, or whose id begins with it; raises LaunchError unless there is exactly one."""
    jobs = find_all()
    found = [job for job in jobs if job.run_id == text or (job.about is not None and job.about["name"] == text)]
    found = found or [job for job in jobs if text and job.run_id.startswith(text)]
    if len(found) == 1 and found[0].about is not None:
        return found[0]
    hint = "mpilaunch jobs lists those that run"
    if not found:
        raise UsageError("job-unknown", f"no job '{text}' of yours runs on this machine", hint=hint)
    if len(found) > 1:
        ids = ", ".join(job.run_id for job in found)
        raise UsageError("job-ambiguous", f"'{text}' means several jobs: {ids}", hint="write more of the id")
    raise _no_answer(found[0])


def has_started(run_id: str) -> bool:
    """Return whether all ranks of a job of this machine run, or have run before a restart."""
    entry = next((entry for entry in place.entries() if entry.run_id == run_id), None)
    job = None if entry is None else run(_job_of(entry))
    return job is not None and job.about is not None and job.about["state"] in ("running", "restarting")


def ask(job: Job, request: str, seconds: float | None = ANSWER_SECONDS, **members: Any) -> dict[str, Any]:
    """Return the answer of a job's head to a request; raises LaunchError, with `job-gone` where the head ends without one."""
    return run(_answer_of(job, request, seconds, members))


def left_on(hosts: Sequence[str], end: str) -> LaunchError:
    """Return the error for a job that has ended, told as `end`, but was lost sight of on these hosts."""
    message = f"{end}, but its connection to {fold(hosts)} was lost: processes of it may be left there"
    hint = "a daemon that lives ends them after --reconnect-timeout; to look there: ps -u $USER -f"
    return LaunchError("job-left", message, hint=hint)


async def _answer_of(job: Job, request: str, seconds: float | None, members: dict[str, Any]) -> dict[str, Any]:
    try:
        kind, data = await _frame_of(job.entry, {"request": request, **members}, seconds)
        if kind == REFUSED:
            raise LaunchError("job-refused", f"job {job.run_id}: {requests.decode_refusal(data)}")
        if kind != ANSWER:
            message = f"the mpilaunch of job {job.run_id} (process {job.pid}) has ended without an answer"
            hint = "if it was killed, the daemons on its nodes end the ranks; a lost connection is waited for first"
            raise LaunchError("job-gone", message, hint=hint)
        return requests.decode_answer(request, data)
    except asyncio.TimeoutError:
        raise _no_answer(job, seconds or ANSWER_SECONDS) from None
    except OSError:
        raise UsageError("job-unknown", f"job {job.run_id} has ended") from None
    except BadMessage as error:
        version = "" if job.about is None else f", which is version {job.about['version']}"
        raise LaunchError("job-refused", f"job {job.run_id}: its mpilaunch{version} sent {error}") from None


def _no_answer(job: Job, seconds: float = ANSWER_SECONDS) -> LaunchError:
    nodes = "" if job.about is None else f" on {fold(job.about['nodes'])}"
    message = f"the mpilaunch of job {job.run_id} (process {job.pid}) has not answered for {seconds:g} s"
    hint = f"it may be stopped: kill -CONT {job.pid}; after kill -KILL {job.pid}, the daemons{nodes} end the ranks"
    return LaunchError("job-silent", message, hint=hint)


async def _find_all() -> list[Job]:
    limit = asyncio.Semaphore(MOST_ASKED)

    async def one(entry: place.Entry) -> Job | None:
        async with limit:
            return await _job_of(entry)

    found = await asyncio.gather(*map(one, place.entries()))
    jobs = [job for job in found if job is not None]
    return sorted(jobs, key=lambda job: 0.0 if job.about is None else job.about["began"])


async def _job_of(entry: place.Entry) -> Job | None:
    """Return the job of a socket; None where nobody listens, or the job ends now."""
    try:
        kind, data = await _frame_of(entry, {"request": "job"}, ANSWER_SECONDS)
        return Job(entry, requests.decode_answer("job", data)) if kind == ANSWER else None
    except ConnectionRefusedError:
        place.remove(entry)  # its head was killed
        return None
    except (asyncio.TimeoutError, BadMessage):  # the first is an OSError since Python 3.11
        return Job(entry, None)
    except OSError:
        return None


async def _frame_of(entry: place.Entry, request: dict[str, Any], seconds: float | None) -> tuple[int, bytes]:
    """Send a request to a head; return the frame that it answers by, kind 0 where it ends without one.

    Raises OSError, asyncio.TimeoutError.
    """
    async with timeout(seconds):
        asking = Asking()
        with place.address(entry) as address:
            try:
                await connect(asking, address)
            except BlockingIOError:
                raise asyncio.TimeoutError from None  # its queue is full: it does not take connections from it
        try:
            _, user, _ = asking.peer_credentials
            if user != os.geteuid():
                raise ConnectionAbortedError("another user's process listens there")
            asking.send_frame(REQUEST, requests.encode(request))
            return await asking.answer
        finally:
            asking.transport.abort()
