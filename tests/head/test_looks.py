"""Looks at what the ranks of a job do: who is asked, and what comes of two that overlap."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mpilaunch.head.observe.looks import Looks
from mpilaunch.wire.frames import WireError


class Link:
    """A node with one rank, of the node's number."""

    def __init__(self, index: int) -> None:
        self.node, self.sent = SimpleNamespace(index=index), list[dict[str, Any]]()
        self.send = self.sent.append


def observed(link: Link, **more: object) -> dict[str, Any]:
    return {"ranks": [[link.node.index, 7, "S", 0.0, "", 1, 0.0, 0]], **more}


def looks_at(links: list[Link]) -> Any:
    daemons = SimpleNamespace(links=dict(enumerate(links)))
    ranks = SimpleNamespace(of_node=lambda index: [index], check_rank=lambda rank, index: None)
    state = SimpleNamespace(states=dict.fromkeys(range(len(links)), "running"), is_alive=lambda rank: True)
    return Looks(daemons, ranks, state, lambda rank: 1.0)  # type: ignore[arg-type]


def test_one_look_serves_all_who_ask() -> None:
    async def main() -> None:
        links = [Link(0), Link(1)]
        looks = looks_at(links)
        first = looks.begin()
        assert looks.begin() is first and [len(link.sent) for link in links] == [1, 1]
        for link in links:
            looks.take_observed(link, observed(link))
        seen = await first
        assert [one.rank for one in seen.observed] == [0, 1] and not seen.unknown and not seen.nccl
        with pytest.raises(WireError):
            looks.take_observed(links[0], observed(links[0]))
        looks.close()

    asyncio.run(main())


def test_nccl_is_asked_too_during_a_look_that_has_not_asked_it() -> None:
    async def main() -> None:
        links = [Link(0), Link(1)]
        looks = looks_at(links)
        first = looks.begin()
        looks.take_observed(links[0], observed(links[0]))
        assert looks.begin(ask_nccl=True) is first is looks.begin(ask_nccl=True)
        assert [message["nccl"] for message in links[1].sent] == [False, True] and len(links[0].sent) == 1
        looks.take_observed(links[1], observed(links[1]))
        assert not first.done()
        looks.take_observed(links[1], observed(links[1], nccl="its report"))
        assert (await first).nccl == "its report"
        looks.close()

    asyncio.run(main())


def test_a_node_that_does_not_tell_is_not_awaited_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("mpilaunch.head.observe.looks.LONGEST_LOOK", 0.05)
        links = [Link(0), Link(1)]
        looks = looks_at(links)
        seeing = looks.begin()
        looks.take_observed(links[1], observed(links[1]))
        seen = await seeing
        assert [one.rank for one in seen.observed] == [1] and seen.unknown == [0]
        looks.close()

    asyncio.run(main())
