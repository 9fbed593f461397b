"""What the ranks of this node ask of the head: each `collective` and `ask` waits for its answer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import Answered


class HeadRequests:
    """The requests of one node that the head has not answered; `send` sends a message to it."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._collectives: dict[str, list[tuple[list[Any], Answered]]] = {}
        self._asked: dict[int, Answered] = {}
        self._last = 0

    def collective(self, kind: str, members: list[Any], ranks: int, data: Any, done: Answered) -> None:
        """Enter ranks of this node into a collective (`pmi.Collective`)."""
        message = {"type": "collective", "kind": kind, "members": members, "ranks": ranks, "data": data}
        self._collectives.setdefault(_key(message), []).append((members, done))
        self._send(message)

    def joined(self) -> list[Any]:
        """Return the members of the collectives that wait for other nodes: pairs of a world's name and a rank, -1 for all."""
        return [member for waiting in self._collectives.values() for members, _ in waiting for member in members]

    def ask(self, what: str, details: dict[str, Any], done: Answered) -> None:
        """Ask for a service of the head (`pmi.Ask`)."""
        self._last += 1
        self._asked[self._last] = done
        self._send({"type": "ask", "id": self._last, "request": what, **details})

    def take_answer(self, message: dict[str, Any]) -> None:
        self._asked.pop(message["id"])(message)

    def take_collective(self, message: dict[str, Any]) -> None:
        """Take the answer to a collective; those of one kind and group are answered in order."""
        key = _key(message)
        waiting = self._collectives[key]
        _, done = waiting.pop(0)
        if not waiting:
            del self._collectives[key]  # each barrier may have a new tag and group
        done(message)


def _key(message: dict[str, Any]) -> str:
    return repr([message["kind"], [list(member) for member in message["members"]]])
