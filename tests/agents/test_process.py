"""Channels that are local processes: nothing leaks into them, nothing is left of them, and they end once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents import process
from mpilaunch_agents.child import _close_inherited
from mpilaunch_agents.command import CommandAgent
from mpilaunch_agents.conformance import Recorder
from mpilaunch_agents.fake import FakeAgent
from mpilaunch_agents.local import LocalAgent
from mpilaunch_agents.process import ProcessAgent, ProcessChannel

NODE = Node(0, "local", (), "local")


def descriptors() -> set[str]:
    """Return the open descriptors but sockets, which servers of other tests in this process open and close."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links[name] = os.readlink(f"/proc/self/fd/{name}")
    return {name for name, target in links.items() if not target.startswith("socket:")}


def run(test: Callable[[ProcessAgent], Awaitable[None]], agent: Callable[[AgentOptions], ProcessAgent] = LocalAgent) -> None:
    """Run a test with an agent; every descriptor, task and process must be gone after its close."""

    async def main() -> None:
        before = descriptors()
        made = agent(AgentOptions(connect_timeout=0.01))
        try:
            await test(made)
        finally:
            await made.close()
        # A process that was killed gives its pidfd back when the loop has heard of its end.
        deadline = time.monotonic() + 2
        while descriptors() - before and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert not descriptors() - before
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def start(agent: ProcessAgent, argv: Sequence[str], node: Node = NODE) -> tuple[ProcessChannel, Recorder]:
    recorder = Recorder()
    return await agent.open(node, argv, recorder), recorder


async def complete(agent: ProcessAgent, argv: Sequence[str], node: Node = NODE) -> Recorder:
    _, recorder = await start(agent, argv, node)
    await recorder.ended()
    return recorder


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def dies(pid: int) -> bool:
    """Tell whether a process that has been killed goes; the kernel takes a moment for it."""
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    return not alive(pid)


def test_child_has_three_descriptors_a_session_and_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "of ours")

    async def test(agent: ProcessAgent) -> None:
        inherited = os.open("/", os.O_RDONLY)
        os.set_inheritable(inherited, True)
        _close_inherited.cache_clear()
        # `ls` itself holds one more: the directory it reads.
        script = "ls /proc/self/fd | tr '\\n' ' '; echo $SOMETHING; cut -d ' ' -f 6 /proc/$$/stat; echo $$"
        recorder = await complete(agent, ["sh", "-c", script])
        os.close(inherited)
        _close_inherited.cache_clear()
        first, session, pid = recorder.stdout.decode().splitlines()
        assert first == "0 1 2 3 of ours"
        assert session.strip() == pid

    run(test)


def test_killed_child_is_reported_as_128_and_the_signal() -> None:
    async def test(agent: ProcessAgent) -> None:
        assert (await complete(agent, ["sh", "-c", "kill -TERM $$"])).end == ChannelEnd(128 + signal.SIGTERM)

    run(test)


@pytest.mark.parametrize("argv", [["no-such-program-anywhere"], ["/etc/passwd"], ["/"]])
def test_program_that_is_not_there_is_the_agents_failure(argv: list[str]) -> None:
    async def test(agent: ProcessAgent) -> None:
        with pytest.raises(AgentFailure) as caught:
            await start(agent, argv)
        assert caught.value.cause == "agent-missing"
        assert caught.value.detail in (f"{argv[0]}: no such file or directory", f"{argv[0]}: permission denied")

    run(test)


def test_abort_kills_the_whole_group_even_when_it_ignores_everything() -> None:
    script = "trap '' TERM HUP INT; sleep 60 & echo $!; wait"

    async def test(agent: ProcessAgent) -> None:
        channel, recorder = await start(agent, ["sh", "-c", script])
        await recorder.until(lambda: recorder.stdout.endswith(b"\n"), "the child's child")
        channel.abort()
        assert await recorder.ended() == ChannelEnd(128 + signal.SIGKILL)
        assert await dies(int(recorder.stdout))

    run(test)


GUARDED = """
import os, sys, time
read, write = os.pipe()
if os.fork():
    os.close(write)
    os.read(read, 1)  # ends with the daemon
    sys.exit()
daemon = os.fork()
if daemon == 0:
    os.setsid()
    print("up", flush=True)
    time.sleep(60)
os.close(write)
os.waitpid(daemon, 0)
time.sleep(0.3)
open(sys.argv[1], "w").close()
"""
"""A relay that ends with the daemon; a guard in the relay's group, which still cleans up then; a daemon in its own session."""


def test_a_guard_cleans_up_after_an_abort_though_its_parent_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLEANUP_SECONDS", 20.0)

    async def test(agent: ProcessAgent) -> None:
        channel, recorder = await start(agent, [sys.executable, "-c", GUARDED, str(tmp_path / "clean")])
        await recorder.until(lambda: recorder.stdout == b"up\n", "the daemon runs")
        channel.abort()
        await recorder.ended()
        assert (tmp_path / "clean").exists()

    run(test)


def test_a_killed_process_is_a_lost_connection() -> None:
    async def test(agent: ProcessAgent) -> None:
        end = (await complete(agent, ["sh", "-c", "kill -KILL $$"])).end
        assert end is not None
        assert (end.exit_code, end.error) == (137, "its connection was lost: the agent's process was killed by signal 9")

    run(test, lambda options: CommandAgent(AgentOptions(template="sh -c 'eval exec \"$0\"' {command}")))


def test_an_unkillable_process_delays_no_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpilaunch_agents.process.CLOSE_SECONDS", 0.1)

    async def main() -> None:
        made = LocalAgent(AgentOptions())
        channel, recorder = await start(made, ["sleep", "60"])
        with monkeypatch.context() as patched:
            patched.setattr(os, "killpg", lambda pid, number: None)
            await made.close()
            assert recorder.end is None
        os.killpg(channel.pid, signal.SIGKILL)
        assert await recorder.ended() == ChannelEnd(128 + signal.SIGKILL)

    asyncio.run(main())


def test_end_does_not_wait_for_a_stray_process_that_holds_the_pipes() -> None:
    script = "import os, sys, time; pid = os.fork(); pid or (os.setsid(), time.sleep(60)); print(pid)"

    async def test(agent: ProcessAgent) -> None:
        began = time.monotonic()
        recorder = await complete(agent, [sys.executable, "-c", script])
        assert process.STRAY_GRACE <= time.monotonic() - began < process.STRAY_GRACE + 5
        assert recorder.end == ChannelEnd(0)
        stray = int(recorder.stdout)
        assert alive(stray)
        os.kill(stray, signal.SIGKILL)

    run(test)


def test_stray_process_of_the_group_does_not_outlive_the_channel() -> None:
    async def test(agent: ProcessAgent) -> None:
        recorder = await complete(agent, ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
        assert await dies(int(recorder.stdout))

    run(test)


def test_a_late_loop_delivers_all_output_before_the_end() -> None:
    async def test(agent: ProcessAgent) -> None:
        channel, recorder = await start(agent, ["head", "-c", "3000000", "/dev/zero"])
        while not os.waitid(os.P_PID, channel.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            await asyncio.sleep(0)
        await recorder.ended()
        assert len(recorder.stdout) == 3_000_000

    run(test)


def test_writing_to_a_command_that_does_not_read_is_harmless() -> None:
    async def test(agent: ProcessAgent) -> None:
        channel, recorder = await start(agent, ["sh", "-c", "exec <&-; echo closed; read -r _ </dev/zero; sleep 60"])
        await recorder.until(lambda: bytes(recorder.stdout) == b"closed\n", "the closed stdin")
        channel.write(b"x" * (1 << 21))
        channel.write_eof()
        channel.write(b"more")
        channel.abort()
        await recorder.ended()
        assert "pause" not in recorder.events

    run(test)


def test_only_the_first_channels_get_large_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LARGE_PIPES", 1)
    script = "import fcntl; print(*(fcntl.fcntl(number, 1032) for number in (0, 1)))"

    async def test(agent: ProcessAgent) -> None:
        first, one = await start(agent, [sys.executable, "-c", script + "; input()"])
        two = await complete(agent, [sys.executable, "-c", script])
        first.write_eof()
        await one.ended()
        assert bytes(one.stdout) == b"1048576 1048576\n"
        assert bytes(two.stdout) == b"65536 65536\n"

    run(test)


def test_a_failing_callback_does_not_hold_up_the_end() -> None:
    class Choking(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("what is that?")

    async def choke(agent: ProcessAgent) -> None:
        choking = Choking()
        channel = await agent.open(NODE, ["sh", "-c", "head -c 900000 /dev/zero; exec sleep 100"], choking)
        time.sleep(0.3)  # the loop is late, and finds more than it takes at once
        channel.abort()
        await asyncio.wait_for(choking.ended(), 10)

    run(choke)


def test_without_pidfd_a_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(pid: int) -> int:
        raise OSError("not in this kernel")

    monkeypatch.setattr(os, "pidfd_open", missing)

    async def test(agent: ProcessAgent) -> None:
        assert (await complete(agent, ["sh", "-c", "exit 5"])).end == ChannelEnd(5)
        channel, recorder = await start(agent, ["sleep", "60"])
        channel.abort()
        assert await recorder.ended() == ChannelEnd(128 + signal.SIGKILL)

    run(test)


def test_close_kills_many() -> None:
    async def test(agent: ProcessAgent) -> None:
        opened = [await start(agent, ["sleep", "60"]) for _ in range(20)]
        await agent.close()
        assert all(recorder.end == ChannelEnd(128 + signal.SIGKILL) for _, recorder in opened)

    run(test)


# fake


def test_fake_nodes_fail_as_scripted() -> None:
    async def test(agent: ProcessAgent) -> None:
        for cause in ("timeout", "key-refused"):
            with pytest.raises(AgentFailure) as caught:
                await start(agent, ["true"], Node(0, cause, (), "fake"))
            assert caught.value.cause == cause

    run(test, FakeAgent)


def test_fake_nodes_speak_as_scripted() -> None:
    async def test(agent: ProcessAgent) -> None:
        banner = await complete(agent, ["echo", "done"], Node(0, "banner1", (), "fake"))
        assert bytes(banner.stdout) == b"Welcome. All use of this system is recorded.\ndone\n"
        left = await complete(agent, ["echo", "done"], Node(0, "exit2", (), "fake"))
        assert (left.end, bytes(left.stdout)) == (ChannelEnd(3), b"")
        assert bytes(left.stderr) == b"this account is currently not available\n"

    run(test, FakeAgent)
