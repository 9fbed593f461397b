"""The files that ranks' output goes to (`--output-filename`, `--output-file`, `--error-file`): one open file per path.

A file of one stream gets its bytes as they come; a file that several streams share gets whole lines. What can block, such as a
pipe whose reader is slow, is written by a thread.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from mpilaunch.errors import UsageError
from mpilaunch.head import safe_files
from mpilaunch.head.output.writer import Writer
from mpilaunch.job.output.files import templates_of
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import World
from mpilaunch.wire.frames import STDERR, STDOUT, stream_channel

STREAMS = {STDOUT: "stdout", STDERR: "stderr"}


class RankFile:
    """One open file.

    Attributes:
        users: the number of streams that still write to it.
        shared: whether several do or did.
        writer: writes to a file that can block; None for a regular file.
    """

    def __init__(
        self, descriptor: int, users: int, shared: bool, broken: Callable[[OSError], None], writer: Writer | None = None
    ) -> None:
        self.descriptor, self.users, self.shared, self.writer = descriptor, users, shared, writer
        if writer is None and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            self.writer = Writer(broken, safe_files.PATIENCE)
            self.writer.begin()

    def release(self) -> None:
        """Remove a user; the last one closes the file, once all is written."""
        self.users -= 1
        if not self.users:
            close = partial(os.close, self.descriptor)
            if self.writer is None:
                close()
            else:
                self.writer.write(-1, b"", close)


def open_files(
    job: JobSpec, world: World, files: dict[str, RankFile], broken: Callable[[str, OSError], None]
) -> dict[int, RankFile]:
    """Open the files of a world's ranks; return the file of each stream, by its channel; raises LaunchError.

    Files that attempts share are appended to, since they may hold the only message of a failure. Worlds may share `files`,
    the job's files by path, to which new ones are added. `broken` is called with the path of a file that can block, once it
    cannot be written.
    """
    paths = paths_of(job, world)
    tags = templates_of(job).values()
    named = {"".join(text for _, text in tag.pieces) for tag in tags if not any(field for field, _ in tag.pieces)}
    for path, count in Counter(paths.values()).items():
        file = files.get(path)
        if file is not None and file.users:
            file.users += count
            file.shared = True
        else:
            again = file is not None
            # The directory of an attempt may have files of an earlier run.
            shared = job.restart > 0 and os.path.dirname(path) != job.output.directory
            descriptor = _open(path, again or shared, path in named)
            files[path] = RankFile(descriptor, count, again or count > 1, partial(broken, path), file.writer if file else None)
    return {channel: files[path] for channel, path in paths.items()}


def is_printed(job: JobSpec, kind: int, local_rank: int) -> bool:
    """Return whether a stream of one kind and local rank is printed, besides going to files."""
    output = job.output
    if output.local_ranks is not None and local_rank not in output.local_ranks:
        return False
    own = output.in_own_file(STREAMS[kind], local_rank)
    if own is not None:
        return output.copy is True or not own
    return output.copy is not False or output.directory is None


def streams_of(job: JobSpec, world: World) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield channel, kind (STDOUT or STDERR) and tag fields of each stream of a world's ranks."""
    of_run = {"job": job.job_id, "run": job.run_id, "restart": job.restart}
    node_ranks = {node: node_rank for node_rank, node in enumerate(world.job_map.nodes, start=job.first_node_rank)}
    for place in world.job_map.placements:
        rank, host = world.first + place.rank, job.allocation.nodes[place.node].name
        fields = {"rank": rank, "local_rank": place.local_rank, "node_rank": node_ranks[place.node], "host": host}
        for kind in (STDOUT,) if job.output.merge_stderr else (STDOUT, STDERR):
            yield stream_channel(rank, kind), kind, {**fields, "stream": STREAMS[kind], **of_run}


def paths_of(job: JobSpec, world: World) -> Mapping[int, str]:
    """Return the path of each stream of a world's ranks that goes to a file, by channel."""
    tags = templates_of(job)
    streams = streams_of(job, world) if tags else ()
    return {
        channel: tags[STREAMS[kind]].path(**fields)
        for channel, kind, fields in streams
        if STREAMS[kind] in tags and job.output.in_own_file(STREAMS[kind], fields["local_rank"]) is not False
    }


def _open(path: str, append: bool, named: bool) -> int:
    try:
        return safe_files.open_output(path, append=append, named=named)
    except OSError as error:
        message = f"{path}: the ranks' output cannot go there: {error.strerror}"
        raise UsageError("output-directory", message, hint=safe_files.hint_of(error)) from error
