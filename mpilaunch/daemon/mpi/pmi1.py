"""PMI-1, the wire protocol of MPICH, Intel MPI and their relatives, on the connection of one rank.

No I/O: the caller passes in the rank's bytes, and replies go out through a function. A rank that breaks the protocol is cut off
without harm to other ranks or this process. `pmi2` takes over for a rank that announces PMI-2.

The protocol: MPICH's src/pmi/maint/pmi-1.1.txt and pmi-1.2.txt, and Flux RFC 13.
"""

from __future__ import annotations

from mpilaunch.daemon.mpi import pmi
from mpilaunch.daemon.mpi.key_values import MAX_KEY, MAX_VALUE
from mpilaunch.daemon.mpi.pmi2 import Pmi2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST_LINE = 4 * MAX_VALUE
MAX_SPAWN_LINES = 10_000
"""Lines of one MPI_Comm_spawn: three for each argument, pair and info key."""
MAX_SPAWN_BYTES = 1 << 20


class Pmi1:
    """One rank's connection; `rank` is its number in its world, `send` sends bytes to it."""

    def __init__(self, world: pmi.PmiWorld, rank: int, send: Callable[[bytes], None]) -> None:
        self._world = world
        self._rank = rank
        self._send = send
        self._unread = b""
        self._spawning: list[dict[str, str]] | None = None
        self._spawn_lines = self._spawn_bytes = 0
        self._in_barrier = False
        self._successor: Pmi2 | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes that the rank wrote; raises pmi.ProtocolError."""
        if self._successor is not None:
            self._successor.receive(data)
            return
        data, start = self._unread + data, 0
        while self._successor is None:
            end = data.find(b"\n", start)
            if (len(data) if end < 0 else end) - start > LONGEST_LINE:
                raise pmi.ProtocolError("a line of more than %d bytes" % LONGEST_LINE)
            if end < 0:
                self._unread = data[start:]
                return
            line, start = data[start:end], end + 1
            if b"\0" in line:
                raise pmi.ProtocolError("a NUL byte in a line")
            self._take(line.decode("latin-1"))  # one character for each byte
        self._unread = b""
        self._successor.receive(data[start:])

    def _take(self, line: str) -> None:
        if self._spawning is not None or line.startswith("mcmd="):
            self._take_spawn_line(line)
            return
        words = dict(_pair(word) for word in line.split(" ") if word)
        command = words.get("cmd", "")
        if command not in _COMMANDS:
            raise pmi.ProtocolError("unknown command %r" % line[:80])
        self._check_order(command)
        try:
            _COMMANDS[command](self, words)
        except KeyError as error:
            raise pmi.ProtocolError("%s without %s" % (command, error)) from None

    def _check_order(self, command: str) -> None:
        """Raise pmi.ProtocolError unless the command is allowed now: `init` first and once, only `abort` in a barrier."""
        state = self._world.states[self._rank]
        if state != (pmi.ABSENT if command == "init" else pmi.CONNECTED):
            raise pmi.ProtocolError("%s from a rank that is %s" % (command, state))
        if self._in_barrier and command != "abort":
            raise pmi.ProtocolError("%s from a rank that is in the barrier" % command)

    def _reply(self, command: str, **words: object) -> None:
        text = " ".join(["cmd=" + command] + ["%s=%s" % pair for pair in words.items()])
        self._send(text.encode("latin-1") + b"\n")

    # Beginning and end

    def _init(self, words: dict[str, str]) -> None:
        self._world.connect(self._rank)
        if words.get("pmi_version") == "2":
            self._reply("response_to_init", rc=0, pmi_version=2, pmi_subversion=0)
            self._successor = Pmi2(self._world, self._rank, self._send)
        else:
            # Version 1.2 is 1.1 with groups in barriers; a library uses the lower of its version and ours.
            self._reply("response_to_init", rc=0, pmi_version=1, pmi_subversion=2)

    def _finalize(self, words: dict[str, str]) -> None:
        self._world.finalize(self._rank)
        self._reply("finalize_ack", rc=0)

    def _abort(self, words: dict[str, str]) -> None:
        try:
            code = int(words["exitcode"])
        except (KeyError, ValueError):
            code = 1
        self._world.abort(self._rank, code)

    # Keys and barriers

    def _put(self, words: dict[str, str]) -> None:
        if self._is_of_another_world(words):
            refusal = "no_such_kvs"
        else:
            refusal = self._world.key_values.put(self._rank, words["key"], words["value"])
        self._reply("put_result", rc=-1 if refusal else 0, msg=refusal or "success")

    def _get(self, words: dict[str, str]) -> None:
        value = self._world.key_values.get(words["key"])
        if self._is_of_another_world(words):
            self._reply("get_result", rc=-1, msg="no_such_kvs", value="unknown")
        elif value is None:
            self._reply("get_result", rc=-1, msg="key_not_found", value="unknown")
        else:
            self._reply("get_result", rc=0, msg="success", value=value)

    def _is_of_another_world(self, words: dict[str, str]) -> bool:
        return words.get("kvsname", self._world.name) != self._world.name

    def _barrier_in(self, words: dict[str, str]) -> None:
        # The tag, returned in the reply, distinguishes the barriers of a rank's threads; without it a rank has one thread.
        group, colon, tag = words.get("group", pmi.WORLD).partition(":")
        self._in_barrier = self._in_barrier or not colon

        def out() -> None:
            self._in_barrier = self._in_barrier and bool(colon)
            self._reply("barrier_out", rc=0, **({"tag": tag} if colon else {}))

        self._world.barrier(self._rank, group, tag, out)

    # Names and new worlds

    def _publish_name(self, words: dict[str, str]) -> None:
        self._world.publish(self._rank, words["service"], words["port"], self._replier("publish_result", "name_is_taken"))

    def _unpublish_name(self, words: dict[str, str]) -> None:
        self._world.unpublish(self._rank, words["service"], self._replier("unpublish_result", "no_such_name"))

    def _lookup_name(self, words: dict[str, str]) -> None:
        reply = self._replier("lookup_result", "no_such_name")
        self._world.lookup(self._rank, words["service"], lambda port: reply(False) if port is None else reply(True, port=port))

    def _replier(self, command: str, failure: str) -> Callable[..., None]:
        return lambda done, **words: self._reply(command, rc=0 if done else 1, msg="success" if done else failure, **words)

    def _take_spawn_line(self, line: str) -> None:
        """Handle one line of `mcmd=spawn ... endcmd`; `totspawns` such blocks make one spawn."""
        name, _, value = line.partition("=")
        if name == "mcmd":
            self._check_order("spawn")
            if value != "spawn" or (self._spawning and "execname" not in self._spawning[-1]):
                raise pmi.ProtocolError("unknown command %r" % line[:80])
            self._spawning = [*(self._spawning or []), {}]
            return
        assert self._spawning is not None
        self._spawn_lines += 1
        self._spawn_bytes += len(line)
        if self._spawn_lines > MAX_SPAWN_LINES:
            raise pmi.ProtocolError("a spawn of more than %d lines" % MAX_SPAWN_LINES)
        if self._spawn_bytes > MAX_SPAWN_BYTES:
            raise pmi.ProtocolError("a spawn of more than %d bytes" % MAX_SPAWN_BYTES)
        if name != "endcmd":
            self._spawning[-1][name] = value
            return
        try:
            if len(self._spawning) < pmi.small_number(self._spawning[0]["totspawns"]):
                return
            apps = [_app(words) for words in self._spawning]
            pairs = pmi.numbered_pairs(self._spawning[0], "preput_num", "preput_key_%d", "preput_val_%d")
        except (KeyError, ValueError) as error:
            raise pmi.ProtocolError("a spawn that does not fit: %r" % error) from None
        self._spawning, self._spawn_lines, self._spawn_bytes = None, 0, 0
        asked = [app["count"] for app in apps]
        self._world.spawn(self._rank, apps, pairs, lambda answer: self._spawned(asked, answer))

    def _spawned(self, asked: list[int], answer: dict[str, Any]) -> None:
        if answer["error"]:
            self._reply("spawn_result", rc=-1, msg="could_not_spawn", errcodes="1")
        else:
            # The info key `soft` permits fewer ranks than asked: an error code stands for each missing one.
            codes = ["0" if rank < count else "1" for most, count in zip(asked, answer["counts"]) for rank in range(most)]
            self._reply("spawn_result", rc=0, msg="success", errcodes=",".join(codes))


_MAXES = {"kvsname_max": pmi.MAX_NAME, "keylen_max": MAX_KEY, "vallen_max": MAX_VALUE}
_COMMANDS: dict[str, Callable[[Pmi1, dict[str, str]], None]] = {
    "init": Pmi1._init,
    "get_maxes": lambda one, words: one._reply("maxes", rc=0, **_MAXES),
    "get_appnum": lambda one, words: one._reply("appnum", rc=0, appnum=one._world.apps[one._rank]),
    "get_my_kvsname": lambda one, words: one._reply("my_kvsname", rc=0, kvsname=one._world.name),
    "get_universe_size": lambda one, words: one._reply("universe_size", rc=0, size=one._world.universe_size or -1),
    "put": Pmi1._put,
    "get": Pmi1._get,
    "barrier_in": Pmi1._barrier_in,
    "finalize": Pmi1._finalize,
    "abort": Pmi1._abort,
    "publish_name": Pmi1._publish_name,
    "unpublish_name": Pmi1._unpublish_name,
    "lookup_name": Pmi1._lookup_name,
}
"""The commands of a rank, besides `mcmd=spawn` with its lines."""


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise pmi.ProtocolError("%r is not key=value" % word[:80])
    return name, value


def _app(words: dict[str, str]) -> dict[str, Any]:
    """Return one program of a spawn, as `ask` has it (docs/wire.md); raises KeyError, ValueError."""
    arguments = [words["arg%d" % number] for number in range(1, pmi.small_number(words["argcnt"]) + 1)]
    info = pmi.numbered_pairs(words, "info_num", "info_key_%d", "info_val_%d")
    return pmi.app_of_spawn([words["execname"], *arguments], words["nprocs"], info)
