"""A small head and its daemons, as far as PMIx needs them: a HelperProcess for each node, in one loop, and real ranks.

The nodes of one machine differ by name only. As a program of its own it runs one job and prints what became of it as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpilaunch.daemon.pmix.channel import HELPER_SENDS
from mpilaunch.daemon.pmix.helper_process import HelperProcess
from mpilaunch.daemon.pmix.search import Libpmix, Program
from mpilaunch.daemon.poller import Poller
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.wire.environment import encode

SECONDS = 30.0
"""How long a job may take."""
DEFAULTS = {"OMPI_MCA_schizo": "^orte", "MPIR_CVAR_PMI_VERSION": "1"}
SCRUBBED = ("PMI", "OMPI_", "PMIX_", "MPIR_", "UCX_")


class Node:
    """What one HelperProcess tells, handed on with the node's number."""

    def __init__(self, nodes: Nodes, number: int, libpmix: Libpmix, directory: Path) -> None:
        self.nodes, self.number = nodes, number
        self.failed_with = ""
        handlers = {name: getattr(self, name) for name in HELPER_SENDS}
        self.server = HelperProcess(nodes.poller, handlers, libpmix, f"node{number}", PrivateDirectory(str(directory)))

    def registered(self, world: str, environments: dict[int, dict[str, str]]) -> None:
        self.nodes.registered(world, environments)

    def connected(self, world: str, rank: int) -> None:
        self.nodes.log.append(("connected", world, rank))

    def finalized(self, world: str, rank: int) -> None:
        self.nodes.log.append(("finalized", world, rank))

    def abort(self, world: str, rank: int, code: int) -> None:
        self.nodes.log.append(("abort", world, rank, code))
        self.nodes.kill()

    def collective(self, kind: str, members: list[tuple[str, int]], ranks: int, data: bytes, token: int) -> None:
        self.nodes.log.append(("collective", kind, members, ranks, len(data)))
        self.nodes.collective(kind, members, ranks, data, lambda data, context: self.answer(token, data, context=context))

    def modex(self, world: str, rank: int, token: int) -> None:
        self.nodes.log.append(("modex", world, rank))
        owner = self.nodes.nodes[self.nodes.worlds[world].node_of(max(rank, 0))]
        assert rank < 0 or owner is not self
        self.nodes.questions.append(lambda found, data: self.answer(token, data, error="" if found else "not-found"))
        owner.server.modex_request(world, rank, len(self.nodes.questions) - 1)

    def modex_ready(self, token: int, found: bool, data: bytes) -> None:
        self.nodes.questions[token](found, data)

    def publish(self, world: str, rank: int, values: dict[str, list[Any]], token: int) -> None:
        taken = self.nodes.published.keys() & values.keys()
        if not taken:
            self.nodes.published.update({key: [world, rank, value] for key, value in values.items()})
        self.answer(token, error="exists" if taken else "")
        self.nodes.look_up()

    def lookup(self, world: str, rank: int, keys: list[str], wait: bool, token: int) -> None:
        self.nodes.lookups.append((keys, wait, lambda found: self.answer(token, found=found)))
        self.nodes.look_up()

    def unpublish(self, world: str, rank: int, keys: list[str], token: int) -> None:
        for key in keys:
            self.nodes.published.pop(key, None)
        self.answer(token)

    def spawn(self, world: str, rank: int, apps: list[dict[str, Any]], token: int) -> None:
        self.nodes.log.append(("spawn", world, rank, apps))
        ranks = [app for app in apps for _ in range(app["count"])]
        self.nodes.start_world(ranks, spawned=True, then=lambda name: self.answer(token, world=name))

    def failed(self, reason: str) -> None:
        self.failed_with = reason
        self.nodes.log.append(("failed", self.number, reason))
        self.nodes.kill()

    def answer(self, token: int, data: bytes = b"", error: str = "", **words: Any) -> None:
        self.server.answer(token, data, error, **words)


class World:
    """The ranks of one MPI_COMM_WORLD, round the nodes."""

    def __init__(self, name: str, apps: list[dict[str, Any]], nodes: int, then: Callable[[str], None]) -> None:
        self.name, self.apps, self.then = name, apps, then
        self.namespace = os.urandom(16).hex()
        size = len(apps)
        used = min(nodes, size)
        self.ranks_by_node = [list(range(node, size, used)) for node in range(used)]
        self.waiting = nodes
        self.environments: dict[int, dict[str, str]] = {}

    def node_of(self, rank: int) -> int:
        return rank % len(self.ranks_by_node)


class Nodes:
    """The head: runs jobs on `count` nodes.

    Attributes:
        log: the events, in order.
        exits: (world, rank) -> exit code, -N for signal N.
        lines: what the ranks of a job have written, once it has ended.
    """

    def __init__(self, count: int, libpmix: Libpmix, directory: Path) -> None:
        self.poller = Poller()
        self.log: list[tuple[Any, ...]] = []
        self.lines: list[str] = []
        self.exits: dict[tuple[str, int], int] = {}
        self.worlds: dict[str, World] = {}
        self.questions: list[Callable[[bool, bytes], None]] = []
        self.published: dict[str, list[Any]] = {}
        self.lookups: list[tuple[list[str], bool, Callable[[dict[str, Any]], None]]] = []
        self._collectives: dict[Any, list[tuple[int, bytes, Callable[[bytes, int], None]]]] = {}
        self._contexts = 0
        self._ranks: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._output = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(SCRUBBED)} | DEFAULTS
        if count > 1:
            self.environment["OMPI_MCA_btl"] = "self,tcp"  # one machine under two names: shared memory would be a lie
        self.nodes = [Node(self, number, libpmix, directory) for number in range(count)]
        for node in self.nodes:
            self._watch(node.server.pid, functools.partial(self._helper_ended, node))

    # Ranks

    def start_world(
        self, apps: list[dict[str, Any]], spawned: bool = False, then: Callable[[str], None] = lambda name: None
    ) -> None:
        world = World(f"job-{os.getpid()}.{len(self.worlds)}", apps, len(self.nodes), then)
        self.worlds[world.name] = world
        for node in self.nodes:
            node.server.register(
                {
                    "name": world.name,
                    "namespace": world.namespace,
                    "size": len(apps),
                    "universe_size": len(apps) + 2,
                    "hosts": [f"node{number}" for number in range(len(world.ranks_by_node))],
                    "ranks_by_node": world.ranks_by_node,
                    "node": node.number if node.number < len(world.ranks_by_node) else None,
                    "appnums": [app.get("app", 0) for app in apps],
                    "spawned": spawned,
                }
            )

    def registered(self, name: str, environments: dict[int, dict[str, str]]) -> None:
        world = self.worlds[name]
        world.environments.update(environments)
        world.waiting -= 1
        if world.waiting:
            return
        assert sorted(world.environments) == list(range(len(world.apps)))
        for rank, app in enumerate(world.apps):
            environment = {**self.environment, **app["environment"], **world.environments[rank], "RANK": str(rank)}
            process = subprocess.Popen(
                [app["program"], *app["arguments"]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
            self._ranks[name, rank] = process
            self._watch(process.pid, functools.partial(self._rank_ended, name, rank))
        world.then(name)

    def _watch(self, pid: int, ended: Callable[[], None]) -> None:
        descriptor = os.pidfd_open(pid)

        def ready() -> None:
            self.poller.forget(descriptor)
            os.close(descriptor)
            ended()

        self.poller.watch(descriptor, ready)

    def _rank_ended(self, world: str, rank: int) -> None:
        self.exits[world, rank] = self._ranks.pop((world, rank)).wait()
        came = ("connected", world, rank) in self.log and ("finalized", world, rank) not in self.log
        if self.exits[world, rank] or came:
            self.kill()

    def _helper_ended(self, node: Node) -> None:
        if node.server.pid:
            assert node.server.child_ended(*os.waitpid(node.server.pid, 0))

    def kill(self) -> None:
        for process in self._ranks.values():
            os.killpg(process.pid, signal.SIGKILL)

    # What ranks ask

    def collective(
        self, kind: str, members: list[tuple[str, int]], ranks: int, data: bytes, answer: Callable[[bytes, int], None]
    ) -> None:
        key = (kind, tuple(members))
        entered = self._collectives.setdefault(key, [])
        entered.append((ranks, data, answer))
        wanted = sum(len(self.worlds[world].apps) if rank == -1 else 1 for world, rank in members)
        if sum(ranks for ranks, _, _ in entered) == wanted:
            del self._collectives[key]
            self._contexts += 1
            for _, _, give in entered:
                give(b"".join(data for _, data, _ in entered), self._contexts)

    def look_up(self) -> None:
        for lookup in list(self.lookups):
            keys, wait, answer = lookup
            found = {key: self.published[key] for key in keys if key in self.published}
            if len(found) == len(keys) or not wait:
                self.lookups.remove(lookup)
                answer(found)

    # The loop

    def turn(self, until: Callable[[], bool]) -> None:
        """Serve until something is the case; raises TimeoutError."""
        deadline = time.monotonic() + SECONDS
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.output()}\n{self.log}")
            self.poller.run(1.0)

    def run(self, *command: object, count: int) -> None:
        """Run a program as the ranks of one world until all ranks have ended."""
        program, *arguments = map(str, command)
        self.start_world([{"program": program, "arguments": arguments, "environment": {}}] * count)
        self.turn(lambda: bool(self._failed() or self.exits) and not self._ranks)

    def _failed(self) -> list[str]:
        return [node.failed_with for node in self.nodes if node.failed_with]

    def close(self) -> None:
        self.kill()
        for process in self._ranks.values():
            process.wait()
        for node in self.nodes:
            node.server.close()
        self._output.close()

    def output(self) -> list[str]:
        """Return the lines that the ranks have written, sorted."""
        self._output.seek(0)
        return sorted(self._output.read().decode(errors="replace").splitlines())

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def served(program: Path) -> Libpmix:
    """Return how a program is served, as the daemon would."""
    return Program(encode(str(program)), [b"program"], dict(os.environb)).libpmix(None)


def main() -> None:
    """Run NODES RANKS DIRECTORY PROGRAM ARGUMENT..."""
    nodes, ranks, directory, *command = sys.argv[1:]
    with Nodes(int(nodes), served(Path(command[0])), Path(directory)) as job:
        job.run(*command, count=int(ranks))
        exits = [code for _, code in sorted(job.exits.items())]
        result = {"exits": exits, "output": job.output(), "log": job.log}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
