"""Conformance tests for agents: subclass `AgentConformance` in a test file, and pytest collects the tests.

    from mpilaunch_agents.conformance import AgentConformance

    class TestMyAgent(AgentConformance):
        node = Node(0, "pod-7", (), "my-agent")
        unreachable = Node(1, "no-such-pod", (), "my-agent")

        def make_agent(self) -> Agent:
            return MyAgent(AgentOptions(connect_timeout=5))

The node needs a `python3` (see `python`). Each test makes and closes an agent of its own; this module does not import pytest.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from mpilaunch.agent import CAUSES, Agent, AgentFailure, Channel, ChannelEnd
from mpilaunch.hosts.allocation import Node

DEADLINE = 30.0
"""Limit on each wait, in seconds."""

EVERY_BYTE = bytes(range(256))
ARGUMENTS = [
    "plain",
    "",
    "two words",
    " blanks around ",
    "it's",
    'say "yes"',
    "$HOME `id` $(id)",
    "back\\slash \\n",
    "new\nline",
    "tab\there",
    "*?[a-z]{1,2}~",
    "#;&|<>!",
    "-n",
    "--",
    "größe-日本",
]
ECHO = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
SHOW_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv[1:]))"


class Recorder:
    """ChannelEvents that record every event.

    Attributes:
        events: names of the events, in order.
        stdout, stderr: the output so far.
        end: how the channel ended, None before.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.end: ChannelEnd | None = None
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Record output."""
        self._record("data")
        self.stdout += data

    def stderr_received(self, data: bytes) -> None:
        """Record stderr."""
        self._record("stderr")
        self.stderr += data

    def pause_writing(self) -> None:
        """Record the event."""
        self._record("pause")

    def resume_writing(self) -> None:
        """Record the event."""
        self._record("resume")

    def closed(self, end: ChannelEnd) -> None:
        """Record the end."""
        self._record("closed")
        self.end = end

    def __repr__(self) -> str:
        return f"<Recorder {self.end} {self.events[-10:]} stdout {self.stdout[-500:]!r} stderr {self.stderr[-500:]!r}>"

    def _record(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], bool], expected: str) -> None:
        """Wait until the condition holds; fail the test after DEADLINE seconds."""

        async def wait() -> None:
            while not condition():
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(wait(), DEADLINE)
        except asyncio.TimeoutError:
            raise AssertionError(f"{expected}: not within {DEADLINE:g} s: {self!r}") from None

    async def ended(self) -> ChannelEnd:
        """Wait for the end and return it."""
        await self.until(lambda: self.end is not None, "the end of the channel")
        assert self.end is not None
        return self.end


class AgentConformance:
    """The tests; a subclass defines the agent and two nodes.

    Attributes:
        node: a node that the agent can reach.
        unreachable: a node that it cannot reach; None when no such node can exist.
        python: a Python command on the node.
    """

    node: Node
    unreachable: Node | None = None
    python: str = "python3"

    def make_agent(self) -> Agent:
        """Return a new agent."""
        raise NotImplementedError

    def run(self, test: Callable[[Agent], Awaitable[None]]) -> None:
        """Run a test with a new agent; closing the agent must leave no task in the loop."""

        async def main() -> None:
            async with self._agent() as agent:
                await test(agent)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"close() left tasks: {left}"

        asyncio.run(main())

    @asynccontextmanager
    async def _agent(self) -> AsyncIterator[Agent]:
        agent = self.make_agent()
        try:
            yield agent
        finally:
            await asyncio.wait_for(agent.close(), DEADLINE)

    async def _start(self, agent: Agent, script: str, *arguments: str) -> tuple[Channel, Recorder]:
        recorder = Recorder()
        return await agent.open(self.node, [self.python, "-c", script, *arguments], recorder), recorder

    async def _complete(self, agent: Agent, script: str, arguments: Sequence[str] = (), data: bytes = b"") -> Recorder:
        channel, recorder = await self._start(agent, script, *arguments)
        if data:
            channel.write(data)
        channel.write_eof()
        await recorder.ended()
        return recorder

    def test_every_byte_arrives_as_it_is(self) -> None:
        """All 256 byte values, in one write, in both directions."""

        async def test(agent: Agent) -> None:
            recorder = await self._complete(agent, ECHO, data=EVERY_BYTE * 3)
            assert bytes(recorder.stdout) == EVERY_BYTE * 3
            assert recorder.end == ChannelEnd(0)

        self.run(test)

    def test_much_data_arrives_both_ways_and_writing_pauses(self) -> None:
        """The node reads 8 MiB only after a signal: the agent must call pause_writing, then resume_writing."""
        script = "import sys; print('ready', file=sys.stderr, flush=True); sys.stdin.buffer.read(1); " + ECHO
        data = os.urandom(1 << 20) * 8

        async def test(agent: Agent) -> None:
            channel, recorder = await self._start(agent, script)
            await recorder.until(lambda: b"ready" in recorder.stderr, "the command's start")
            channel.write(b"!" + data[: 4 << 20])
            channel.write(data[4 << 20 :])
            channel.write_eof()
            await recorder.ended()
            assert bytes(recorder.stdout) == data
            pauses = [event for event in recorder.events if event in ("pause", "resume")]
            assert pauses and pauses == ["pause", "resume"] * (len(pauses) // 2)

        self.run(test)

    def test_exit_code_arrives(self) -> None:
        """0, a small code and the largest."""

        async def test(agent: Agent) -> None:
            for code in (0, 3, 255):
                recorder = await self._complete(agent, f"raise SystemExit({code})")
                assert recorder.end is not None and recorder.end.exit_code == code

        self.run(test)

    def test_stderr_is_apart_from_stdout(self) -> None:
        """The wire's stdout must never carry a warning."""

        async def test(agent: Agent) -> None:
            recorder = await self._complete(agent, "import sys; print('out'); print('err', file=sys.stderr)")
            assert bytes(recorder.stdout) == b"out\n", recorder
            assert b"err\n" in recorder.stderr, recorder

        self.run(test)

    def test_arguments_arrive_as_they_are(self) -> None:
        """No shell on the way may change them."""

        async def test(agent: Agent) -> None:
            recorder = await self._complete(agent, SHOW_ARGUMENTS, ARGUMENTS)
            assert json.loads(recorder.stdout or b"null") == ARGUMENTS, recorder

        self.run(test)

    def test_end_of_stdin_reaches_the_command(self) -> None:
        """A daemon detects the loss of its head by it."""

        async def test(agent: Agent) -> None:
            channel, recorder = await self._start(agent, "import sys; sys.stdin.read(); raise SystemExit(7)")
            channel.write_eof()
            assert (await recorder.ended()).exit_code == 7

        self.run(test)

    def test_output_comes_before_the_command_ends(self) -> None:
        """No buffer on the way may hold output back."""

        async def test(agent: Agent) -> None:
            channel, recorder = await self._start(agent, "print('now', flush=True); input()")
            await recorder.until(lambda: bytes(recorder.stdout) == b"now\n", "the first line")
            assert recorder.end is None
            channel.write(b"\n")
            assert (await recorder.ended()).exit_code == 0

        self.run(test)

    def test_closed_is_called_once_and_last(self) -> None:
        """Using the channel afterwards has no effect."""

        async def test(agent: Agent) -> None:
            channel, recorder = await self._start(agent, "print('x' * 100000)")
            await recorder.ended()
            channel.write(b"late")
            channel.write_eof()
            channel.abort()
            await agent.close()
            assert recorder.events.count("closed") == 1
            assert recorder.events[-1] == "closed"
            assert len(recorder.stdout) == 100001

        self.run(test)

    def test_abort_ends_the_channel_at_once(self) -> None:
        """A second abort has no effect; the command would not end by itself."""

        async def test(agent: Agent) -> None:
            channel, recorder = await self._start(agent, "import sys; print('up', flush=True); sys.stdin.read()")
            await recorder.until(lambda: bool(recorder.stdout), "the command's start")
            channel.write(b"x" * (1 << 20))
            channel.abort()
            channel.abort()
            end = await recorder.ended()
            assert end.exit_code != 0
            assert recorder.events.count("closed") == 1

        self.run(test)

    def test_close_ends_what_is_open(self) -> None:
        """Closing the agent ends its channels."""

        async def test(agent: Agent) -> None:
            _, recorder = await self._start(agent, "import sys; print('up', flush=True); sys.stdin.read()")
            await recorder.until(lambda: bool(recorder.stdout), "the command's start")
            await agent.close()
            await recorder.ended()
            assert recorder.events.count("closed") == 1

        self.run(test)

    def test_two_channels_at_once(self) -> None:
        """Two channels to one node do not mix their data and end independently."""

        async def test(agent: Agent) -> None:
            (first, one), (second, two) = await asyncio.gather(self._start(agent, ECHO), self._start(agent, ECHO))
            first.write(b"first")
            second.write(b"second")
            second.write_eof()
            await two.ended()
            assert one.end is None
            first.write_eof()
            await one.ended()
            assert (bytes(one.stdout), bytes(two.stdout)) == (b"first", b"second")

        self.run(test)

    def test_unreachable_node_is_reported_with_its_cause(self) -> None:
        """By AgentFailure or, if only the agent's process can tell, by the cause of the channel's end."""

        async def test(agent: Agent) -> None:
            if self.unreachable is None:
                return
            recorder = Recorder()
            try:
                await agent.open(self.unreachable, [self.python, "-c", ""], recorder)
            except AgentFailure as failure:
                assert failure.cause in CAUSES
                assert failure.detail and "\n" not in failure.detail
                assert not recorder.events
            else:
                end = await recorder.ended()
                assert end.cause in CAUSES
                assert end.exit_code != 0 and end.error and "\n" not in end.error

        self.run(test)
