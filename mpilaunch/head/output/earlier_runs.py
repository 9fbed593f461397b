"""Find the files of an earlier run that this run will not replace, so that nobody takes a mixture of two runs for one.

It reads names in directories and nothing else: it opens, changes and removes no file, and a directory that it cannot read
counts as empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from mpilaunch.head import safe_files
from mpilaunch.head.output.rank_files import paths_of
from mpilaunch.job.output.files import Pattern, earlier_run_note, is_of_an_earlier_run, patterns_of
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import first_worlds

MOST_NAMES = 100_000
"""Names of one directory that are looked at, since a shared one may have any number."""


def notes_on_earlier_runs(job: JobSpec) -> Iterator[str]:
    """Yield a note for each directory that keeps files of an earlier run; called before the first attempt."""
    own = {os.path.normpath(path) for world in first_worlds(job) for path in paths_of(job, world).values()}
    found: dict[str, set[str]] = {}
    for pattern in patterns_of(job):
        for path, numbers in _files(pattern, pattern.directory, {}):
            if os.path.normpath(path) not in own and is_of_an_earlier_run(job, numbers):
                found.setdefault(pattern.directory, set()).add(os.path.relpath(path, pattern.directory or "."))
    for directory, names in sorted(found.items()):
        yield earlier_run_note(directory, names)


def _files(pattern: Pattern, directory: str, numbers: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the path of each file of a pattern, with its numbers."""
    names: list[str] = []
    with suppress(OSError), safe_files.directory(directory or ".") as descriptor:
        names = os.listdir(descriptor)[:MOST_NAMES]
    for name in names:
        if match := pattern.names[0].fullmatch(name):
            path = os.path.join(directory, name)
            known = {**numbers, **{field: int(text) for field, text in match.groupdict().items()}}
            if pattern.names[1:]:
                yield from _files(pattern._replace(names=pattern.names[1:]), path, known)
            else:
                yield path, known
