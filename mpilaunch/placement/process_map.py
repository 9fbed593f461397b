"""The process map: the node of each rank, as blocks of (first node, number of nodes, ranks on each).

Pure. Blocks are in rank order, as in PMI's `PMI_process_mapping`. Nodes are indices into `JobMap.nodes`.
"""

from __future__ import annotations

import re
from itertools import groupby

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import MAX_SLOTS
from mpilaunch.placement.mapping import JobMap


def process_blocks(job_map: JobMap) -> list[list[int]]:
    """Return the blocks of a job map: [[0, 2, 8]] for two nodes with eight ranks each."""
    node_ranks = {node: index for index, node in enumerate(job_map.nodes)}
    blocks: list[list[int]] = []
    for node, run in groupby(node_ranks[place.node] for place in job_map.placements):
        count = sum(1 for _ in run)
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == count:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, count])
    return blocks


_ITEM = re.compile(r"([0-9]{1,7})|\(([0-9]{1,7}),([0-9]{1,7}),([0-9]{1,7})\)", re.ASCII)
_HINT = "write a node for each rank, counted from 0, like 0,0,1,1, or blocks (first node,nodes,ranks on each) like (0,2,2)"


def read_rankmap(text: str, nodes: int) -> tuple[int, ...]:
    """Return the node of each rank of a map like `0,0,1,1` or `(0,2,2),3`; raises UsageError."""
    inner = text.replace(" ", "")
    if inner.startswith("(vector,"):
        inner = inner[len("(vector,") :].removesuffix(")")
    ranks: list[int] = []
    offset = 0
    while match := _ITEM.match(inner, offset):
        first, count, each = (int(match[1]), 1, 1) if match[1] else (int(match[2]), int(match[3]), int(match[4]))
        if first + count > nodes:
            raise UsageError("rankmap", f"--rankmap: there is no node {first + count - 1}: the last is {nodes - 1}", hint=_HINT)
        if len(ranks) + count * each > MAX_SLOTS:
            raise UsageError("rankmap", f"--rankmap: more than the {MAX_SLOTS:,} ranks of a job", hint=_HINT)
        ranks += [node for node in range(first, first + count) for _ in range(each)]
        offset = match.end() + 1
        if match.end() == len(inner) and ranks:
            return tuple(ranks)
        if inner[match.end() : offset] != ",":
            break
    raise UsageError("rankmap", f"--rankmap: '{text}' is not a map of ranks to nodes", hint=_HINT)
