"""Requests of ranks for published names."""

from __future__ import annotations

from typing import Any

from mpilaunch.head.mpi.answers import answer
from mpilaunch.head.mpi.names import PublishedNames
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.tasks import Slices
from mpilaunch.wire.frames import WireError


class Publishing:
    """The names that the ranks of one job publish; its handlers raise WireError for a wrong message."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._names = PublishedNames()
        self._examining = Slices(self._names.examine_next)

    def publish(self, link: NodeLink, ask: dict[str, Any]) -> None:
        pmix = ask["space"] == "pmix"
        for value in ask["values"].values():
            if isinstance(value, list) != pmix:
                raise WireError("a published value is not that of its space")
            if pmix:
                self._ranks.own_rank(value[0], value[1], link.node.index)
        answer(link, ask, error=self._names.publish(link.node.index, ask["space"], ask["values"]))
        self._examining.run()

    def unpublish(self, link: NodeLink, ask: dict[str, Any]) -> None:
        answer(link, ask, error=self._names.unpublish(link.node.index, ask["space"], ask["names"]))

    def look_up(self, link: NodeLink, ask: dict[str, Any]) -> None:
        def reply(values: dict[str, Any], error: str) -> None:
            answer(link, ask, values=values, error=error)

        self._names.lookup(link.node.index, ask["space"], ask["names"], ask["wait"], reply)

    def node_lost(self, index: int) -> None:
        """Drop the waiting look-ups of a lost node."""
        self._names.forget(index)
