"""The agents ssh, openssh and command against real sshd: the conformance tests, and each way in which a node is not reached.

The agents run on the head of the testbed, in a Python of their own: `ask` calls them there, and pytest runs this file's
conformance classes there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.agent import Agent, AgentFailure, AgentOptions
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import AgentConformance, Recorder
from mpilaunch_agents.registry import load
from mpilaunch_agents.ssh.asyncssh_agent import SshAgent
from mpilaunch_agents.ssh.channel import failure
from mpilaunch_agents.ssh.connection import Connections, acknowledge_at_once
from mpilaunch_agents.ssh.settings import HostSettings, Route, SshSettings, connect_tcp
from tests.support.agents.ssh import AGENTS, ask
from tests.support.hosts import Hosts

pytestmark = pytest.mark.testbed

ON_HEAD = "TESTS_ON_HEAD"


class _OnHosts(AgentConformance):
    """Conformance from the head to node01; `test_agents_conform_on_real_hosts` runs these classes on the head."""

    __test__ = ON_HEAD in os.environ
    node = Node(0, "node01", (), "")
    unreachable = Node(1, "no-such-host", (), "")
    agent_name = ""
    connectors = 1

    def make_agent(self) -> Agent:
        return load(self.agent_name, AgentOptions(connect_timeout=10, connectors=self.connectors), nodes=9)


class TestSsh(_OnHosts):
    agent_name = AGENTS[0]


class TestSshByConnectors(_OnHosts):
    agent_name = AGENTS[0]
    connectors = 2


class TestOpenssh(_OnHosts):
    agent_name = AGENTS[1]


class TestCommand(_OnHosts):
    agent_name = AGENTS[2]


def test_agents_conform_on_real_hosts(hosts: Hosts) -> None:
    classes = "TestSsh or TestSshByConnectors or TestOpenssh or TestCommand"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", classes]
    done = hosts.run([*argv, __file__], env={ON_HEAD: "1"}, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "56 passed" in done.stdout


# What follows calls `run_on_nodes` on the head.


def cause(hosts: Hosts, agent: str, node: str | dict[str, Any], **options: Any) -> str:
    ((failure_cause, message, _),) = ask(hosts, agent, node, **options)
    assert message and "\n" not in message
    return str(failure_cause)


@pytest.mark.parametrize("agent", AGENTS)
def test_command_runs(hosts: Hosts, agent: str) -> None:
    assert ask(hosts, agent, {"name": "node02", "user": "root", "port": 22}) == [["", "node02", 0]]


@pytest.mark.parametrize("agent", AGENTS)
def test_unknown_name(hosts: Hosts, agent: str) -> None:
    assert cause(hosts, agent, "no-such-host") == "host-unknown"


@pytest.mark.parametrize("agent", AGENTS)
def test_refused_port(hosts: Hosts, agent: str) -> None:
    assert cause(hosts, agent, {"name": "node01", "port": 2222}) == "connection-refused"


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_address_without_a_route(hosts: Hosts, agent: str) -> None:
    assert cause(hosts, agent, "192.0.2.1") == "unreachable"


@pytest.fixture
def silent_port(hosts: Hosts) -> Iterator[int]:
    """Give a port on node03 that takes connections and never says a word."""
    script = "import socket; s = socket.create_server(('', 2300)); print('up', flush=True); input()"
    argv = hosts.inside("node03", ["/usr/bin/python3", "-c", script])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdin and listener.stdout and listener.stdout.readline() == b"up\n"
        yield 2300
        listener.stdin.close()


@pytest.mark.parametrize("agent", AGENTS)
def test_silent_host(hosts: Hosts, agent: str, silent_port: int) -> None:
    assert cause(hosts, agent, {"name": "node03", "port": silent_port}, connect_timeout=1) == "timeout"


def test_connect_timeout_of_the_configuration_holds(hosts: Hosts) -> None:
    neighbour = "10.88.99.99"  # nobody answers there, and the kernel gives up after three seconds
    options = {"ssh_options": ["ConnectTimeout=1"]}
    assert ask(hosts, "ssh", neighbour, **options) == [["timeout", "no answer within 1 s", None]]


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_host_key_that_nobody_knows(hosts: Hosts, agent: str) -> None:
    options = ("UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes")
    assert cause(hosts, agent, "node01", ssh_options=options) == "host-key-unknown"


@pytest.fixture
def wrong_known_hosts(hosts: Hosts, tmp_path: Path) -> Path:
    """Give known hosts among which node01 has another host's key."""
    key = (hosts.ssh / "id_ed25519.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"node01 {key}")
    return tmp_path / "known_hosts"


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_host_key_that_has_changed(hosts: Hosts, agent: str, wrong_known_hosts: Path) -> None:
    options = (f"UserKnownHostsFile={wrong_known_hosts}", "StrictHostKeyChecking=yes")
    assert cause(hosts, agent, "node01", ssh_options=options) == "host-key-changed"


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_any_host_key_is_accepted_on_request(hosts: Hosts, agent: str, wrong_known_hosts: Path) -> None:
    assert ask(hosts, agent, "node01", insecure_host_keys=True) == [["", "node01", 0]]


def test_host_key_checking_of_the_configuration_holds(hosts: Hosts, wrong_known_hosts: Path) -> None:
    nobody, wrong = "UserKnownHostsFile=/dev/null", f"UserKnownHostsFile={wrong_known_hosts}"
    assert ask(hosts, "ssh", "node01", ssh_options=[wrong, "StrictHostKeyChecking=no"]) == [["", "node01", 0]]
    assert ask(hosts, "ssh", "node01", ssh_options=[nobody, "StrictHostKeyChecking=accept-new"]) == [["", "node01", 0]]
    assert cause(hosts, "ssh", "node01", ssh_options=[wrong, "StrictHostKeyChecking=accept-new"]) == "host-key-changed"


def test_known_hosts_may_be_hashed_broken_and_for_other_ports(hosts: Hosts, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    key = (hosts.ssh / "known_hosts").read_text().split(None, 1)[1].splitlines()[0]
    known.write_text(f"node02 {key}\n[node02]:2022 {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    known.write_text("this is no line of known hosts\n" + known.read_text())
    assert "node02" not in known.read_text()
    options = [f"UserKnownHostsFile={known} /no/such/file"]
    hosts.listen("node02", 2022)
    answers = ask(hosts, "ssh", [{"name": "node02"}, {"name": "node02", "port": 2022}], ssh_options=options)
    assert answers == [["", "node02", 0]] * 2
    assert cause(hosts, "ssh", "node01", ssh_options=options) == "host-key-unknown"


@pytest.mark.parametrize("agent", AGENTS)
def test_login_refused(hosts: Hosts, agent: str) -> None:
    assert cause(hosts, agent, {"name": "node01", "user": "nobody"}) == "key-refused"


def test_key_with_a_passphrase_is_passed_over_and_never_asked_for(hosts: Hosts, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    assert cause(hosts, "ssh", "node01", ssh_options=[f"IdentityFile={locked}", "IdentitiesOnly=yes"]) in ("", "key-refused")


@pytest.mark.parametrize("agent", AGENTS)
def test_too_many_logins_under_way(agent: str) -> None:
    with Hosts(1, maxstartups="1") as few:
        script = "exec 3<>/dev/tcp/node01/22; read -r line <&3; echo $line; read -r _"
        hold = few.popen(["bash", "-c", script], stdin=subprocess.PIPE)
        assert hold.stdout and hold.stdout.readline().startswith("SSH-2.0")
        assert cause(few, agent, "node01") == "connection-closed"
        hold.communicate()


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_jump_host(hosts: Hosts, agent: str) -> None:
    hosts.link("node01", up=True)
    script = ["sh", "-c", "echo ${SSH_CONNECTION%% *}"]
    config = hosts.ssh / "config"
    plain = config.read_text()
    config.write_text("Host node02 node03\n  ProxyJump node01\n" + plain)
    try:
        answers = ask(hosts, agent, [{"name": "node02"}, {"name": "node03"}], script)
        assert answers == [["", hosts.address("node01"), 0]] * 2
    finally:
        config.write_text(plain)
    through_two = ask(hosts, agent, "node04", script, ssh_options=["ProxyJump=node02,root@node03:22"])
    assert through_two == [["", hosts.address("node03"), 0]]
    if agent == "ssh":
        config.write_text("Host *\n  ProxyJump node01\n" + plain)
        try:
            assert cause(hosts, agent, "node02") == "agent-failed"
        finally:
            config.write_text(plain)
        assert cause(hosts, agent, "node02", ssh_options=["ProxyJump=no-such-host"]) == "host-unknown"


def test_ssh_agent_gives_the_key(hosts: Hosts, tmp_path: Path) -> None:
    script = (
        "eval $(ssh-agent -a $1/agent) >/dev/null; trap 'ssh-agent -k >/dev/null' EXIT; "
        'ssh-add -q ~/.ssh/id_ed25519; shift; "$@"'
    )
    driver = (
        "import asyncio; from tests.support.agents.ssh import run_on_nodes; "
        "options = {'ssh_options': ['IdentityFile=/no/such/key']}; "
        "print(asyncio.run(run_on_nodes('ssh', options, [{'name': 'node01'}], ['hostname'])))"
    )
    done = hosts.run(["bash", "-c", script, "bash", str(tmp_path), sys.executable, "-c", driver])
    assert (done.stdout, done.stderr) == ("[['', 'node01', 0]]\n", "")


def test_killed_command_and_lost_connection(hosts: Hosts) -> None:
    assert ask(hosts, "ssh", "node01", ["sh", "-c", "kill -9 $$"]) == [["", "", 137]]
    lose = ["sh", "-c", "kill -9 $PPID"]
    (cause, message, code), = ask(hosts, "ssh", "node01", lose)  # fmt: skip
    assert (cause, code) == ("connection-closed", None) and message


def test_sixteen_hosts_share_what_is_read(hosts: Hosts) -> None:
    names = [{"name": name} for name in hosts.names * 4]
    assert ask(hosts, "ssh", names) == [["", name, 0] for name in hosts.names * 4]


def test_errors_have_causes() -> None:
    one = "[Errno 111] Connect call failed ('::1', 22)"
    assert failure(OSError(f"Multiple exceptions: {one}, {one}")).cause == "connection-refused"
    assert failure(socket.gaierror(-2, "Name or service not known")).cause == "host-unknown"
    assert failure(ConnectionResetError(104, "Connection reset by peer")).cause == "connection-closed"
    assert (failure(ValueError("one\ntwo")).cause, failure(ValueError("one\ntwo")).detail) == ("agent-failed", "one two")


def test_a_connection_that_nobody_takes_over_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho hostname 127.0.0.1\necho port $PORT\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def load_for_ever(self: SshAgent) -> Connections:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(SshAgent, "_load", load_for_ever)

    async def main() -> None:
        closed = asyncio.get_running_loop().create_future()
        accepted = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            closed.set_result(await reader.read())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        monkeypatch.setenv("PORT", str(server.sockets[0].getsockname()[1]))
        agent = SshAgent(AgentOptions())
        opening = asyncio.ensure_future(agent.open(Node(0, "far", (), "ssh"), ["true"], Recorder()))
        await asyncio.wait_for(accepted.wait(), 20)
        opening.cancel()
        assert await asyncio.wait_for(closed, 20) == b""
        (failure,) = await asyncio.gather(opening, return_exceptions=True)
        assert isinstance(failure, BaseException)
        server.close()

    asyncio.run(main())


def test_a_timeout_of_the_kernel_keeps_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def time_out(*_: Any, **__: Any) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "Connect call failed ('192.0.2.1', 22)")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", time_out)
    with pytest.raises(TimeoutError, match="Connect call failed"):
        asyncio.run(connect_tcp(HostSettings("far", {})))


def test_the_kernel_acknowledges_at_once() -> None:
    acknowledges = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        peer, _ = listener.accept()
        with peer:
            for _ in range(100):  # once requests follow answers, the kernel waits for data that can carry the acknowledgement
                peer.send(b"answer")
                ours.recv(100)
                ours.send(b"request")
                peer.recv(100)
            assert not ours.getsockopt(*acknowledges)
            acknowledge_at_once(ours)
            assert ours.getsockopt(*acknowledges)
    acknowledge_at_once(None)
    acknowledge_at_once(ours)  # closed meanwhile


def test_reading_of_an_unreadable_configuration_is_an_error(hosts: Hosts) -> None:
    config = hosts.ssh / "config"
    plain = config.read_text()
    config.write_text(plain + "  Port many\n")
    try:
        ((failure_cause, message, _),) = ask(hosts, "ssh", "node01")
    finally:
        config.write_text(plain)
    assert (failure_cause, "config line 5" in message) == ("agent-failed", True), message


def test_a_silent_jump_host_is_connected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """A connection that was cut off, and nobody has been told."""

        def is_closed(self) -> bool:
            return False

    async def connect(self: Connections, hop: str, tunnel: Any, under_way: tuple[str, ...]) -> Silent:
        made.append(Silent())
        return made[-1]

    async def hang(self: Connections, settings: HostSettings, tunnel: Any, direct: object) -> None:
        used.append(tunnel)
        await asyncio.sleep(60)

    async def route() -> Route:
        return Route(HostSettings("far", {"proxyjump": ["one,two"]}), None)

    async def opened(connections: Connections) -> Any:
        return await connections.open(Node(0, "far", (), ""), asyncio.ensure_future(route()), ["true"], Recorder())

    made: list[Silent] = []
    used: list[Silent] = []
    monkeypatch.setattr(Connections, "_connect_hop", connect)
    monkeypatch.setattr(Connections, "_connect", hang)

    async def main() -> None:
        connections = Connections(AgentOptions(connect_timeout=0.05), SshSettings())
        for _ in range(3):
            with pytest.raises(AgentFailure, match="timeout"):
                await opened(connections)
        with pytest.raises(asyncio.TimeoutError):
            # Whoever connects again gives an attempt less time than the agent would.
            await asyncio.wait_for(opened(connections), 0.01)
        await connections.close()

    asyncio.run(main())
    assert [made.index(one) for one in used] == [1, 1, 3, 3]


def test_connections_are_bound_and_of_the_family_that_the_configuration_names(hosts: Hosts) -> None:
    script = ["sh", "-c", "echo ${SSH_CONNECTION%% *}"]
    other = "10.88.0.200"
    hosts.run(["ip", "addr", "add", f"{other}/32", "dev", "lo"]).check_returncode()
    try:
        assert ask(hosts, "ssh", "node01", script, ssh_options=[f"BindAddress={other}"]) == [["", other, 0]]
    finally:
        hosts.run(["ip", "addr", "del", f"{other}/32", "dev", "lo"])
    assert cause(hosts, "ssh", "node01", ssh_options=["BindAddress=192.0.2.7"]) != ""
    assert cause(hosts, "ssh", "node01", ssh_options=["AddressFamily=inet6"]) == "host-unknown"


def test_settings_for_asyncssh_are_in_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")

    async def main() -> str:
        connections = Connections(AgentOptions(connect_timeout=1), SshSettings())
        path = connections._file("Compression yes\n")
        text = Path(path).read_text()
        await connections.close()
        return text

    assert asyncio.run(main()) == "Compression yes\n"


def test_settings_are_queried_while_asyncssh_is_imported(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/started\nexec sleep 60\n")
    (tmp_path / "ssh").chmod(0o755)
    code = f"""
import asyncio, sys, time
from pathlib import Path
from mpilaunch.agent import AgentOptions
from mpilaunch_agents.registry import load
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import Recorder

class Probe:
    def find_spec(self, name, *_):
        deadline = time.monotonic() + 20
        while name == "asyncssh" and time.monotonic() < deadline:
            started = Path("{tmp_path}/started")
            if started.exists() and started.read_text().count("\\n") == 4:  # the defaults too
                print("before asyncssh")
                break
            time.sleep(0.01)

async def main():
    agent = load("ssh", AgentOptions(connect_timeout=0.1))
    nodes = [Node(index, f"node{{index}}", (), "ssh") for index in range(3)]
    opening = [agent.open(node, ["true"], Recorder()) for node in nodes]
    print({{error.cause for error in await asyncio.gather(*opening, return_exceptions=True)}})
    await agent.close()

sys.meta_path.insert(0, Probe())
asyncio.run(main())
"""
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("before asyncssh\n{'timeout'}\n", "")
    for pid in (tmp_path / "started").read_text().split():
        assert not Path(f"/proc/{pid}").exists()
