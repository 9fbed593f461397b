"""The agent `gridengine`: starts each daemon by `qrsh -inherit`, as a task of the surrounding job of Grid Engine.

The daemon talks over qrsh, which hangs for ever where more than 256 KiB come on its stdin before the task runs: so nothing is
written until the task has said that it does. Its command is a line for the user's shell. A killed qrsh takes all processes of
its task with it. Sources: qrsh(1) and sge_pe(5) of 8.1.9, and that version's behaviour.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from mpilaunch.agent import AgentFailure, ChannelEnd, ChannelEvents, Node
from mpilaunch.text import last_line, shell_line
from mpilaunch_agents.process import STDERR_TAIL, ProcessAgent, ProcessChannel

BEGUN = "mpilaunch-task-has-begun"
OWN_WORDS = ("error: executing task of job ", "error: commlib error", "error: error ", "error: unable to ")
"""How messages of qrsh itself begin."""
REFUSED = "didn't accept task"
WHY_REFUSED = " (is it one of this job's hosts, in a parallel environment with control_slaves TRUE?)"


class GridEngineAgent(ProcessAgent):
    """Reaches the hosts of the surrounding job."""

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        return ["qrsh", "-inherit", node.name, f"echo {BEGUN}; exec {shell_line(command)}"]

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        """Return once the task runs; raises AgentFailure if qrsh ends before, and outside of a job."""
        if not os.environ.get("JOB_ID"):
            raise AgentFailure("outside-job", "JOB_ID is not set")
        task = _Task(events)
        channel = await super().open(node, command, task)
        try:
            end = await task.begun
        except asyncio.CancelledError:
            channel.abort()
            raise
        if end is not None:
            told = end.error or task.words() or f"qrsh has ended with code {end.exit_code}"
            raise AgentFailure(end.cause or "agent-failed", told)
        return channel

    def explain(self, exit_code: int, stderr: str) -> ChannelEnd:
        told = [line for line in stderr.splitlines() if line.startswith(OWN_WORDS)]
        if not told:
            return ChannelEnd(exit_code)
        reason = told[-1].removeprefix("error: ")
        return ChannelEnd(exit_code, reason + (WHY_REFUSED if reason.endswith(REFUSED) else ""), "agent-failed")


class _Task:
    """The ChannelEvents of a qrsh: those of its node, from the line by which the task says that it runs.

    Attributes:
        begun: the end, if that comes first, else None.
    """

    def __init__(self, events: ChannelEvents) -> None:
        self.begun: asyncio.Future[ChannelEnd | None] = asyncio.get_running_loop().create_future()
        self._events = events
        self._runs = False
        self._before = self._stderr = b""

    def words(self) -> str:
        """Return the last line on stderr of a task that has not begun."""
        return last_line(self._stderr.decode("utf-8", "replace"))

    def data_received(self, data: bytes) -> None:
        """Pass data on; what the user's shell has printed before the line is no output of the command."""
        if self._runs:
            self._events.data_received(data)
            return
        before, line, rest = (self._before + data).partition(f"{BEGUN}\n".encode())
        self._before = before[-len(BEGUN) :]
        if line and not self.begun.done():
            self._runs = True
            self.begun.set_result(None)
            for receive, held in ((self._events.stderr_received, self._stderr), (self._events.data_received, rest)):
                if held:
                    receive(held)

    def stderr_received(self, data: bytes) -> None:
        if self._runs:
            self._events.stderr_received(data)
        else:
            self._stderr = (self._stderr + data)[-STDERR_TAIL:]

    def pause_writing(self) -> None:
        self._events.pause_writing()

    def resume_writing(self) -> None:
        self._events.resume_writing()

    def closed(self, end: ChannelEnd) -> None:
        """Pass the end on, or have `open` raise it, unless that was cancelled."""
        if self._runs:
            self._events.closed(end)
        elif not self.begun.done():
            self.begun.set_result(end)
