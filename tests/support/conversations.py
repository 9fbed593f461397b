"""Conversations of scripted nodes with a real head, and of a scripted head with a real daemon, that go wrong from a seed.

    python -m tests.support.conversations SEED COUNT          the head, conversations SEED to SEED + COUNT - 1
    python -m tests.support.conversations --one SEED          one of them, with what the nodes sent

A node answers as a daemon does, until its mutations begin: messages are dropped, repeated, put in another order, given wrong
ids, types and sizes, or made up; a node falls silent or closes its channel. One node at least is honest. A conversation passes
when the job ends within its deadline, by a verdict or an error that docs/errors.md lists; nothing but the hostile nodes is
blamed; nothing that a node sent reaches the terminal as a control sequence; and no callback of the loop takes longer than
MOST_HELD seconds of CPU time.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from mpilaunch.agent import AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.cli.console import Console
from mpilaunch.errors import LaunchError
from mpilaunch.head.launch import Launch
from mpilaunch.head.nodes import bundle
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.verdict import Verdict
from mpilaunch.wire.frames import CONTROL, MARKER, STDERR, STDIN, STDOUT, stream_channel
from mpilaunch.wire.session import Session
from mpilaunch_agents.fake import FakeAgent
from tests.support import command_line
from tests.support.paths import DOCS

Message = dict[str, Any]

DEADLINE = 40.0
"""Seconds of one conversation: its limits below, OVERDUE, twice ENDING of the daemons, and a busy machine."""
MOST_HELD = 0.05
AT_ONCE = 60
MEMORY = 2 << 30
"""Bytes of address space for all conversations that run at once."""
LIMITS = ("--timeout", "2", "--grace", "0.2", "--start-timeout", "4", "--reconnect-timeout", "0")
"""So long that honest nodes keep them on a busy machine: all conversations share one process."""
NODES = ("a", "b", "c")
RANKS_EACH = 2
FACTS: Message = {
    "hostname": "n", "python": "3.11.2", "executable": "/usr/bin/python3", "cpus": [[0, 0, 0, 0], [1, 1, 0, 0]], "gpus": [],
    "network": {
        "interfaces": [["eth0", "physical", True, 1000, 1500, True, ["10.0.0.1/24"]]],
        "name_at": [], "ports": [], "settings": [], "gpu_paths": {},
    },
    "ssh_connection": None, "free_port": 29500, "notes": [],
}  # fmt: skip
ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\u202efake\nerror[forged]: x"


class ScriptedAgent(FakeAgent):
    """The agent `fake` with nodes that are scripts of this process.

    Args:
        script: makes the script of a node by its name.
    """

    def __init__(self, script: Callable[[str], Script]) -> None:
        super().__init__(AgentOptions())
        self._script = script
        self.nodes: dict[str, ScriptedNode] = {}

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ScriptedNode:  # type: ignore[override]
        """Start a script."""
        made = self.nodes[node.name] = ScriptedNode(int(command[-1]), events, self._script(node.name))
        return made


class Script:
    """An honest daemon, as far as the head sees it: takes a message, returns what is to be sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ranks: list[int] = []
        self.living: list[int] = []
        self.of_world: dict[str, list[int]] = {}
        self.world = ""
        self.worlds = 0
        self.cut_off = False
        """Nothing that it sends reaches the head any more."""

    def hello(self) -> list[Message]:
        """Return what comes first."""
        eth0 = ["eth0", "physical", True, 1000, 1500, True, [f"10.0.0.{ord(self.name[0])}/24"]]
        facts = {**FACTS, "hostname": self.name, "network": {**FACTS["network"], "interfaces": [eth0]}}
        return [{"type": "hello", "version": "1", "clock": time.monotonic(), "facts": facts}]

    def take(self, message: Message) -> list[Message]:
        """Return the answer to a message of the head's."""
        return getattr(self, "take_" + message["type"], lambda message: [])(message)

    def take_prepare(self, message: Message) -> list[Message]:
        self.ranks = [spec["rank"] for spec in message["ranks"]]
        self.world = "" if message["mpi"] is None else message["mpi"]["world"]
        self.of_world[self.world] = self.ranks
        self.worlds += 1
        return [{"type": "ready", "programs": ["/bin/true"], "notes": []}]

    def take_launch(self, message: Message) -> list[Message]:
        self.living += self.ranks
        started = {"type": "started", "ranks": [[rank, 1000 + rank, time.monotonic()] for rank in self.ranks], "failed": []}
        if not self.world:
            return [started, *self.end()]
        joined = {"type": "joined", "world": self.world}
        return [started, joined, self.collective()]

    def collective(self) -> Message:
        members = [[self.world, -1]]
        return {"type": "collective", "kind": "pmi x", "members": members, "ranks": len(self.ranks), "data": {"k": "v"}}

    def take_collective(self, message: Message) -> list[Message]:
        ((world, _),) = message["members"]
        return self.end(ranks=self.of_world[world])

    def take_observe(self, message: Message) -> list[Message]:
        rows = [[rank, 1000 + rank, "S", 0.0, "futex_wait", 1, 1.5, 4096] for rank in self.living]
        process = {"pid": 1000, "steady": True, "threads": [[["/home/ann/train.py", 8, "step"]]]}
        stacks = [{"type": "stack", "rank": rank, "processes": [process]} for rank in self.living]
        return [*stacks, {"type": "observed", "ranks": rows}]

    def take_backtrace(self, message: Message) -> list[Message]:
        told = {"error": "", "output": "Thread 1 (LWP 7):\n#0  main () at solver.c:8\n", "program": "/home/ann/solver"}
        return [{"type": "backtrace", "rank": rank, **told} for rank in message["ranks"]]

    def take_stop(self, message: Message) -> list[Message]:
        return self.end(15) if self.living else []

    def take_ask(self, message: Message) -> list[Message]:
        return [{"type": "answer", "id": message["id"], "error": "", "data": ""}]

    def end(self, signal: int | None = None, ranks: Sequence[int] | None = None) -> list[Message]:
        """Return the end of these ranks, or of all; `drained` stands for the end of a rank's streams."""
        messages: list[Message] = []
        ending = [rank for rank in self.living if ranks is None or rank in ranks]
        for rank in ending:
            end = {"code": None if signal else 0, "signal": signal, "core": False, "stopped": signal is not None}
            mpi = "finalized" if self.world else "absent"
            more: Message = {"stdin_read": 0, "mpi": mpi, "evidence": {}, "clock": time.monotonic()}
            messages += [{"type": "drained", "rank": rank}, {"type": "exited", "rank": rank, **end, **more}]
        self.living = [rank for rank in self.living if rank not in ending]
        return messages if self.living else [*messages, {"type": "finished", "worlds": self.worlds, "swept": []}]


class ScriptedNode:
    """The channel to a script: the node's end of the wire."""

    def __init__(self, bundle_size: int, events: ChannelEvents, script: Script) -> None:
        self._left, self._events, self.script = bundle_size, events, script
        self._session = Session()
        self._closed = False
        self.taken: list[Message] = []
        self.sent: list[Message] = []

    def write(self, data: bytes) -> None:
        """Take what the head sends, in a callback of its own."""
        asyncio.get_running_loop().call_soon(self._read, data)

    def _read(self, data: bytes) -> None:
        """Read the bundle, then frames."""
        part = min(self._left, len(data))
        self._left -= part
        if part and not self._left:
            self._send(self.script.hello(), MARKER)
        if len(data) == part:
            return
        for kind, _, value in self._session.receive_data(data[part:], time.monotonic()):
            if kind == CONTROL:
                self.taken.append(value)
                if value["type"] == "prepare":
                    self._open(value)
                self._send(self.script.take(value))
        self._send([])

    def _open(self, prepare: Message) -> None:
        for spec in prepare["ranks"]:
            for stream in (STDOUT, STDERR):
                self._session.open_sending(stream_channel(spec["rank"], stream), prepare["window"])
            if spec["stdin"]:
                self._session.open_receiving(stream_channel(spec["rank"], STDIN), prepare["window"])

    def write_eof(self) -> None:
        """The head lets go; a script that is deaf stays."""
        if not isinstance(self.script, Hostile) or not self.script.deaf:
            self.abort()

    def abort(self) -> None:
        """The channel ends."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._events.closed, ChannelEnd(0))

    def pause_reading(self) -> None:
        """Do nothing: a hostile node does not care."""

    resume_reading = pause_reading

    def _send(self, messages: Sequence[Message], before: bytes = b"") -> None:
        if self._closed:
            return
        for message in messages:
            self.sent.append(message)
            if message["type"] == "drained":
                for stream in (STDOUT, STDERR):
                    self._session.send_end(stream_channel(message["rank"], stream))
            elif message["type"] == "close":
                asyncio.get_running_loop().call_later(0.01, self.abort)
            else:
                self._session.send(message)
        data = before + self._session.data_to_send()
        if data:
            asyncio.get_running_loop().call_soon(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if not self._closed and not self.script.cut_off:
            self._events.data_received(data)


class Hostile(Script):
    """A script that goes wrong, by a random generator."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(name)
        self._random = random
        self._calls = 0
        self._begin = random.randrange(4)
        self._rate = random.choice((0.1, 0.3, 0.7))
        self._held: list[Message] = []
        self.deaf = random.random() < 0.15
        self._silent_from = random.randrange(1, 6) if random.random() < 0.2 else 1000

    def hello(self) -> list[Message]:
        return self._changed(super().hello())

    def take(self, message: Message) -> list[Message]:
        if self.deaf and message["type"] == "stop":
            return []
        return self._changed(super().take(message))

    def _changed(self, messages: list[Message]) -> list[Message]:
        self._calls += 1
        if self._calls > self._silent_from:
            return []
        if self._calls <= self._begin:
            return messages
        changed: list[Message] = []
        for message in messages:
            changed += self._change(message) if self._random.random() < self._rate else [message]
        if self._random.random() < self._rate:
            changed.insert(self._random.randint(0, len(changed)), self._made_up())
        return changed

    def _change(self, message: Message) -> list[Message]:
        how = self._random.randrange(8)
        if how == 0:
            return []
        if how == 1:
            return [message] * self._random.choice((2, 3, 50))
        if how == 2:
            self._held.append(message)
            return []
        if how == 3:
            held, self._held = self._held, []
            return [message, *reversed(held)]
        if how == 4:
            return [self._made_up(), message]
        if how == 5 and self._random.random() < 0.3:
            return [message, {"type": "close"}]
        return [self._damaged(message)]

    def _damaged(self, message: Message) -> Message:
        """Replace one value, at any depth."""
        if message["type"] == "drained":
            return message
        made = copy.deepcopy(message)
        places: list[tuple[Any, Any]] = []

        def walk(inner: Any) -> None:
            pairs = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
            for key, value in pairs:
                if inner is not made or key != "type":
                    places.append((inner, key))
                walk(value)

        walk(made)
        if places:
            inner, key = self._random.choice(places)
            inner[key] = self._value()
        return made

    def _value(self) -> Any:
        values: tuple[Any, ...] = (
            *(None, True, -1, 0, 1, 2, 5, 6, 1 << 31, 1 << 70, 1.5, 1e300, "", [], {}, [[]], "other", ESCAPES, "a\0b"),
            *("x" * (1 << 20), ["y"] * 100_000, [["unknown", -1]], [[self.world, 99]], self.world),
        )
        return self._random.choice(values)

    def _rank(self) -> int:
        return self._random.choice((0, 1, 2, 3, 4, 5, 99, 1 << 40))

    def _world(self) -> str:
        return self._random.choice((self.world, self.world, "unknown", self.world + ".1", ""))

    def _made_up(self) -> Message:
        random, world, rank = self._random, self._world(), self._rank()
        app = {"program": ["true"], "count": random.choice((1, -1, 0, 1 << 30)), "environment": {}, "info": {}}
        members = random.choice(([[world, -1]], [[world, rank % 8]], [[world, 0], [world, 0]], [[world, -1], [world, 0]], []))
        space = random.choice(("pmi", "pmix", "x"))
        data = random.choice(({"k": "v"}, "", "AAAA", "no base64", {"k": "v" * 100_000}))
        published = [world, rank % 8, [3, ESCAPES]]
        number = random.choice((0, 1, 2, 1 << 50))
        end = {"code": random.choice((None, 0, 3)), "signal": random.choice((None, 9)), "core": False, "stopped": False}
        texts = dict.fromkeys(("library", "family", "pmix_error"), ESCAPES)
        made: list[Message] = [
            {"type": "finished", "worlds": random.choice((0, 1, 2, 1 << 40)), "swept": [[1, ESCAPES]]},
            {"type": "ask", "id": number, "request": "spawn", "world": world, "rank": rank, "apps": [app], "pairs": {}},
            {"type": "ask", "id": number, "request": "publish", "space": space, "values": {f"n{rank}": data}},
            {"type": "ask", "id": number, "request": "publish", "space": space, "values": {"n": published}},
            {"type": "ask", "id": number, "request": "lookup", "space": space, "names": ["n", str(rank)], "wait": True},
            {"type": "ask", "id": number, "request": "unpublish", "space": space, "names": ["n"]},
            {"type": "ask", "id": number, "request": "modex", "world": world, "rank": rank % 100},
            {"type": "ask", "id": number, "request": random.choice(("modules", "unknown", ""))},
            {"type": "collective", "kind": f"{space} x", "members": members, "ranks": rank % 7, "data": data},
            {"type": "collective", "kind": f"pmi {rank}", "members": [[world, -1]], "ranks": 1, "data": {"k": "v"}},
            {"type": "answer", "id": number, "error": ESCAPES, "data": data},
            {"type": "joined", "world": world},
            {"type": "waiting", "world": world, "absent": [rank]},
            {"type": "singleton", "rank": rank, "offer": [space], **texts},
            {"type": "broken", "text": ESCAPES},
            {"type": "note", "text": ESCAPES},
            {"type": "refused", "problems": [{"cause": random.choice(("unknown", "program-missing")), "detail": ESCAPES}]},
            {"type": "ready", "programs": [ESCAPES], "notes": [ESCAPES]},
            {"type": "started", "ranks": [[rank, 1, 1.0]], "failed": []},
            {"type": "started", "ranks": [], "failed": [[rank, 2, 1.0]]},
            {"type": "exited", "rank": rank, **end, "clock": 1.0, "stdin_read": 0, "mpi": "absent", "evidence": {}},
            {"type": "hello", "version": "1", "clock": 1.0, "facts": FACTS},
            {"type": "of-a-newer-version"},
        ]
        return random.choice(made)


class HostileHead:
    """What a head sends to a daemon, gone wrong: whole messages, in an order drawn from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def messages(self) -> list[Message]:
        """Return the messages of one conversation, without `prepare` and `launch` of the ranks that are to be ended."""
        random = self._random
        mpi = {
            "world": "w", "first": random.choice((0, 5, 1 << 40)), "size": 1, "universe_size": 1,
            "pmi_universe_size": 0, "hosts": ["n"], "blocks": [[0, 1, 1]],
            "app_sizes": [1], "parent": "", "pairs": {}, "offer": ["pmi"], "library": None,
            "pmix_defaults": {}, "descriptor": None, "port": False, "notice_after": 30.0,
        }  # fmt: skip
        choices: list[Message] = [
            {"type": "launch", "numbers": [random.choice((0, 9))]},
            {"type": "await", "rank": random.choice((0, 9)), "port": random.choice((1, 70_000))},
            {"type": "cancel", "number": random.choice((0, 9))},
            {"type": "signal", "signal": random.choice((18, 64, 4000))},
            {"type": "stop", "steps": random.choice(([], [[15, 0.1]], [[15, 1e14]], [[4000, 0.1]]))},
            {"type": "release"},
            {"type": "world", "mpi": mpi},
            {"type": "collective", "kind": "pmi x", "members": [["w", -1]], "number": 1, "parts": [random.choice(({}, 7, ""))]},
            {"type": "ask", "id": 1, "request": "modex", "world": random.choice("wx"), "rank": random.choice((-1, 0, 99))},
            {"type": "answer", "id": random.choice((0, 1, 99)), "error": ""},
            {"type": "prepare"},
            {"type": "of-a-newer-version", "x": ["y"] * 100_000},
        ]
        made = [random.choice(choices) for _ in range(random.randint(1, 8))]
        if random.random() < 0.3:
            made.append(random.choice(made))
        return made


# Conversations with the head


class Relay:
    """Signals that a conversation sends, as `SignalRelay` hands them on: in the start they cancel it."""

    receiver: Any = None
    _starting: asyncio.Task[None] | None = None

    async def until_interrupted(self, starting: Coroutine[Any, Any, None]) -> None:
        """Await the start."""
        self._starting = asyncio.ensure_future(starting)
        try:
            await self._starting
        except asyncio.CancelledError:
            raise LaunchError("interrupted", "SIGINT during the start", exit_code=130) from None
        finally:
            self._starting = None

    def interrupt(self, times: int) -> None:
        """A signal comes, for the `times`-th time."""
        if self._starting is not None:
            self._starting.cancel()
        elif self.receiver is not None:
            self.receiver.interrupt(2, times)


async def converse(words: Sequence[str], script: Callable[[str], Script], signals: Sequence[float] = ()) -> Conversation:
    """Let the head talk to three nodes; `signals` are the seconds at which SIGINT comes."""
    hosts = ",".join(f"{name}:{RANKS_EACH}" for name in NODES)
    job = command_line.job(" ".join(["-H", hosts, "--agent", "fake", *words]))
    agent = ScriptedAgent(script)
    agents: dict[str, Any] = {"fake": agent}
    launch = Launch(job, agents, Console())
    loop, began = asyncio.get_running_loop(), time.monotonic()

    relay = Relay()
    for times, delay in enumerate(signals, 1):
        loop.call_later(delay, relay.interrupt, times)
    try:
        outcome: Verdict | LaunchError = await asyncio.wait_for(launch.run(relay), DEADLINE)  # type: ignore[arg-type]
    except LaunchError as error:
        outcome = error
    return Conversation(outcome, time.monotonic() - began, agent.nodes, launch)


class Conversation:
    """One that has ended."""

    def __init__(
        self, outcome: Verdict | LaunchError, seconds: float, nodes: dict[str, ScriptedNode], launch: Launch
    ) -> None:
        self.outcome, self.seconds, self.nodes, self.launch = outcome, seconds, nodes, launch

    @property
    def reference(self) -> str:
        """The reference of the error, "ok" for none."""
        return self.outcome.reference if isinstance(self.outcome, LaunchError) else self.outcome.cause

    @property
    def words(self) -> str:
        """What is said of it."""
        return self.outcome.message if isinstance(self.outcome, LaunchError) else self.outcome.detail


def references() -> set[str]:
    """Return the references of docs/errors.md, and "ok"."""
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    return {"ok", *re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)}


async def try_seed(seed: int, known: set[str], show: bool = False) -> list[str]:
    """Hold one conversation; return what is wrong with its end."""
    random = Random(seed)
    hostile = set(random.sample(NODES, random.choice((1, 1, 2))))
    words = [*LIMITS, "--mpi", random.choice(("auto", "pmi1", "none")), *random.choice(((), ("--continue-on-error",)))]
    signals = random.choice(((), (), (0.3,), (0.2, 0.3, 0.4)))

    def script(name: str) -> Script:
        return Hostile(name, Random(f"{seed} {name}")) if name in hostile else Script(name)

    try:
        ended = await converse(words, script, signals)
    except (asyncio.TimeoutError, TimeoutError):
        return [f"not at its end after {DEADLINE:g} s"]
    except Exception as error:
        return [f"{error!r}"]
    if show:
        print(json.dumps({name: [str(one)[:300] for one in node.sent] for name, node in ended.nodes.items()}, indent=1))
        print(ended.reference, ended.words, ended.seconds, sorted(hostile))
    wrong = [] if ended.reference in known else [f"the reference {ended.reference!r} is not documented"]
    if ended.reference in ("node-lost", "start-protocol", "start-daemon-failed", "mpi-failed"):
        blamed = {ended.outcome.host} if isinstance(ended.outcome, Verdict) else {NODES[i] for i in ended.outcome.nodes}
        wrong += [f"{blamed} is blamed for {hostile}: {ended.words}"] if not blamed <= hostile else []
    for link in ended.launch._daemons.links.values():
        if link.node.name not in hostile and link.broke:
            wrong.append(f"{link.node.name} is honest: {link.broke}")
    for name, node in ended.nodes.items():
        if name not in hostile and node.script.living and not any(one["type"] == "stop" for one in node.taken):
            wrong.append(f"the ranks of {name} were not ended")
    return wrong


async def try_seeds(first: int, count: int) -> int:
    """Hold conversations at the same time; print what went wrong, and return how many did."""
    loop, known, failed, stray = asyncio.get_running_loop(), references(), 0, []
    loop.set_exception_handler(lambda loop, context: stray.append(repr(context)))
    seeds = range(first, first + count)
    results = await asyncio.gather(*(try_seed(seed, known) for seed in seeds))
    for seed, wrong in zip(seeds, results, strict=True):
        failed += bool(wrong)
        for text in wrong:
            print(f"seed {seed}: {text[:2000]}", flush=True)
    for text in stray:
        print(f"seeds {first} to {first + count - 1}: {text[:2000]}", flush=True)
    return failed + len(stray)


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that measures its callbacks, but for those of the scripts; `held` has those that took too long."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """Call it soon, and measure it."""
        return super().call_soon(self._measure, callback, arguments, context=context)

    def _measure(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        began = time.thread_time()
        try:
            callback(*arguments)
        finally:
            took = time.thread_time() - began
            if took > MOST_HELD and getattr(callback, "__func__", None) is not ScriptedNode._read:
                owner = getattr(callback, "__self__", None)  # of a step: its task, which names the coroutine
                self.held.append(f"{took:.3f} s in {callback!r} of {owner!r} {str(arguments)[:200]}")


def main() -> int:
    """See the module."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(256 << 10)
    bundle.load()
    if sys.argv[1] == "--one":
        wrong = asyncio.run(try_seed(int(sys.argv[2]), references(), show=True))
        print(*wrong, sep="\n")
        return len(wrong)
    gc.disable()  # it would be counted for whoever runs meanwhile
    loop, failed = MeasuredLoop(), 0
    first, count = map(int, sys.argv[1:])
    loop.run_until_complete(try_seed(first, references()))
    loop.held.clear()  # the first one loaded modules
    for start in range(first, first + count, AT_ONCE):
        failed += loop.run_until_complete(try_seeds(start, min(AT_ONCE, first + count - start)))
        gc.collect()
    print(*loop.held, sep="\n")
    return min(1, failed + len(loop.held))


if __name__ == "__main__":
    sys.exit(main())
