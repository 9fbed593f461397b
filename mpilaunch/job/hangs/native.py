"""C stacks, as gdb on a node prints them, and the user's call in them. Pure.

What gdb prints comes from the memory of a rank: it is read line by line, and limited.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mpilaunch.job.hangs.autopsy import ranks_on
from mpilaunch.job.hangs.stacks import Frame, Stack
from mpilaunch.text import printable

MOST_FRAMES, MOST_THREADS = 100, 64
"""Of a thread, of a process."""
LONGEST_TEXT = 400
"""Characters of a file or a function."""
_LIBRARY = re.compile(r"\.so(\.\d{1,9}){0,4}$")
_SYSTEM_SOURCES = ("./", "../")
"""How the names of glibc's sources begin, which distributions build in a directory beside them."""


class NativeStack(Stack):
    """The stack of one thread in C or a language that is compiled."""

    __slots__ = ()

    @property
    def own(self) -> int:
        """The index of the innermost call that is in no library, or of main."""
        own = next((index for index, frame in enumerate(self.frames) if _is_programs(frame)), None)
        return own if own is not None else max(0, len(self.frames) - 1)


class Backtrace(NamedTuple):
    """What gdb has told of a rank: its threads, the main one first, or why there are none."""

    error: str
    threads: tuple[NativeStack, ...]

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Backtrace:
        """Return what a daemon tells (docs/wire.md, `backtrace`)."""
        return cls(message["error"], threads_in(message["output"], message["program"]))

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Backtrace:
        """Return what `as_data` has made."""
        threads = enumerate(data["threads"])
        stacks = (NativeStack(not index, name, tuple(Frame(*call) for call in calls)) for index, (name, calls) in threads)
        return cls(data["error"], tuple(stacks))

    @property
    def place(self) -> str:
        """Where the main thread is: "PMPI_Barrier (solver.c:88)", "" where that is unknown."""
        return self.threads[0].place if self.threads else ""

    def as_data(self) -> dict[str, Any]:
        """Return what `of` takes, for JSON."""
        threads = [[stack.name, [list(frame) for frame in stack.frames]] for stack in self.threads]
        return {"error": self.error, "threads": threads}

    def as_lines(self) -> Iterator[str]:
        """Return the stacks for the user, equal ones once."""
        for (is_main, name, frames), count in Counter(self.threads).items():
            whose = "Main thread" if is_main else "Thread" if count == 1 else f"{count} threads"
            yield printable(f"{whose}{f' {name}' if name and not is_main else ''} in C (most recent call first):")
            for file, line, function in frames:
                yield printable(f"  {function} at {file}:{line}" if line else f"  {function} in {file}")


def _is_programs(frame: Frame) -> bool:
    return not (_LIBRARY.search(frame.file) or frame.file.startswith(_SYSTEM_SOURCES) or frame.function.startswith("<"))


def threads_in(output: str, program: str) -> tuple[NativeStack, ...]:
    """Return the threads that gdb prints, the main one first; it prints that last.

    Args:
        program: the file of calls that gdb prints without one.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in output.splitlines():
        if line.startswith("Thread ") and line.endswith("):"):
            threads.append((line.partition('"')[2].rpartition('"')[0][:LONGEST_TEXT], []))
        elif line.startswith("#") and threads and len(threads[-1][1]) < MOST_FRAMES:
            threads[-1][1].append(_frame_in(line, program))
    found = [(name, tuple(frames)) for name, frames in reversed(threads) if frames][:MOST_THREADS]
    return tuple(NativeStack(not index, *thread) for index, thread in enumerate(found))


def _frame_in(line: str, program: str) -> Frame:
    """Return a call: "#1  0x0f in poll (...) at poll.c:29", "#2  0x0f in ?? () from libx.so" or "#3  0x0f in main ()"."""
    words = line.partition(" ")[2].lstrip()
    if words.startswith("0x"):
        words = words.partition(" in ")[2]
    function, is_source, place = words.rpartition(" at ")
    file, _, number = place.rpartition(":")
    if not (is_source and number.isdecimal() and len(number) < 10):
        number = "0"
        function, is_library, file = words.rpartition(" from ")
        if not is_library:
            function, file = words, program
    for arguments in (" ()", " (...)"):
        function = function.removesuffix(arguments)
    return Frame(file[:LONGEST_TEXT], int(number), function[:LONGEST_TEXT])


def errors_as_lines(errors: Mapping[int, str], hosts: Mapping[int, str]) -> list[str]:
    """Return lines such as "no C stacks of ranks 0-3 on node[01-02]: there is no gdb".

    Args:
        errors: rank -> why gdb told nothing of it.
        hosts: rank -> the name of its node.
    """
    groups: dict[str, list[int]] = {}
    for rank, error in errors.items():
        groups.setdefault(error, []).append(rank)
    return [printable(f"no C stacks of {ranks_on(ranks, hosts)}: {error}") for error, ranks in groups.items()]
