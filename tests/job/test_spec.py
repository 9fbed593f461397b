"""The specification of a job: what follows from its fields."""

from __future__ import annotations

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.job.spec import CheckpointPolicy, Deadlines, OutputPolicy, Part, RestartPolicy, settle_ranks
from tests.support.command_line import job


def test_a_part_of_a_job_counts_the_ranks_of_all_machines() -> None:
    spec = job("-H local:2")._replace(part=Part(node_rank=2, nodes=3))
    assert (spec.size, spec.first_node_rank, spec.first_rank) == (6, 2, 4)
    assert [place.rank for place in spec.global_map.placements] == [4, 5]
    whole = job("-H local:2")
    assert (whole.size, whole.first_rank) == (2, 0) and whole.global_map is whole.job_map


@pytest.mark.parametrize(("stdin", "ranks"), [("first", [4]), ("all", [4, 5]), ("5", [5]), ("none", [])])
def test_who_gets_stdin(stdin: str, ranks: list[int]) -> None:
    spec = job("-H local:2")._replace(part=Part(node_rank=2, nodes=3), stdin=stdin)
    assert [rank for rank in (4, 5) if spec.gets_stdin(rank)] == ranks


def test_all_attempts_share_the_run() -> None:
    assert job("")._replace(job_id="3f0a-2").run_id == "3f0a"


def test_checkpoints_are_named_by_variables() -> None:
    assert job("").checkpoint_environment == {}
    spec = job("")._replace(checkpoints=CheckpointPolicy("/sets", restart="/sets/000004"))
    assert spec.checkpoint_environment == {
        "MPILAUNCH_CHECKPOINT_DIR": spec.checkpoint_directory, "MPILAUNCH_RESTART_DIR": "/sets/000004"
    }  # fmt: skip


def test_too_many_ranks_and_a_rank_that_there_is_not() -> None:
    spec = job("-H local:2")
    with pytest.raises(UsageError, match="ranks asked for"):
        settle_ranks(spec._replace(part=Part(0, 1_000_000)))
    with pytest.raises(UsageError, match="there is no rank 2: the job has ranks 0 to 1"):
        settle_ranks(spec._replace(stdin="2"))


def test_one_rank_may_be_bare() -> None:
    single = job("-np 1")._replace(bare_if_single=True)
    assert settle_ranks(single).bare and settle_ranks(single).mpi == "none"
    assert not settle_ranks(single._replace(mpi="pmix")).bare


def test_where_output_goes() -> None:
    policy = OutputPolicy(stdout_file="out", stdout_ranks=frozenset({1}))
    assert policy.has_files and not OutputPolicy().has_files
    assert [policy.in_own_file("stdout", rank) for rank in (0, 1)] == [False, True]
    assert policy.in_own_file("stderr", 1) is None and OutputPolicy(stderr_file="e").in_own_file("stderr", 7) is True


def test_limits_follow_from_the_heartbeat() -> None:
    assert Deadlines(heartbeat=10.0).silence_limits() == {"silence": 40.0, "pulse": 15.0}
    notices = [Deadlines(mpi_init=seconds).mpi_init_notice for seconds in (0.0, 20.0, 600.0)]
    assert notices == [30.0, 10.0, 30.0]


def test_nodes_are_reserved_for_restarts() -> None:
    assert [policy.reserves_nodes for policy in (RestartPolicy(3), RestartPolicy(spares=1), RestartPolicy(max_nodes=4))] == [
        *(False, True, True)
    ]
