"""The agent `slurm`: starts the daemons of many nodes by one step, through `mpilaunch_agents.callback`, or each by its own.

The nodes that are opened within GATHER seconds share an srun. Each writes one line, the secret of its connection, and the step
gets them all by the stdin that srun gives to every task: a node looks for the line with its name. So the nodes of a job can
read each other's secrets: Slurm runs them all as the same user. srun stays until the last daemon has ended, since its death
would end the step. It gets no signal of a terminal, and a SIGTERM of Slurm to all processes of a job does no harm.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd, ChannelEvents, Node
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.errors import UsageError
from mpilaunch.hosts.remote_names import name_problem
from mpilaunch_agents.batch import srun
from mpilaunch_agents.batch.srun import Gpus
from mpilaunch_agents.capture import capture
from mpilaunch_agents.child import Child, find_program
from mpilaunch_agents.process import ProcessAgent, ProcessChannel

ASK_SECONDS = 3.0
"""Seconds for Slurm's answer about the job or its settings; a controller under load must not hold up a launch."""
GATHER = 0.01
"""Seconds for which a step waits for more nodes."""
END_SECONDS = 5.0
"""Seconds in which srun ends by itself once its daemons have; then the step is cancelled."""
CANCEL_SECONDS = 2.0
"""Seconds that srun then has; longer would hold up the end of mpilaunch."""
WORDS_SECONDS = 0.3
"""Seconds from srun's report of a task's end to the last words of the task."""
MOST_WORDS, LONGEST_LINE = 4096, 1 << 16
"""Characters of srun's own last words, and bytes of a line of a task, that are kept."""


async def _shown(*words: str) -> str:
    """Return what `scontrol show` prints, "" without an answer in time."""
    with suppress(AgentFailure, asyncio.TimeoutError):
        async with timeout(ASK_SECONDS):
            code, text, _ = await capture(["scontrol", "show", *words])
        return text if code == 0 else ""
    return ""


class SlurmAgent(ProcessAgent):
    """Reaches the nodes of the surrounding Slurm job by a step for each, whose daemon talks over srun."""

    flags: Sequence[str] = srun.OF_ONE

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._environ = srun.environment(os.environ)
        self._parts = srun.parts(os.environ)
        self._gpus: Mapping[str, Gpus] = {}
        self._learning: asyncio.Task[None] | None = None
        self._program = find_program("srun", os.environ.get("PATH", os.defpath)) or "srun"

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        return self.step_of([node.name], command)

    def step_of(self, nodes: Sequence[str], command: Sequence[str]) -> list[str]:
        """Return the command line of a step with a task on each of these nodes, which are of one kind."""
        part, gpus = self._parts.get(nodes[0], ""), self._gpus.get(nodes[0], Gpus()).option
        return srun.argv(self._program, nodes, command, [*self.flags, *filter(None, (part, gpus))])

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        await self._learn()
        return await super().open(node, command, events)

    async def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
        await super().close()

    async def _learn(self) -> None:
        """Ask Slurm once for the GPUs that the job was granted on each node; without an answer, srun decides.

        Raises AgentFailure outside of a job.
        """
        if not os.environ.get("SLURM_JOB_ID"):
            raise AgentFailure("outside-job", "SLURM_JOB_ID is not set")
        if self._learning is None:
            self._learning = asyncio.ensure_future(self._ask())
        await asyncio.shield(self._learning)

    async def _ask(self) -> None:
        job = await _shown("job", "--details", os.environ["SLURM_JOB_ID"])
        with suppress(UsageError):
            self._gpus = srun.gpus_by_node(job)

    def start(self, argv: Sequence[str]) -> Child:
        return Child(argv, environ=self._environ)

    def explain(self, exit_code: int, stderr: str) -> ChannelEnd:
        told, lost = srun.reason(stderr)
        return ChannelEnd(exit_code, told, "job-ended" if lost else "agent-failed" if told else "")


class OneStepAgent(SlurmAgent):
    """Reaches the nodes of the surrounding Slurm job by one step, whose daemons call back."""

    flags = srun.OF_MANY

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._ports = range(0)
        self._waiting: list[_Share] = []
        self._steps: set[_Step] = set()

    async def ports(self) -> range:
        """Return the ports at which the nodes may call back, empty for any; raises AgentFailure outside of a job."""
        await self._learn()
        return self._ports

    async def _ask(self) -> None:
        config, _ = await asyncio.gather(_shown("config"), super()._ask())
        self._ports = srun.port_range(config)

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> _Share:  # type: ignore[override]
        """Return the node's share of a step, which begins soon after the first of them has written its line."""
        await self._learn()
        if refused := name_problem(node.name, node.user):
            raise AgentFailure("agent-failed", refused)
        return _Share(node, tuple(command), events, self._join)

    async def close(self) -> None:
        """Wait for the ends of all steps; cancel those that do not end."""
        for limit, end in ((END_SECONDS, _Step.cancel), (CANCEL_SECONDS, _Step.abort)):
            if waits := [asyncio.ensure_future(step.ended.wait()) for step in self._steps]:
                _, late = await asyncio.wait(waits, timeout=limit)
                for wait in late:
                    wait.cancel()
            for step in list(self._steps):
                end(step)
        await super().close()

    def _join(self, share: _Share) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(GATHER, self._begin)
        self._waiting.append(share)

    def _begin(self) -> None:
        shares, self._waiting = [share for share in self._waiting if not share.ended], []
        while shares:
            # One task for each node; srun numbers them in the order of the nodes in the job, which is that of the allocation.
            kind = self._kind(shares[0])
            step = {share.node.name: share for share in reversed(shares) if self._kind(share) == kind}
            _Step(self, sorted(step.values(), key=lambda share: share.node.index), self._steps)
            shares = [share for share in shares if share not in step.values()]

    def _kind(self, share: _Share) -> object:
        """Return what the nodes of a step have in common."""
        gpus = self._gpus.get(share.node.name, Gpus())
        return share.command, self._parts.get(share.node.name), gpus, share if gpus.alone else None


class _Share:
    """A node's share of a step: the channel that the callback agent has, which takes one line for the node's stdin."""

    def __init__(self, node: Node, command: tuple[str, ...], events: ChannelEvents, join: Callable[[_Share], None]) -> None:
        self.node, self.command, self.events, self._join = node, command, events, join
        self.line = b""
        self.ended = False
        self.step: _Step | None = None

    def write(self, data: bytes) -> None:
        if not self.line:
            self._join(self)
        self.line += data

    def write_eof(self) -> None:
        """Ignored: the node reads one line."""

    def pause_reading(self) -> None:
        """Ignored: all that comes is why a node does not connect."""

    def resume_reading(self) -> None:
        """Ignored, as `pause_reading`."""

    def abort(self) -> None:
        if not self.ended:
            asyncio.get_running_loop().call_soon(self.end, ChannelEnd(None))

    def end(self, end: ChannelEnd) -> None:
        if not self.ended:
            self.ended = True
            self.events.closed(end)
            if self.step is not None:
                self.step.left()


class _Step:
    """A running srun, and the ChannelEvents of its process."""

    def __init__(self, agent: OneStepAgent, shares: Sequence[_Share], steps: set[_Step]) -> None:
        self.ended = asyncio.Event()
        self._shares, self._steps = shares, steps
        self._buffers = {"out": b"", "err": b""}
        self._words = ""
        self._channel: ProcessChannel | None = None
        for share in shares:
            share.step = self
        try:
            self._channel = agent.run(agent.step_of([share.node.name for share in shares], shares[0].command), self)
        except AgentFailure as failure:
            self._end_all(ChannelEnd(None, failure.detail, failure.cause))
            return
        steps.add(self)
        for share in shares:
            self._channel.write(share.node.name.encode() + b" " + share.line)
        self._channel.write_eof()

    def left(self) -> None:
        """Called when a share has ended; after the last one srun has END_SECONDS to end."""
        if all(share.ended for share in self._shares) and not self.ended.is_set():
            asyncio.get_running_loop().call_later(END_SECONDS, self.cancel)

    def cancel(self) -> None:
        """Have srun end its tasks, and itself; killed, it would leave the step in the queue."""
        if self._channel is not None and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self._channel.pid, signal.SIGTERM)
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, self.abort)

    def abort(self) -> None:
        if self._channel is not None:
            self._channel.abort()

    # Events of srun

    def data_received(self, data: bytes) -> None:
        self._take("out", data)

    def stderr_received(self, data: bytes) -> None:
        self._take("err", data)

    def pause_writing(self) -> None:
        """Ignored: a step gets one line for each node."""

    def resume_writing(self) -> None:
        """Ignored, as `pause_writing`."""

    def closed(self, end: ChannelEnd) -> None:
        self.ended.set()
        self._steps.discard(self)
        for stream, rest in self._buffers.items():
            if rest:
                self._take(stream, b"\n")
        told, lost = srun.reason(self._words)
        error, cause = told or end.error, "job-ended" if lost else end.cause or ("agent-failed" if told else "")
        self._end_all(ChannelEnd(end.exit_code, error, cause))

    def _take(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._buffers[stream] + data).split(b"\n")
        self._buffers[stream] = rest[-LONGEST_LINE:]
        for line in lines:
            task, words = srun.labelled(line)
            text = words.decode("utf-8", "replace")
            if task is not None and task < len(self._shares):
                self._tell(self._shares[task], words)
                self._keep(srun.said_by_slurm(text))
                continue
            self._keep(text + "\n")
            if end := srun.task_end(text):
                for number in end.tasks:
                    if number < len(self._shares):
                        asyncio.get_running_loop().call_later(WORDS_SECONDS, self._end, self._shares[number], end.code, text)
                continue
            for share in self._shares:
                self._tell(share, words)

    def _keep(self, words: str) -> None:
        self._words = (self._words + words)[-MOST_WORDS:]

    def _tell(self, share: _Share, line: bytes) -> None:
        if not share.ended:
            share.events.stderr_received(line + b"\n")

    def _end(self, share: _Share, code: int | None, text: str) -> None:
        """End a share some time after srun has told of the end of its task, in which more may have been said."""
        told, lost = srun.reason(self._words)
        share.end(ChannelEnd(code, told if lost else "" if code is not None else text, "job-ended" if lost else ""))

    def _end_all(self, end: ChannelEnd) -> None:
        for share in self._shares:
            share.end(end)
