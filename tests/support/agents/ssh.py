"""Agents for real hosts, called in a Python of their own on the head of the testbed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpilaunch.agent import AgentFailure, AgentOptions
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import Recorder
from mpilaunch_agents.registry import load
from tests.support.hosts import Hosts
from tests.support.launching import wait_until

AGENTS = ("ssh", "openssh", "ssh -o BatchMode=yes -o ConnectTimeout=2 -p {port} -l {user} {host} {command}")


async def run_on_nodes(
    agent_name: str, options: dict[str, Any], nodes: Sequence[dict[str, Any]], command: Sequence[str]
) -> list[list[Any]]:
    """Run a command on all nodes at once; return for each the cause, the error or the output, and the exit code."""
    options["ssh_options"] = tuple(options.get("ssh_options", ()))
    agent = load(agent_name, AgentOptions(**options))

    async def one(index: int, node: dict[str, Any]) -> list[Any]:
        recorder = Recorder()
        try:
            channel = await agent.open(Node(index, slots=(), agent=agent_name, **node), command, recorder)
        except AgentFailure as error:
            return [error.cause, error.detail, None]
        channel.write_eof()
        end = await recorder.ended()
        return [end.cause, end.error or recorder.stdout.decode().strip(), end.exit_code]

    try:
        return await asyncio.gather(*(one(index, node) for index, node in enumerate(nodes)))
    finally:
        await agent.close()


def ask(
    hosts: Hosts,
    agent: str,
    node: str | dict[str, Any] | list[dict[str, Any]],
    command: Sequence[str] = ("hostname",),
    **options: Any,
) -> list[list[Any]]:
    """Call `run_on_nodes` on the head; return what it returns."""
    nodes = [{"name": node}] if isinstance(node, str) else [node] if isinstance(node, dict) else node
    script = (
        "import asyncio, json, sys; from tests.support.agents.ssh import run_on_nodes; "
        "print(json.dumps(asyncio.run(run_on_nodes(*json.loads(sys.argv[1])))))"
    )
    call = json.dumps([agent, {"connect_timeout": 10, **options}, nodes, list(command)])
    done = hosts.run([sys.executable, "-W", "error", "-c", script, call])
    assert (done.returncode, done.stderr) == (0, "")
    answers: list[list[Any]] = json.loads(done.stdout)
    return answers


@contextlib.contextmanager
def master(hosts: Hosts, host: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let the head's user keep a master connection to a host."""
    argv = ["ssh", "-N", "-M", "-o", control_path(path), "-o", "BatchMode=yes", host]
    with hosts.popen(argv, stdin=subprocess.DEVNULL) as ssh:
        try:
            wait_until(path.is_socket, "the master listens")
            yield ssh
        finally:
            ssh.kill()


def control_path(path: Path) -> str:
    """Return the setting of ssh for the socket of a master."""
    return f"ControlPath={str(path).replace('%', '%%')}"
