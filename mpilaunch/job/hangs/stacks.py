"""Stacks of Python, as a daemon reads them and as faulthandler writes them, and the line of the user's code in them. Pure.

Source: Python/traceback.c, `_Py_DumpTracebackThreads`; the same text from 3.8 to 3.14. The text comes from a rank, so it is
read line by line, and no more than MOST_FRAMES of it count.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpilaunch.text import printable

DUMP = b"Fatal Python error: "
"""How a dump begins."""
MOST_FRAMES = 200
"""Frames of one thread that are read; faulthandler itself writes 100."""
MOST_WORKERS = 3
"""Places of worker processes that are shown."""
_HEAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[([^\]]{0,64})\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.{1,600})", line (\d{1,9}|\?\?\?) in (.{1,600})')
_LIBRARIES = re.compile(r"/(?:lib|lib64)/(?:python|pypy)\d[\d.]*/|/(?:site|dist)-packages/|^<frozen ")
"""In the paths of modules that the user has not written."""
_FRAMEWORKS = re.compile(
    "/(?:accelerate|deepspeed|horovod|jax|jaxlib|keras|lightning|mpi4py|numpy|pytorch_lightning|tensorflow|torch|transformers)/"
)
"""The same, where a framework is on PYTHONPATH as it is in its repository."""
WRAPPERS = frozenset({"__call__", "_call_impl", "_fn", "_wrapped_call_impl", "decorate_context", "inner", "wrapped", "wrapper"})
"""Functions that only call another, by the names that libraries give them."""


class Frame(NamedTuple):
    """One call: the file, the line in it (0 if unknown), and the function."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether it is in code of the user, not in a library."""
        return not self.is_installed and _FRAMEWORKS.search(self.file) is None

    @property
    def is_start_of_worker(self) -> bool:
        """Whether it is the call of multiprocessing with which a worker process begins."""
        return self.function == "_bootstrap" and self.file.endswith("/multiprocessing/process.py")

    @property
    def is_installed(self) -> bool:
        """Whether it is in Python or in what was installed for it."""
        return _LIBRARIES.search(self.file) is not None


class Stack(NamedTuple):
    """The stack of one thread, the most recent call first.

    Attributes:
        current: it is the thread that got the signal.
        name: of the thread, "" where Python does not write it.
    """

    current: bool
    name: str
    frames: tuple[Frame, ...]

    @property
    def own(self) -> int:
        """The index of the innermost frame in the user's code."""
        own = next((index for index, frame in enumerate(self.frames) if frame.is_users), -1)
        if own < 0:  # a program in a directory with the name of a framework
            own = max((index for index, frame in enumerate(self.frames) if not frame.is_installed), default=0)
        return own

    @property
    def place(self) -> str:
        """Where it is, for the user: "all_reduce (train.py:88)", "" without a frame.

        The line is the innermost one of the user's code, and the function is what that calls, where it calls a library.
        """
        if not self.frames:
            return ""
        frame = self.frames[self.own]
        called = [called.function for called in reversed(self.frames[: self.own]) if called.function not in WRAPPERS]
        return f"{called[0] if called else frame.function} ({os.path.basename(frame.file)}:{frame.line or '?'})"


class Process(NamedTuple):
    """A process that runs Python, as it was read while it ran.

    Attributes:
        steady: two reads were alike; otherwise these stacks may never have been together.
        stacks: of its threads, the main one first.
    """

    pid: int
    steady: bool
    stacks: tuple[Stack, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Process:
        """Return the process that a daemon tells of (docs/wire.md, `stack`); a newer one may tell more."""
        threads = enumerate(data["threads"])
        stacks = (Stack(index == 0, "", tuple(Frame(*frame) for frame in frames)) for index, frames in threads)
        return cls(data["pid"], data["steady"], tuple(stacks))

    def as_data(self) -> dict[str, Any]:
        """Return what `of` takes."""
        threads = [[list(frame) for frame in stack.frames] for stack in self.stacks]
        return {"pid": self.pid, "steady": self.steady, "threads": threads}


def place_of(processes: Sequence[Process]) -> str:
    """Return where a rank is, "" where nothing was read; its own process is the first, worker processes follow."""
    return _place_of([process.stacks[0] for process in processes if process.stacks])


def as_text(processes: Sequence[Process]) -> str:
    """Return the stacks of a rank in the form of faulthandler, equal ones once."""
    lines = [line for process in processes[:1] for line in _thread_lines("", process.stacks)]
    workers = Counter(tuple(map(_of_worker, process.stacks)) for process in processes[1:])
    for stacks, count in workers.items():
        lines += _thread_lines("worker process: " if count == 1 else f"{count} worker processes: ", stacks)
    return "".join(f"{line}\n" for line in lines)


def _thread_lines(whose: str, stacks: Sequence[Stack]) -> Iterator[str]:
    for (is_main, frames), count in Counter((stack.current, stack.frames) for stack in stacks if stack.frames).items():
        title = whose + ("main thread" if is_main else "thread" if count == 1 else f"{count} threads")
        yield f"{title[0].upper()}{title[1:]} (most recent call first):"
        for frame in frames:
            yield printable(f'  File "{frame.file}", line {frame.line or "???"} in {frame.function}')


def place_in(stderr: bytes) -> str:
    """Return where the thread is that got the signal, "" where a rank's stderr has no stack.

    The dumps of worker processes follow that of the rank; those in code of the user are shown too: "__next__ (train.py:30);
    a worker process in load (data.py:31)".
    """
    return _place_of([stack for stack in stacks_in(stderr.decode("utf-8", "replace")) if stack.current])


def _place_of(stacks: Sequence[Stack]) -> str:
    if not stacks or not stacks[0].frames:
        return ""
    rank, *workers = stacks
    busy = filter(_is_in_users_code, map(_of_worker, workers))
    places = list(dict.fromkeys(worker.place for worker in busy))[:MOST_WORKERS]
    who = "a worker process" if len(places) == 1 else "worker processes"
    return f"{rank.place}; {who} in {', '.join(places)}" if places else rank.place


def _of_worker(stack: Stack) -> Stack:
    """Return the stack of a worker process without the calls of the process that forked it, which come before its start."""
    start = next((index for index, frame in enumerate(stack.frames) if frame.is_start_of_worker), len(stack.frames))
    return stack._replace(frames=stack.frames[: start + 1])


def _is_in_users_code(worker: Stack) -> bool:
    """Return whether a worker process is in code of the user; one that waits for work is not.

    A server of multiprocessing is in a line of `python -c`.
    """
    own = worker.frames[worker.own] if worker.frames else None
    return own is not None and own.is_users and not own.file.startswith("<")


def last_lines(lines: Sequence[bytes], most: int) -> tuple[bytes, ...]:
    """Return the last lines of a rank's stderr; a dump of stacks leaves room for what came before it, which is the reason.

    Of a dump at the end, half of the lines are its first one, and the first ones of the thread that failed.
    """
    begin = next((index for index in reversed(range(len(lines))) if lines[index].startswith(DUMP)), None)
    if begin is None or len(lines) - begin <= most // 2:
        return tuple(lines[-most:])
    current = next((index for index in range(begin, len(lines)) if lines[index].startswith(b"Current thread 0x")), begin + 1)
    dump = (lines[begin], *lines[current : current + most // 2 - 1])
    return (*lines[:begin][len(dump) - most :], *dump)


def stacks_in(text: str) -> list[Stack]:
    """Return the stacks in a text that may have other lines too, such as the end of a rank's stderr."""
    return list(_stacks(text.splitlines()))


def _stacks(lines: Sequence[str]) -> Iterator[Stack]:
    head: re.Match[str] | None = None
    frames: list[Frame] = []
    for line in (*lines, ""):
        if head is not None and (frame := _FRAME.fullmatch(line)):
            if len(frames) < MOST_FRAMES:
                frames.append(Frame(frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3]))
            continue
        if head is not None:
            yield Stack(head[1].startswith("Current"), head[2] or "", tuple(frames))
        head, frames = _HEAD.fullmatch(line), []
