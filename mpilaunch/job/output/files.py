"""The files that ranks' output goes to: a template for each stream, and which files beside them are of an earlier run.

Pure: what stands in directories is an argument. A file that another part of the same job writes is never of an earlier run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from mpilaunch.job.output.tags import Tag, parse_tag, parse_template
from mpilaunch.job.spec import JobSpec
from mpilaunch.text import escape_braces, plural

_NUMBERS = ("rank", "local_rank", "node_rank", "restart")
_OF_RUN = ("job", "run")
"""Fields with which each run has files of its own."""
_SHOWN = 3
"""Names that the note about an earlier run shows."""


def templates_of(job: JobSpec) -> dict[str, Tag]:
    """Return the template of the path of each stream, "stdout" or "stderr", that goes to files."""
    output, tags = job.output, {}
    for stream, text in (("stdout", output.stdout_file), ("stderr", output.stderr_file)):
        if text is not None:
            tags[stream] = parse_tag(text, "--output-file")
        elif output.directory is not None:
            tags[stream] = _in_directory(output.directory, stream, job)
    return tags


def _in_directory(directory: str, stream: str, job: JobSpec) -> Tag:
    width = max(4, len(str(job.size - 1)))
    path = os.path.join(escape_braces(directory), f"rank-{{rank:0{width}}}.{stream[3:]}")
    return parse_template(path, "--output-filename")


class Pattern(NamedTuple):
    """Files that a template of a path could name, whatever the ranks.

    Attributes:
        directory: the last directory of which no name depends on a field; "" for the current one.
        names: a pattern for each name below it, with a group for each field that is a number.
    """

    directory: str
    names: tuple[re.Pattern[str], ...]


def patterns_of(job: JobSpec) -> frozenset[Pattern]:
    """Return the patterns of the job's files and of those of its restarts, where runs with other ranks have other files."""
    tags = list(templates_of(job).values())
    if (directory := job.output.directory) is not None:
        tags += [_in_directory(directory, stream, job) for stream in ("stdout", "stderr")]
        # The restarts of an earlier run stay too when this run has fewer.
        anew = f"{escape_braces(directory)}/restart-{{restart}}/rank-{{rank}}."
        tags += [parse_template(anew + ending, "--output-filename") for ending in ("out", "err")]
    fields = [{name for name, _ in tag.pieces} for tag in tags]
    return frozenset(
        _pattern(tag)
        for tag, names in zip(tags, fields, strict=True)
        if not names.isdisjoint(_NUMBERS) and names.isdisjoint(_OF_RUN)
    )


def _pattern(tag: Tag) -> Pattern:
    names, patterns, first_field, seen = [""], [""], -1, set()
    for field, text in tag.pieces:
        if field:
            first_field = len(names) - 1 if first_field < 0 else first_field
            patterns[-1] += f" *(?P<{field}>[0-9]{{1,99}}) *" if field in _NUMBERS and field not in seen else ".+"
            seen.add(field)
            continue
        first, *others = text.split("/")
        names[-1] += first
        patterns[-1] += re.escape(first)
        names += others
        patterns += map(re.escape, others)
    directory = "/".join(names[:first_field]) or "/" * bool(first_field)
    return Pattern(directory, tuple(re.compile(pattern, re.DOTALL) for pattern in patterns[first_field:]))


def is_of_an_earlier_run(job: JobSpec, numbers: Mapping[str, int]) -> bool:
    """Return whether a file with these fields, which this command does not write, cannot be of another part of the job."""
    if job.part is None:
        return True
    if "rank" in numbers:
        own = range(job.first_rank, job.first_rank + len(job.job_map.placements))
        return numbers["rank"] >= job.size or numbers["rank"] in own
    node_rank = numbers.get("node_rank", job.part.node_rank)
    return node_rank >= job.part.nodes or node_rank == job.part.node_rank


def earlier_run_note(directory: str, names: Collection[str]) -> str:
    """Return the note that files of an earlier run, named from a directory on, stand beside those of this one."""
    shown = sorted(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    files = plural(len(shown), "file")
    place = directory or "the current directory"
    return f"{place} keeps {files} of an earlier run that this one does not replace: {', '.join(shown[:_SHOWN])}{more}"
