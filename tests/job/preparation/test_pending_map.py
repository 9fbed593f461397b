"""Maps that are made when the nodes have told their topology."""

from __future__ import annotations

import pytest

from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.job.preparation.made_up import bound_on
from tests.support.command_line import job as made


def ranks_of(options: str, description: str) -> str:
    """Return the host of each rank on nodes of this kind."""
    job, _ = bound_on(description, made(f"{options} prog"))
    assert not job.pending
    return " ".join(job.allocation.nodes[place.node].name for place in job.job_map.placements)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("-H a:*,b", "a a a a b"),
        ("-H a:*,b --use-hwthread-cpus", "a a a a a a a a b"),
        ("-H a:*,b:* -np 3 --map-by node", "a b a"),
        ("-H a,b -N cpu", " ".join("a" * 8 + "b" * 8)),
        ("-H a,b -N auto -np 9", " ".join("a" * 8 + "b")),
        ("-H a,b -N gpu-or-one", "a b"),
        ("-H a:2,b:2 --map-by ppr:1:socket", "a a b b"),
    ],
)
def test_slots_are_what_the_nodes_have(options: str, names: str) -> None:
    assert ranks_of(options, "pack:2 core:2 pu:2") == names


def test_a_node_without_gpus_has_no_rank_for_each() -> None:
    with pytest.raises(LaunchError) as caught:
        ranks_of("-H a -N gpu", "core:2")
    assert caught.value.reference == "gpu-count"


def test_more_ranks_than_the_cores_do_not_fit() -> None:
    with pytest.raises(UsageError) as caught:
        ranks_of("-H a:* -np 5", "core:4 pu:2")
    assert caught.value.reference == "not-enough-slots" and "in 4 slots of 1 node" in caught.value.message
