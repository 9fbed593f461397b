"""The daemon's one loop: the wire, the ranks' pipes, ended children and deadlines.

A table says which control message is taken in which state; another message is left alone, since it may have crossed with an
event of ours. Every wait is a deadline from the monotonic clock. When the wire ends, or falls silent, the head is gone: the
ranks are ended and the daemon goes with them.
"""

from __future__ import annotations

import os
import selectors
import signal
import time

import mpilaunch
from mpilaunch.daemon import reaper, spawn
from mpilaunch.daemon.iof import Forwarder
from mpilaunch.daemon.pmi1 import ABSENT
from mpilaunch.daemon.probe import probe
from mpilaunch.daemon.wireup import WireUp
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, STDIN, WireError, stream_channel
from mpilaunch.wire.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Names for the type checker only: loading typing would cost every node milliseconds.
    from collections.abc import Callable
    from typing import Any

READ_SIZE = 256 << 10
HIGH_WATER = 4 << 20
"""Bytes waiting for the wire above which no rank's output is read."""
START_SILENCE = 600.0
"""Seconds that the head may say nothing before `prepare`; afterwards `prepare` says how long."""
LOST_HEAD_STEPS = [[signal.SIGTERM, 2.0]]
"""How ranks are ended when the head is gone, before SIGKILL."""

ACCEPTS = {
    "fresh": {"prepare"},
    "prepared": {"launch"},
    "running": {"signal", "stop", "fence"},
    "finished": set(),
}
"""Control messages taken in each state."""

HANDLERS = {"prepare": "_prepare", "launch": "_launch", "signal": "_signal", "stop": "_stop", "fence": "_release"}
"""Control message and the method that takes it."""


class Daemon:
    """Run the ranks of one node.

    Args:
        wire_in, wire_out: descriptors of the wire; `wire_out` does not block.
        guard: a descriptor that reads end of file when the guard has died.
    """

    def __init__(self, wire_in: int, wire_out: int, guard: int) -> None:
        self._wire_in, self._wire_out = wire_in, wire_out
        self._session = Session()
        self._selector = selectors.DefaultSelector()
        self._forwarder = Forwarder(self._session, self._selector, self._check_finished)
        self._outgoing = bytearray()
        self._waiting_to_write = False
        self._state = "fresh"
        self._lost = False
        self._plan: dict[str, Any] = {}
        self._program: tuple[bytes, list[bytes]] = (b"", [])
        self._environment: dict[bytes, bytes] = {}
        self._ranks: dict[int, int] = {}
        self._wireup: WireUp | None = None
        self._abort_codes: dict[int, int] = {}
        self._groups: set[int] = set()
        self._steps: list[list[float]] = []
        self._stopping = False
        self._swept: list[tuple[int, str]] = []
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._selector.register(wire_in, selectors.EVENT_READ, self._wire_ready)
        self._selector.register(guard, selectors.EVENT_READ, self._lose_head)
        self._signals = _signal_pipe()
        self._selector.register(self._signals, selectors.EVENT_READ, self._children_ended)

    def run(self) -> None:
        """Serve until the wire has ended and nothing of the job is left on this node."""
        self._session.send({"type": "hello", "version": mpilaunch.__version__, "clock": time.monotonic(), "facts": probe()})
        self._flush()
        # Loading ctypes takes milliseconds: the head works on our hello meanwhile.
        reaper.become_subreaper()
        self._set_timer("silence", START_SILENCE, self._lose_head)
        while not self._lost or self._state == "running":
            for key, _ in self._selector.select(self._next_deadline()):
                key.data()
            self._run_timers()
            self._flush()

    # The wire

    def _wire_ready(self) -> None:
        try:
            data = os.read(self._wire_in, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_head()
            return
        self._set_timer("silence", self._plan.get("silence", START_SILENCE), self._lose_head)
        try:
            for kind, channel, value in self._session.receive_data(data, time.monotonic()):
                if kind == CONTROL:
                    self._take_message(value)
                elif kind == DATA:
                    self._forwarder.take_input(channel, value)
                elif kind == END:
                    self._forwarder.end_input(channel)
                elif kind == CREDIT:
                    self._forwarder.credit_added(channel)
        except WireError as error:
            self._complain("the head broke the protocol: %s" % error)
            self._lose_head()

    def _take_message(self, message: Any) -> None:
        name = message["type"]
        if name in ACCEPTS[self._state]:
            try:
                getattr(self, HANDLERS[name])(message)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise WireError("%r does not fit: %r" % (name, error)) from error

    def _flush(self) -> None:
        """Write what the wire takes now; above the high-water mark, let the ranks wait."""
        if self._lost:
            self._session.data_to_send()
            return
        self._outgoing += self._session.data_to_send()
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    written = os.write(self._wire_out, view[: 1 << 20])
                del self._outgoing[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._lose_head()
            return
        waiting = bool(self._outgoing)
        if waiting != self._waiting_to_write:
            self._waiting_to_write = waiting
            if waiting:
                self._selector.register(self._wire_out, selectors.EVENT_WRITE, lambda: None)
            else:
                self._selector.unregister(self._wire_out)
        self._forwarder.pause(len(self._outgoing) > HIGH_WATER)

    def _lose_head(self) -> None:
        """The other side is gone: nobody reads us any more, and the ranks go too."""
        if self._lost:
            return
        self._lost = True
        self._timers.pop("silence", None)
        for key in list(self._selector.get_map().values()):
            if key.fd in (self._wire_in, self._wire_out) or key.data == self._lose_head:
                self._selector.unregister(key.fd)
        self._forwarder.pause(True)
        if self._state == "running":
            self._begin_steps([list(step) for step in LOST_HEAD_STEPS])

    # Messages

    def _prepare(self, message: dict[str, Any]) -> None:
        self._plan = message
        self._set_timer("silence", message["silence"], self._lose_head)
        try:
            directory, note = spawn.choose_directory(message["directory"], message["directory_required"])
            self._environment = spawn.node_environment(message["scrub"], message["defaults"], message["environment"])
            search_path = self._environment.get(b"PATH", os.defpath.encode())
            self._program = spawn.resolve_program(message["program"], search_path, directory, message["python"])
            os.chdir(directory)
        except spawn.Problem as problem:
            problems = [{"cause": problem.cause, "detail": problem.detail}]
            self._session.send({"type": "refused", "problems": problems})
            return
        for spec in message["ranks"]:
            if spec["stdin"]:
                self._session.open_receiving(stream_channel(spec["rank"], STDIN), message["window"])
        if message["mpi"] is not None:
            self._wireup = WireUp(message, self._selector, self._fence, self._abort, self._note)
        self._state = "prepared"
        self._session.send({"type": "ready", "program": spawn.decode(self._program[0]), "notes": [note] if note else []})

    def _launch(self, message: dict[str, Any]) -> None:
        self._state = "running"
        started, failed = [], []
        for spec in self._plan["ranks"]:
            rank = spec["rank"]
            descriptors = self._forwarder.open_rank(rank, spec["stdin"], self._plan["merge_stderr"], self._plan["window"])
            if self._wireup is not None:
                descriptors[self._wireup.descriptor] = self._wireup.open_rank(rank)
            try:
                pid = spawn.start(*self._program, self._environment_of(spec), spec["cpus"], descriptors)
            except OSError as error:
                failed.append([rank, error.errno, time.monotonic()])
                self._forwarder.close_input(rank)
                self._close_wireup(rank)
            else:
                started.append([rank, pid, time.monotonic()])
                self._ranks[pid] = rank
                self._groups.add(pid)
            finally:
                for descriptor in descriptors.values():
                    os.close(descriptor)
        self._session.send({"type": "started", "ranks": started, "failed": failed})
        self._after_exits()

    def _environment_of(self, spec: dict[str, Any]) -> dict[bytes, bytes]:
        environment = dict(self._environment)
        for name in spec["unset"]:
            environment.pop(spawn.encode(name), None)
        environment.update((spawn.encode(name), spawn.encode(value)) for name, value in spec["environment"].items())
        return environment

    def _fence(self, ranks: int, pairs: dict[str, str]) -> None:
        self._session.send({"type": "fence", "ranks": ranks, "pairs": pairs})

    def _note(self, text: str) -> None:
        self._session.send({"type": "note", "text": text})

    def _close_wireup(self, rank: int) -> str:
        return ABSENT if self._wireup is None else self._wireup.close_rank(rank)

    def _abort(self, rank: int, code: int) -> None:
        """A rank has called MPI_Abort: end it now, and tell its code in place of the signal."""
        self._abort_codes[rank] = code
        for pid, number in self._ranks.items():
            if number == rank:
                reaper.signal_group(pid, signal.SIGKILL)

    def _release(self, message: dict[str, Any]) -> None:
        if self._wireup is not None:
            self._wireup.release(message["pairs"])

    def _signal(self, message: dict[str, Any]) -> None:
        number = message["signal"]
        for pid in self._ranks:
            reaper.signal_group(pid, number)
        if number == signal.SIGSTOP:
            # The head is about to stop itself and will be silent; its next byte starts the clock again.
            self._timers.pop("silence", None)

    def _stop(self, message: dict[str, Any]) -> None:
        self._begin_steps(message["steps"])

    # The end of ranks

    def _begin_steps(self, steps: list[list[float]]) -> None:
        """Send the first signal, wait, send the next, and at last kill."""
        self._stopping = True
        self._steps = steps + [[signal.SIGKILL, 0.0]]
        self._next_step()

    def _next_step(self) -> None:
        number, wait = self._steps.pop(0)
        # A rank that was a shell may be gone, and what it ran goes on in its group.
        for pid in self._ranks.keys() | reaper.living_groups(self._groups):
            reaper.signal_group(pid, int(number))
            if number != signal.SIGKILL:
                # A stopped process takes no signal but this one before it goes on.
                reaper.signal_group(pid, signal.SIGCONT)
        if self._steps:
            self._set_timer("step", wait, self._next_step)
        else:
            # Killed processes go at once, and that is an event; this is for those that are stuck, or left their group.
            self._set_timer("sweep", self._plan["drain"], self._sweep)

    def _ending(self) -> bool:
        """Say whether processes of the ranks' groups were told to end and are not gone; the end of each leads here again."""
        return self._stopping and bool(reaper.living_groups(self._groups))

    def _children_ended(self) -> None:
        os.read(self._signals, 4096)
        for pid, status in reaper.reap():
            rank = self._ranks.pop(pid, None)
            if rank is None:
                continue
            mpi = self._close_wireup(rank)  # first: the last that it said may have been its code
            code = self._abort_codes.get(rank, None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
            self._session.send(
                {
                    "type": "exited",
                    "rank": rank,
                    "code": code,
                    "signal": os.WTERMSIG(status) if code is None else None,
                    "core": code is None and os.WCOREDUMP(status),
                    "clock": time.monotonic(),
                    "stopped": self._stopping,
                    "stdin_read": self._forwarder.close_input(rank),
                    "mpi": mpi,
                }
            )
        self._after_exits()

    def _after_exits(self) -> None:
        """Once the last rank has exited: output that is still open is somebody's whom a rank left behind."""
        if self._state == "running" and not self._ranks and not self._ending():
            self._timers.pop("step", None)
            if self._lost or self._stopping:
                self._sweep()
            elif "sweep" not in self._timers:
                self._set_timer("sweep", self._plan["drain"], self._sweep)
                self._check_finished()

    def _sweep(self) -> None:
        if self._steps and self._ending():
            return
        self._swept += reaper.kill_descendants()
        if self._lost:
            self._finish()
            return
        self._forwarder.close_idle_outputs()
        self._check_finished()
        if self._state == "running":
            self._set_timer("sweep", self._plan["drain"], self._sweep)

    def _check_finished(self) -> None:
        if self._state == "running" and not self._ranks and self._forwarder.all_ended() and not self._ending():
            self._swept += reaper.kill_descendants()
            self._finish()

    def _finish(self) -> None:
        self._state = "finished"
        self._timers.pop("sweep", None)
        self._session.send({"type": "finished", "swept": self._swept})

    # Deadlines

    def _set_timer(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._timers[name] = (time.monotonic() + seconds, action)

    def _next_deadline(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(when for when, _ in self._timers.values()) - time.monotonic())

    def _run_timers(self) -> None:
        now = time.monotonic()
        for name, (when, action) in list(self._timers.items()):
            if when <= now and self._timers.get(name) == (when, action):
                del self._timers[name]
                action()

    def _complain(self, text: str) -> None:
        os.write(2, ("mpilaunch daemon: %s\n" % text).encode("utf-8", "replace"))


def _signal_pipe() -> int:
    """Let SIGCHLD become a byte on a pipe; return the end to read."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, stack: None)
    return ours
