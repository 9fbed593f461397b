"""What must hold after a run, whatever was done to it: pure functions from a plan and what was seen to a list of problems.

The bounds are those of docs/failures.md and docs/exit-codes.md, with a slack for a busy machine. A check must never excuse what
no page allows: what a fault may lead to is one row of a table below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mpilaunch
import mpilaunch_agents
from tests.chaos.plan import CONNECTION, ENDING, PLAIN, START_TIMEOUT, Fault, Job, Plan

PRODUCT = tuple(f"{Path(package.__file__ or '').parent}/" for package in (mpilaunch, mpilaunch_agents))
"""The directories of what is tested."""
START = f"{PRODUCT[0]}__main__.py"
"""The first file of mpilaunch that Python runs."""
PYTHON_INTERRUPTED = {1, -2}
"""Exit codes of a Python that an interrupt ends while it starts; with any other one, mpilaunch ran."""
SLACK = 20.0
"""Seconds that a busy machine may need beyond a bound."""
GONE = 5.0
"""Seconds in which the last process of a job is gone where nothing has to be waited for."""
OVERDUE = 5.0
"""Seconds after the grace time in which a stop ends (head/stop.py)."""
RANKS_TO_END = 2.0
"""Seconds that a daemon without a head gives its ranks."""
FIRST_MESSAGE = 60.0
"""Seconds that a daemon waits for a head from which it has heard nothing."""
SLOW_PROXY = 45.0
"""Seconds that the output of a job may need through proxies that delay it."""

ERRORS = {
    1: r"start-|rank-failed",
    74: r"output-lost",
    76: r"mpi-failed|rank-failed",
    124: r"timeout|rank-failed",
    125: r"node-lost|rank-failed",
    129: r"interrupted|rank-failed",
    130: r"interrupted|rank-failed",
    143: r"preempted|interrupted|rank-failed",
}
"""Exit code -> the errors that it stands for; every other code is a rank's."""
NOTHING_PRINTED = (0, 141, -1, -2, -9, -15)
SIGNAL_CODES = {"INT": {130, -2}, "TERM": {143, -15}, "HUP": {129, -1}}
"""A shell shows both as 128 + N: a signal that comes while Python starts ends it before mpilaunch can print anything."""
SILENCES = {("kill", "head"), ("stop", "head"), ("stop", "daemon"), ("kill", "guard"), ("kill", "host")}
BREAKS_MPI = {("fill", "tmp"), ("down", "link"), ("kill", "helper"), ("kill", "rank")}
NODE_LOST, OUTPUT_GONE, KILLED, MPI_FAILED, START_FAILED, TIMEOUT = 125, 141, -9, 76, 1, 124


@dataclass(frozen=True)
class Hit:
    """A fault that was done.

    Attributes:
        phase: "start" before all ranks had started, "run" after it, "end" when mpilaunch had ended.
        found: there was something that it could be done to.
    """

    fault: Fault
    at: float
    phase: str
    found: bool


@dataclass(frozen=True)
class Record:
    """What was seen of a run.

    Attributes:
        code: of mpilaunch; None when it had not ended within its bound.
        seconds: from its start to its end.
        late: seconds from the end of the last fault to its end.
        read_all: the reader of stdout did not close it.
        stdin_sum: (bytes, checksum) of stdin.
        gone_after: seconds from the end of mpilaunch and of all faults until no process was left; None when some were left.
        processes, files: what was left, as lines.
    """

    code: int | None
    seconds: float
    late: float
    hits: tuple[Hit, ...]
    out: bytes
    err: str
    read_all: bool
    stdin_sum: tuple[int, int]
    gone_after: float | None
    processes: tuple[str, ...]
    files: tuple[str, ...]


def problems(plan: Plan, record: Record) -> list[str]:
    """Return everything that is wrong with a run, nothing when all is well."""
    wrong = []
    if record.code is None:
        allowed = end_bound(plan.job, record.hits)
        wrong.append(f"it had not ended {record.late:.1f} s after the last fault; {allowed:.0f} s are allowed")
    else:
        wrong += _code_problems(plan.job, record)
    wrong += [f"process left: {text}" for text in record.processes]
    dead = {hit.fault.host for hit in record.hits if hit.fault.target == "host"}  # what was there could not remove its files
    left = [text for text in record.files if text.partition(":")[0] not in dead]
    if any((hit.fault.action, hit.fault.target) == ("kill", "head") for hit in record.hits):
        # Its socket is removed by the next job that ends (docs/jobs.md).
        left = [text for text in left if not re.fullmatch(r"head:/tmp/mpilaunch-\d+(/[0-9a-f]{16}\.\d+)?", text)]
    wrong += [f"file left: {text}" for text in left]
    out = record.out.decode("utf-8", "backslashreplace")
    wrong += stream_problems(plan.job, "o", out, record, complete=record.code == 0 and record.read_all)
    wrong += stream_problems(plan.job, "e", record.err, record, complete=record.code == 0 and plan.job.both)
    if not _interrupted_python(record):
        faults = re.compile(r"Traceback|error\[internal|Exception ")
        wrong += [f"stderr: {line}" for line in record.err.splitlines() if faults.search(line)]
    return wrong


# Bounds


def end_bound(job: Job, hits: Iterable[Hit]) -> float:
    """Return the seconds after the last fault within which mpilaunch ends."""
    hits = [hit for hit in hits if hit.found and hit.phase != "end"]
    bound = job.grace + 2 * OVERDUE + SLACK
    # With --continue-on-error, the loss of one node leaves the other ranks to their natural end.
    ending = [hit for hit in hits if (hit.fault.action, hit.fault.target) in ENDING]
    if not any(not job.continue_on_error or hit.fault.target == "head" for hit in ending):
        # MPI ranks that wait for one that has gone are ended by --timeout.
        bound += job.seconds if job.timeout is None else job.timeout
    if job.delays:
        bound += SLOW_PROXY
    if any(hit.phase == "start" for hit in hits):
        bound += START_TIMEOUT
    if any(_silences(hit) for hit in hits):
        bound += job.heartbeat + 2 * job.reconnect
    return bound


def gone_bound(job: Job, code: int | None, hits: Iterable[Hit]) -> float:
    """Return the seconds after the end of mpilaunch, and of all faults, within which no process of the job is left."""
    hits = list(hits)
    cut = code == KILLED or sum(hit.fault.action == "signal" for hit in hits) >= 3
    silent = any(hit.fault.action in ("stop", "down") and _silences(hit) for hit in hits)
    if not cut and not any(_silences(hit) for hit in hits):
        return GONE
    bound = job.reconnect + RANKS_TO_END + 2 * GONE
    if silent:
        bound += 4 * job.heartbeat
    return bound + (FIRST_MESSAGE if any(hit.phase == "start" for hit in hits) else 0.0)


def _silences(hit: Hit) -> bool:
    """Tell whether the head and a daemon may not hear each other because of a fault."""
    return hit.fault.target in CONNECTION or (hit.fault.action, hit.fault.target) in SILENCES


# Exit codes


def _code_problems(job: Job, record: Record) -> list[str]:
    wrong: list[str] = []
    code, possible = record.code, possible_codes(job, record.hits, record.seconds)
    assert code is not None
    if code in PYTHON_INTERRUPTED and _interrupted_python(record):
        return wrong
    failed = re.search(r"^error\[rank-failed\]: .*", record.err, re.MULTILINE)
    if code not in possible and not (failed and job.program != PLAIN and _breaks_mpi(job, record.hits)):
        wrong.append(f"exit code {code}; possible are {sorted(possible)}")
    if code not in NOTHING_PRINTED:
        pattern = ERRORS.get(code, r"rank-failed")
        if not re.search(rf"^error\[({pattern})", record.err, re.MULTILINE):
            wrong.append(f"exit code {code} without an error that explains it")
    elif code == 0 and re.search(r"^error\[", record.err, re.MULTILINE):
        wrong.append("exit code 0 with an error")
    return wrong


def _interrupted_python(record: Record) -> bool:
    """Tell whether an interrupt came before Python ran a function of mpilaunch: the traceback is then Python's own."""
    interrupted = any(hit.found and hit.phase == "start" and hit.fault.number == "INT" for hit in record.hits)
    frames = re.findall(r'^  File "(.*?)", line \d+, in (.*)', record.err, re.MULTILINE)
    ours = [name for name, function in frames if (name, function) != (START, "<module>") and name.startswith(PRODUCT)]
    return interrupted and "KeyboardInterrupt\n" in record.err and not ours


def possible_codes(job: Job, hits: Iterable[Hit], seconds: float) -> set[int]:
    """Return the exit codes that are documented for what the job does by itself and for what was done to it."""
    hits = [hit for hit in hits if hit.found and hit.phase != "end"]
    codes = {code for _, code, _ in job.fails} or {0}
    if job.timeout is not None and seconds >= 0.99 * job.timeout:
        codes.add(TIMEOUT)
    for hit in hits:
        codes |= _codes_of(job, hit)
    lost = [hit.fault.host for hit in hits if hit.fault.target in CONNECTION]
    if len(lost) > len(set(lost)):
        codes.add(NODE_LOST)  # a second loss during the first: there may be no time left to connect again
    return codes


def _codes_of(job: Job, hit: Hit) -> set[int]:
    fault = hit.fault
    starting = {START_FAILED} if hit.phase == "start" else set()
    lost = {NODE_LOST} | starting
    if fault.action == "signal":
        return SIGNAL_CODES[str(fault.number)]
    if fault.target in CONNECTION:
        if fault.action != "kill" and 3 * fault.seconds + 1 < job.heartbeat:
            return set()
        # A link may stay down longer than --reconnect-timeout.
        again = job.reconnect > 0 and fault.seconds < job.reconnect / 2 and not starting
        return set() if again else lost
    table: Mapping[tuple[str, str], set[int]] = {
        ("kill", "head"): {KILLED},
        ("stop", "head"): lost if fault.seconds > 2 * job.heartbeat else set(),
        ("kill", "daemon"): lost,
        ("stop", "daemon"): lost if 2 * fault.seconds + 1 > job.heartbeat else set(),
        ("kill", "guard"): lost,
        # Ranks elsewhere may notice it first, and fail: the host is to blame all the same.
        ("kill", "host"): lost,
        ("stop", "guard"): set(),
        ("kill", "helper"): {MPI_FAILED} | starting,
        ("stop", "helper"): set(),
        ("kill", "rank"): {137},
        ("stop", "rank"): set(),
        ("kill", "child"): set(),
        ("fill", "tmp"): set() if job.program == PLAIN else {START_FAILED, MPI_FAILED},
        ("block", "reader"): set(),
        ("close", "reader"): {OUTPUT_GONE},
    }
    return table[fault.action, fault.target]


def _breaks_mpi(job: Job, hits: Iterable[Hit]) -> bool:
    """Tell whether an MPI library may end a rank because of a fault: the exit code is then its own."""
    return bool(job.fails) or any(hit.found and (hit.fault.action, hit.fault.target) in BREAKS_MPI for hit in hits)


# Output


def stream_problems(job: Job, letter: str, text: str, record: Record, *, complete: bool) -> list[str]:
    """Return what is wrong with the lines of a stream: each rank's must be its first ones, whole, once and in order.

    The last one of a rank may be cut where the rank or the output was.
    """
    wrong = []
    next_of = dict.fromkeys(range(job.ranks), 0)
    ended: set[int] = set()
    cut: set[int] = set()
    stdin_seen = False
    for line in text.split("\n"):
        match = re.fullmatch(rf"{letter}(\d+):(\d+|end|stdin):?(.*)", line)
        if match is None:
            # mpilaunch prints to stderr too, and MPI libraries to both.
            if line and letter == "o" and job.program == PLAIN and not _is_cut(job, letter, line, next_of):
                wrong.append(f"line that no rank has printed: {line[:80]!r}")
            continue
        rank, number = int(match[1]), match[2]
        if rank not in next_of or rank in ended:
            wrong.append(f"line after the end of rank {rank}: {line[:80]!r}")
        elif number == "end":
            ended.add(rank)
            if next_of[rank] != job.lines:
                wrong.append(f"{letter}{rank}: {next_of[rank]} of {job.lines} lines before its end")
        elif number == "stdin":
            stdin_seen = True
            if match[3] != "{}:{}".format(*record.stdin_sum):
                wrong.append(f"rank 0 read {match[3]} of stdin instead of {record.stdin_sum}")
        elif line == expected_line(job, letter, rank, next_of[rank]):
            next_of[rank] += 1
        elif _is_cut(job, letter, line, {rank: next_of[rank]}):
            ended.add(rank)
            cut.add(rank)
        else:
            wrong.append(f"{letter}{rank}: {line[:60]!r} where line {next_of[rank]} was due")
    if complete:
        wrong += [f"{letter}{rank}: no end, after {count} lines" for rank, count in next_of.items() if rank not in ended - cut]
        if letter == "o" and job.reads and not stdin_seen:
            wrong.append("rank 0 said nothing of its stdin")
    return wrong[:5]


def expected_line(job: Job, letter: str, rank: int, number: int) -> str:
    """Return a line as rank.c prints it."""
    return f"{letter}{rank}:{number}:".ljust(job.width, chr(ord("a") + number % 26))


def _is_cut(job: Job, letter: str, line: str, next_of: Mapping[int, int]) -> bool:
    """Tell whether a line is the beginning of the next line of a rank."""
    return any(
        whole.startswith(line)
        for rank, number in next_of.items()
        for whole in (expected_line(job, letter, rank, number), f"{letter}{rank}:end", f"{letter}{rank}:stdin:")
    )
