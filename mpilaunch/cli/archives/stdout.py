"""Tar archives on the stdout of independent commands, unpacked into a directory of this machine (`--stdout-archive`).

They are kept in files until the job has ended, then `tree` unpacks them one by one. What one host sends, or what of it cannot
be put into its place, does not concern the others.
"""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, NoReturn

from mpilaunch.cli.archives.tree import Tree
from mpilaunch.errors import UsageError, reason_of
from mpilaunch.job.spec import JobSpec

OPTION = "--stdout-archive"


class Archives:
    """Where the archives of a job's commands are kept and unpacked; raises UsageError if nothing can be written there.

    Args:
        directory: where the files of all hosts come, each under its name, a dot and the name of its host.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        try:
            self._private = tempfile.mkdtemp(prefix=".mpilaunch-", dir=os.path.abspath(directory))
        except OSError as error:
            hint = "name a directory that you may write to"
            raise UsageError("stdout-archive", f"{OPTION} {directory}: {reason_of(error)}", hint=hint) from error

    def __enter__(self) -> Archives:
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._private, ignore_errors=True)

    def kept(self, job: JobSpec) -> JobSpec:
        """Return the job with the stdout of each rank in a file; raises UsageError for two ranks with one host's name."""
        names = [job.allocation.nodes[place.node].name for place in job.job_map.placements]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            hint = "let one command on each host write the archive"
            raise UsageError("stdout-archive", f"{OPTION}: {twice} has more than one command", hint=hint)
        template = self._private.replace("{", "{{").replace("}", "}}") + "/{rank}"
        return job._replace(output=job.output._replace(stdout_file=template, copy=False))

    def unpack(self, job: JobSpec) -> Iterator[str]:
        """Put the files of all archives into their places; yield a message for all that is not there then."""
        if not os.path.isdir(self._private):
            yield f"what came from the hosts is lost: {self._private} has been removed"
            return
        with _signals_as_exits():
            for place in job.job_map.placements:
                host = job.allocation.nodes[place.node].name
                try:
                    with open(os.path.join(self._private, str(place.rank)), "rb") as file:
                        if os.fstat(file.fileno()).st_size:  # else the command did not start, or had nothing to say
                            yield from self._unpack(file, host)
                except FileNotFoundError:
                    pass  # the command did not start

    def _unpack(self, archive: IO[bytes], host: str) -> Iterator[str]:
        root = ""
        try:
            root = tempfile.mkdtemp(dir=self._private)
            tree = Tree(root)
            try:
                tree.unpack(archive)
            except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
                yield f"{host}: the files have not come whole: {_reason(error, root)}"
            for fault in tree.move(self._directory, f".{host}"):
                yield f"{host}: {_reason(fault, root)}"
        except OSError as error:
            yield f"{host}: the files have not come: {_reason(error, root)}"
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _reason(error: BaseException, root: str) -> str:
    """Return an error with the name in the archive, or the place that a file could not be moved to."""
    if not isinstance(error, OSError):
        return str(error)
    name = str(error.filename2 or error.filename or "").removeprefix(f"{root}/")
    return f"{name}: {reason_of(error)}" if name else reason_of(error)


@contextmanager
def _signals_as_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process by an exception, so that what is to be removed is removed."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
