"""Agents behind which the daemons call the head back: no stdin is needed, no stream that can be lost, nobody else gets in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mpilaunch.agent import Agent, AgentOptions, Channel, python_command
from mpilaunch.errors import ExitCode
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import HEADER
from mpilaunch_agents.callback import listener as callback_listener
from mpilaunch_agents.callback import wrapper as callback
from mpilaunch_agents.callback.node import CANNOT_CONNECT, SECRET, connect
from mpilaunch_agents.callback.wrapper import CallbackAgent
from mpilaunch_agents.conformance import AgentConformance, Recorder, with_agent
from mpilaunch_agents.registry import AGENTS, load
from tests.support.command_line import job
from tests.support.kubernetes.pods import Pods
from tests.support.launching import finish, launch, launching, living, script, sh, wait_for_files, wait_until
from tests.support.processes import ours
from tests.support.pythons import each_python

NO_STDIN = """#!/bin/sh
if [ "$1" = elsewhere ]; then echo "ssh: $1: Connection refused" >&2; exit 255; fi
eval "exec $2" </dev/null
"""
CALL = ("--call-back", "always")
POD = "job-worker-0"


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """Give the template of an agent that hands on no stdin."""
    return f"{script(tmp_path / 'agent', NO_STDIN)} {{host}} {{command}}"


def relays() -> dict[int, list[bytes]]:
    """Return this run's processes of nodes that have connected back, each with its arguments; the ninth is its secret."""
    processes = {}
    for pid in ours(()):
        with contextlib.suppress(OSError):  # it has just ended
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if python_command("", "", callback.node_script())[-1].encode() in arguments and b"python" in arguments[0]:
                processes[pid] = arguments
    return processes


class TestCallback(AgentConformance):
    node = Node(0, "somewhere", (), "")
    unreachable = Node(1, "elsewhere", (), "")
    python = sys.executable

    @pytest.fixture(autouse=True)
    def _agent_without_stdin(self, agent: str) -> None:
        self.template = agent

    def make_agent(self) -> Agent:
        return load(self.template, AgentOptions(call_back=(self.template,)))


class TestCallbackWithItsSecretByStdin(AgentConformance):
    node = Node(0, "local", (), "local")
    python = sys.executable

    def make_agent(self) -> Agent:
        return load("local", AgentOptions(call_back=("local",)))

    @with_agent
    async def test_no_secret_is_in_a_command_line(self, agent: Agent) -> None:
        seen = Recorder()
        channel = await agent.open(self.node, [self.python, "-c", "print('up', flush=True); input()"], seen)
        await seen.until(lambda: seen.stdout == b"up\n", "the node has called")
        assert [arguments[9] for arguments in relays().values()] == [b"-"]
        channel.write(b"\n")
        assert (await seen.ended()).exit_code == 0


def test_an_agent_without_stdin_has_an_error_of_its_own(agent: str) -> None:
    done = launch("--agent", agent, "-H", "a,b", "true")
    assert done.code == ExitCode.START_FAILED
    assert "error[start-no-stdin]: 2 of 2 nodes: a,b: the agent does not forward stdin" in done.words
    assert "hint: " in done.words and "--call-back always" in done.words


def test_a_launch_whose_daemons_call_back(agent: str) -> None:
    text = b"".join(b"%07d\n" % number for number in range(100_000))
    arguments = ("--agent", agent, *CALL, "-H", "a:2,b:2")
    done = launch(*arguments, "--stdin", "3", *sh("cat; [ $RANK != 3 ] || exit 5"), stdin=text)
    assert done.out == text
    assert (done.code, "rank 3 on b exited with code 5" in done.words) == (5, True)


@each_python
def test_daemons_of_each_python_call_back(agent: str, python: str) -> None:
    done = launch("--agent", agent, *CALL, "--python", python, "-H", "a:2", *sh("echo $RANK"))
    assert (done.code, done.lines, done.err) == (0, ["0", "1"], b"")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_launch_that_is_ended(agent: str, tmp_path: Path, number: int) -> None:
    program = sh(f"echo $$ >{tmp_path}/up-$RANK; sleep 60")
    with launching("--agent", agent, *CALL, "--reconnect-timeout", "1", "-H", "a,b", *program) as process:
        ranks = [int(text) for text in wait_for_files(tmp_path / "up-0", tmp_path / "up-1")]
        process.send_signal(number)
        process.wait(20)
        wait_until(lambda: not any(map(living, ranks)), "the ranks have gone")


def test_a_node_whose_connection_is_lost_is_named_and_leaves_nothing(agent: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    program = sh(f"echo $$ >{tmp_path}/up-$RANK; sleep 60")
    with launching("--agent", agent, *CALL, "-H", "a,b", *program, env={"TMPDIR": str(files)}) as process:
        wait_for_files(tmp_path / "up-0", tmp_path / "up-1")
        one, _ = relays()
        os.kill(one, signal.SIGKILL)
        done = finish(process)
    assert done.code == ExitCode.NODE_LOST
    assert "its connection was lost: the agent's process was killed by signal 9" in done.words
    wait_until(lambda: not os.listdir(files), "the daemon whose guard was killed has removed its files")


@pytest.mark.testbed
def test_a_node_that_cannot_call_says_why(tmp_path: Path) -> None:
    agent = script(tmp_path / "agent", '#!/bin/sh\neval "exec unshare --net $2" </dev/null\n')
    done = launch("--agent", f"{agent} {{host}} {{command}}", *CALL, "-H", "a,b", "true")
    assert done.code == ExitCode.START_FAILED
    assert "error[start-head-unreachable]: 2 of 2 nodes: a,b: the node cannot call this machine back" in done.words
    assert "Network is unreachable" in done.words
    assert "--call-back never" in done.words


def test_a_python_that_is_too_old_says_so(tmp_path: Path) -> None:
    text = f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 7)\ndel sys.argv[:5]\nexec(sys.argv[0])\n"
    old = script(tmp_path / "old", text)
    agent = script(tmp_path / "agent", NO_STDIN)
    done = launch("--agent", f"{agent} {{host}} {{command}}", *CALL, "--python", old, "-H", "a", "true")
    assert done.code == ExitCode.START_FAILED
    assert "error[start-python-too-old]: a: " in done.words


def test_a_secret_is_required_and_valid_once(agent: str) -> None:
    async def main() -> None:
        made = load(agent, AgentOptions(call_back=(agent,)))
        assert isinstance(made, CallbackAgent)
        seen = Recorder()
        command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
        channel = await made.open(Node(0, "somewhere", (), ""), command, seen)
        await seen.until(lambda: seen.stdout == b"up\n", "the node has called")
        assert made._listening is not None
        port = (await made._listening)[0].port
        (arguments,) = relays().values()
        assert arguments[7].endswith(b":%d" % port)
        secret = arguments[9]
        plain = await asyncio.open_connection("127.0.0.1", port)
        plain[1].close()  # a probe, which says nothing
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for data in (
            HEADER.pack(SECRET, 64) + b"0" * 64,
            HEADER.pack(SECRET, 64) + secret,
            HEADER.pack(3, 4) + b"kill",
            HEADER.pack(SECRET, 1 << 30) + b"x" * 2000,
            b"",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(data)
            if not data:
                writer.close()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        assert seen.end is None, "the daemon has not noticed"
        channel.write_eof()
        assert (await seen.ended()).exit_code == 0
        await made.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(main())


FLOOD = """
import socket, ssl, sys
port, count, speak = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
held = []
for _ in range(count):
    try:
        one = socket.create_connection(("127.0.0.1", port), 5)
        held.append(one)
        if speak == "garbage":
            one.sendall(b"GET / HTTP/1.0" * 9)
        elif speak == "handshake":
            held.append(context.wrap_socket(one))
    except OSError:
        pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("speak", ["nothing", "garbage", "handshake"])
@pytest.mark.parametrize("descriptors", [None, 60])
def test_strangers_who_connect_many_times_keep_nobody_out(
    agent: str, speak: str, descriptors: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_listener, "NO_DESCRIPTORS_PAUSE", 0.005)

    async def main() -> None:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        made = load(agent, AgentOptions(call_back=(agent,)))
        assert isinstance(made, CallbackAgent)
        await started(made, 0)
        assert made._listening is not None
        port = (await made._listening)[0].port
        argv = [sys.executable, "-c", FLOOD, str(port), "300", speak]
        pipe = asyncio.subprocess.PIPE
        before = open_descriptors()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        flood = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
        assert flood.stdin and flood.stdout
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + descriptors, hard))
        try:
            assert await asyncio.wait_for(flood.stdout.readline(), 60) == b"done\n"
            # Under the limit even the count below may find no descriptor free.
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            # Connections are accepted in their order: once the nodes are in, all strangers have been.
            channels = [await started(made, number) for number in range(1, 4)]
            assert open_descriptors() - before <= callback_listener.MAX_UNAUTHENTICATED + 8 * len(channels)
            for channel in channels:
                channel.abort()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            flood.stdin.close()
            await flood.wait()
            await made.close()
        assert reported == []
        deadline = time.monotonic() + 20
        while open_descriptors() > before and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert open_descriptors() <= before

    asyncio.run(main())


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


async def started(agent: Agent, number: int) -> Channel:
    """Return a node's channel, once the node has called."""
    seen = Recorder()
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    channel = await agent.open(Node(number, "somewhere", (), ""), command, seen)
    await seen.until(lambda: seen.stdout == b"up\n", "the node has called")
    return channel


@pytest.mark.parametrize("tls", [False, True])
def test_a_silent_stranger_is_disconnected(agent: str, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_listener, "AUTHENTICATION_SECONDS", 0.3)

    async def main() -> None:
        made = load(agent, AgentOptions(call_back=(agent,)))
        assert isinstance(made, CallbackAgent)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        made._listening = asyncio.ensure_future(made._listen())
        port = (await made._listening)[0].port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context if tls else None)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await made.close()

    asyncio.run(main())


def test_small_messages_do_not_wait_for_an_acknowledgement(agent: str) -> None:
    # Which the other side delays by 40 ms: credits, and the messages of MPI_Init.
    async def main() -> None:
        made = load(agent, AgentOptions(call_back=(agent,)))
        assert isinstance(made, CallbackAgent)
        made._listening = asyncio.ensure_future(made._listen())
        listener, _, fingerprint = await made._listening
        connecting = asyncio.get_running_loop().run_in_executor(None, connect, f"127.0.0.1:{listener.port}", fingerprint)
        with await asyncio.wait_for(connecting, 10) as wire:
            while not made._connections:
                await asyncio.sleep(0.01)
            (connection,) = made._connections
            for side in (wire, connection.transport.get_extra_info("socket")):
                assert side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await made.close()

    asyncio.run(main())


def test_the_private_key_is_in_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")
    assert len(callback._certificate()[1]) == 64


def test_the_ports_of_a_range_are_tried_until_one_is_free() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"the ports {port}-{port} are all in use"):
            callback._server(range(port, port + 1))
    with callback._server(range(port, port + 1)) as server:
        assert server.getsockname()[1] == port


def test_a_head_with_another_certificate_is_rejected(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = callback._certificate

    def another() -> tuple[ssl.SSLContext, str]:
        return genuine()[0], genuine()[1]

    monkeypatch.setattr(callback, "_certificate", another)

    async def main() -> None:
        made, seen = load(agent, AgentOptions(call_back=(agent,))), Recorder()
        await made.open(Node(0, "somewhere", (), ""), [sys.executable, "-c", "print('up')"], seen)
        end = await seen.ended()
        assert (end.exit_code, end.cause) == (CANNOT_CONNECT, "head-unreachable")
        assert b"the certificate is not the head's" in seen.stderr and not seen.stdout
        await made.close()

    asyncio.run(main())


def test_nodes_that_call_back() -> None:
    most = AGENTS["kubectl"].most_open
    assert most is not None
    pods, pod = f"-H pod[01-{most + 1}] --agent kubectl", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert job(pods, **pod).agent.call_back == ("kubectl",)
    assert job(pods).agent.call_back == (), "from outside, pods hardly reach us"
    assert job(f"-H pod[01-{most}] --agent kubectl", **pod).agent.call_back == ()
    assert job(f"{pods} --call-back never", **pod).agent.call_back == ()
    assert job("-H localhost,a,b --call-back always").agent.call_back == ("ssh",)


# Pods


@pytest.mark.testbed
def test_a_lost_stream_is_not_a_lost_job_where_pods_call_back(pods: Pods, tmp_path: Path) -> None:
    go = pods.shared / "go"
    go.unlink(missing_ok=True)
    earlier = {pod: pods.zombies(pod) for pod in pods.names[:2]}  # nothing reaps what the agents leave there
    program = sh(f"echo up; while [ ! -e {go} ]; do sleep 0.05; done; echo $RANK")
    arguments = ["--agent", "kubectl", *CALL, "--wdir", "/", "-H", "job-worker-[0-1]", *program]
    with pods.popen([sys.executable, "-m", "mpilaunch", *arguments]) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        wait_until(lambda: not kubectls(process.pid), "no kubectl is kept open")
        pods.server.drop()
        go.touch()
        out, errors = process.communicate(timeout=30)
    go.unlink()
    assert (process.returncode, sorted(out.split()), errors) == (0, ["0", "1"], "")
    wait_until(lambda: not any(map(pods.processes, earlier)), "the pods are empty")
    wait_until(lambda: {pod: pods.zombies(pod) for pod in earlier} == earlier, "the pods have no other zombies")


def kubectls(pid: int) -> list[int]:
    """Return the kubectl processes below a process."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    pids = []
    for child in children:
        with contextlib.suppress(OSError):  # it has just been ended
            pids += [child] if b"kubectl" in Path(f"/proc/{child}/cmdline").read_bytes() else []
            pids += kubectls(child)
    return pids


@pytest.mark.testbed
def test_kubectl_exec_without_stdin(pods: Pods) -> None:
    agent = f"{pods.kubectl} exec {{host}} -c main -- /bin/sh -c {{command}}"
    arguments = ["--agent", agent, "-H", "job-worker-[0-1]", "--continue-on-error", *sh("echo $RANK; exit $((RANK * 3))")]
    done = pods.launch(*arguments)
    assert (done.returncode, "error[start-no-stdin]: 2 of 2 nodes" in done.stderr) == (1, True), done.stderr
    done = pods.launch(*CALL, *arguments)
    assert (done.returncode, sorted(done.stdout.split())) == (3, ["0", "1"]), done.stderr
