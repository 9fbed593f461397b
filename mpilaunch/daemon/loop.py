"""The daemon's one loop: the wire, the ranks' pipes, ended children and deadlines.

`HEAD_SENDS` names the control messages of each state; another message is ignored, since it may have crossed with an event here.
Every wait is a deadline from the monotonic clock. When the head is gone the ranks are ended, and the daemon goes with them.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import mpilaunch
from mpilaunch.daemon.guard import Pulse
from mpilaunch.daemon.lifeline import Lifeline
from mpilaunch.daemon.mpi.wireup import WireUp
from mpilaunch.daemon.node.probe import probe
from mpilaunch.daemon.poller import Poller
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.daemon.ranks import reaper, spawn
from mpilaunch.daemon.ranks.evidence import Evidence
from mpilaunch.daemon.ranks.forward import Forwarder
from mpilaunch.daemon.ranks.processes import Processes
from mpilaunch.daemon.timers import Timers
from mpilaunch.wire.environment import decode, node_layer
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, STDIN, WireError, stream_channel
from mpilaunch.wire.messages import HEAD_SENDS, handler_of

HIGH_WATER = 4 << 20
"""Bytes waiting for the wire above which no rank's output is read."""
LOST_HEAD_STEPS = [[signal.SIGTERM, 2.0]]
"""How ranks are ended when the head is gone, before SIGKILL."""


class Daemon:
    """Run the ranks of one node.

    Args:
        wire_in, wire_out: descriptors of the wire.
        guard: a descriptor that reads end of file when the guard has died.
        pulse: shows the guard that this process is not frozen.
        directory: for files of the job, made when it is needed.
    """

    def __init__(self, wire_in: int, wire_out: int, guard: int, pulse: Pulse, directory: PrivateDirectory) -> None:
        self._timers = Timers()
        self._pulse = pulse
        self._poller = Poller()
        self._lifeline = Lifeline(wire_in, wire_out, self._poller, self._timers, directory, self._wire_ready, self._head_lost)
        self._session = self._lifeline.session
        self._guard = guard
        self._forwarder = Forwarder(self._session, self._poller, self._check_finished)
        self._state = "fresh"
        self._plan: dict[str, Any] = {}
        self._pulse_limit = 0.0
        self._prepared: tuple[dict[str, Any], dict[int, spawn.App]] = ({}, {})
        self._to_launch = False
        self._worlds = 0
        self._evidence: Evidence | None = None
        self._wireup = WireUp(self._poller, self._session.send, self._abort, self._timers.set, directory)
        self._processes = Processes(self._timers, self._wireup.note_memory, self._sweep_later)
        self._released = False
        self._swept: list[tuple[int, str]] = []
        self._poller.watch(guard, self._lifeline.lose)
        self._signals = _signal_pipe()
        self._poller.watch(self._signals, self._take_signals)

    def run(self, hardware: dict[str, Any] | None) -> bool:
        """Serve until the wire has ended and nothing of the job is left on this node; say whether the head released us.

        `hardware` is as for `probe`.
        """
        facts = probe(hardware=hardware)
        self._session.send({"type": "hello", "version": mpilaunch.__version__, "clock": time.monotonic(), "facts": facts})
        self._flush()
        # This takes milliseconds: the head works on our hello meanwhile.
        reaper.become_subreaper()
        self._wireup.load()
        while not self._lifeline.lost or self._state == "running":
            self._poller.run(self._timers.seconds_left())
            self._timers.run()
            self._flush()
        return self._released

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
            self._complain("the head broke the protocol: %s" % error)
            self._lifeline.lose()

    def _take_message(self, message: Any) -> None:
        name = message["type"]
        handler = handler_of(message, HEAD_SENDS, self._state)
        if handler:
            try:
                getattr(self, handler)(message)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise WireError("%r does not fit: %r" % (name, error)) from error

    def _flush(self) -> None:
        """Write what the wire takes now; above the high-water mark, let the ranks wait."""
        self._lifeline.flush()
        if not self._lifeline.lost:
            self._forwarder.pause(self._lifeline.backlog > HIGH_WATER)

    def _head_lost(self) -> None:
        """Nobody reads us any more, and the ranks go too."""
        self._poller.forget(self._guard)
        self._forwarder.pause(True)
        self._to_launch = False
        if self._state == "running":
            self._processes.end(LOST_HEAD_STEPS)

    # Messages

    def _limit(self, message: dict[str, Any]) -> None:
        """Take how long the head may be silent, and this process may not move."""
        self._pulse_limit = message["pulse"]
        self._lifeline.limit_silence(message["silence"])
        self._beat()

    def _prepare(self, message: dict[str, Any]) -> None:
        self._plan = message
        apps: dict[int, spawn.App] = {}
        self._limit(message)
        if message["attach"] is not None:
            self._listen(message["attach"])
        environment = node_layer(message, os.environb)
        problems = []
        for number in sorted({spec["app"] for spec in message["ranks"]}):
            try:
                spawn.check_file_limit(message, bool(self._processes.ranks))
                apps[number] = spawn.prepare_app(message["apps"][number], environment, message["python"])
            except spawn.Problem as problem:
                problems.append({"cause": problem.cause, "detail": problem.detail})
        if problems:
            self._session.send({"type": "refused", "problems": problems})
            return
        for spec in message["ranks"]:
            if spec["stdin"]:
                self._session.open_receiving(stream_channel(spec["rank"], STDIN), message["window"])
        self._prepared = message, apps
        self._worlds += 1
        self._to_launch = True
        if self._state != "running":
            self._state = "prepared"
        if message["mpi"] is None:
            self._ready("")
        else:
            description = {**message["mpi"], "node": message["node"]}
            self._wireup.open_world(description, message["ranks"])
            self._wireup.offer_pmix(description, list(apps.values()), self._ready)

    def _ready(self, why_not: str) -> None:
        """All is there for the ranks that were prepared last, or not; nobody wants to know once a stop has come between."""
        if not self._to_launch:
            return
        if why_not:
            self._session.send({"type": "refused", "problems": [{"cause": "pmix-missing", "detail": why_not}]})
            self._worlds -= 1
            self._cancel({})
            return
        apps = self._prepared[1].values()
        notes = [app.note for app in apps if app.note]
        self._session.send({"type": "ready", "programs": [decode(app.path) for app in apps], "notes": notes})

    def _listen(self, attach: dict[str, Any]) -> None:
        """Let the head come back when its channel is lost, and say where; without a place for a socket it cannot."""
        try:
            socket = self._lifeline.listen(bytes.fromhex(attach["secret"]), attach["seconds"])
            if socket is not None:
                self._session.send({"type": "listening", "path": decode(os.fsencode(socket.path)), "why_not": ""})
        except OSError as error:
            self._session.send({"type": "listening", "path": "", "why_not": "no place for a socket there: %s" % error})

    def _beat(self) -> None:
        self._timers.set("pulse", self._pulse.beat(self._pulse_limit), self._beat)

    def _launch(self, message: dict[str, Any]) -> None:
        if not self._to_launch:
            return  # a stop came between
        self._state = "running"
        self._lifeline.keep()
        self._to_launch = False
        self._timers.drop("sweep")
        self._evidence = self._evidence or Evidence()
        started, failed = [], []
        plan, apps = self._prepared
        for spec in plan["ranks"]:
            rank = spec["rank"]
            descriptors = self._forwarder.open_rank(rank, spec["stdin"], plan["merge_stderr"], plan["window"])
            if plan["mpi"] is not None and plan["mpi"]["descriptor"] is not None:
                descriptors[plan["mpi"]["descriptor"]] = self._wireup.open_rank(rank, plan["mpi"]["descriptor"])
            environment = {**spec["environment"], **self._wireup.environment(rank, apps[spec["app"]])}
            try:
                pid = spawn.start(apps[spec["app"]], spec["unset"], environment, spec["cpus"], descriptors)
            except OSError as error:
                failed.append([rank, error.errno, time.monotonic()])
                self._forwarder.close_input(rank)
                self._wireup.close_rank(rank)
            else:
                started.append([rank, pid, time.monotonic()])
                self._processes.started(pid, rank)
            finally:
                for descriptor in descriptors.values():
                    os.close(descriptor)
        self._session.send({"type": "started", "ranks": started, "failed": failed})
        app_of = {spec["rank"]: spec["app"] for spec in plan["ranks"]}
        for number, app in apps.items():
            self._wireup.watch({rank: pid for rank, pid, _ in started if app_of[rank] == number}, app.path)
        self._after_exits()

    def _abort(self, rank: int, code: int) -> None:
        self._processes.abort(rank, code)

    def _know(self, message: dict[str, Any]) -> None:
        self._wireup.open_world({**message["mpi"], "node": None}, [])

    def _serve(self, message: dict[str, Any]) -> None:
        self._wireup.take(message)

    def _signal(self, message: dict[str, Any]) -> None:
        number = message["signal"]
        if message.get("caught"):
            reaper.signal_catchers(number)
            return
        self._processes.signal(number)
        if number == signal.SIGSTOP:
            # The head is about to stop itself and will be silent; its next byte starts the clock again.
            self._timers.drop("silence")

    def _release(self, message: dict[str, Any]) -> None:
        """The head wants nothing more of us."""
        self._released = True
        self._lifeline.lose()

    def _cancel(self, message: dict[str, Any]) -> None:
        """What was prepared last will not be launched."""
        self._to_launch = False
        if self._state == "prepared":
            self._finish()
        else:
            self._after_exits()

    def _stop(self, message: dict[str, Any]) -> None:
        if self._state == "prepared":
            self._cancel(message)
        else:
            self._to_launch = False
            self._processes.end(message["steps"], shared=message.get("shared") is True)

    # The end of ranks

    def _busy(self) -> bool:
        """Say whether ranks run or are about to, or some that were told to end are not gone."""
        return bool(self._processes.ranks) or self._to_launch or self._processes.ending

    def _take_signals(self) -> None:
        # Before the ends of ranks: those that die of the same signal have been told to end.
        if signal.SIGTERM in os.read(self._signals, 4096):
            self._terminated()
        self._children_ended()

    def _terminated(self) -> None:
        """SIGTERM was sent to this process, and so to the ranks: a batch system signals every process of a job."""
        if self._state != "running":
            self._complain("SIGTERM came before the ranks ran")
            self._lifeline.lose()
        elif not self._processes.got_sigterm:
            self._processes.got_sigterm = True
            self._session.send({"type": "terminated"})

    def _children_ended(self) -> None:
        for pid, status in reaper.reap():
            rank = self._processes.ranks.pop(pid, None)
            if rank is None:
                self._wireup.child_ended(pid, status)
                continue
            mpi = self._wireup.close_rank(rank)  # first: the last that it said may have been its code
            code, number, clock = self._processes.how_ended(rank, status)
            stopped = self._processes.stopping or self._processes.got_sigterm
            self._session.send(
                {
                    "type": "exited",
                    "rank": rank,
                    "code": code,
                    "signal": number,
                    "core": code is None and os.WCOREDUMP(status),
                    "evidence": {} if stopped or self._evidence is None else self._evidence.of(pid, code, number),
                    "clock": clock,
                    "stopped": stopped,
                    "stdin_read": self._forwarder.close_input(rank),
                    "mpi": mpi,
                }
            )
        self._after_exits()

    def _after_exits(self) -> None:
        """Once the last rank has exited: output that is still open is somebody's whom a rank left behind."""
        if self._state == "running" and not self._busy():
            self._timers.drop("step")
            if self._lifeline.lost or self._processes.stopping:
                self._sweep()
            elif "sweep" not in self._timers:
                self._sweep_later()
                self._check_finished()

    def _sweep_later(self) -> None:
        """Killed processes go at once, and that is an event; this is for those that are stuck, or have left their group."""
        self._timers.set("sweep", self._plan["drain"], self._sweep)

    def _sweep(self) -> None:
        if self._processes.will_be_told:
            return
        if self._lifeline.lost:
            self._kill_descendants()
            self._finish()
            return
        # A killed rank may be held by the kernel or a debugger: the head is to be told how it ended, which is an event.
        if not self._processes.ranks:
            self._kill_descendants()
            self._processes.leave()
            self._forwarder.close_idle_outputs()
            self._check_finished()
        if self._state == "running":
            self._sweep_later()

    def _check_finished(self) -> None:
        if self._state == "running" and not self._busy() and self._forwarder.all_ended():
            self._kill_descendants()
            self._finish()

    def _kill_descendants(self) -> None:
        """No rank runs here: end whatever ranks have left behind."""
        self._wireup.close()
        self._swept += reaper.kill_descendants()

    def _finish(self) -> None:
        self._state = "finished"
        self._timers.drop("sweep")
        self._session.send({"type": "finished", "worlds": self._worlds, "swept": self._swept})
        self._swept = []

    def _complain(self, text: str) -> None:
        try:
            os.write(2, ("mpilaunch daemon: %s\n" % text).encode("utf-8", "replace"))
        except OSError:
            pass  # nobody listens


def _signal_pipe() -> int:
    """Let SIGCHLD and SIGTERM become bytes on a pipe, which are their numbers; return the end to read."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, stack: None)
    return ours
