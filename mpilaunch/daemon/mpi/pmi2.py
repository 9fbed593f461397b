"""PMI-2 on the connection of one rank: the protocol of Slurm's and Cray's libpmi2, over the same world as PMI-1.

No I/O. A message is the length of the rest in six digits, and `cmd=NAME;key=value;...;` where a doubled semicolon stands for
one in a value. The protocol: MPICH's src/pmi/src/pmi2_*.c, Slurm's src/plugins/mpi/pmi2.
"""

from __future__ import annotations

from mpilaunch.daemon.mpi import pmi
from mpilaunch.daemon.mpi.key_values import MAX_KEY, MAX_VALUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PREFIX = 6
"""Digits of the length."""
LONGEST_MESSAGE = 256 << 10
LONGEST_THREAD = 64
"""Bytes of the name of the asking thread, which is kept until the reply."""


class Pmi2:
    """One rank's connection from `fullinit` on; arguments as for `Pmi1`."""

    def __init__(self, world: pmi.PmiWorld, rank: int, send: Callable[[bytes], None]) -> None:
        self._world = world
        self._rank = rank
        self._send = send
        self._unread = b""
        self._begun = False

    def receive(self, data: bytes) -> None:
        """Take bytes that the rank wrote; raises pmi.ProtocolError."""
        data, start = self._unread + data, 0
        while len(data) - start >= PREFIX:
            digits = data[start : start + PREFIX].strip()
            if not digits.isdigit() or int(digits) > LONGEST_MESSAGE:
                raise pmi.ProtocolError("%r is not the length of a message" % data[start : start + PREFIX].decode("latin-1"))
            end = start + PREFIX + int(digits)
            if len(data) < end:
                break
            message, start = data[start + PREFIX : end], end
            if b"\0" in message:
                raise pmi.ProtocolError("a NUL byte in a message")
            self._take(message.decode("latin-1"))
        self._unread = data[start:]

    def _take(self, message: str) -> None:
        words, apps = _words(message)
        command = words.get("cmd", "")
        if command not in _COMMANDS:
            raise pmi.ProtocolError("unknown command %r" % command[:80])
        if len(words.get("thrid", "")) > LONGEST_THREAD:
            raise pmi.ProtocolError("a thrid of more than %d bytes" % LONGEST_THREAD)
        state = self._world.states[self._rank]
        if self._begun == (command == "fullinit") or state != pmi.CONNECTED:
            raise pmi.ProtocolError("%s from a rank that is %s" % (command, state if self._begun else "not initialized"))
        self._begun = True
        try:
            if command == "spawn":
                self._spawn(words, apps)
            else:
                _COMMANDS[command](self, words)
        except (KeyError, ValueError) as error:
            raise pmi.ProtocolError("%s does not fit: %r" % (command, error)) from None

    def _reply(self, words: dict[str, str], command: str, **answer: object) -> None:
        """Reply to a message, with the name of the asking thread."""
        pairs = {"thrid": words["thrid"]} if "thrid" in words else {}
        pairs.update((name.replace("_", "-"), str(value)) for name, value in answer.items())
        text = "cmd=%s;" % command + "".join("%s=%s;" % (key, value.replace(";", ";;")) for key, value in pairs.items())
        self._send(b"%6d" % len(text) + text.encode("latin-1"))

    # Beginning and end

    def _fullinit(self, words: dict[str, str]) -> None:
        spawner = {"spawner_jobid": self._world.parent} if self._world.parent else {}
        ours = {"rank": self._rank, "size": self._world.size, "appnum": self._world.apps[self._rank]}
        flags = {"debugged": "FALSE", "pmiverbose": "FALSE"}
        self._reply(words, "fullinit-response", rc=0, pmi_version=2, pmi_subversion=0, **ours, **flags, **spawner)

    def _finalize(self, words: dict[str, str]) -> None:
        self._world.finalize(self._rank)
        self._reply(words, "finalize-response", rc=0)

    # Keys, barriers, attributes

    def _kvs_put(self, words: dict[str, str]) -> None:
        refusal = self._world.key_values.put(self._rank, words["key"], words.get("value", ""))
        self._reply(words, "kvs-put-response", rc=1 if refusal else 0, **({"errmsg": refusal} if refusal else {}))

    def _kvs_get(self, words: dict[str, str]) -> None:
        is_of_another_world = words.get("jobid") not in (None, "", self._world.name)
        self._reply_value(words, "kvs-get-response", None if is_of_another_world else self._world.key_values.get(words["key"]))

    def _kvs_fence(self, words: dict[str, str]) -> None:
        self._world.barrier(self._rank, pmi.WORLD, "", lambda: self._reply(words, "kvs-fence-response", rc=0))

    def _info_getjobattr(self, words: dict[str, str]) -> None:
        size = self._world.universe_size
        attributes = {**self._world.key_values.attributes, **({"universeSize": str(size)} if size else {})}
        self._reply_value(words, "info-getjobattr-response", attributes.get(words["key"]))

    def _info_putnodeattr(self, words: dict[str, str]) -> None:
        key, value = words["key"], words["value"]
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            self._reply(words, "info-putnodeattr-response", rc=1, errmsg="key_or_value_too_long")
        else:
            self._world.put_on_node(key, value)
            self._reply(words, "info-putnodeattr-response", rc=0)

    def _info_getnodeattr(self, words: dict[str, str]) -> None:
        def done(value: str | None) -> None:
            self._reply_value(words, "info-getnodeattr-response", value)

        self._world.get_on_node(self._rank, words["key"], words.get("wait") == "TRUE", done)

    def _reply_value(self, words: dict[str, str], command: str, value: str | None) -> None:
        self._reply(words, command, rc=0, **({"found": "FALSE"} if value is None else {"found": "TRUE", "value": value}))

    # Names and new worlds

    def _name_publish(self, words: dict[str, str]) -> None:
        self._world.publish(self._rank, words["name"], words["port"], self._replier(words, "name-publish-response"))

    def _name_unpublish(self, words: dict[str, str]) -> None:
        self._world.unpublish(self._rank, words["name"], self._replier(words, "name-unpublish-response"))

    def _name_lookup(self, words: dict[str, str]) -> None:
        reply = self._replier(words, "name-lookup-response")
        # MPICH reads `port`, Slurm's library `value`.
        self._world.lookup(self._rank, words["name"], lambda port: reply(port is not None, port=port, value=port))

    def _replier(self, words: dict[str, str], command: str) -> Callable[..., None]:
        return lambda done, **result: self._reply(words, command, rc=0 if done else 1, **(result if done else {}))

    def _spawn(self, words: dict[str, str], apps: list[dict[str, str]]) -> None:
        pairs = pmi.numbered_pairs(words, "preputcount", "ppkey%d", "ppval%d")

        def spawned(answer: dict[str, Any]) -> None:
            if answer["error"]:
                self._reply(words, "spawn-response", rc=1, errmsg="could_not_spawn")
            else:
                self._reply(words, "spawn-response", rc=0, jobid=answer["world"], nerrs=0)

        self._world.spawn(self._rank, [_app(app) for app in apps], pairs, spawned)


_COMMANDS: dict[str, Callable[[Pmi2, dict[str, str]], None]] = {
    "fullinit": Pmi2._fullinit,
    "finalize": Pmi2._finalize,
    "abort": lambda one, words: one._world.abort(one._rank, 1),  # PMI-2 has no exit code
    "job-getid": lambda one, words: one._reply(words, "job-getid-response", rc=0, jobid=one._world.name),
    "kvs-put": Pmi2._kvs_put,
    "kvs-get": Pmi2._kvs_get,
    "kvs-fence": Pmi2._kvs_fence,
    "info-getjobattr": Pmi2._info_getjobattr,
    "info-putnodeattr": Pmi2._info_putnodeattr,
    "info-getnodeattr": Pmi2._info_getnodeattr,
    "name-publish": Pmi2._name_publish,
    "name-unpublish": Pmi2._name_unpublish,
    "name-lookup": Pmi2._name_lookup,
    "spawn": lambda one, words: None,
}
"""The commands of a rank; `_take` handles `spawn`."""


def _words(message: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the pairs of a message, and separately those of each `subcmd` in it; raises pmi.ProtocolError."""
    words: dict[str, str] = {}
    apps: list[dict[str, str]] = []
    for text in message.replace(";;", "\0").split(";"):
        if not text:
            continue
        name, equals, value = text.replace("\0", ";").partition("=")
        if not equals:
            raise pmi.ProtocolError("%r is not key=value" % text[:80])
        if name == "subcmd":
            apps.append({})
        (apps[-1] if apps else words)[name] = value
    return words, apps


def _app(words: dict[str, str]) -> dict[str, Any]:
    """Return one program of a spawn, as `ask` has it (docs/wire.md); raises KeyError, ValueError."""
    arguments = [words["argv%d" % number] for number in range(pmi.small_number(words.get("argc", "0")))]
    info = pmi.numbered_pairs(words, "infokeycount", "infokey%d", "infoval%d")
    return pmi.app_of_spawn([words["subcmd"], *arguments], words["maxprocs"], info)
