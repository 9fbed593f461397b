"""What requests are about: one job of this head, with all its launches, from its start to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mpilaunch.errors import LaunchError
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.verdict import Verdict

if TYPE_CHECKING:
    from mpilaunch.head.launch import Launch
    from mpilaunch.head.signals import SignalRelay


class Subject:
    """One job.

    Attributes:
        job: as it began.
        signals: end the job on request.
        began: when it began, in seconds of the monotonic clock.
        launch: the launch that runs now, None before the first one and between two.
        restarts: how many launches have ended.
        lost: the names of nodes that were lost: what ran there may still run.
        ended: the outcome of the job, None where mpilaunch itself failed.
    """

    def __init__(self, job: JobSpec, signals: SignalRelay) -> None:
        loop = asyncio.get_running_loop()
        self.job, self.signals, self.began = job, signals, loop.time()
        self.launch: Launch | None = None
        self.restarts = 0
        self.lost: dict[str, None] = {}
        self.ended: asyncio.Future[Verdict | LaunchError | None] = loop.create_future()

    async def run(self, launch: Launch) -> Verdict:
        """Run a launch; requests are about it meanwhile."""
        self.launch = launch
        try:
            return await launch.run(self.signals)
        finally:
            self.launch = None
            self.restarts += 1
            self.lost |= dict.fromkeys(launch.lost_hosts)

    def end(self, outcome: Verdict | LaunchError | None) -> None:
        """Tell those who wait for it how the job ended; the first call counts."""
        if not self.ended.done():
            self.ended.set_result(outcome)
