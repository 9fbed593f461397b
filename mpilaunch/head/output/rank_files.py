"""The files that ranks' output goes to: which stream of which rank goes into which, opened once and written without a wait.

A file of one stream gets its bytes as they come. One that several share gets whole lines.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mpilaunch.errors import UsageError
from mpilaunch.head import safe_files
from mpilaunch.job.output.tags import parse_tag
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import World
from mpilaunch.wire.frames import STDERR, STDOUT, stream_channel

STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
SUFFIXES = {STDOUT: "out", STDERR: "err"}


@dataclass(eq=False)
class RankFile:
    """One file; `users` counts the streams that still write to it, `shared` says that there were several."""

    descriptor: int
    users: int
    shared: bool

    def write(self, data: bytes) -> None:
        """Write bytes; raises OSError."""
        safe_files.write_all(self.descriptor, data)

    def release(self) -> None:
        """One stream has ended; the last one closes the file."""
        self.users -= 1
        if not self.users:
            os.close(self.descriptor)


def open_files(job: JobSpec, world: World, files: dict[str, RankFile]) -> dict[int, RankFile]:
    """Open the file of each stream of a world's ranks that goes to one, by the stream's channel; raises UsageError.

    A file that an earlier attempt has written is gone on with: why that one failed may stand nowhere else.

    Args:
        files: those of the job by path, to which new ones are added: worlds may share files.
    """
    paths, named = _paths(job, world)
    for path, count in Counter(paths.values()).items():
        file = files.get(path)
        if file is None:
            files[path] = RankFile(_open(path, job.restart > 0, path in named), count, count > 1)
        elif file.users:
            file.users += count
            file.shared = True
        else:
            files[path] = RankFile(_open(path, True, path in named), count, True)
    return {channel: files[path] for channel, path in paths.items()}


def is_printed(job: JobSpec, kind: int) -> bool:
    """Say whether the streams of one kind are printed, besides going to files."""
    output = job.output
    if (output.stdout_file if kind == STDOUT else output.stderr_file) is not None:
        return output.copy is True
    return output.copy is not False or output.directory is None


def _paths(job: JobSpec, world: World) -> tuple[Mapping[int, str], set[str]]:
    """Return the path of each stream that goes to a file, by its channel, and those that the user named without any field."""
    output = job.output
    width = max(4, len(str(len(job.job_map.placements) - 1)))
    node_ranks = {node: place for place, node in enumerate(world.job_map.nodes)}
    templates = {STDOUT: output.stdout_file, STDERR: output.stderr_file}
    tags = {kind: parse_tag(text, "--output-file") for kind, text in templates.items() if text is not None}
    paths, named = {}, set()
    for place in world.job_map.placements:
        rank = world.first + place.rank
        for kind in (STDOUT,) if output.merge_stderr else (STDOUT, STDERR):
            channel = stream_channel(rank, kind)
            if kind in tags:
                bound = tags[kind].bind(
                    rank=rank,
                    local_rank=place.local_rank,
                    node_rank=node_ranks[place.node],
                    host=job.allocation.nodes[place.node].name,
                    stream=STREAMS[kind],
                    job=job.job_id,
                )
                paths[channel] = os.fsdecode(bound.prefix(0.0))
                if not any(field for field, _ in tags[kind].pieces):
                    named.add(paths[channel])
            elif output.directory is not None:
                paths[channel] = os.path.join(output.directory, f"rank-{rank:0{width}}.{SUFFIXES[kind]}")
    return paths, named


def _open(path: str, append: bool, named: bool) -> int:
    try:
        return safe_files.open_output(path, append=append, named=named)
    except OSError as error:
        told = f"{path}: the ranks' output cannot go there: {error.strerror}"
        raise UsageError("output-directory", told, hint=safe_files.hint_of(error)) from error
