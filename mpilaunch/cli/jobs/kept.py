"""Detached jobs on the command line: how one is detached, and how its kept output is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from mpilaunch.cli.console import BROKEN_PIPE, print_result, writing_results
from mpilaunch.head.detached import client, keeper, logout, place, segments
from mpilaunch.head.detached.records import Record
from mpilaunch.job.output.lines import as_shown

if TYPE_CHECKING:
    from mpilaunch.cli.console import Console
    from mpilaunch.job.spec import JobSpec


def detach(job: JobSpec, console: Console) -> tuple[JobSpec, int | None]:
    """Return the job in its head, which is detached; elsewhere the exit code, when the job runs or has ended.

    A job that fails before all its ranks run is reported as if it had not been detached.
    """
    from mpilaunch.head.control.client import has_started

    code = keeper.detach(job, lambda: has_started(job.run_id))
    folder = os.path.join(place.top(), job.run_id)
    if code is None:
        console.look_at_stream()
        return job._replace(report_file=job.report_file or os.path.join(folder, place.REPORT)), None
    if code == 0:
        if text := logout.warning():
            console.warn(text)
        print_result(job.run_id)
    elif (failed := place.read(folder)) is not None:
        show(failed, None, console, follow=False)
    return job, code


def show(job: place.Kept, ranks: Collection[int] | None, console: Console, *, follow: bool, new: bool = False) -> None:
    """Print the kept output, all or that of some ranks; raises LaunchError. The arguments are those of `client.output`."""

    def dropped() -> None:
        kept = segments.LARGEST * segments.MOST >> 20
        console.warn(f"the oldest output is not kept: a job keeps {kept} MiB; --output-filename DIR keeps all")

    try:
        with writing_results():
            for record in client.output(job, dropped, follow=follow, new=new):
                if ranks is None or record.rank in ranks:
                    _print(record)
    except BrokenPipeError:
        sys.exit(BROKEN_PIPE)
    now = place.read(job.folder)
    if now is not None and now.end is not None and now.end["lost"]:
        console.warn(f"the output is not complete: {now.end['lost']}")


def _print(record: Record) -> None:
    """Write a record to its stream, whose reader, such as a pager, may take its time."""
    stream = {1: sys.stdout, 2: sys.stderr}[record.stream]
    if stream is not None:
        stream.buffer.write(as_shown(record.text) if stream.isatty() else record.text)
        stream.buffer.flush()
