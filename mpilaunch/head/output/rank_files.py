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
from mpilaunch.job.output.tags import parse_tag
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

    Files of an earlier attempt are appended to, since they may hold the only message of its failure. Worlds may share `files`,
    the job's files by path, to which new ones are added. `broken` is called with the path of a file that can block, once it
    cannot be written.
    """
    paths, named = _paths(job, world)
    for path, count in Counter(paths.values()).items():
        file = files.get(path)
        if file is not None and file.users:
            file.users += count
            file.shared = True
        else:
            again = file is not None
            descriptor = _open(path, again or job.restart > 0, path in named)
            files[path] = RankFile(descriptor, count, again or count > 1, partial(broken, path), file.writer if file else None)
    return {channel: files[path] for channel, path in paths.items()}


def is_printed(job: JobSpec, kind: int, local_rank: int) -> bool:
    """Return whether a stream of one kind and local rank is printed, besides going to files."""
    output = job.output
    if output.local_ranks is not None and local_rank not in output.local_ranks:
        return False
    if (output.stdout_file if kind == STDOUT else output.stderr_file) is not None:
        return output.copy is True
    return output.copy is not False or output.directory is None


def streams_of(job: JobSpec, world: World) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield channel, kind (STDOUT or STDERR) and tag fields of each stream of a world's ranks."""
    node_ranks = {node: node_rank for node_rank, node in enumerate(world.job_map.nodes, start=job.first_node_rank)}
    for place in world.job_map.placements:
        rank, host = world.first + place.rank, job.allocation.nodes[place.node].name
        fields = {"rank": rank, "local_rank": place.local_rank, "node_rank": node_ranks[place.node], "host": host}
        for kind in (STDOUT,) if job.output.merge_stderr else (STDOUT, STDERR):
            yield stream_channel(rank, kind), kind, {**fields, "stream": STREAMS[kind], "job": job.job_id}


def _paths(job: JobSpec, world: World) -> tuple[Mapping[int, str], set[str]]:
    """Return the path of each stream that goes to a file, by channel, and the paths that the user named without any field."""
    output = job.output
    width = max(4, len(str(job.size - 1)))
    templates = {STDOUT: output.stdout_file, STDERR: output.stderr_file}
    tags = {kind: parse_tag(text, "--output-file") for kind, text in templates.items() if text is not None}
    paths, named = {}, set()
    for channel, kind, fields in streams_of(job, world) if tags or output.directory is not None else ():
        if kind in tags:
            paths[channel] = tags[kind].path(**fields)
            if not any(field for field, _ in tags[kind].pieces):
                named.add(paths[channel])
        elif output.directory is not None:
            paths[channel] = os.path.join(output.directory, f"rank-{fields['rank']:0{width}}.{STREAMS[kind][3:]}")
    return paths, named


def _open(path: str, append: bool, named: bool) -> int:
    try:
        return safe_files.open_output(path, append=append, named=named)
    except OSError as error:
        message = f"{path}: the ranks' output cannot go there: {error.strerror}"
        raise UsageError("output-directory", message, hint=safe_files.hint_of(error)) from error
