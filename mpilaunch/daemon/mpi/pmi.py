"""One world on one node, for both PMI protocols: its barriers (the fences of MPI_Init), names and spawned worlds.

No I/O: the protocols (pmi1, pmi2) call the methods; requests to other nodes go to the head through functions of `wireup`.
Puts stay here until every living rank of the node is in a barrier; then one message goes to the head, and one comes back with
the puts of all nodes. So a barrier costs one message per node, and every get is answered here. Barriers do not wait for ended
ranks: the head knows that such a barrier cannot complete, and ends the job.
"""

from __future__ import annotations

from mpilaunch.daemon.mpi.key_values import MAX_NODE_ATTRIBUTES, KeyValues, NodeAttributes, fits_a_line
from mpilaunch.wire.environment import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answered = Callable[[dict[str, Any]], None]
    """Takes the head's answer."""
    Collective = Callable[[str, list[Any], int, Any, Answered], None]
    """(kind, members, waiting local ranks, data, done): join all members, pairs [world, rank or -1 for all]; the answer has the
    data of each node as `parts`, and a unique `number`."""
    Ask = Callable[[str, dict[str, Any], Answered], None]
    """(what, details, done): request a service of the head."""

MAX_NAME = 256
"""Longest name of a world in bytes; sent to every rank."""
MAX_PORT = 2048
"""Longest published name and port together, in bytes."""
MAX_COUNT = 1 << 20
"""Ranks, arguments or pairs that one MPI_Comm_spawn may name."""
MAX_PENDING = 64
"""Unanswered requests of one rank; it has one for each thread that is in a call."""
MAPPING_KEY = "PMI_process_mapping"
LONGEST_MAPPING = 1023
"""Longest mapping that fits the libraries' buffers of 1024 bytes. Without a mapping the ranks compare host names."""

ABSENT, CONNECTED, FINALIZED, ABORTED = "absent", "connected", "finalized", "aborted"
"""PMI states of a rank: never connected, connected and not finalized, finalized, called MPI_Abort."""

WORLD, NODE = "WORLD", "NODE"
"""Groups with names: all ranks of the world, and those on this node."""


class ProtocolError(Exception):
    """A rank broke the protocol; the text describes the fault."""


class _Barrier:
    """The ranks of this node in one barrier of a group."""

    def __init__(self) -> None:
        self.waiting: dict[int, Callable[[], None]] = {}
        self.sent = False


class PmiWorld:
    """One world on one node.

    Attributes:
        key_values: the pairs that its ranks put and get.

    Args:
        description: the `mpi` member of `prepare`.
        ranks: the app of each rank of the world on this node.
        abort: (rank, code): a rank called MPI_Abort; the library waits to be killed.
        connected: (rank): a rank has called MPI_Init.
    """

    def __init__(
        self,
        description: dict[str, Any],
        ranks: dict[int, int],
        collective: Collective,
        ask: Ask,
        abort: Callable[[int, int], None],
        connected: Callable[[int], None],
    ) -> None:
        self.description = description
        self.name: str = description["world"]
        self.size: int = description["size"]
        self.universe_size: int = description["pmi_universe_size"]
        self.apps = ranks
        self.states = dict.fromkeys(ranks, ABSENT)
        self._collective, self._ask, self._abort, self._connected = collective, ask, abort, connected
        mapping = mapping_text(description["blocks"])
        attributes = {MAPPING_KEY: mapping} if len(mapping) <= LONGEST_MAPPING else {}
        self.key_values = KeyValues(ranks, attributes, description["pairs"])
        self._node_attributes = NodeAttributes()
        self._pending = dict.fromkeys(ranks, 0)
        self._living = set(ranks)
        self._barriers: dict[tuple[str, str], list[_Barrier]] = {}

    @property
    def waiting(self) -> set[int]:
        """Its ranks on this node that wait in a barrier."""
        return {rank for barriers in self._barriers.values() for barrier in barriers for rank in barrier.waiting}

    @property
    def parent(self) -> str:
        """The world that has spawned this one, or ""."""
        return str(self.description["parent"])

    # The life of a rank

    def connect(self, rank: int) -> None:
        """Handle MPI_Init of a rank."""
        first, self.states[rank] = self.states[rank] == ABSENT, CONNECTED
        if first:
            self._connected(rank)

    def finalize(self, rank: int) -> None:
        self.states[rank] = FINALIZED

    def abort(self, rank: int, code: int) -> None:
        self.states[rank] = ABORTED
        self._abort(rank, code & 255)

    def end(self, rank: int) -> None:
        """Handle the exit of a rank: barriers here do not wait for it."""
        self._living.discard(rank)
        for key, barriers in list(self._barriers.items()):
            for barrier in barriers:
                barrier.waiting.pop(rank, None)
            self._check(key)

    def _pend(self, rank: int, done: Callable[..., None]) -> Callable[..., None]:
        """Count a request until the returned function answers it; raises ProtocolError when the rank has too many."""
        if self._pending[rank] >= MAX_PENDING:
            raise ProtocolError("more than %d requests that are not answered yet" % MAX_PENDING)
        self._pending[rank] += 1

        def answer(*values: Any) -> None:
            self._pending[rank] -= 1
            done(*values)

        return answer

    # Attributes of the node

    def put_on_node(self, key: str, value: str) -> None:
        """Keep an attribute of this node, and answer the ranks that wait for it."""
        if not self._node_attributes.put(key, value):
            raise ProtocolError("more than %d attributes of a node" % MAX_NODE_ATTRIBUTES)

    def get_on_node(self, rank: int, key: str, wait: bool, done: Callable[[str | None], None]) -> None:
        """Call `done` with an attribute of this node, at once (None if missing) or when it exists (`wait`)."""
        value = self._node_attributes.get(key)
        if value is None and wait:
            self._node_attributes.wait_for(key, self._pend(rank, done))
        else:
            done(value)

    # Barriers

    def barrier(self, rank: int, group: str, tag: str, done: Callable[[], None]) -> None:
        """Enter a rank into a barrier of its group: WORLD, NODE or numbers like "0,2,5"; raises ProtocolError.

        Barriers of one group with different tags are independent.
        """
        if group not in (WORLD, NODE):
            group = ",".join(map(str, sorted(self._numbers(group))))  # the order does not matter
        if rank not in self._members(group):
            raise ProtocolError("rank %d is not in the group %r of its barrier" % (rank, group[:80]))
        done = self._pend(rank, done)
        barriers = self._barriers.setdefault((group, tag), [])
        # A quick rank may enter the group's next barrier while the head's answer for this one is on its way.
        barrier = next((one for one in barriers if rank not in one.waiting), None)
        if barrier is None:
            barrier = _Barrier()
            barriers.append(barrier)
        barrier.waiting[rank] = done
        self._check((group, tag))

    def _members(self, group: str) -> set[int]:
        if group in (WORLD, NODE):
            return set(self.states)
        return self._numbers(group) & set(self.states)

    def _numbers(self, group: str) -> set[int]:
        try:
            numbers = {int(word) for word in group.split(",")}
        except ValueError:
            raise ProtocolError("%r is not a group" % group[:80]) from None
        if min(numbers) < 0 or max(numbers) >= self.size:
            raise ProtocolError("the group %r has ranks that this world of %d has not" % (group[:80], self.size))
        return numbers

    def _check(self, key: tuple[str, str]) -> None:
        """Once all living members on this node wait: release them if no others exist, else send the barrier to the head.

        A barrier of this node alone goes to the head too when one of its ranks has ended: the head ends the job, as for every
        barrier that cannot complete.
        """
        barriers, (group, tag) = self._barriers.get(key), key
        if not barriers:
            return
        barrier, members = barriers[0], self._members(group)
        if barrier.sent or not barrier.waiting or set(barrier.waiting) != members & self._living:
            return
        barrier.sent = True
        numbers = None if group == WORLD else members if group == NODE else self._numbers(group)
        if len(barrier.waiting) == (self.size if numbers is None else len(numbers)):
            self._release(key, [])
            return
        names = [[self.name, number] for number in ([-1] if numbers is None else sorted(numbers))]
        # After a barrier of a smaller group, the other nodes still need these pairs.
        pairs = {} if group == NODE else self.key_values.new(keep=group != WORLD)

        def done(answer: dict[str, Any]) -> None:
            self._release(key, answer["parts"])

        self._collective("pmi " + tag, names, len(barrier.waiting), pairs, done)

    def _release(self, key: tuple[str, str], parts: list[Any]) -> None:
        for pairs in parts:
            self.key_values.learn(pairs)
        barriers = self._barriers[key]
        barrier = barriers.pop(0)
        if not barriers:
            del self._barriers[key]
        for done in barrier.waiting.values():
            done()
        self._check(key)

    # Services of the head

    def publish(self, rank: int, name: str, port: str, done: Callable[[bool], None]) -> None:
        """Publish a port under a service name; done gets False if the name is taken."""
        self._ask_of_name(rank, "publish", {"values": {name: port}}, name + port, lambda answer: done(not answer["error"]))

    def unpublish(self, rank: int, name: str, done: Callable[[bool], None]) -> None:
        """Remove a published name; done gets False if there was none."""
        self._ask_of_name(rank, "unpublish", {"names": [name]}, name, lambda answer: done(not answer["error"]))

    def lookup(self, rank: int, name: str, done: Callable[[str | None], None]) -> None:
        """Look a name up; done gets None if there is none, or its port is invalid."""

        def answered(answer: dict[str, Any]) -> None:
            port = (answer.get("values") or {}).get(name)
            done(port if isinstance(port, str) and len(port) <= MAX_PORT and fits_a_line(port) else None)

        self._ask_of_name(rank, "lookup", {"names": [name], "wait": False}, name, answered)

    def _ask_of_name(self, rank: int, what: str, details: dict[str, Any], text: str, done: Callable[[Any], None]) -> None:
        if len(text) > MAX_PORT or not fits_a_line(text):
            raise ProtocolError("%s of a name and port of more than %d bytes, or with a newline" % (what, MAX_PORT))
        self._ask(what, {"space": "pmi", **details}, self._pend(rank, done))

    def spawn(self, rank: int, apps: list[dict[str, Any]], pairs: dict[str, str], done: Callable[[Any], None]) -> None:
        """Start a new world of these apps (`ask`, docs/wire.md), with `pairs` in its key-value space."""
        self._ask("spawn", {"world": self.name, "rank": rank, "apps": apps, "pairs": pairs}, self._pend(rank, done))


def mapping_text(blocks: list[list[int]]) -> str:
    """Return which ranks share a node as `(vector,(first node,nodes,ranks on each),...)`, in rank order.

    The format is MPICH's (src/pmi/src/pmi_util.c); Flux RFC 13 describes it.
    """
    return "(vector,%s)" % ",".join("(%d,%d,%d)" % tuple(block) for block in blocks)


def numbered_pairs(words: dict[str, str], count: str, key: str, value: str) -> dict[str, str]:
    """Return the numbered pairs of a message, by the patterns of their names; raises ValueError and KeyError."""
    return {words[key % number]: words[value % number] for number in range(small_number(words.get(count, "0")))}


def app_of_spawn(program: list[str], count: str, info: dict[str, str]) -> dict[str, Any]:
    """Return one program of a spawn, as `ask` has it (docs/wire.md); raises ValueError."""
    words = [_as_text(word) for word in program]
    info = {_as_text(key): _as_text(value) for key, value in info.items()}
    return {"program": words, "count": small_number(count), "environment": {}, "info": info}


def _as_text(word: str) -> str:
    """Return a word for the head: the connections of ranks have one character for each byte."""
    return decode(word.encode("latin-1"))


def small_number(text: str) -> int:
    """Return a count that a rank sent; raises ValueError, without parsing a long text."""
    number = int(text) if len(text) <= 20 else -1
    if not 0 <= number <= MAX_COUNT:
        raise ValueError("%r is not a number from 0 to %d" % (text[:20], MAX_COUNT))
    return number
