"""What the seeded conversations of PMI and of PMIx share: a head with its bookkeeping for two nodes, and the run of the seeds.

The head answers late and may pass on what a hostile node has sent. The process limits its own memory and time, and names the
seed that broke it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from mpilaunch.daemon.mpi.wireup import WireUp
from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.head.mpi.collectives import Collectives
from mpilaunch.head.mpi.names import PublishedNames
from mpilaunch.head.nodes.messages import DAEMON_MESSAGES, DAEMON_REQUESTS
from mpilaunch.wire.messages import check
from tests.support.paths import ROOT

MEMORY = 256 << 20
"""Bytes of address space that the conversations may take beyond what the process has at its start."""
SECONDS = 20
"""Of one conversation; most take some milliseconds."""
PER_NODE = 3
NODES = 2
SIZE = NODES * PER_NODE
LONGEST_NOTE = 500
WRONG_PAIRS: tuple[Any, ...] = (
    None, 7, [], {"k": 1}, {"k": "a\nb"}, {"k": "\u1234"}, {"x" * 99: "v"}, {"k": "v" * 5000}, "text",
)  # fmt: skip


class Head:
    """The head of two nodes, which a subclass adds to `nodes`; all that is random comes from the seed.

    With `passes_on`, it passes on what no honest node could have sent, as PMI's data is checked by the receiving node.
    """

    passes_on = True

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hostile = seed % 4 != 0
        self.poller, self.timers = Poller(), Timers()
        self.due: list[Callable[[], None]] = []
        self.collectives, self.names = Collectives(), PublishedNames()
        self.aborted: list[int] = []
        self.nodes: list[WireUp] = []

    def take(self, index: int, message: dict[str, Any]) -> None:
        """Take a message of a node, as the wire would carry it."""
        message = json.loads(json.dumps(message))
        check(message, DAEMON_MESSAGES)
        kind = message["type"]
        if kind == "collective":
            size = sum(SIZE if number < 0 else 1 for _, number in message["members"])
            collective = self.collectives.enter(index, message, size)
            if collective.complete:
                answer = {"type": "collective", **collective.answer()}
                if self.passes_on and self.hostile and self.random.random() < 0.2:
                    answer["parts"] = [*answer["parts"], self.random.choice(WRONG_PAIRS)]
                for node in collective.nodes:
                    self.due.append(lambda node=node: self.nodes[node].take(dict(answer)))  # type: ignore[misc]
        elif kind == "ask":
            check({**message, "type": message["request"]}, DAEMON_REQUESTS)
            self.due.append(lambda: self._take_ask(index, message))
        elif kind == "note":
            assert len(message["text"]) <= LONGEST_NOTE, message["text"]
        else:
            assert kind in ("joined", "waiting"), message

    def _take_ask(self, index: int, ask: dict[str, Any]) -> None:
        self.nodes[index].take({"type": "answer", "id": ask["id"], **self._answer(index, ask)})

    def _answer(self, index: int, ask: dict[str, Any]) -> dict[str, Any]:
        if ask["request"] == "publish":
            error = self.names.publish(index, ask["space"], ask["values"])
            while self.names.examine_next():
                pass
            return {"error": error}
        if ask["request"] == "unpublish":
            return {"error": self.names.unpublish(index, ask["space"], ask["names"])}
        if ask["request"] == "lookup":
            results: list[tuple[dict[str, Any], str]] = []
            self.names.lookup(index, ask["space"], ask["names"], False, lambda values, error: results.append((values, error)))
            if self.passes_on and self.hostile and self.random.random() < 0.2:
                return self.random.choice([{"error": "too much"}, {"error": "", "values": {ask["names"][0]: 7}}])
            values, error = results[0]
            return {"error": error, "values": values}
        assert ask["request"] == "spawn" and 0 <= ask["rank"] < SIZE
        counts = [min(app["count"], 2) for app in ask["apps"]]
        return self.random.choice([{"error": "no"}, {"error": "", "world": "job.1", "counts": counts}])

    def abort(self, rank: int, code: int) -> None:
        assert 0 <= code < 256
        self.aborted.append(rank)


def run_apart(module: str, default: int, count: int, seconds: float) -> str:
    """Run conversations in a process of their own, from MPILAUNCH_TEST_SEED or a default on; return what it printed last."""
    first = int(os.environ.get("MPILAUNCH_TEST_SEED") or default)
    command = [sys.executable, "-m", f"tests.support.mpi.{module}", str(first), str(first + count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout
    return done.stdout.strip()


def address_space() -> int:
    """Return the bytes of address space that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main(module: str, hold: Callable[[int], Iterable[str]]) -> int:
    """Hold the conversations of the seeds FIRST to LAST - 1; print their ends, or the seed that failed and return 1."""
    first, last = map(int, sys.argv[1:])
    limit = address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, _too_long)
    ends: Counter[str] = Counter()
    for seed in range(first, last):
        signal.alarm(SECONDS)
        try:
            ends.update(hold(seed))
        except Exception:
            traceback.print_exc()
            print(f"seed {seed} failed: python -m {module} {seed} {seed + 1}")
            return 1
        gc.collect()  # so that only a leak adds up
    signal.alarm(0)
    print(f"{last - first} conversations: {json.dumps(ends, sort_keys=True)}")
    return 0


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"one conversation took more than {SECONDS} s")
