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
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mpilaunch.agent import CAUSES, Agent, AgentFailure, Channel, ChannelEnd, Node
from mpilaunch.asyncio_timeouts import timeout

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
FLOOD = "import os, select\nwhile not select.select([0], [], [], 0)[0]: os.write(1, b'x' * 65536)"
MOST_ON_ITS_WAY = 64 << 20
"""Bytes that pipes, sockets and windows between a node and the head may hold."""
STILL_SECONDS = 0.3
SHOW_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv[1:]))"


class Recorder:
    """ChannelEvents that record the names of all events, the output, and how the channel ended."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.end: ChannelEnd | None = None
        self._changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._record("data")
        self.stdout += data

    def stderr_received(self, data: bytes) -> None:
        self._record("stderr")
        self.stderr += data

    def pause_writing(self) -> None:
        self._record("pause")

    def resume_writing(self) -> None:
        self._record("resume")

    def closed(self, end: ChannelEnd) -> None:
        self._record("closed")
        self.end = end

    def __repr__(self) -> str:
        return f"<Recorder {self.end} {self.events[-10:]} stdout {self.stdout[-500:]!r} stderr {self.stderr[-500:]!r}>"

    def _record(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], bool], expected: str) -> None:
        """Wait until the condition holds; fail the test after DEADLINE seconds."""
        try:
            async with timeout(DEADLINE):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except asyncio.TimeoutError:
            raise AssertionError(f"{expected}: not within {DEADLINE:g} s: {self!r}") from None

    async def ended(self) -> ChannelEnd:
        await self.until(lambda: self.end is not None, "the end of the channel")
        assert self.end is not None
        return self.end


Tests = TypeVar("Tests", bound="AgentConformance")


def with_agent(test: Callable[[Tests, Agent], Awaitable[None]]) -> Callable[[Tests], None]:
    """Make a test of a coroutine that uses a new agent; closing the agent must leave no task in the loop."""

    def run(self: Tests) -> None:
        async def main() -> None:
            agent = self.make_agent()
            try:
                await test(self, agent)
            finally:
                async with timeout(DEADLINE):
                    await agent.close()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"close() left tasks: {left}"

        asyncio.run(main())

    # Not by functools.wraps: pytest would see the parameter `agent` and look for a fixture.
    run.__doc__ = test.__doc__
    return run


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

    async def _start(self, agent: Agent, script: str, *arguments: str) -> tuple[Channel, Recorder]:
        recorder = Recorder()
        return await agent.open(self.node, [self.python, "-c", script, *arguments], recorder), recorder

    async def _start_reader(self, agent: Agent) -> tuple[Channel, Recorder]:
        """Start a command that ends only with its stdin, and wait until it runs."""
        channel, recorder = await self._start(agent, "import sys; print('up', flush=True); sys.stdin.read()")
        await recorder.until(lambda: bool(recorder.stdout), "the command's start")
        return channel, recorder

    async def _complete(self, agent: Agent, script: str, arguments: Sequence[str] = (), data: bytes = b"") -> Recorder:
        channel, recorder = await self._start(agent, script, *arguments)
        if data:
            channel.write(data)
        channel.write_eof()
        await recorder.ended()
        return recorder

    @with_agent
    async def test_every_byte_arrives_as_it_is(self, agent: Agent) -> None:
        """All 256 byte values, in one write, in both directions."""
        recorder = await self._complete(agent, ECHO, data=EVERY_BYTE * 3)
        assert bytes(recorder.stdout) == EVERY_BYTE * 3
        assert recorder.end == ChannelEnd(0)

    @with_agent
    async def test_much_data_arrives_both_ways_and_writing_pauses(self, agent: Agent) -> None:
        """The node reads 8 MiB only after a signal: the agent must call pause_writing, then resume_writing."""
        script = "import sys; print('ready', file=sys.stderr, flush=True); sys.stdin.buffer.read(1); " + ECHO
        data = os.urandom(1 << 20) * 8
        channel, recorder = await self._start(agent, script)
        await recorder.until(lambda: b"ready" in recorder.stderr, "the command's start")
        channel.write(b"!" + data[: 4 << 20])
        channel.write(data[4 << 20 :])
        channel.write_eof()
        await recorder.ended()
        assert bytes(recorder.stdout) == data
        pauses = [event for event in recorder.events if event in ("pause", "resume")]
        assert pauses and pauses == ["pause", "resume"] * (len(pauses) // 2)

    @with_agent
    async def test_paused_reading_holds_the_command_back(self, agent: Agent) -> None:
        """After pause_reading only what was on its way arrives; after resume_reading the rest."""
        channel, recorder = await self._start(agent, FLOOD)
        await recorder.until(lambda: len(recorder.stdout) > 0, "the first output")
        channel.pause_reading()
        channel.pause_reading()
        before = -1
        while before != len(recorder.stdout):
            before = len(recorder.stdout)
            assert before < MOST_ON_ITS_WAY, recorder
            await asyncio.sleep(STILL_SECONDS)
        channel.resume_reading()
        await recorder.until(lambda: len(recorder.stdout) > before, "more output")
        channel.write_eof()
        assert (await recorder.ended()).exit_code == 0, recorder

    @with_agent
    async def test_what_is_read_late_arrives_whole(self, agent: Agent) -> None:
        """8 MiB, read once the command and the way from it stand still."""
        channel, recorder = await self._start(agent, "import os; os.write(1, b'x'); print('x' * (8 << 20), end='')")
        await recorder.until(lambda: len(recorder.stdout) > 0, "the first output")
        channel.pause_reading()
        channel.write_eof()
        await asyncio.sleep(STILL_SECONDS)
        channel.resume_reading()
        assert (await recorder.ended()).exit_code == 0, recorder
        assert len(recorder.stdout) == (8 << 20) + 1

    @with_agent
    async def test_exit_code_arrives(self, agent: Agent) -> None:
        """0, a small code and the largest."""
        for code in (0, 3, 255):
            recorder = await self._complete(agent, f"raise SystemExit({code})")
            assert recorder.end is not None and recorder.end.exit_code == code

    @with_agent
    async def test_stderr_is_apart_from_stdout(self, agent: Agent) -> None:
        """The wire's stdout must never carry a warning."""
        recorder = await self._complete(agent, "import sys; print('out'); print('err', file=sys.stderr)")
        assert bytes(recorder.stdout) == b"out\n", recorder
        assert b"err\n" in recorder.stderr, recorder

    @with_agent
    async def test_arguments_arrive_as_they_are(self, agent: Agent) -> None:
        """No shell on the way may change them."""
        recorder = await self._complete(agent, SHOW_ARGUMENTS, ARGUMENTS)
        assert json.loads(recorder.stdout or b"null") == ARGUMENTS, recorder

    @with_agent
    async def test_end_of_stdin_reaches_the_command(self, agent: Agent) -> None:
        """A daemon detects the loss of its head by it."""
        recorder = await self._complete(agent, "import sys; sys.stdin.read(); raise SystemExit(7)")
        assert recorder.end is not None and recorder.end.exit_code == 7

    @with_agent
    async def test_output_comes_before_the_command_ends(self, agent: Agent) -> None:
        """No buffer on the way may hold output back."""
        channel, recorder = await self._start(agent, "print('now', flush=True); input()")
        await recorder.until(lambda: bytes(recorder.stdout) == b"now\n", "the first line")
        assert recorder.end is None
        channel.write(b"\n")
        assert (await recorder.ended()).exit_code == 0

    @with_agent
    async def test_closed_is_called_once_and_last(self, agent: Agent) -> None:
        """Using the channel afterwards has no effect."""
        channel, recorder = await self._start(agent, "print('x' * 100000)")
        await recorder.ended()
        channel.write(b"late")
        channel.write_eof()
        channel.abort()
        await agent.close()
        assert recorder.events.count("closed") == 1
        assert recorder.events[-1] == "closed"
        assert len(recorder.stdout) == 100001

    @with_agent
    async def test_abort_ends_the_channel_at_once(self, agent: Agent) -> None:
        """A second abort has no effect; the command would not end by itself."""
        channel, recorder = await self._start_reader(agent)
        channel.write(b"x" * (1 << 20))
        channel.abort()
        channel.abort()
        assert (await recorder.ended()).exit_code != 0
        assert recorder.events.count("closed") == 1

    @with_agent
    async def test_close_ends_what_is_open(self, agent: Agent) -> None:
        """Closing the agent ends its channels."""
        _, recorder = await self._start_reader(agent)
        await agent.close()
        await recorder.ended()
        assert recorder.events.count("closed") == 1

    @with_agent
    async def test_two_channels_at_once(self, agent: Agent) -> None:
        """Two channels to one node do not mix their data and end independently."""
        (first, one), (second, two) = await asyncio.gather(self._start(agent, ECHO), self._start(agent, ECHO))
        first.write(b"first")
        second.write(b"second")
        second.write_eof()
        await two.ended()
        assert one.end is None
        first.write_eof()
        await one.ended()
        assert (bytes(one.stdout), bytes(two.stdout)) == (b"first", b"second")

    @with_agent
    async def test_unreachable_node_is_reported_with_its_cause(self, agent: Agent) -> None:
        """By AgentFailure or, if only the agent's process can tell, by the cause of the channel's end."""
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
