"""The stacks of the threads of an interpreter. Its memory changes while it is read, and may be hostile.

A frame counts only where its code object has the type of code objects, so that what is read by chance is no stack. A stack
that two reads show alike was so; a process that runs may show another each time.
"""

from __future__ import annotations

from mpilaunch.daemon.observe.python.layout import NONE
from mpilaunch.daemon.observe.python.lines import line_of
from mpilaunch.daemon.observe.python.memory import Memory, Unreadable
from mpilaunch.daemon.observe.python.runtime import find_runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpilaunch.daemon.observe.python.runtime import Runtime

    Frame = tuple[str, int, str]
    """File, line and function of a call."""

MOST_INTERPRETERS, MOST_THREADS, MOST_FRAMES = 16, 64, 100
"""Of a process; of an interpreter: the oldest ones; and of a thread: the innermost ones."""
MOST_LISTED = 4096
"""Threads of an interpreter that are counted to find the oldest."""
MOST_CALLS = 2_000
"""Of a process: the head reads what a node tells in one turn of its loop."""
TRIES = 3
"""Reads of a process, to see one stack twice."""
LONGEST_TEXT = 400
"""Characters of the name of a file or a function."""
NATIVE = 3
"""The owner of a frame that stands for a call from C."""
BYTES_SIZE, BYTES_HEAD = 16, 32
"""The size of a bytes object, and what comes before its content."""
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
"""By the bytes of a character."""


def stacks_of(pid: int) -> tuple[bool, list[list[Frame]]]:
    """Return whether two reads were alike, and the stacks of the threads that run Python, the main one and inner calls first.

    The stack of the main thread is empty where only others run Python. Raises Unreadable where the process has no interpreter
    that is known, where it may not be read, and where it changes too quickly.
    """
    with Memory(pid) as memory:
        runtime = find_runtime(pid, memory)
        before: list[list[Frame]] | None = None
        for _ in range(TRIES):
            try:
                stacks = _Reader(memory, runtime).threads()
            except Unreadable:
                continue
            if stacks == before:
                return True, stacks
            before = stacks
    if before is None:
        raise Unreadable("it changes")
    return False, before


class _Reader:
    """Reads the threads of an interpreter once."""

    def __init__(self, memory: Memory, runtime: Runtime) -> None:
        self._memory, self._runtime, self._at = memory, runtime, runtime.layout
        self._codes: dict[int, tuple[str, str, int, bytes] | None] = {}
        self._left = MOST_CALLS

    def threads(self) -> list[list[Frame]]:
        threads: list[int] = []
        interpreter = self._memory.word(self._runtime.state + self._at.interpreters.first)
        for _ in range(MOST_INTERPRETERS):
            if not interpreter:
                break
            threads += self._threads_of(interpreter)[-MOST_THREADS:]
            interpreter = self._memory.word(interpreter + self._at.interpreters.next)
        # New threads and interpreters stand in front. The main thread has its place also where it runs no Python.
        found = [self._frames(self._innermost(thread)) for thread in reversed(threads)]
        return [frames for index, frames in enumerate(found) if frames or not index] if any(found) else []

    def _threads_of(self, interpreter: int) -> list[int]:
        threads: list[int] = []
        thread = self._memory.word(interpreter + self._at.interpreters.threads)
        while thread:
            if len(threads) == MOST_LISTED:
                raise Unreadable("its threads have no end")
            threads.append(thread)
            thread = self._memory.word(thread + self._at.thread.next)
        return threads

    def _innermost(self, thread: int) -> int:
        _, place, holder = self._at.thread
        frame = self._memory.word(thread + place)
        return self._memory.word(frame + holder) if holder != NONE and frame else frame

    def _frames(self, frame: int) -> list[Frame]:
        frames: list[Frame] = []
        for _ in range(min(MOST_FRAMES, self._left)):
            if not frame:
                break
            if (read := self._frame(frame)) is not None:
                frames.append(read)
            frame = self._memory.word(frame + self._at.frame.back)
        self._left -= len(frames)
        return frames

    def _frame(self, frame: int) -> Frame | None:
        """Return a call, None for a frame that is none of Python."""
        at = self._at.frame
        if at.owner != NONE and self._memory.read(frame + at.owner, 1)[0] == NATIVE:
            return None
        address = self._memory.word(frame + at.code)
        if address not in self._codes:
            self._codes[address] = self._code(address)
        code = self._codes[address]
        if code is None:
            return None
        file, name, first_line, lines = code
        if self._runtime.version < (3, 11):
            index = self._memory.number(frame + at.instruction) * (2 if self._runtime.version == (3, 10) else 1)
        else:
            index = self._memory.word(frame + at.instruction) - (address + self._at.code.start)
        return file, max(0, line_of(self._runtime.version, lines, first_line, index)), name

    def _code(self, address: int) -> tuple[str, str, int, bytes] | None:
        at, memory = self._at.code, self._memory
        if memory.word(address + 8) != self._runtime.code_type:
            return None
        file, name = (self._text(memory.word(address + place)) for place in (at.file, at.name))
        table = memory.word(address + at.lines)
        lines = memory.read(table + BYTES_HEAD, memory.word(table + BYTES_SIZE))
        return file, name, memory.number(address + at.first_line), lines

    def _text(self, address: int) -> str:
        """Return the text of a str: ASCII directly behind its head, others with 1, 2 or 4 bytes a character."""
        head = self._memory.read(address, 40)
        length = min(int.from_bytes(head[16:24], "little"), LONGEST_TEXT)
        state = head[32]
        size, is_ascii = state >> 2 & 7, bool(state & 64)
        if size not in _CODECS:
            raise Unreadable("no text")
        data = self._memory.read(address + self._at.text[0 if is_ascii else 1], length * size)
        return data.decode(_CODECS[size], "replace")
