"""The pictures of docs/mapping.md are what happens on the nodes that it speaks of."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from mpilaunch.placement.rankfile import parse_rankfile
from tests.support.paths import DOCS
from tests.support.placement.topologies import bound

PAGE = (DOCS / "mapping.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\$ (mpilaunch .*)\n((?:node.*\n)+)", "".join(re.findall(r"```console\n(.*?)```", PAGE, re.S)), re.M)


def pictures(where: str) -> str:
    """Draw two sockets of four cores for each node of `node1=0@0-3,1@4-7`."""
    lines = []
    for node in where.split():
        name, _, ranks = node.partition("=")
        on_core: dict[int, list[str]] = defaultdict(list)
        for one in ranks.split(","):
            rank, _, cores = one.partition("@")
            for part in cores.split("+"):
                first, _, last = part.partition("-")
                for core in range(int(first), int(last or first) + 1):
                    on_core[core].append(rank)
        sockets = []
        for begin in (0, 4):
            cells = [" ".join(on_core[core]) or "." for core in range(begin, begin + 4)]
            shared = cells[0] != "." and len(set(cells)) == 1
            sockets.append(f"[{cells[0] if shared else '/'.join(cells)}]")
        lines.append(f"{name} {''.join(sockets)}\n")
    return "".join(lines)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_page_shows_where_the_ranks_go(command: str, shown: str) -> None:
    _, _, hosts, *options, program = command.split()
    assert program == "prog"
    assert pictures(bound(["A"], hosts, " ".join(options))) == shown


def test_the_page_has_examples_and_its_rankfile_is_one() -> None:
    assert len(EXAMPLES) > 10
    lines = "".join(re.findall(r"^ {4}(rank \d=.*\n)", PAGE, re.M))
    assert [line.host for line in parse_rankfile(lines, "ranks.txt")] == ["node01", "node01", "+n1", "node02"]
