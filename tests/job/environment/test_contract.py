"""Where a rank stands among those of other nodes."""

from __future__ import annotations

from mpilaunch.job.environment.contract import cross_places
from mpilaunch.placement.mapping import Placement


def test_cross_places_count_only_the_nodes_that_have_the_local_rank() -> None:
    # Nodes with 1, 3 and 2 ranks, ranks dealt round the nodes.
    layout = [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]
    placements = [Placement(rank, node, local_rank, local_rank) for rank, (node, local_rank) in enumerate(layout)]
    assert cross_places(placements) == [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1)]
