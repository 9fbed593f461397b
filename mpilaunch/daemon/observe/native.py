"""Reads the C stacks of ranks with gdb, where this node has it.

gdb stops a process while it reads it, and lets it continue. The debuggers are children of the daemon, which `close` ends before
what ranks have left is looked for. What they print goes to the head as it is, within a limit.
"""

from __future__ import annotations

import os
import signal
import time

from mpilaunch.daemon.observe.workers import program_of, worker_of
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.poller import Poller, Timers

SECONDS = 15.0
"""For all ranks of the node; the head waits a little longer."""
MOST_AT_ONCE = 4
"""Debuggers that run at a time."""
MOST_FRAMES = 100
"""Of a thread."""
LARGEST = 256 << 10
"""Bytes of a debugger's output."""
LONGEST_REASON = 400
"""Characters."""
CLOSE_SECONDS = 1.0
"""How long to wait for debuggers that were killed."""
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
ARGUMENTS = [
    *("-nx", "-batch", "-iex", "set auto-load no", "-iex", "set debuginfod enabled off", "-ex", "set width 0"),
    *("-ex", "set print frame-arguments presence", "-ex", "thread apply all backtrace %d" % MOST_FRAMES, "-p"),
]
"""No file of the user's or of a library's is run, and no server is asked for symbols."""


class Backtraces:
    """The debuggers of this node.

    Args:
        timers: of the loop; this object uses the name "backtrace".
        send: sends a message to the head, a `backtrace` for each rank.
    """

    def __init__(self, poller: Poller, timers: Timers, send: Callable[[dict[str, Any]], None]) -> None:
        self._poller, self._timers, self._send = poller, timers, send
        self._waiting: list[tuple[int, int | None]] = []
        self._running: dict[int, _Debugger] = {}

    def begin(self, pids: dict[int, int | None]) -> None:
        """Read these processes, by rank; None stands for one that has ended. What an earlier request has not read is left."""
        self._give_up()
        self._waiting = list(pids.items())
        self._timers.set("backtrace", SECONDS, self._give_up)
        self._start()

    def close(self) -> None:
        """End the debuggers, which lets the processes go on that they have stopped."""
        self._timers.drop("backtrace")
        self._waiting = []
        until = time.monotonic() + CLOSE_SECONDS
        for descriptor, debugger in list(self._running.items()):
            self._forget(descriptor)
            debugger.kill()
            while debugger.is_child and time.monotonic() < until:
                time.sleep(reaper.PAUSE)

    def _start(self) -> None:
        while self._waiting and len(self._running) < MOST_AT_ONCE:
            rank, pid = self._waiting.pop(0)
            if pid is None:
                self._answer(rank, "it has ended")
                continue
            try:
                debugger = _Debugger(rank, worker_of(pid))
            except FileNotFoundError:
                self._answer(rank, "there is no gdb")
            except OSError as error:
                self._answer(rank, "gdb cannot be started: %s" % error.strerror)
            else:
                self._running[debugger.output] = debugger
                self._poller.watch(debugger.output, lambda debugger=debugger: self._read(debugger))  # type: ignore[misc]

    def _read(self, debugger: _Debugger) -> None:
        data = os.read(debugger.output, LARGEST)
        debugger.text += data
        if data and len(debugger.text) < LARGEST:
            return
        self._forget(debugger.output)
        if data:
            debugger.kill()
        text = debugger.text.decode("utf-8", "replace")
        error = "" if "\n#0 " in text else reason_in(text)
        self._answer(debugger.rank, error, "" if error else text, program_of(debugger.pid_of_rank))
        self._start()

    def _give_up(self) -> None:
        for descriptor, debugger in list(self._running.items()):
            self._forget(descriptor)
            debugger.kill()
            self._answer(debugger.rank, "gdb did not end within %d s" % SECONDS)
        while self._waiting:
            self._answer(self._waiting.pop(0)[0], "the other ranks of the node took %d s" % SECONDS)

    def _forget(self, descriptor: int) -> None:
        del self._running[descriptor]
        self._poller.forget(descriptor)
        os.close(descriptor)

    def _answer(self, rank: int, error: str, output: str = "", program: str = "") -> None:
        self._send({"type": "backtrace", "rank": rank, "error": error, "output": output, "program": program})


class _Debugger:
    """A gdb that reads the process of a rank; raises OSError where it cannot be started. The loop collects it at its end."""

    def __init__(self, rank: int, pid: int) -> None:
        self.rank, self.pid_of_rank, self.text = rank, pid, b""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DEBUGINFOD_"))}
        self.output, theirs = os.pipe()
        # fmt: off
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_DUP2, theirs, 2),
        ]
        # fmt: on
        try:
            self._pid = os.posix_spawnp(
                "gdb", ["gdb", *ARGUMENTS, str(pid)], {**environ, "LC_ALL": "C"}, file_actions=files, setpgroup=0
            )
        except OSError:
            os.close(self.output)
            raise
        finally:
            os.close(theirs)

    @property
    def is_child(self) -> bool:
        """Whether it has not been collected, so that its number is still its own."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            return False

    def kill(self) -> None:
        if self.is_child:
            os.kill(self._pid, signal.SIGKILL)


def reason_in(text: str) -> str:
    """Return why gdb prints no stack."""
    told = [line for line in text.splitlines() if line.startswith(("ptrace: ", "warning: process "))]
    reason = "gdb: %s" % told[-1].rstrip(".")[:LONGEST_REASON] if told else "gdb found none"
    try:
        with open(SCOPE) as file:
            scope = file.read().strip()
    except OSError:
        scope = "0"  # a kernel without it
    return reason if not told or scope == "0" else "%s; %s is %s" % (reason, SCOPE, scope)
