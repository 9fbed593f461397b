"""Connectors: processes that share the connections to many nodes. A user notices nothing of them but the time."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from mpilaunch.agent import Agent, AgentFailure, AgentOptions
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.child import Child
from mpilaunch_agents.conformance import AgentConformance, Recorder
from mpilaunch_agents.registry import load
from mpilaunch_agents.ssh.connectors import ConnectorsAgent
from tests.support.agents.programs import TEMPLATE
from tests.support.hosts import Hosts
from tests.support.launching import LIMIT, MPILAUNCH, children, living, open_files, wait_for_files, wait_until

NODE = Node(0, "somewhere", (), "command")


def connectors_agent(count: int) -> ConnectorsAgent:
    return ConnectorsAgent(TEMPLATE, AgentOptions(), load(TEMPLATE, AgentOptions()), count)


class TestConnectors(AgentConformance):
    node = NODE
    unreachable = Node(1, "elsewhere", (), "command")
    python = sys.executable

    def make_agent(self) -> Agent:
        return connectors_agent(2)


def test_only_an_agent_that_connects_itself_has_them() -> None:
    options = AgentOptions(connectors=2)
    assert not isinstance(load("openssh", options, 9), ConnectorsAgent)
    agent = load("ssh", options, 9)
    assert isinstance(agent, ConnectorsAgent)
    asyncio.run(agent.close())
    with pytest.raises(UsageError, match="the agent ssh cannot honour Foo"):
        load("ssh", AgentOptions(connectors=2, ssh_options=("Foo=1",)), 9)


# When one of them dies


def connectors(agent: ConnectorsAgent) -> list[int]:
    return [connector.child.pid for connector in agent._connectors]


async def run_echo(agent: ConnectorsAgent) -> None:
    """Run a command to its end."""
    recorder = Recorder()
    channel = await agent.open(NODE, ["echo", "here"], recorder)
    channel.write_eof()
    assert (await recorder.ended()).exit_code == 0
    assert recorder.stdout == b"here\n"


def test_a_dead_connector_loses_its_nodes_only() -> None:
    async def main() -> None:
        agent = connectors_agent(2)
        recorders = [Recorder(), Recorder()]
        try:
            for recorder in recorders:
                await agent.open(NODE, ["cat"], recorder)
            first, second = connectors(agent)
            os.kill(first, signal.SIGKILL)
            end = await recorders[0].ended()
            assert (end.exit_code, end.error) == (None, "the process that made its connection has died")
            for _ in range(3):
                await run_echo(agent)
            os.kill(second, signal.SIGKILL)
            await recorders[1].ended()
            with pytest.raises(AgentFailure, match="agent-failed: the processes that make the connections have died"):
                await agent.open(NODE, ["true"], Recorder())
        finally:
            await agent.close()

    asyncio.run(main())


def test_the_death_of_a_closed_connector_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        agent = connectors_agent(2)
        try:
            first, second = agent._connectors
            os.kill(first.child.pid, signal.SIGKILL)
            wait_until(lambda: first.child.ended, "it is dead")
            early = iter([False] * 4)  # what a busy kernel says of one whose sockets it has closed already
            monkeypatch.setattr(Child, "ended", property(lambda child: child is first.child and next(early, True)))
            await run_echo(agent)
            assert (first.node_count, second.node_count, next(early, None)) == (1, 1, None)
        finally:
            monkeypatch.undo()
            await agent.close()

    asyncio.run(main())


def test_a_closed_connector_that_lives_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        agent = connectors_agent(1)
        try:
            (connector,) = agent._connectors
            connector.control.close()
            connector.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.close()
            with pytest.raises(AgentFailure, match=r"connection-closed: a process that makes connections: .*Broken pipe"):
                await agent.open(NODE, ["true"], Recorder())
        finally:
            await agent.close()

    monkeypatch.setattr("mpilaunch_agents.ssh.connectors.DEATH_SECONDS", 0.05)
    asyncio.run(main())


def test_a_stuck_connector_is_killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpilaunch_agents.child.DISMISS_SECONDS", 0.2)
    agent = connectors_agent(1)
    (pid,) = connectors(agent)
    os.kill(pid, signal.SIGSTOP)
    asyncio.run(agent.close())
    assert not living(pid)


def test_connectors_listen_on_no_socket() -> None:
    def listening() -> set[str]:
        """Return the Unix sockets of this network that somebody can connect to (proc_net(5): the flag __SO_ACCEPTCON)."""
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
        return {line for line in lines if int(line.split()[3], 16) & 0x10000}

    async def main() -> None:
        agent = connectors_agent(2)
        pids = connectors(agent)
        try:
            for _ in pids:
                await run_echo(agent)
            own = set().union(*map(open_files, pids))
            assert any(link.startswith("socket:") for link in own)
            assert not [line for line in listening() if f"socket:[{line.split()[6]}]" in own]
        finally:
            await agent.close()

    asyncio.run(main())


def test_a_busy_connector_is_handed_its_connections_later() -> None:
    async def main() -> None:
        agent = connectors_agent(1)
        (pid,) = connectors(agent)
        try:
            os.kill(pid, signal.SIGSTOP)
            opening = [asyncio.ensure_future(run_echo(agent)) for _ in range(400)]  # more than wait in one socket
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in opening)
            os.kill(pid, signal.SIGCONT)
            await asyncio.gather(*opening)
        finally:
            await agent.close()

    asyncio.run(main())


# On real hosts


@pytest.mark.testbed
def test_a_job_runs_over_connectors(hosts: Hosts, shared: Path) -> None:
    where = ["--connectors", "2", "-H", ",".join(f"{name}:2" for name in hosts.names)]
    code = "echo out of $RANK; echo err of $RANK >&2; exit $((RANK == 5 ? 7 : 0))"
    done = hosts.launch(*where, "--continue-on-error", "--tag", "rank", "sh", "-c", code)
    assert done.returncode == 7
    assert {f"[{rank}] out of {rank}" for rank in range(8)} == set(done.stdout.splitlines())
    assert f"rank 5 on {hosts.names[2]} exited with code 7" in done.stderr
    done = hosts.launch(*where, "sh", "-c", "seq 100000; cat")
    assert (done.returncode, done.stderr) == (0, "")
    assert Counter(done.stdout.split()) == dict.fromkeys(map(str, range(1, 100_001)), 8)
    done = hosts.launch("--connectors", "2", "-H", f"{hosts.names[0]},no-such-host", "true")
    assert done.returncode == 1
    assert "1 of 2 nodes: no-such-host: host name unknown" in done.stderr


@pytest.mark.testbed
def test_a_job_survives_a_connector(hosts: Hosts, shared: Path) -> None:
    code = "echo up >up$RANK; while [ ! -e go ]; do sleep 0.02; done; echo done $RANK"
    argv = [*MPILAUNCH, "--connectors", "2", "-H", ",".join(hosts.names), "sh", "-c", code]
    with hosts.popen(argv) as job:
        wait_for_files(*(shared / f"up{rank}" for rank in range(4)))
        first, _ = children(job.pid)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not living(first), "the connector is dead")
        (shared / "go").touch()
        output, errors = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, errors
    assert sorted(output.split("\n")) == ["", *(f"done {rank}" for rank in range(4))]


@pytest.mark.testbed
def test_connectors_go_with_a_head_that_is_killed(hosts: Hosts, shared: Path) -> None:
    argv = [*MPILAUNCH, "--connectors", "2", "--reconnect-timeout", "0", "-H", ",".join(hosts.names)]
    with hosts.popen([*argv, "sh", "-c", "echo up >up$RANK; exec sleep 100"]) as job:
        wait_for_files(*(shared / f"up{rank}" for rank in range(4)))
        both = children(job.pid)
        job.kill()
        job.communicate(timeout=LIMIT)
    wait_until(lambda: not any(map(living, both)), "they have gone")


@pytest.mark.parametrize(("number", "cause"), [(errno.EAGAIN, "process-limit"), (errno.EMFILE, "agent-failed")])
def test_connectors_that_cannot_be_started_are_a_failure(monkeypatch: pytest.MonkeyPatch, number: int, cause: str) -> None:
    def refuse(*_: object, **__: object) -> Child:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("mpilaunch_agents.ssh.connectors.Child", refuse)

    async def attempt() -> None:
        agent = connectors_agent(2)
        try:
            with pytest.raises(AgentFailure, match=os.strerror(number)) as caught:
                await agent.open(NODE, ["true"], Recorder())
            assert caught.value.cause == cause
        finally:
            await agent.close()

    asyncio.run(attempt())
