"""Channels that are local processes: the base of the agents local, openssh, command, kubectl and fake.

The process has a session of its own. It is reaped only when the channel ends, so killing its group never hits another process;
no process of the group outlives the channel. A channel ends when the process has exited and its output is drained, at most
STRAY_GRACE seconds later. An abort also kills descendants that left the group, because a frozen daemon would survive a guard
that is killed alone. Without pidfd_open (Linux 5.3), a thread waits for the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.errors import reason_of
from mpilaunch.hosts.remote_names import name_problem
from mpilaunch_agents import process_tree
from mpilaunch_agents.child import Child

if TYPE_CHECKING:
    import asyncio

    import psutil

    from mpilaunch.agent import Node

GUARD_SECONDS = 2.0
"""Time in which the guard of a node ends the orphans of its daemon, before they are killed from here: it removes what they
would leave behind, and on a busy machine it comes late."""
CLOSE_SECONDS = 5.0
"""Limit on the wait for aborted processes: those of another user, or blocked in the kernel, cannot be killed."""
CLEANUP_SECONDS = 2.0
"""Seconds that an aborted process and its group then have to exit by themselves: a guard, which need not be the leader, removes
the files of its daemon."""
POLL_SECONDS = 0.02
STRAY_GRACE = 0.5
"""Seconds for which output is still read after the process has exited while another process holds its pipes open."""

PIPE_SIZE = 1 << 20
READ_SIZE = 1 << 18
HIGH_WATER = 1 << 18
LOW_WATER = 1 << 16
"""Bytes: a large pipe, one read, and the unwritten bytes above which writing pauses and below which it resumes."""

LARGE_PIPES = 16
"""Number of channels of one agent that get large pipes. An unprivileged user has 64 MiB of pipe buffers; beyond that, each new
pipe in any of their programs has 4 KiB."""

STDERR_TAIL = 4096
"""Bytes of stderr kept to explain the end."""


class ProcessAgent:
    """Base of agents that run a local process for each channel; subclasses define its command line."""

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        self._channels: set[ProcessChannel] = set()

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the argument list of the process that runs `command` on `node`."""
        raise NotImplementedError

    def start(self, argv: Sequence[str]) -> Child:
        """Start the process; raises OSError."""
        return Child(argv)

    def explain(self, exit_code: int, stderr: str) -> ChannelEnd:
        """Return how the channel ended, given the exit code of the process and the end of its stderr."""
        return ChannelEnd(exit_code)

    def killed(self, number: int) -> ChannelEnd:
        """Return how the channel ended when a signal from elsewhere killed the process: the state of its command is unknown."""
        message = f"its connection was lost: the agent's process was killed by signal {number}"
        return ChannelEnd(128 + number, message, "connection-closed")

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        """Start the process; raises AgentFailure when it cannot be started."""
        refused = name_problem(node.name, node.user)
        if refused:
            raise AgentFailure("agent-failed", refused)
        return self.run(self.argv(node, command), events)

    def run(self, argv: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        """Return the channel of a new process; raises AgentFailure when it cannot be started."""
        try:
            process = self.start(argv)
        except (FileNotFoundError, PermissionError) as error:
            raise AgentFailure("agent-missing", f"{argv[0]}: {reason_of(error)}") from error
        except OSError as error:
            cause = "process-limit" if error.errno == errno.EAGAIN else "agent-failed"
            raise AgentFailure(cause, f"{argv[0]}: {error.strerror or error}") from error
        channel = ProcessChannel(process, events, self, large_pipes=len(self._channels) < LARGE_PIPES)
        self._channels.add(channel)
        return channel

    async def close(self) -> None:
        """Abort every channel and wait for its process, at most CLOSE_SECONDS."""
        import asyncio

        channels = list(self._channels)
        for channel in channels:
            channel.abort()
        ends = [asyncio.ensure_future(channel.ended.wait()) for channel in channels]
        try:
            if ends:
                await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        finally:
            for end in ends:
                end.cancel()

    def forget(self, channel: ProcessChannel) -> None:
        """Called by a channel that has ended."""
        self._channels.discard(channel)


class PipeWriter:
    """Writes to a pipe without blocking, and keeps what does not fit; `events` hear when there is too much."""

    def __init__(self, pipe: int, events: ChannelEvents, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe: int | None = pipe
        self._events, self._loop = events, loop
        self._unwritten = bytearray()
        self._paused = self._eof_asked = False

    def write(self, data: bytes) -> None:
        if self._pipe is None or self._eof_asked:
            return
        if not self._unwritten:
            data = data[self._write_some(data) :]
            if not data or self._pipe is None:
                return
            self._loop.add_writer(self._pipe, self._writable)
        self._unwritten += data
        if len(self._unwritten) > HIGH_WATER and not self._paused:
            self._paused = True
            self._events.pause_writing()

    def write_eof(self) -> None:
        self._eof_asked = True
        if not self._unwritten:
            self.close()

    def close(self) -> None:
        self._unwritten.clear()
        if self._pipe is not None:
            self._loop.remove_writer(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def _write_some(self, data: bytes | bytearray) -> int:
        """Write without blocking and return the number of bytes written; close a pipe without a reader."""
        assert self._pipe is not None
        try:
            return os.write(self._pipe, data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write_some(self._unwritten)]
        if self._paused and len(self._unwritten) < LOW_WATER:
            self._paused = False
            self._events.resume_writing()
        if self._pipe is not None and not self._unwritten:
            self._loop.remove_writer(self._pipe)
            if self._eof_asked:
                self.close()


class ProcessChannel:
    """A running process with three pipes, as a channel; `pid` is also the id of its group, and `ended` is set at the end."""

    def __init__(self, process: Child, events: ChannelEvents, agent: ProcessAgent, *, large_pipes: bool) -> None:
        # Imported here because LocalAgent starts processes first and loads asyncio while they start.
        import asyncio

        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._events = events
        self._agent = agent
        self._exited = self._aborted = False
        self._cleanup_ends = 0.0
        self._strays: set[psutil.Process] = set()
        self._stderr_tail = b""
        self._pidfd: int | None = None
        self._stray_timer: asyncio.TimerHandle | None = None
        self._process = process
        self.pid = process.pid
        self._stdin = PipeWriter(process.stdin, events, self._loop)
        self._readers = {process.stdout: events.data_received, process.stderr: self._stderr_received}
        for descriptor in (process.stdin, *self._readers):
            os.set_blocking(descriptor, False)
        if large_pipes:
            for descriptor in (process.stdin, process.stdout):
                with suppress(OSError):
                    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        for descriptor in self._readers:
            self._loop.add_reader(descriptor, self._readable, descriptor)
        self._watch()

    # Methods of a channel

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    def write_eof(self) -> None:
        self._stdin.write_eof()

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._process.stdout)

    def resume_reading(self) -> None:
        if self._process.stdout in self._readers and not self.ended.is_set():
            self._loop.add_reader(self._process.stdout, self._readable, self._process.stdout)

    def abort(self) -> None:
        """Kill the process and all of its descendants; `closed` follows when the process has exited."""
        if self.ended.is_set() or self._aborted:
            return
        self._aborted = True
        if self._exited or not self._find_strays():
            self._kill_group()
        else:
            # A frozen daemon too: its orphans become children of its guard, which ends them with what they would leave behind.
            parents = {stray: process_tree.parent_of(stray) for stray in self._strays}
            leaders = [stray for stray in parents if stray.pid in parents.values()]
            process_tree.kill(stray for stray in leaders if process_tree.group_of(parents[stray]) == self.pid)
            self._cleanup_ends = self._loop.time() + GUARD_SECONDS + CLEANUP_SECONDS
            self._await_end()
        self._stdin.close()
        if self._stray_timer is not None:
            self._stray_timer.cancel()
            self._stray_timer = self._loop.call_later(0, self._finish)

    # Stdout and stderr

    def _stderr_received(self, data: bytes) -> None:
        self._stderr_tail = (self._stderr_tail + data)[-STDERR_TAIL:]
        self._events.stderr_received(data)

    def _readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._readers[descriptor](data)
        else:
            self._loop.remove_reader(descriptor)
            del self._readers[descriptor]
            if self._exited and not self._readers:
                self._finish()

    # The end

    def _watch(self) -> None:
        """Have `_process_exited` called when the process has exited, without reaping it."""
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._process_exited)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()

    def _wait_in_thread(self) -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._process_exited)

    def _process_exited(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._exited = True
        if not self._readers:
            self._finish()
        else:
            self._stray_timer = self._loop.call_later(0 if self._aborted else STRAY_GRACE, self._finish)

    def _finish(self) -> None:
        """End the channel: the process has exited, and its output is drained or STRAY_GRACE has passed."""
        if self.ended.is_set():
            return
        if self._loop.time() < self._cleanup_ends and (self._strays or process_tree.has_members(self.pid)):
            self._stray_timer = self._loop.call_later(POLL_SECONDS, self._finish)
            return
        self.ended.set()
        if self._stray_timer is not None:
            self._stray_timer.cancel()
        self._kill_group()
        code = self._process.wait()
        try:
            for descriptor, receive in list(self._readers.items()):
                self._loop.remove_reader(descriptor)
                for data in _drain(descriptor):
                    receive(data)
        finally:  # the channel is closed even if a callback raises
            self._stdin.close()
            for descriptor in (self._process.stdout, self._process.stderr):
                os.close(descriptor)
            self._agent.forget(self)
            if code < 0 and not self._aborted:
                self._events.closed(self._agent.killed(-code))
            else:
                stderr = self._stderr_tail.decode("utf-8", "replace")
                self._events.closed(self._agent.explain(code if code >= 0 else 128 - code, stderr))

    def _find_strays(self) -> set[psutil.Process]:
        """Find the living descendants that left the group, and those found before that have lost their parents since."""
        known = self._strays | process_tree.descendants(self.pid)
        self._strays = {stray for stray in known if process_tree.living_group(stray) not in (self.pid, None)}
        return self._strays

    def _await_end(self) -> None:
        """Kill the descendants that left the group after GUARD_SECONDS, and the group CLEANUP_SECONDS later."""
        if self.ended.is_set():
            return
        left, strays = self._cleanup_ends - self._loop.time(), self._find_strays()
        if left < CLEANUP_SECONDS:
            process_tree.kill(strays)
        if left > 0:
            self._loop.call_later(POLL_SECONDS, self._await_end)
        else:
            self._kill_group()

    def _kill_group(self) -> None:
        if self._exited and not self._process.reserves_id:
            return  # the leader is no zombie any more, and the id of its group may be another's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _drain(descriptor: int) -> list[bytes]:
    """Read what a pipe contains, at most its capacity: a stray process may keep writing."""
    chunks = []
    for _ in range(PIPE_SIZE // READ_SIZE):
        try:
            chunks.append(os.read(descriptor, READ_SIZE))
        except OSError:
            break
    return [chunk for chunk in chunks if chunk]
