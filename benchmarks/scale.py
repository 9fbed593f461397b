"""The real head against many nodes: what a node and a rank cost the head, and how that grows.

The nodes are daemons of this machine, with which the head shares its cores, or scripts in the head's own process. A script
answers as a daemon does whose ranks print nothing and end at once; those that fence do so once, as an MPI program does when it
starts. The time that the scripts take is measured and left out, so what is told is the head's own: its CPU time, and its memory
with the little that the scripts keep.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "agents")]

from mpilaunch.agent import ChannelEnd, ChannelEvents  # noqa: E402  (the checkout must be on the path first)
from mpilaunch.cli import command  # noqa: E402
from mpilaunch.cli.console import Console  # noqa: E402
from mpilaunch.cli.job.make import make_job  # noqa: E402
from mpilaunch.cli.verbs.error_report import ErrorReport  # noqa: E402
from mpilaunch.head.launch import Launch  # noqa: E402
from mpilaunch.head.nodes import bundle  # noqa: E402
from mpilaunch.head.nodes.agents import Agents  # noqa: E402
from mpilaunch.head.signals import SignalRelay  # noqa: E402
from mpilaunch.hosts.allocation import Node  # noqa: E402
from mpilaunch.wire.frames import CONTROL, MARKER, STDERR, STDIN, STDOUT, stream_channel  # noqa: E402
from mpilaunch.wire.session import Session  # noqa: E402

NODES = (1, 10, 30, 100, 300, 1000)
RANKS = (1, 10, 100, 1000, 3000, 10000)
"""Nodes with one rank each; ranks on one node in ten, at least one."""
NATURES = SCRIPTS, FENCE, DAEMONS = "scripts", "scripts-that-fence", "daemons"

FACTS = {
    "hostname": "",
    "python": "3.11.2",
    "executable": "/usr/bin/python3",
    "cpus": [[number, number, 0, 0] for number in range(16)],
    "gpus": [],
    "ssh_connection": None,
    "free_port": 29500,
}


class Scripts:
    """An agent whose nodes are scripts; `seconds` is the CPU time that they have taken."""

    def __init__(self, fence: bool) -> None:
        self.fence = fence
        self.seconds = 0.0

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ScriptedNode:
        """Start a script."""
        return ScriptedNode(self, node, int(command[-1]), events)

    async def close(self) -> None:
        """Nothing to give back."""


class ScriptedNode:
    """The daemon of one node, as far as the head sees it."""

    def __init__(self, agent: Scripts, node: Node, bundle_size: int, events: ChannelEvents) -> None:
        self._agent, self._node, self._events = agent, node, events
        self._left = bundle_size
        self._session = Session()
        self._ranks: list[int] = []
        self._world = ""

    def _facts(self) -> dict[str, object]:
        own = f"10.88.{self._node.index // 250}.{self._node.index % 250 + 1}/16"
        interfaces = [
            ["docker0", "bridge", False, 0, 1500, False, ["172.17.0.1/16"]],
            ["eth0", "physical", True, 25000, 1500, True, [own]],
        ]
        return {
            **FACTS,
            "hostname": self._node.name,
            "network": {"interfaces": interfaces, "name_at": ["127.0.1.1"], "ports": [], "settings": [], "gpu_paths": {}},
        }

    # What the head asks for

    def write(self, data: bytes) -> None:
        """Take what the head sends: the bundle, then frames."""
        begun = time.process_time()
        bundle_part = min(self._left, len(data))
        if bundle_part:
            self._left -= bundle_part
            if not self._left:
                self._say("hello", version="", clock=time.monotonic(), facts=self._facts())
                self._send(MARKER)
        else:
            for kind, _, value in self._session.receive_data(data, time.monotonic()):
                if kind == CONTROL:
                    self._take(value)
            self._send()
        self._agent.seconds += time.process_time() - begun

    def write_eof(self) -> None:
        """The head lets go."""
        asyncio.get_running_loop().call_soon(self._events.closed, ChannelEnd(0))

    abort = write_eof

    def pause_reading(self) -> None:
        """Never needed."""

    resume_reading = pause_reading

    # What a daemon does

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "prepare":
            self._ranks, self._world = [spec["rank"] for spec in message["ranks"]], message["mpi"]["world"]
            for spec in message["ranks"]:
                for stream in (STDOUT, STDERR):
                    self._session.open_sending(stream_channel(spec["rank"], stream), message["window"])
                if spec["stdin"]:
                    self._session.open_receiving(stream_channel(spec["rank"], STDIN), message["window"])
            self._say("ready", programs=["/bin/true"], notes=[])
        elif kind == "launch":
            started = [[rank, 1000 + rank, time.monotonic()] for rank in self._ranks]
            self._say("started", ranks=started, failed=[])
            if self._agent.fence:
                members = [[self._world, -1]]
                self._say("joined", world=self._world)
                self._say("collective", kind="pmi WORLD", members=members, ranks=len(self._ranks), data={"key": "value"})
            else:
                self._end("absent")
        elif kind == "collective":
            self._end("finalized")

    def _end(self, mpi: str) -> None:
        end: dict[str, Any] = {"code": 0, "signal": None, "core": False, "stopped": False, "mpi": mpi}
        for rank in self._ranks:
            for stream in (STDOUT, STDERR):
                self._session.send_end(stream_channel(rank, stream))
            self._say("exited", rank=rank, clock=time.monotonic(), stdin_read=0, evidence={}, **end)
        self._say("finished", worlds=1, swept=[])

    def _say(self, kind: str, /, **members: Any) -> None:
        self._session.send({"type": kind, **members})

    def _send(self, before: bytes = b"") -> None:
        data = before + self._session.data_to_send()
        if data:
            asyncio.get_running_loop().call_soon(self._events.data_received, data)


def measure(nodes: int, ranks: int, nature: str) -> dict[str, float]:
    """Launch once; return the head's CPU seconds, the bytes that it grew by, and the seconds that all took.

    Args:
        nature: of the nodes, one of NATURES.
    """
    each = -(-ranks // nodes)
    hosts = ",".join([f"local:{each}"] * nodes) if nature == DAEMONS else f"node[0001-{nodes:04}]:{each}"
    words = ["-H", hosts, "-np", str(ranks), "--mpi", "pmi1"]
    # What is asked of a node now and then would depend on how long this takes.
    words += ["--heartbeat", "3600", "--start-timeout", "3600"]
    words += ["true"] if nature == DAEMONS else ["--fanout", str(nodes), "true"]
    bundle.load()
    invocation = command.Invocation(os.environ, Console(), ErrorReport())
    command.read(["true"], invocation)
    gc.collect()
    before, begun, began = resident(), time.process_time(), time.monotonic()
    asked = command.read(words, invocation)
    job = make_job(asked.settings, asked.sections, {})
    scripts = Scripts(nature == FENCE)

    grown = 0

    async def run() -> int:
        agents: Mapping[str, Any] = Agents(job, job.job_map.nodes)
        if nature != DAEMONS:
            agents = dict.fromkeys(agents, scripts)
        launch = Launch(job, agents, Console())
        with SignalRelay(asyncio.get_running_loop()) as signals:
            verdict = await launch.run(signals)
        for agent in agents.values():
            await agent.close()
        nonlocal grown
        grown = resident() - before
        return verdict.exit_code

    code = asyncio.run(run())
    assert code == 0, f"the launch ended with {code}"
    return {
        "cpu": time.process_time() - begun - scripts.seconds,
        "bytes": grown,
        "seconds": time.monotonic() - began,
    }


def resident() -> int:
    """Return the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_own_process(nodes: int, ranks: int, nature: str) -> dict[str, float]:
    """Measure in a process of its own, the best of three; of daemons there is one measurement, for a thousand take a minute."""
    rounds = 1 if nature == DAEMONS else 3
    words = [sys.executable, __file__, "--one", str(nodes), str(ranks), "--nodes-are", nature]
    found = [json.loads(subprocess.run(words, capture_output=True, check=True).stdout) for _ in range(rounds)]
    return {name: min(one[name] for one in found) for name in found[0]}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return b of the power a * x ** b that fits the larger half of the points best."""
    logs = [(math.log(x), math.log(max(y, 1e-9))) for x, y in points[len(points) // 2 :]]
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    return float(sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs))


def curves() -> list[dict[str, Any]]:
    """Measure all; return each curve with the power by which CPU time grows."""
    found = []
    one_each, ten_each = [(count, count) for count in NODES], [(max(1, count // 10), count) for count in RANKS]
    for title, unit, sizes, nature in (
        ("scripted nodes with one rank each", "nodes", one_each, SCRIPTS),
        ("scripted nodes with ten ranks each", "ranks", ten_each, SCRIPTS),
        ("scripted nodes with ten ranks each, and a fence of all", "ranks", ten_each, FENCE),
        ("daemons on this machine with one rank each", "nodes", one_each, DAEMONS),
    ):
        points = []
        for nodes, ranks in sizes:
            points.append({"nodes": nodes, "ranks": ranks, **in_own_process(nodes, ranks, nature)})
            if nature != DAEMONS:
                del points[-1]["seconds"]  # the scripts took most of them
            print(f"scale, {title}: {points[-1]}", file=sys.stderr, flush=True)
        power = exponent([(point[unit], point["cpu"] - points[0]["cpu"]) for point in points[1:]])
        found.append({"title": title, "unit": unit, "points": points, "power": power})
    return found


def main() -> None:
    """Measure one launch, or all, and then write them into the results and the page."""
    parser = argparse.ArgumentParser(description="Measure the head against many nodes.")
    parser.add_argument("--one", nargs=2, type=int, metavar=("NODES", "RANKS"), help="one launch in this process, as JSON")
    parser.add_argument("--nodes-are", choices=NATURES, default=SCRIPTS, help="with --one; where they fence, ranks do so once")
    arguments = parser.parse_args()
    if arguments.one:
        nodes, ranks = arguments.one
        print(json.dumps(measure(nodes, ranks, arguments.nodes_are)))
        return
    from page import table_page  # beside this file

    file = CHECKOUT / "benchmarks" / "results.json"
    results = json.loads(file.read_text(encoding="utf-8"))
    results["scale"] = curves()
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (CHECKOUT / "docs" / "performance.md").write_text(table_page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
