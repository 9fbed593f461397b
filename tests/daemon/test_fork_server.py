"""The fork server: daemons of several local nodes come from one process, and do without it when it fails."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mpilaunch.agent import AgentOptions, ChannelEnd
from mpilaunch.head.nodes.bundle import FORK_SERVER, local_command
from mpilaunch.hosts.allocation import Node
from mpilaunch.wire.frames import MARKER
from mpilaunch_agents import child
from mpilaunch_agents.conformance import Recorder
from mpilaunch_agents.local import LocalAgent
from mpilaunch_agents.process import ProcessChannel
from tests.support.launching import children, launch, launching, living, wait_for_files, wait_until
from tests.support.processes import everything, left_behind, parent

NODE = Node(0, "local", (), "local")
LOST = ChannelEnd(0)
"""The end of a daemon that the head left before any job."""


async def daemon(agent: LocalAgent) -> tuple[ProcessChannel, Recorder]:
    """Start a daemon, and wait for its first bytes."""
    recorder = Recorder()
    channel = await agent.open(NODE, local_command(), recorder)
    await recorder.until(lambda: recorder.stdout.startswith(MARKER), "the marker")
    return channel, recorder


def run(test: Callable[[LocalAgent, int], Awaitable[None]]) -> None:
    """Run a test with an agent and the process id of its fork server; no process may be left."""
    before = everything()

    async def main() -> None:
        agent = LocalAgent(AgentOptions())
        own = set(children(os.getpid()))
        agent.begin(local_command(), local_command(FORK_SERVER))
        first, _ = await daemon(agent)
        (server,) = set(children(os.getpid())) - own - {first.pid}
        try:
            await asyncio.wait_for(test(agent, server), 30)
        finally:
            await agent.close()

    asyncio.run(main())
    assert left_behind(before) == {}


def test_further_daemons_are_forked_and_lead_sessions_of_their_own() -> None:
    async def test(agent: LocalAgent, server: int) -> None:
        forked = [await daemon(agent) for _ in range(3)]
        assert [parent(channel.pid) for channel, _ in forked] == [server] * 3
        assert [os.getsid(channel.pid) for channel, _ in forked] == [channel.pid for channel, _ in forked]
        for channel, recorder in forked:
            channel.write_eof()
            assert await recorder.ended() == LOST

    run(test)


def test_a_forked_daemon_that_was_killed_is_reported_with_its_signal() -> None:
    async def test(agent: LocalAgent, server: int) -> None:
        channel, recorder = await daemon(agent)
        os.kill(channel.pid, signal.SIGKILL)
        assert await recorder.ended() == ChannelEnd(128 + signal.SIGKILL)
        assert children(server) == []

    run(test)


def test_daemons_of_a_killed_server_end_and_others_start_without_it() -> None:
    async def test(agent: LocalAgent, server: int) -> None:
        channel, recorder = await daemon(agent)
        os.kill(server, signal.SIGKILL)
        other, _ = await daemon(agent)
        assert parent(other.pid) == os.getpid()
        channel.write_eof()
        assert await recorder.ended() == LOST

    run(test)


def test_a_stopped_server_delays_one_start_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "DISMISS_SECONDS", 0.1)

    async def test(agent: LocalAgent, server: int) -> None:
        channel, recorder = await daemon(agent)
        os.kill(server, signal.SIGSTOP)
        await daemon(agent)
        began = time.monotonic()
        other, _ = await daemon(agent)
        assert parent(other.pid) == os.getpid()
        channel.write_eof()
        assert await recorder.ended() == LOST
        assert time.monotonic() - began < child.ANSWER_SECONDS

    run(test)


def test_a_server_that_cannot_be_started_is_not_needed() -> None:
    async def main() -> None:
        agent = LocalAgent(AgentOptions())
        agent.begin(local_command(), ["no-such-program-anywhere"])
        for _ in range(2):
            channel, _ = await daemon(agent)
            assert parent(channel.pid) == os.getpid()
        await agent.close()

    asyncio.run(main())


HOSTS = ("-R", "exec", "-w", "n[1-5]")


def test_a_killed_head_leaves_no_server_and_no_daemon(tmp_path: Path) -> None:
    with launching("--dialect", "pdsh", *HOSTS, "sh", "-c", f"echo $$ >{tmp_path}/%n; exec sleep 60") as job:
        wait_for_files(*(tmp_path / str(number) for number in range(5)))
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        commands = [int((tmp_path / str(number)).read_text()) for number in range(5)]
        for pid in commands:
            os.kill(pid, signal.SIGKILL)  # as under ssh, they run on
        wait_until(lambda: not any(map(living, commands)), "the commands have ended")


def test_forked_nodes_are_as_the_first_one() -> None:
    show = "ulimit -Sn; umask; pwd; grep 'Sig[BIC]' /proc/self/status; exit %n"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    try:
        done = launch("--dialect", "pdsh", "-S", "-N", *HOSTS, "sh", "-c", show)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert done.code == 4
    lines = done.out.decode().splitlines()
    assert len(set(lines)) == len(lines) // 5, "the same of all five"
    assert "1000" in lines, "the limit of the head is no limit of theirs"
