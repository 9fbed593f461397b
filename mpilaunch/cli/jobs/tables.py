"""Running jobs, the ranks of one and their stacks as text, for `mpilaunch jobs` and `mpilaunch stack`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.hangs.autopsy import ranks_on, silence
from mpilaunch.job.hangs.native import Backtrace, errors_as_lines
from mpilaunch.job.hangs.stacks import Process, as_text
from mpilaunch.job.output.masking import mask_argv
from mpilaunch.text import aligned, plural, printable, shell_line

if TYPE_CHECKING:
    from mpilaunch.head.detached.place import Kept

SHORTEST_ID = 6
"""Characters of an id that are shown, unless two begin alike."""
LONGEST_PROGRAM, LONGEST_LINE = 60, 80
"""Characters of a program and of a rank's last line that are shown."""
SILENT = "no answer"
"""The state of a job whose head does not answer."""


def jobs_as_text(jobs: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[str]:
    """Return the table of jobs.

    Args:
        jobs: the id of each and its head's answer (docs/jobs.md), None where there is none.
    """
    size = SHORTEST_ID
    while len({run_id[:size] for run_id, _ in jobs}) < len({run_id for run_id, _ in jobs}):
        size += 1
    rows = [["JOB", "NAME", "STATE", "RANKS", "NODES", "AGE", "SILENT", "PROGRAM"]]
    for run_id, about in jobs:
        if about is None:
            rows.append([run_id[:size], "", SILENT, "", "", "", "", ""])
            continue
        silent = "" if about["silent"] is None else duration(about["silent"])
        numbers = [str(about["ranks"]), str(len(about["nodes"])), duration(about["age"]), silent]
        rows.append([run_id[:size], about["name"], about["state"], *numbers, _program(about)])
    return _aligned(rows, right=("RANKS", "NODES", "AGE", "SILENT"), optional="NAME")


def ended_as_text(jobs: Sequence[Kept]) -> list[str]:
    """Return the table of detached jobs that have ended."""
    rows = [["ENDED", "NAME", "HOW", "RANKS", "NODES", "RAN FOR", "PROGRAM"]]
    for job in jobs:
        ran = "" if job.seconds is None else duration(job.seconds)
        numbers = [str(job.about["ranks"]), str(len(job.about["nodes"])), ran]
        rows.append([job.run_id[:SHORTEST_ID], job.about["name"], job.how, *numbers, _program(job.about)])
    return _aligned(rows, right=("RANKS", "NODES", "RAN FOR"), optional="NAME")


def ranks_as_text(about: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of a job's ranks: those that run first, and of these the ones that do what few others do."""
    where = f"{plural(about['ranks'], 'rank')} on {fold(about['nodes'])}"
    head = f"job {about['id']}: {_program(about)}: {where}, {about['state']} for {duration(about['age'])}"
    rows = [["RANK", "HOST", "PID", "CPUS", "CPU TIME", "MEMORY", "GPUS", "SILENT", "STATE", "LAST LINE"]]
    frequent = Counter((rank["alive"], rank["how"]) for rank in ranks)
    order = sorted(ranks, key=lambda rank: (not rank["alive"], frequent[rank["alive"], rank["how"]], rank["rank"]))
    for rank in order:
        line = rank["last_line"].strip()
        rows.append(
            [
                str(rank["rank"]),
                rank["host"],
                "" if rank["pid"] is None else str(rank["pid"]),
                "" if rank["cpus"] is None else f"{rank['cpus']:.1f}",
                "" if rank["cpu_seconds"] is None else duration(rank["cpu_seconds"]),
                "" if rank["memory"] is None else size_of(rank["memory"]),
                ",".join(label.split()[1] for label in rank["gpus"] if len(label.split()) > 1),
                "" if rank["silent"] is None or not rank["alive"] else duration(rank["silent"]),
                rank["how"],
                line if len(line) <= LONGEST_LINE else f"...{line[3 - LONGEST_LINE:]}",
            ]
        )
    right = ("RANK", "PID", "CPUS", "CPU TIME", "MEMORY", "SILENT")
    return [printable(head), *_aligned(rows, right, optional="GPUS")]


def stacks_as_text(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what ranks do and their stacks: equal ones together, the odd ones first, and last the ranks that do not run.

    Of ranks with equal stacks of Python that are at the same place, the C stacks of the first are shown.
    """
    groups: dict[tuple[bool, str, str], list[Mapping[str, Any]]] = {}
    native = {rank["rank"]: Backtrace.of(rank["native"]) for rank in ranks if rank["native"] is not None}
    for rank in ranks:
        stacks = as_text([Process.of(process) for process in rank["processes"]])
        groups.setdefault((not rank["alive"], rank["how"], stacks), []).append(rank)
    hosts = {rank["rank"]: rank["host"] for rank in ranks}
    lines: list[str] = []
    for (ended, how, stacks), same in sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]), item[1][0]["rank"])):
        quiet = [rank["silent"] for rank in same if rank["silent"] is not None and not ended]
        words = (f"{ranks_on([rank['rank'] for rank in same], hosts)}: {how}", *([silence(quiet)] if quiet else []))
        lines += [printable(", ".join(words)), *(f"    {line}" for line in stacks.splitlines())]
        # A rank that waits in MPI spins, so the innermost calls of two seldom are the same: those of one show enough.
        lines += [f"    {line}" for line in native[same[0]["rank"]].as_lines()] if same[0]["rank"] in native else []
    return [*lines, *errors_as_lines({rank: each.error for rank, each in native.items() if each.error}, hosts)]


def standby_as_text(idle: Sequence[str], busy: Sequence[str]) -> str:
    """Return a line on standby daemons: those that wait for a launch, and those in use."""
    parts = [f"{fold(names)} ({what})" for names, what in ((idle, "idle"), (busy, "in use")) if names]
    return printable(f"standby daemons: {', '.join(parts) or 'being started again'}")


def duration(seconds: float) -> str:
    """Return "0.4s", "45s", "12m05s", "3h07m" or "2d04h"."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, unit, part, below in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02}{below}"
    return f"{whole}s"


def size_of(count: int) -> str:
    """Return a number of bytes as "512K", "1.5G"."""
    size = count / 1024
    for unit in "KMG":
        if size < 999.5:
            return f"{size:.0f}{unit}" if size >= 9.95 or unit == "K" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[str], optional: str) -> list[str]:
    """Return a table, escaped; the first row has the names of its columns, of which one is left out where it is empty."""
    place = rows[0].index(optional)
    if not any(row[place] for row in rows[1:]):
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    header, *shown = [[printable(cell) for cell in row] for row in rows]
    return list(aligned(header, shown, right))


def _program(about: Mapping[str, Any]) -> str:
    text = shell_line(mask_argv(about["program"]))
    return text if len(text) <= LONGEST_PROGRAM else f"{text[: LONGEST_PROGRAM - 3]}..."
