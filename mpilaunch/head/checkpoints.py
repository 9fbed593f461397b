"""The clockwork of checkpoints: it asks every rank at once to save, and gives a set its number when all have.

The ranks' marks in the directory of the set are the only word that they have saved (`mpilaunch.job.checkpoints`). One request is
under way at a time: another one while ranks still save would mix two states in one set. A set that is not whole when the next
is due is begun anew: a rank may not have been ready for the signal, which goes only to processes that take it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from mpilaunch.errors import reason_of
from mpilaunch.head import safe_files
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.job import checkpoints
from mpilaunch.job.spec import CheckpointPolicy, JobSpec

LOOK = 0.25
"""Seconds between two looks for marks while ranks save."""
PATIENCE = 60.0
"""Seconds after which the user is told who has not saved yet."""


class Checkpoints:
    """The checkpoints of one launch; a job without a policy for them has none, and this does nothing.

    Args:
        tell: sends a control message to every node.
        say: tells the user.
    """

    def __init__(self, job: JobSpec, tell: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> None:
        self._policy = job.checkpoints or CheckpointPolicy("")
        self._directory = job.checkpoint_directory
        self._size = len(job.job_map.placements)
        self._grace = job.deadlines.grace
        self._signal: int = getattr(signal, f"SIG{self._policy.signal}")
        self._tell = tell
        self._say = say
        self._asked_at: float | None = None
        self._told: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """The ranks run: let the clock go."""
        if self._directory is not None:
            self._start(self._run())

    def takes(self, number: int) -> bool:
        """Tell whether a signal to mpilaunch asks for a checkpoint; if it does, ask the ranks."""
        if self._directory is None or number != self._signal:
            return False
        self._request()
        return True

    def save_first(self, then: Callable[[], None]) -> bool:
        """Before a scheduler ends the job, let the ranks save within the grace time; tell whether `then` will be called."""
        if self._directory is None:
            return False
        self._say("SIGTERM to mpilaunch: the ranks are asked to save before they end; SIGINT kills them now")
        self._start(self._save_last(then))
        return True

    def close(self) -> None:
        """The job has ended: number the last set if it is whole, and leave no empty directory."""
        for task in self._tasks:
            task.cancel()
        if self._directory is not None:
            self._look()
            with suppress(OSError), safe_files.directory(self._policy.prefix) as prefix:
                os.rmdir(os.path.basename(self._directory), dir_fd=prefix)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _run(self) -> None:
        """Ask at every interval, and look for marks meanwhile."""
        interval = self._policy.interval
        due = None if interval is None else time.monotonic() + interval
        while True:
            await asyncio.sleep(LOOK)
            self._look()
            if interval is not None and due is not None and time.monotonic() >= due:
                due += interval * (1 + (time.monotonic() - due) // interval)
                self._request(anew=True)

    async def _save_last(self, then: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._grace
        self._request()
        while self._asked_at is not None and time.monotonic() < deadline:
            await asyncio.sleep(LOOK / 5)
            self._look()
        if self._asked_at is not None:
            self._tell_missing()
        then()

    def _request(self, *, anew: bool = False) -> None:
        """Ask every rank to save, unless ranks still save; `anew`: also then, for another set in its place."""
        self._look()
        if self._asked_at is not None:
            self._tell_missing()
            if not anew:
                return
            self._forget_marks()
        self._asked_at = time.monotonic()
        self._tell({"type": "signal", "signal": self._signal, "caught": True})

    def _forget_marks(self) -> None:
        saved = set(range(self._size)) - set(self._missing())
        with suppress(OSError), safe_files.directory(self._directory or ".") as directory:
            for rank in saved:
                with suppress(OSError):
                    os.unlink(checkpoints.mark(rank), dir_fd=directory)

    def _look(self) -> None:
        """Number the set if every rank has left its mark since it was asked."""
        if self._asked_at is None or self._directory is None:
            return
        if self._missing():
            if time.monotonic() - self._asked_at > PATIENCE:
                self._tell_missing()
            return
        self._asked_at = None
        try:
            path = number_set(self._policy.prefix, self._directory)
        except OSError as error:
            self._say(f"the checkpoint in {self._directory} cannot get its number: {reason_of(error)}")
        else:
            self._say(f"checkpoint {path} is whole")

    def _tell_missing(self) -> None:
        missing = self._missing()
        if missing != self._told:
            self._told = missing
            who = fold_numbers(missing)
            self._say(f"the last checkpoint is not whole: no mark of ranks {who} in {self._directory}")

    def _missing(self) -> list[int]:
        try:
            with safe_files.directory(self._directory or ".") as directory:
                return checkpoints.missing(os.listdir(directory), self._size)
        except OSError:
            return list(range(self._size))


def number_set(prefix: str, directory: str) -> str:
    """Give a set the next number and make an empty directory in its place; return the set's path; raises OSError."""
    unfinished = os.path.basename(directory)
    with safe_files.directory(prefix) as folder:
        while True:
            name = checkpoints.next_name(os.listdir(folder))
            try:
                # Renaming onto a directory with something in it fails: another launch has just taken the number.
                os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                if name not in os.listdir(folder):
                    raise
                continue
            os.mkdir(unfinished, safe_files.DIRECTORY_MODE, dir_fd=folder)
            return os.path.join(prefix, name)
