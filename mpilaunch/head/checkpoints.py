"""Checkpoints (`--checkpoint-interval`, SIGTERM): signals every rank to save, and numbers a set when all ranks have saved.

A rank reports that it has saved only by a mark file in the set's directory (`mpilaunch.job.checkpoints`). One request is under
way at a time, since a second one would mix two states in one set: a mark does not tell for which request it is. When the next
is due and the set is incomplete, the signal goes only to processes that had no handler for it before.

Loading a checkpoint can run code (a pickle is a program), so ranks are never given a set that another user may have planted.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from mpilaunch.errors import reason_of
from mpilaunch.head import safe_files
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.job import checkpoints, trust
from mpilaunch.job.spec import CheckpointPolicy, JobSpec

POLL_SECONDS = 0.25
"""Time between two checks for marks while ranks save."""
PATIENCE = 60.0
"""Seconds after which a note names the ranks that have not saved yet."""


class Checkpoints:
    """The checkpoints of one launch, asked for by a message to every node; does nothing without a checkpoint policy."""

    def __init__(self, job: JobSpec, send: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> None:
        self._policy = job.checkpoints or CheckpointPolicy("")
        self._directory = job.checkpoint_directory or ""
        self._ranks = [place.rank for place in job.global_map.placements]
        self._grace = job.deadlines.grace
        self._signal: int = getattr(signal, f"SIG{self._policy.signal}")
        self._send, self._say = send, say
        self._asked_at: float | None = None
        self._reported: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Start the timer, when the ranks run."""
        if self._directory:
            self._start(self._run())

    def takes(self, number: int) -> bool:
        """Request a checkpoint if this signal to mpilaunch asks for one; return whether it does."""
        if not self._directory or number != self._signal:
            return False
        self._request()
        return True

    def save_first(self, detail: str, then: Callable[[], None]) -> bool:
        """Let the ranks save within the grace time and call `then`; return False, and do nothing, without a policy."""
        if not self._directory:
            return False
        self._say(f"{detail}: the ranks are asked to save before they end; SIGINT kills them now")
        self._start(self._save_last(then))
        return True

    def close(self) -> None:
        """Number the last set if it is complete, and remove its directory if it is empty."""
        for task in self._tasks:
            task.cancel()
        if self._directory:
            self._check_marks()
            with suppress(OSError), safe_files.directory(self._policy.prefix) as prefix:
                os.rmdir(os.path.basename(self._directory), dir_fd=prefix)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _run(self) -> None:
        """Request a set at every interval, and check for marks in between."""
        interval = self._policy.interval or math.inf
        due = time.monotonic() + interval
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._check_marks()
            if time.monotonic() >= due:
                due += interval * (1 + (time.monotonic() - due) // interval)
                self._request()

    async def _save_last(self, then: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._grace
        self._request()
        while self._asked_at is not None and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS / 5)
            self._check_marks()
        if self._asked_at is not None:
            self._report_missing(last=True)
        then()

    def _request(self) -> None:
        """Ask every rank to save; while a request is under way, only those that it has not reached."""
        self._check_marks()
        again = self._asked_at is not None
        if again:
            self._report_missing()
        else:
            self._remove_marks()
            self._asked_at, self._reported = time.monotonic(), []
        self._send({"type": "signal", "signal": self._signal, "caught": True, "again": again})

    def _remove_marks(self) -> None:
        """Remove what ranks have left without a request."""
        saved = set(self._ranks) - set(self._missing())
        with suppress(OSError), safe_files.directory(self._directory) as directory:
            for rank in saved:
                with suppress(OSError):
                    os.unlink(checkpoints.mark_name(rank), dir_fd=directory)

    def _check_marks(self) -> None:
        """Number the set if every rank has left its mark since the request."""
        if self._asked_at is None:
            return
        if self._missing():
            if time.monotonic() - self._asked_at > PATIENCE:
                self._report_missing()
            return
        self._asked_at = None
        try:
            path = number_set(self._policy.prefix, self._directory)
        except OSError as error:
            self._say(f"the checkpoint in {self._directory} cannot get its number: {reason_of(error)}")
        else:
            self._say(f"checkpoint {path} is whole")

    def _report_missing(self, *, last: bool = False) -> None:
        missing = self._missing()
        if missing != self._reported:
            self._reported = missing
            where = f"no mark of ranks {fold_numbers(missing)} in {self._directory}"
            self._say(f"the last checkpoint is not whole: {where}{'' if last else '; the next one is asked for when it is'}")

    def _missing(self) -> list[int]:
        try:
            with safe_files.directory(self._directory) as directory:
                return checkpoints.missing_ranks(os.listdir(directory), self._ranks)
        except OSError:
            return self._ranks


def number_set(prefix: str, directory: str) -> str:
    """Rename a set to its number, make an empty directory in its place, and return the set's path; raises OSError."""
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


def find_newest_set(prefix: str) -> str | None:
    """Return the path of the newest complete set in the prefix, or None; raises OSError for one that cannot be trusted."""
    try:
        with safe_files.directory(prefix, parents=True) as folder:
            names = checkpoints.newest_first(os.listdir(folder))
    except FileNotFoundError:
        return None
    for name in names:
        path = os.path.join(prefix, name)
        if os.path.isdir(path) and _has_marks(name, path):
            return path
    return None


def _has_marks(name: str, path: str) -> bool:
    """Return whether a directory is a set, which has marks; raises OSError for one that cannot be trusted."""
    with safe_files.directory(path, parents=True) as directory:
        status, files = os.fstat(directory), os.listdir(directory)
    if not any(map(checkpoints.is_mark, files)):
        return False
    # Whoever owns the directory wrote the set. The modes of the prefix do not tell: an access control list can admit others.
    if trust.is_foreign(status):
        hint = "remove it if it is not yours, or copy it to make it yours"
        raise safe_files.UnsafePath(f"the set {name} belongs to {trust.owner_of(status)}", hint)
    if trust.is_public(status):
        raise safe_files.UnsafePath(f"every user may write into the set {name}", f"check the set, then: chmod o-w {path}")
    return True
