"""What the agent `ssh` does before asyncssh is there: when it connects, and what becomes of that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpilaunch.agent import AgentFailure, AgentOptions, load
from mpilaunch.allocation import Node
from mpilaunch_agents.conformance import Recorder
from mpilaunch_agents.ssh_early import EarlyConnection, leads_elsewhere
from tests.hosts import Hosts
from tests.test_agent_ssh import ask

# When


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        ("", False),
        ("Host *\n  IdentityFile ~/.ssh/id\n  User me\n  HashKnownHosts yes\n# Port 22\n", False),
        ("Host a\n  HostName b", True),
        ("  port=2222", True),
        ("PROXYJUMP gate", True),
        ("ProxyCommand nc %h %p", True),
        ("Match all", True),
        ("BindAddress 10.0.0.1", True),
        ("AddressFamily inet", True),
        ("Include conf.d/*", False),
        ("Include conf.d/* more.d/*", True),
        ('Include "more.d/*"', True),
    ],
)
def test_a_configuration_that_may_lead_elsewhere(tmp_path: Path, text: str, elsewhere: bool) -> None:
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d" / "one").write_text("")
    config = tmp_path / "config"
    config.write_text(text)
    assert leads_elsewhere([], [str(config), str(tmp_path / "no-such-file")]) is elsewhere


def test_a_file_of_the_home_directory_may_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config").write_text("Include ~/more.d/*")
    assert not leads_elsewhere([], ["~/config"])
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d" / "one").write_text("Host *\n  ProxyJump gate\n")
    assert leads_elsewhere([], ["~/config"])


def test_settings_of_the_command_line_count_too() -> None:
    assert leads_elsewhere(["Compression yes", "Port 2222"], [])
    assert not leads_elsewhere(["Compression yes"], [])


@pytest.mark.testbed
def test_a_name_that_the_configuration_changes_is_followed(hosts: Hosts) -> None:
    config = hosts.ssh / "config"
    plain = config.read_text()
    config.write_text("Host node03\n  Hostname node02\n" + plain)
    try:
        assert [words for _, words, _ in ask(hosts, "ssh", [{"name": "node01"}, {"name": "node03"}])] == ["node01", "node02"]
    finally:
        config.write_text(plain)


# The connection


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Give a socket that listens on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


def test_it_is_the_callers_once_it_is_taken(server: socket.socket) -> None:
    async def use() -> None:
        early = EarlyConnection(*server.getsockname())
        with await early.take() as connected:
            early.close()
            await asyncio.sleep(0)
            await asyncio.get_running_loop().sock_sendall(connected, b"here")

    asyncio.run(use())
    with server.accept()[0] as accepted:
        assert accepted.recv(10) == b"here"


@pytest.mark.parametrize("made", [True, False])
def test_it_is_closed_when_nobody_takes_it(server: socket.socket, made: bool) -> None:
    async def give_up() -> None:
        early = EarlyConnection(*server.getsockname())
        if made:
            await asyncio.wait([early.task])
        early.close()
        await asyncio.wait([early.task])
        await asyncio.sleep(0)

    asyncio.run(give_up())
    if made:
        with server.accept()[0] as accepted:
            accepted.settimeout(10)
            assert accepted.recv(10) == b""


def test_a_failure_is_told_to_who_takes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()

    async def use() -> None:
        with pytest.raises(ConnectionRefusedError):
            await EarlyConnection(*nobody).take()
        with pytest.raises(socket.gaierror):
            await EarlyConnection("no-such-host.invalid", 22).take()

    asyncio.run(use())


def test_a_node_is_connected_to_once(server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    port = server.getsockname()[1]
    accepted = []

    async def launch() -> None:
        agent = load("ssh", AgentOptions(connect_timeout=10))
        loop = asyncio.get_running_loop()
        server.setblocking(False)

        async def serve() -> None:
            while True:
                connection, _ = await loop.sock_accept(server)
                accepted.append(connection)
                connection.close()

        serving = loop.create_task(serve())
        with pytest.raises(AgentFailure) as failed:
            await agent.open(Node(0, "127.0.0.1", (), "ssh", port=port), ["true"], Recorder())
        assert failed.value.cause == "connection-closed"
        serving.cancel()
        await agent.close()

    asyncio.run(launch())
    assert len(accepted) == 1
