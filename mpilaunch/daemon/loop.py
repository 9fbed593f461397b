"""The daemon's event loop: the wire, the ranks' pipes, ended children and deadlines. It ends the ranks when the head dies.

`HEAD_SENDS` lists the control messages of each state; others are ignored, since they may have crossed with an event here.
Every wait has a deadline on the monotonic clock. `lifeline` notices the loss of the head; `guard` that of the daemon.
"""

from __future__ import annotations

import os
import signal
import time

import mpilaunch
from mpilaunch.daemon.guard import Pulse
from mpilaunch.daemon.lifeline import Lifeline
from mpilaunch.daemon.mpi.wireup import WireUp
from mpilaunch.daemon.node.probe import probe
from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.daemon.ranks import reaper
from mpilaunch.daemon.ranks.kill_evidence import Evidence
from mpilaunch.daemon.ranks.processes import SHARED_SECONDS, Processes
from mpilaunch.daemon.ranks.streams import Forwarder
from mpilaunch.daemon.worlds import Worlds
from mpilaunch.wire.environment import decode
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, WireError
from mpilaunch.wire.messages import HEAD_SENDS, accepts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HIGH_WATER = 4 << 20
"""Bytes queued for the wire above which no output of ranks is read."""
FAULT_SECONDS = 1.0
"""Seconds in which the head must take the report of a fault of our own."""
LOST_HEAD_STEPS = [[signal.SIGTERM, 2.0]]
"""Signals and waits before SIGKILL, when the head is lost."""
LOOK_AGAIN = 1.0
"""Seconds to the next look at what survives a stop, where --drain sets no limit."""
GROUP_LOOK = 0.05
"""Seconds between looks at the process groups of independent commands that are being ended."""
HELD = "what its command left running holds its output open, which is no longer read: redirect it, or give --drain more time"


class Daemon:
    """The loop of one node; `guard` is a descriptor that reads end of file when the guard has died."""

    def __init__(self, wire_in: int, wire_out: int, guard: int, pulse: Pulse, directory: PrivateDirectory) -> None:
        self._timers = Timers()
        self._pulse = pulse
        self._poller = Poller()
        self._lifeline = Lifeline(wire_in, wire_out, self._poller, self._timers, directory, self._wire_ready, self._head_lost)
        self._session = self._lifeline.session
        self._guard = guard
        self._forwarder = Forwarder(self._session, self._poller, self._timers, self._check_finished)
        self._state = "fresh"
        self._evidence: Evidence | None = None
        self._processes = Processes(self._timers, lambda pids: self._wireup.note_memory(pids), self._sweep_later)
        self._wireup = WireUp(self._poller, self._session.send, self._processes.abort, self._timers.set, directory)
        self._worlds = Worlds(
            self._session, self._forwarder, self._processes, self._wireup, self._poller, self._timers, self._after_cancel
        )
        self._handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "limits": self._limit, "prepare": self._prepare, "launch": self._launch, "await": self._await_port,
            "signal": self._signal, "stop": self._stop, "cancel": self._cancel, "release": self._release,
            "observe": self._observe, "backtrace": self._backtrace, "world": self._add_world,
            "collective": self._wireup.take, "ask": self._wireup.take, "answer": self._wireup.take,
        }  # fmt: skip
        self._released = False
        self._swept: list[tuple[int, str]] = []
        self._poller.watch(guard, self._lifeline.lose)
        signals = _signal_pipe()
        self._poller.watch(signals, lambda: self._take_signals(signals))

    def run(self, hardware: dict[str, Any] | None) -> bool:
        """Serve until the wire has ended and no process of the job is left here; return whether the head sent `release`."""
        facts = probe(hardware=hardware)
        self._session.send({"type": "hello", "version": mpilaunch.__version__, "clock": time.monotonic(), "facts": facts})
        self._flush()
        # The head handles the hello while these load.
        reaper.become_subreaper()
        from mpilaunch.daemon.pmix import search  # noqa: F401

        while not self._lifeline.lost or self._state == "running":
            self._poller.run(self._timers.seconds_left())
            self._timers.run()
            self._flush()
        return self._released

    def report_fault(self, error: Exception) -> None:
        """Tell the head of a fault of our own, as far as its channel takes it; nothing else may be called after this."""
        from traceback import format_exception  # no launch without a fault needs it

        _report("internal error: %s: %s" % (type(error).__name__, error))
        self._session.send({"type": "fault", "text": "".join(format_exception(type(error), error, error.__traceback__))})
        self._lifeline.drain(FAULT_SECONDS)

    # The wire

    def _wire_ready(self) -> None:
        try:
            for kind, channel, value in self._lifeline.receive():
                if kind == CONTROL:
                    self._take_message(value)
                elif kind == DATA:
                    self._forwarder.take_input(channel, value)
                elif kind == END:
                    self._forwarder.end_input(channel)
                elif kind == CREDIT:
                    self._forwarder.credit_added(channel)
        except WireError as error:
            _report("the head broke the protocol: %s" % error)
            self._lifeline.lose()

    def _take_message(self, message: Any) -> None:
        if accepts(self._state, message, HEAD_SENDS):
            self._handlers[message["type"]](message)

    def _flush(self) -> None:
        """Write what the wire takes now; above the high-water mark, let the ranks wait."""
        self._lifeline.flush()
        if not self._lifeline.lost:
            self._forwarder.pause(self._lifeline.backlog > HIGH_WATER)

    def _head_lost(self) -> None:
        """Hear nothing any more, and end the ranks; independent commands run to their ends, and nobody reads their output."""
        self._poller.forget(self._guard)
        self._worlds.drop_all()
        if self._processes.outlive_head and not self._processes.stopping:
            self._forwarder.discard()
        else:
            self._forwarder.pause(True)
            if self._state == "running":
                self._processes.end(LOST_HEAD_STEPS)
        if self._state == "running":
            self._after_cancel()

    # Messages

    def _limit(self, message: dict[str, Any]) -> None:
        self._lifeline.limit_silence(message["silence"])
        self._beat(message["pulse"])

    def _prepare(self, message: dict[str, Any]) -> None:
        self._processes.outlive_head = message["independent"]
        if not message["sweep"]:
            # Before any rank runs: orphans of independent commands go to init and not to daemon or guard.
            reaper.become_subreaper(False)
            self._pulse.leave()
            self._processes.independent = True
        self._limit(message)
        if message["attach"] is not None:
            self._listen(message["attach"])
        if self._worlds.prepare(message):
            if self._state != "running":
                self._state = "prepared"
            self._worlds.offer_mpi(message["number"])

    def _listen(self, attach: dict[str, Any]) -> None:
        """Listen for the head to connect again after a lost channel, and send it the path, or why there is no socket."""
        try:
            path = self._lifeline.listen(bytes.fromhex(attach["secret"]), attach["seconds"])
            if path:
                self._session.send({"type": "listening", "path": decode(os.fsencode(path)), "error": ""})
        except OSError as error:
            self._session.send({"type": "listening", "path": "", "error": "no place for a socket there: %s" % error})

    def _beat(self, limit: float) -> None:
        self._timers.set("pulse", self._pulse.beat(limit), lambda: self._beat(limit))

    def _launch(self, message: dict[str, Any]) -> None:
        """Start the ranks of some of the prepared worlds; the others wait for a later `launch`."""
        if not self._worlds.waiting:
            return  # stopped meanwhile
        self._state = "running"
        self._lifeline.keep()
        self._timers.drop("sweep")
        self._evidence = self._evidence or Evidence()
        for number in message["numbers"]:
            self._worlds.start(number)
        self._after_exits()

    def _add_world(self, message: dict[str, Any]) -> None:
        self._wireup.open_world({**message["mpi"], "node": None}, [])

    def _await_port(self, message: dict[str, Any]) -> None:
        """Report as soon as a rank listens on a port; its exit is reported anyway."""
        from mpilaunch.daemon.ranks.listeners import PAUSE, listens

        rank, port = message["rank"], message["port"]
        pid = next((pid for pid, number in self._processes.ranks.items() if number == rank), None)
        if pid is None:
            return
        if listens(pid, port):
            self._session.send({"type": "listens", "rank": rank, "port": port})
        else:
            self._timers.set("port %d of %d" % (port, rank), PAUSE, lambda: self._await_port(message))

    def _signal(self, message: dict[str, Any]) -> None:
        number = message["signal"]
        if message.get("caught"):
            self._processes.signal_catchers(number, bool(message.get("again")))
            return
        if "ranks" in message:
            self._processes.signal(number, message["ranks"])
            return
        self._processes.signal(number)
        if number == signal.SIGSTOP:
            # The head is about to stop itself; its next byte starts the clock of silence again.
            self._lifeline.silence.stop()

    def _observe(self, message: dict[str, Any]) -> None:
        looks = self._processes.observations(self._poller, self._session.send)
        looks.begin(self._processes.ranks, self._wireup.fenced, ask_nccl=message.get("nccl") is True)

    def _backtrace(self, message: dict[str, Any]) -> None:
        pids = {rank: pid for pid, rank in self._processes.ranks.items()}
        looks = self._processes.observations(self._poller, self._session.send)
        looks.backtrace({rank: pids.get(rank) for rank in message["ranks"]})

    def _release(self, message: dict[str, Any]) -> None:
        self._released = True
        self._lifeline.lose()

    def _cancel(self, message: dict[str, Any]) -> None:
        """Drop the ranks of a world that was prepared."""
        self._worlds.drop(message["number"])
        self._after_cancel()

    def _after_cancel(self) -> None:
        """Begin the end if no rank is left or will start; a sweep that is due comes in its own time."""
        if self._state == "prepared" and not self._worlds.waiting:
            self._finish()
        elif "sweep" not in self._timers:
            self._after_exits()

    def _stop(self, message: dict[str, Any]) -> None:
        self._worlds.drop_all()
        if self._state == "running":
            shared = message.get("shared") is True
            if shared and self._processes.got_sigterm:
                self._tell_uninvited(stopped=True)
            self._processes.end(message["steps"], shared=shared, stacks=message.get("stacks") is True)
        self._after_cancel()

    # The end of ranks

    def _busy(self) -> bool:
        """Return whether ranks run, are about to start, are still ending, or have ends that are not told yet."""
        return bool(self._processes.ranks or self._processes.uninvited) or self._worlds.waiting or self._processes.ending

    def _take_signals(self, pipe: int) -> None:
        # SIGTERM first: ranks that died of the same signal then count as stopped.
        if signal.SIGTERM in os.read(pipe, 4096):
            self._terminated()
        self._children_ended()

    def _terminated(self) -> None:
        """Handle SIGTERM. A batch system sends it to every process of a job, so the ranks have got it too."""
        if self._state != "running":
            _report("SIGTERM came before the ranks ran")
            self._lifeline.lose()
        elif not self._processes.got_sigterm:
            self._processes.got_sigterm = True
            if not self._processes.outlive_head:  # an independent command that got it too fails by it, and ends no other
                self._session.send({"type": "terminated"})
                self._tell_uninvited(stopped=True)

    def _children_ended(self) -> None:
        for pid, status in reaper.reap():
            rank = self._processes.ranks.pop(pid, None)
            self._forwarder.send_held()
            if rank is None:
                self._wireup.child_ended(pid, status)
                continue
            stopped = self._processes.stopped
            by_itself = os.WIFEXITED(status) and not stopped
            mpi = self._wireup.close_rank(rank, by_itself)  # first: its last message may be MPI_Abort with a code
            code, number, clock = self._processes.end_of(rank, status)
            evidence = {} if stopped or self._evidence is None else self._evidence.of(pid, code, number)
            end = {"code": code, "signal": number, "core": code is None and os.WCOREDUMP(status), "clock": clock}
            more = {"stopped": stopped, "stdin_read": self._forwarder.close_input(rank), "mpi": mpi, "evidence": evidence}
            message = {"type": "exited", "rank": rank, **end, **more}
            if (number == signal.SIGTERM or code == 128 + signal.SIGTERM) and not stopped:  # the second is a shell's
                self._processes.uninvited.append(message)
                self._timers.set("uninvited", SHARED_SECONDS, self._tell_uninvited)
            else:
                self._session.send(message)
        self._after_exits()

    def _tell_uninvited(self, stopped: bool = False) -> None:
        """Tell of ranks that a SIGTERM of others has ended; as stopped, once it is known to have come to all processes."""
        more = {"stopped": True, "evidence": {}} if stopped else {}
        for message in self._processes.uninvited:
            self._session.send({**message, **more})
        self._processes.uninvited.clear()
        self._after_exits()

    def _after_exits(self) -> None:
        """Once the last rank has exited, begin the end. Any stream still open is held by an orphaned descendant."""
        if self._state == "running" and not self._busy():
            self._timers.drop("step")
            if self._lifeline.lost or self._processes.stopping:
                self._sweep()
            elif "sweep" not in self._timers:
                if self._worlds.drain:  # else wait, as ssh does, for what holds the output open
                    self._sweep_later()
                self._check_finished()
        elif self._processes.independent and not self._processes.ranks and self._processes.stopping:
            # What a command has started is no child of ours, and ends without an event, perhaps since the look above.
            self._timers.set("group", GROUP_LOOK, self._after_exits)

    def _sweep_later(self) -> None:
        """Set the deadline for processes that are stuck or have left their group; the end of the others is an event."""
        self._timers.set("sweep", self._worlds.drain or LOOK_AGAIN, self._sweep)

    def _sweep(self) -> None:
        if self._processes.signals_left:
            return
        if self._lifeline.lost:
            self._kill_descendants()
            self._finish()
            return
        # The kernel or a debugger may hold a killed rank; wait, since the head needs its exit status. Wait also for ranks that
        # are about to start: the helper has their world.
        if not self._processes.ranks and (self._processes.stopping or not self._worlds.waiting):
            self._kill_descendants()
            self._processes.forget_groups()
            if self._forwarder.close_idle_outputs() and self._processes.independent and not self._processes.stopping:
                self._session.send({"type": "note", "text": HELD})
            self._check_finished()
        if self._state == "running":
            self._sweep_later()

    def _check_finished(self) -> None:
        if self._state == "running" and not self._busy() and self._forwarder.all_ended():
            self._kill_descendants()
            self._finish()

    def _kill_descendants(self) -> None:
        """Kill the processes that ended ranks have left behind, unless they are independent commands."""
        self._wireup.close()
        self._processes.end_observations()
        if not self._processes.independent:
            self._swept += reaper.kill_descendants()

    def _finish(self) -> None:
        self._state = "finished"
        self._timers.drop("sweep")
        self._worlds.close()
        self._session.send({"type": "finished", "worlds": self._worlds.count, "swept": self._swept})
        self._swept = []


def _report(text: str) -> None:
    try:
        os.write(2, ("mpilaunch daemon: %s\n" % text).encode("utf-8", "replace"))
    except OSError:
        pass  # stderr is closed


def _signal_pipe() -> int:
    """Return a pipe that gets the number of each SIGCHLD and SIGTERM as a byte."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, stack: None)
    return ours
