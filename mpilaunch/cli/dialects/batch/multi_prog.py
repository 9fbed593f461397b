"""srun's --multi-prog: a file that gives each task its program. Source: srun(1), "MULTIPLE PROGRAM CONFIGURATION"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from mpilaunch.cli.dialects.rows import InvalidArgument, Surroundings
from mpilaunch.hosts.nodeset import Span, parse_numbers


def programs_of(words: Sequence[str], tasks: int, around: Surroundings) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the programs of --multi-prog FILE: each line has task numbers, a program and its arguments, with %t and %o."""
    if not words:
        raise InvalidArgument("--multi-prog without a file", "name it in the program's place: srun -n 4 --multi-prog FILE")
    programs: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(around.read_file(words[0], "file of --multi-prog").splitlines(), start=1):
        numbers, *rest = line.split(None, 1) if line.strip() and not line.startswith("#") else ("",)
        if not rest:
            if numbers:
                raise InvalidArgument(f"{words[0]}:{number}: no program after '{numbers}'", "write lines like: 0-3 ./a x")
            continue
        ranks = range(tasks) if numbers == "*" else parse_numbers(Span.of(numbers, words[0], number))
        for offset, rank in enumerate(ranks):
            programs.setdefault(rank, (*_filled(rest[0], rank, offset), *words[1:]))
    if missing := [rank for rank in range(tasks) if rank not in programs]:
        raise InvalidArgument(f"{words[0]}: no program for task {missing[0]}", "add a line for it, or '*' for all other tasks")
    return tuple((str(sum(1 for _ in run)), program) for program, run in groupby(programs[rank] for rank in range(tasks)))


def _filled(line: str, rank: int, offset: int) -> list[str]:
    """Return the words of a line: %t is the task and %o its place in its range, but not in single quotes."""
    pieces = re.findall(r"(?:'[^']*'|[^\s'])+", line)
    values = {"%t": str(rank), "%o": str(offset)}
    return [re.sub(r"'([^']*)'|%[to]", lambda match: values.get(match[0], match[1] or ""), piece) for piece in pieces]
