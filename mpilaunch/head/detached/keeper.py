"""Detaches a job: the process of the command line becomes three, the job's head, its keeper, and one that waits for the start.

The keeper has a session of its own, so that the head outlives the terminal. It keeps what the head prints, and how it ended,
also where it was killed; the head itself is as any other. It is no parent of a node's processes, and needs no loop.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.head.detached import place
from mpilaunch.head.detached.records import NO_RANK, encode
from mpilaunch.head.detached.segments import SegmentWriter
from mpilaunch.head.os_limits import fork
from mpilaunch.job.plan import outline

if TYPE_CHECKING:
    from mpilaunch.job.spec import JobSpec

RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to the process that waits for the start: they go to the head, as if it were in its place."""
AFTER_END = 0.2
"""Seconds without output after the head's end in which what it started may still print."""
LOOK = 0.05
"""Seconds between looks whether all ranks run."""
BLOCK = 1 << 20


def detach(job: JobSpec, has_started: Callable[[], bool]) -> int | None:
    """Return None in the head, whose output is kept from now on; elsewhere the exit code, once the job runs or has ended.

    Raises UsageError where nothing can be kept.

    Args:
        has_started: returns whether all ranks run.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # with `>&-`, a pipe would get the number of a standard descriptor
    os.close(descriptor)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with place.new({**outline(job), "began": time.time()}) as (_, directory):
        ended, tells = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)  # until each process is ready for them
        keeper = fork()
        if keeper:
            os.close(tells)
            return _await_start(keeper, ended, mask, has_started)
        os.close(ended)
        os.setsid()
        try:
            lock = place.hold(directory)
            records, text = os.pipe(), os.pipe()
            head = fork()
        except (OSError, LaunchError) as error:  # which this process tells
            os.write(tells, bytes([getattr(error, "exit_code", ExitCode.USAGE)]))
            raise
        if head:
            os.close(records[1])
            os.close(text[1])
            _keep(directory, head, records[0], text[0], tells)
        for descriptor in (lock, tells, records[0], text[0]):
            os.close(descriptor)
    if job.stdin == "none":
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(records[1], 1)
    os.dup2(text[1], 2)
    os.close(records[1])
    os.close(text[1])
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return None


def _await_start(keeper: int, ended: int, mask: Collection[int], has_started: Callable[[], bool]) -> int:
    """Return 0 when the job runs, else its exit code; signals are let through again by `mask`."""

    def relay(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(keeper, number)

    before = {number: handler for number in RELAYED if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, relay)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while not select.select([ended], [], [], LOOK)[0]:
            if has_started():
                return 0
        code = os.read(ended, 1)
        os.waitpid(keeper, 0)
    finally:  # from now on, what ends this process, such as the end of its terminal, is nothing to the job
        for number, handler in before.items():
            signal.signal(number, handler)
    return code[0] if code else ExitCode.INTERNAL


def _keep(directory: int, head: int, records: int, text: int, tells: int) -> NoReturn:
    """Keep the output of the head until its end, and tell how it ended."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        status, lost = _copy(directory, head, records, text)
        code, number = os.waitstatus_to_exitcode(status), None
        if code < 0:
            code, number = 128 - code, -code
        with suppress(OSError):
            place.write(directory, place.END, {"exit_code": code, "signal": number, "ended": time.time(), "lost": lost})
        os.write(tells, bytes([code]))
    finally:
        os._exit(0)


def _copy(directory: int, head: int, records: int, text: int) -> tuple[int, str]:
    """Write what comes from the head until its end; return its wait status, and why output was lost, if any was."""
    woken = _wake_at_signals(head)
    writer, lost, status, sources = SegmentWriter(directory), "", None, [records, text]
    while sources:
        ready = select.select([*sources, woken], [], [], None if status is None else AFTER_END)[0]
        if not ready:
            break  # what it started holds the pipes open
        if woken in ready:
            os.read(woken, 4096)
        if status is None and (ended := os.waitpid(head, os.WNOHANG)) != (0, 0):
            status = ended[1]
            for number in RELAYED:
                signal.signal(number, signal.SIG_IGN)
        # The last words of the head, as text, come after all records: a read takes all that a pipe holds.
        for source in [source for source in sources if source in ready]:
            data = os.read(source, BLOCK)
            if not data:
                sources.remove(source)
                continue
            try:
                if source == records:
                    writer.write_pieces(data)
                else:
                    writer.write(encode(2, NO_RANK, data))
            except OSError as error:
                lost = lost or str(error.strerror)
    return os.waitpid(head, 0)[1] if status is None else status, lost


def _wake_at_signals(head: int) -> int:
    """Relay signals to the head; return a descriptor that becomes readable at each, and at the head's end."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in RELAYED:
        signal.signal(number, lambda number, _: os.kill(head, number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RELAYED)
    return woken
