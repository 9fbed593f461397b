"""Which ranks share a node, in the words of PMI (`PMI_process_mapping`).

Pure. The format is MPICH's: `(vector,(first node,nodes,ranks on each),...)`, blocks in rank order; MPICH, src/pmi/src/
pmi_util.c and Flux RFC 13 describe it.
"""

from __future__ import annotations

from mpilaunch.mapping import JobMap

LONGEST = 1023
"""Bytes of a PMI value that surely fit the libraries' buffers of 1024; a longer map is left out, and the ranks compare host
names."""


def process_mapping(job_map: JobMap) -> str:
    """Return the map, or "" when it is too long."""
    node_ranks = {node: place for place, node in enumerate(job_map.nodes)}
    runs: list[list[int]] = []
    for place in job_map.placements:
        node = node_ranks[place.node]
        if runs and runs[-1][0] == node:
            runs[-1][1] += 1
        else:
            runs.append([node, 1])
    blocks: list[list[int]] = []
    for node, count in runs:
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == count:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, count])
    text = "(vector," + ",".join(f"({first},{nodes},{count})" for first, nodes, count in blocks) + ")"
    return text if len(text) <= LONGEST else ""
