"""A channel that is a local process: what the agents local, openssh, command and fake have in common.

The process gets a session of its own and, besides its three pipes, no descriptor of ours. It stays unreaped until the
channel ends, so that its process group can be killed without ever hitting a stranger's: no process of that group outlives
the channel. An abort kills what has left the group too: below a guard that is killed alone, a frozen daemon would stay.

Two facts end a channel, exited and drained; a stray process that holds the pipes open is waited for STRAY_GRACE seconds and no
longer. Nothing here blocks but an abort, for moments; no thread or task waits where the kernel has pidfd_open (Linux 5.3).
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.errors import reason_of
from mpilaunch.hosts.remote_names import name_problem
from mpilaunch_agents.child import Child

if TYPE_CHECKING:
    import asyncio

    from mpilaunch.hosts.allocation import Node

ABORT_SECONDS = 0.5
"""How long an abort looks for descendants: killed processes go at once, unless they sit in the kernel."""
CLOSING = 5.0
"""Seconds that aborted processes have to go: one of another user cannot be killed, nor one that the kernel holds."""
TIDYING = 0.5
"""Seconds that an aborted process has to end by itself when all that descends from it is dead: a guard tidies up then."""
STRAY_GRACE = 0.5
"""Seconds for which output is still taken after the process has exited and somebody else holds its pipes open."""

PIPE_SIZE = 1 << 20
READ_SIZE = 1 << 18
HIGH_WATER = 1 << 18
LOW_WATER = 1 << 16
"""Bytes: a large pipe, one read, and the unwritten bytes above which writing pauses and below which it resumes."""

LARGE_PIPES = 16
"""Channels of one agent that get large pipes. A user without privileges has 64 MiB of pipes; past that, each new pipe of
theirs, in any program, has 4 KiB."""

LAST_WORDS = 4096
"""Bytes of stderr that are kept to explain the end."""


class ProcessAgent:
    """The base of every agent that runs a local process per channel; a subclass says which.

    Args:
        options: what the user says to every agent.
    """

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        self._channels: set[ProcessChannel] = set()

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the argument list of the process that runs `command` on `node`."""
        raise NotImplementedError

    def start(self, argv: Sequence[str]) -> Child:
        """Return the process, started; raises OSError."""
        return Child(argv)

    def explain(self, exit_code: int, last_words: str) -> ChannelEnd:
        """Return how the channel ended, from the exit code of the process and the last that it wrote on stderr."""
        return ChannelEnd(exit_code)

    def killed(self, number: int) -> ChannelEnd:
        """Return how the channel ended when somebody else has killed the process: of what it ran, that tells nothing."""
        told = f"its connection was lost: the agent's process was killed by signal {number}"
        return ChannelEnd(128 + number, told, "connection-closed")

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        """Start the process; raises AgentFailure when it cannot be started."""
        refused = name_problem(node.name, node.user)
        if refused:
            raise AgentFailure("agent-failed", refused)
        argv = self.argv(node, command)
        try:
            process = self.start(argv)
        except (FileNotFoundError, PermissionError) as error:
            raise AgentFailure("agent-missing", f"{argv[0]}: {reason_of(error)}") from error
        except OSError as error:
            raise AgentFailure("agent-failed", f"{argv[0]}: {error.strerror or error}") from error
        channel = ProcessChannel(process, events, self, large_pipes=len(self._channels) < LARGE_PIPES)
        self._channels.add(channel)
        return channel

    async def close(self) -> None:
        """Abort every channel and wait until its process is gone, or cannot be killed."""
        import asyncio

        ends = [asyncio.ensure_future(channel.ended.wait()) for channel in self._channels]
        for channel in list(self._channels):
            channel.abort()
        if ends:
            _, left = await asyncio.wait(ends, timeout=CLOSING)
            for end in left:
                end.cancel()

    def forget(self, channel: ProcessChannel) -> None:
        """Be told by a channel that it has ended."""
        self._channels.discard(channel)


class ProcessChannel:
    """A running process, with three pipes, as a channel.

    Attributes:
        pid: of the process, and of its process group.
        ended: set once the process is reaped and every descriptor closed.
    """

    def __init__(self, process: Child, events: ChannelEvents, agent: ProcessAgent, *, large_pipes: bool) -> None:
        # Not at the top: a process that is started before there is a loop gets ready while this is loaded.
        import asyncio

        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._events = events
        self._agent = agent
        self._unwritten = bytearray()
        self._paused = False
        self._eof_asked = False
        self._exited = False
        self._aborted = False
        self._last_words = b""
        self._pidfd: int | None = None
        self._stray_timer: asyncio.TimerHandle | None = None
        self._process = process
        self.pid = process.pid
        self._stdin: int | None = process.stdin
        self._readers = {process.stdout: self._take_stdout, process.stderr: self._take_stderr}
        for descriptor in (self._stdin, *self._readers):
            os.set_blocking(descriptor, False)
        if large_pipes:
            for descriptor in (process.stdin, process.stdout):
                with suppress(OSError):
                    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        for descriptor in self._readers:
            self._loop.add_reader(descriptor, self._readable, descriptor)
        self._watch()

    # What the head asks for

    def write(self, data: bytes) -> None:
        """Send bytes to the process; what it does not take at once is kept until it does."""
        if self._stdin is None or self._eof_asked:
            return
        if not self._unwritten:
            data = data[self._write_some(data) :]
            if not data or self._stdin is None:
                return
            self._loop.add_writer(self._stdin, self._writable)
        self._unwritten += data
        if len(self._unwritten) > HIGH_WATER and not self._paused:
            self._paused = True
            self._events.pause_writing()

    def write_eof(self) -> None:
        """Close the process's stdin once all is written."""
        self._eof_asked = True
        if not self._unwritten:
            self._close_stdin()

    def abort(self) -> None:
        """Kill the process with all that descends from it; `closed` follows as soon as the process is gone."""
        if self.ended.is_set() or self._aborted:
            return
        self._aborted = True
        if not self._exited and _kill_strays(self.pid):
            self._loop.call_later(TIDYING, self._kill_with_strays)
        else:
            self._kill_group()
        self._close_stdin()
        if self._stray_timer is not None:
            self._stray_timer.cancel()
            self._stray_timer = self._loop.call_later(0, self._finish)

    # Stdin

    def _write_some(self, data: bytes | bytearray) -> int:
        """Write what the pipe takes and return how much that was; a pipe that nobody reads is closed."""
        assert self._stdin is not None
        try:
            return os.write(self._stdin, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._close_stdin()
            return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write_some(self._unwritten)]
        if self._paused and len(self._unwritten) < LOW_WATER:
            self._paused = False
            self._events.resume_writing()
        if self._stdin is not None and not self._unwritten:
            self._loop.remove_writer(self._stdin)
            if self._eof_asked:
                self._close_stdin()

    def _close_stdin(self) -> None:
        self._unwritten.clear()
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    # Stdout and stderr

    def _take_stdout(self, data: bytes) -> None:
        self._events.data_received(data)

    def _take_stderr(self, data: bytes) -> None:
        self._last_words = (self._last_words + data)[-LAST_WORDS:]
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
        """See to it that `_process_exited` is called when the process has exited; it is not reaped yet then."""
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
        """End the channel: both facts are there, or the time for the second is over."""
        if self.ended.is_set():
            return
        self.ended.set()
        if self._stray_timer is not None:
            self._stray_timer.cancel()
        # The leader is still a zombie: its process id, and so the group's, cannot have become somebody else's.
        self._kill_group()
        code = self._process.wait()
        try:
            for descriptor, take in list(self._readers.items()):
                self._loop.remove_reader(descriptor)
                for data in _rest(descriptor):
                    take(data)
        finally:  # whatever they make of the rest, nobody waits any longer for who has gone
            self._close_stdin()
            for descriptor in (self._process.stdout, self._process.stderr):
                os.close(descriptor)
            self._agent.forget(self)
            words = self._last_words.decode("utf-8", "replace")
            if code < 0 and not self._aborted:
                self._events.closed(self._agent.killed(-code))
            else:
                self._events.closed(self._agent.explain(code if code >= 0 else 128 - code, words))

    def _kill_with_strays(self) -> None:
        if not self.ended.is_set():
            _kill_strays(self.pid)
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _kill_strays(pid: int) -> bool:
    """Kill what descends from a group leader and has left its group, until nothing is seen; say whether there was any.

    The leader lives on meanwhile: where it is the guard of a node, it inherits the orphans.
    """
    import psutil

    deadline = time.monotonic() + ABORT_SECONDS
    found = False
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while time.monotonic() < deadline:
            killed = False
            for one in process.children(recursive=True):
                with suppress(psutil.Error, ProcessLookupError):
                    if os.getpgid(one.pid) != pid and one.status() != psutil.STATUS_ZOMBIE:
                        one.kill()
                        killed = True
            if not killed:
                break
            found = True
            time.sleep(0.002)
    return found


def _rest(descriptor: int) -> list[bytes]:
    """Return what stands in a pipe, and no more than a pipe holds: a stray process may go on writing."""
    chunks = []
    for _ in range(PIPE_SIZE // READ_SIZE):
        try:
            chunks.append(os.read(descriptor, READ_SIZE))
        except OSError:
            break
    return [chunk for chunk in chunks if chunk]
