"""PMI-1 for the ranks of one node: the wire protocol by which MPICH, Intel MPI and their relatives exchange addresses.

No I/O: lines of a rank come in, answers to ranks and messages to the head go out through the functions that the caller gives.
Puts stay here until every living rank of the node is in the barrier; then one message goes to the head, and one comes back
with what all nodes put. So a barrier costs one message per node, and every get is answered here. A rank that has ended is not
waited for here: the head knows that it will never come, and ends the job. A rank that breaks the protocol is cut off; it
cannot harm the others or this process.

The protocol: MPICH's src/pmi/maint/pmi-1.1.txt, and Flux RFC 13.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs milliseconds at start; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_NAME, MAX_KEY, MAX_VALUE = 256, 64, 1024
"""Bytes that a name, a key and a value may have; told to every rank, and held."""
LONGEST_LINE = 4 * MAX_VALUE
MAX_PUTS = 256 << 10
"""Bytes of keys and values that one rank may put; MPICH puts some hundreds."""
MAPPING_KEY = "PMI_process_mapping"

ABSENT, CONNECTED, FINALIZED, ABORTED = "absent", "connected", "finalized", "aborted"
"""How far a rank came: it never spoke PMI, it did and has not finalized, it has finalized, it called MPI_Abort."""


class ProtocolError(Exception):
    """A rank broke the protocol; the text says how."""


class Pmi1Server:
    """The server of one node.

    Args:
        name: of the key-value space; the job's.
        size: ranks of the job.
        universe_size: slots of the allocation.
        ranks: the ranks of this node.
        mapping: which ranks share a node, as `PMI_process_mapping` says it; "" to let the ranks find out by host names.
        answer: sends bytes to a rank.
        fence: tells the head that every living rank of this node is in the barrier, how many they are, and what they put;
            `release` follows when they are all of the job with those of the other nodes.
        abort: is told the rank and the code of an MPI_Abort; the library waits to be killed.
    """

    def __init__(
        self,
        name: str,
        size: int,
        universe_size: int,
        ranks: list[int],
        mapping: str,
        answer: Callable[[int, bytes], None],
        fence: Callable[[int, dict[str, str]], None],
        abort: Callable[[int, int], None],
    ) -> None:
        self._name = name
        self._size = size
        self._universe_size = universe_size
        self._answer = answer
        self._fence = fence
        self._abort_rank = abort
        self._states = dict.fromkeys(ranks, ABSENT)
        self._unread = dict.fromkeys(ranks, b"")
        self._known = {MAPPING_KEY: mapping} if mapping else {}
        self._new: dict[str, str] = {}
        self._put_bytes = dict.fromkeys(ranks, 0)
        self._living = set(ranks)
        self._in_barrier: set[int] = set()
        self._fence_told = False

    def receive(self, rank: int, data: bytes) -> None:
        """Take bytes that a rank wrote; raises ProtocolError."""
        *lines, rest = (self._unread[rank] + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise ProtocolError("a line of more than %d bytes" % LONGEST_LINE)
        self._unread[rank] = rest
        for line in lines:
            self._take(rank, line.decode("latin-1"))  # a character for each byte, whatever the bytes are

    def ended(self, rank: int) -> str:
        """A rank has exited; return how far it came."""
        self._living.discard(rank)
        self._in_barrier.discard(rank)
        self._check_barrier()
        return self._states[rank]

    def release(self, pairs: dict[str, str]) -> None:
        """Every rank of the job is in the barrier: take what all have put, and let the ranks go on."""
        self._known.update(pairs)
        self._new = {}
        self._fence_told = False
        waiting, self._in_barrier = self._in_barrier, set()
        for rank in sorted(waiting):
            self._say(rank, "barrier_out", rc=0)

    # Commands

    def _take(self, rank: int, line: str) -> None:
        words = dict(_pair(word) for word in line.split(" ") if word)
        command = words.pop("cmd", words.pop("mcmd", ""))
        handler = _COMMANDS.get(command)
        if handler is None:
            raise ProtocolError("unknown command %r" % line[:80])
        if self._states[rank] != (ABSENT if command == "init" else CONNECTED):
            raise ProtocolError("%s from a rank that is %s" % (command, self._states[rank]))
        if rank in self._in_barrier and command != "abort":
            raise ProtocolError("%s from a rank that is in the barrier" % command)
        try:
            handler(self, rank, words)
        except KeyError as error:
            raise ProtocolError("%s without %s" % (command, error)) from None

    def _init(self, rank: int, words: dict[str, str]) -> None:
        self._states[rank] = CONNECTED
        self._say(rank, "response_to_init", rc=0, pmi_version=1, pmi_subversion=1)

    def _get_maxes(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "maxes", rc=0, kvsname_max=MAX_NAME, keylen_max=MAX_KEY, vallen_max=MAX_VALUE)

    def _get_appnum(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "appnum", rc=0, appnum=0)

    def _get_my_kvsname(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "my_kvsname", rc=0, kvsname=self._name)

    def _get_universe_size(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "universe_size", rc=0, size=self._universe_size)

    def _put(self, rank: int, words: dict[str, str]) -> None:
        key, value = words["key"], words["value"]
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            self._say(rank, "put_result", rc=-1, msg="key_or_value_too_long")
        elif self._put_bytes[rank] + len(key) + len(value) > MAX_PUTS:
            self._say(rank, "put_result", rc=-1, msg="too_much")
        else:
            self._put_bytes[rank] += len(key) + len(value)
            self._new[key] = value
            self._say(rank, "put_result", rc=0, msg="success")

    def _get(self, rank: int, words: dict[str, str]) -> None:
        key = words["key"]
        value = self._new.get(key, self._known.get(key))
        if value is None:
            self._say(rank, "get_result", rc=-1, msg="key_not_found", value="unknown")
        else:
            self._say(rank, "get_result", rc=0, msg="success", value=value)

    def _barrier_in(self, rank: int, words: dict[str, str]) -> None:
        self._in_barrier.add(rank)
        self._check_barrier()

    def _finalize(self, rank: int, words: dict[str, str]) -> None:
        self._states[rank] = FINALIZED
        self._say(rank, "finalize_ack", rc=0)

    def _abort(self, rank: int, words: dict[str, str]) -> None:
        self._states[rank] = ABORTED
        try:
            code = int(words["exitcode"]) & 255
        except (KeyError, ValueError):
            code = 1
        self._abort_rank(rank, code)

    def _publish_name(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "publish_result", rc=-1, msg="not_supported")

    def _unpublish_name(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "unpublish_result", rc=-1, msg="not_supported")

    def _lookup_name(self, rank: int, words: dict[str, str]) -> None:
        self._say(rank, "lookup_result", rc=-1, msg="not_supported")

    def _check_barrier(self) -> None:
        """Once all living ranks of the node are in the barrier: go on when they are the whole job, else tell the head."""
        if not self._in_barrier or self._in_barrier != self._living or self._fence_told:
            return
        if len(self._in_barrier) == self._size:
            self.release(self._new)
        else:
            self._fence_told = True
            self._fence(len(self._in_barrier), self._new)

    def _say(self, rank: int, command: str, **words: object) -> None:
        text = " ".join(["cmd=" + command] + ["%s=%s" % pair for pair in words.items()])
        self._answer(rank, text.encode("latin-1") + b"\n")


_COMMANDS = {
    "init": Pmi1Server._init,
    "get_maxes": Pmi1Server._get_maxes,
    "get_appnum": Pmi1Server._get_appnum,
    "get_my_kvsname": Pmi1Server._get_my_kvsname,
    "get_universe_size": Pmi1Server._get_universe_size,
    "put": Pmi1Server._put,
    "get": Pmi1Server._get,
    "barrier_in": Pmi1Server._barrier_in,
    "finalize": Pmi1Server._finalize,
    "abort": Pmi1Server._abort,
    "publish_name": Pmi1Server._publish_name,
    "unpublish_name": Pmi1Server._unpublish_name,
    "lookup_name": Pmi1Server._lookup_name,
}
"""What a rank may say. MPI_Comm_spawn's `mcmd=spawn` is not among it: a rank that asks for it is cut off with these words."""


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise ProtocolError("%r is not key=value" % word[:80])
    return name, value
