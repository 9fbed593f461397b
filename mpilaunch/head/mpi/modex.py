"""Data of a rank on another node, which PMIx asks for: the question goes to that rank's node, and its answer to the asker."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from mpilaunch.head.mpi.answers import MAX_REQUESTS, answer, check_base64
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.wire.frames import WireError


class _Question(NamedTuple):
    """A request that was passed on, and the node that is to answer it."""

    asker: NodeLink
    ask: dict[str, Any]
    owner: int


class Modex:
    """The questions of one job; its handlers raise WireError for a wrong message."""

    def __init__(self, daemons: Daemons, ranks: Ranks) -> None:
        self._daemons, self._ranks = daemons, ranks
        self._questions: dict[int, _Question] = {}
        self._last = 0

    def find(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """Pass a request for a rank's data on to the rank's node; for rank -1, to any node of the world."""
        owner = None
        with suppress(LookupError):  # the rank's number comes from the program
            rank = self._ranks.of_world(ask["world"])[max(0, ask["rank"])]
            owner = self._daemons.links[self._ranks.place(rank).node]
        if owner is None or owner.given_up or len(self._questions) >= MAX_REQUESTS:
            answer(link, ask, error="not-found")
            return
        self._last += 1
        self._questions[self._last] = _Question(link, ask, owner.node.index)
        owner.send({"type": "ask", "id": self._last, "request": "modex", "world": ask["world"], "rank": ask["rank"]})

    def take(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Pass a node's answer on to the node that asked."""
        number = message["id"]
        question = self._questions.get(number)
        if question is None:
            if not 0 < number <= self._last:
                raise WireError("an answer to a question that was not asked")
            return  # the node that asked is lost
        if question.owner != link.node.index:
            raise WireError("an answer to a question that another node was asked")
        data = message.get("data", "")
        check_base64(data)
        del self._questions[number]
        answer(question.asker, question.ask, error=message["error"][:LONGEST_NOTE], data=data)

    def node_lost(self, index: int) -> None:
        """Forget the questions of a lost node, and answer those that wait for it."""
        for number, question in list(self._questions.items()):
            if index in (question.asker.node.index, question.owner):
                del self._questions[number]
                answer(question.asker, question.ask, error="not-found")
