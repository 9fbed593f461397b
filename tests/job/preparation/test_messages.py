"""The messages that prepare a world: what all ranks share travels once."""

from __future__ import annotations

from mpilaunch.job.environment.templates import check_templates
from mpilaunch.job.preparation.messages import common_preparation, preparations
from mpilaunch.job.preparation.world_facts import WorldFacts
from mpilaunch.job.worlds import first_worlds, spawned_world
from mpilaunch.placement.gpu_binding import RankBinding
from tests.support.command_line import job_of


def test_only_what_differs_between_ranks_is_sent_for_each() -> None:
    """The arguments travel once for all nodes; a rank gets the five fields in which it differs."""
    served = "--role w --after s:80 -np 1 ./y {s.master_addr}:{rank} {{{world_size}"
    spec = job_of(f"--template -H a,b --role s -np 1 ./x : {served}")
    world = first_worlds(spec)[1]
    known = WorldFacts("m", "1", "2", roles={"s.master_addr": "10.0.0.1", "s.master_port": "80"})
    shared = common_preparation(spec, world, known, 1)
    assert shared["apps"][0]["program"] == ["./y", "10.0.0.1:{rank:}", "{{1"]
    ((_, message),) = preparations(spec, world, known, {})
    assert message["ranks"][0]["fields"] == {"rank": 0, "local_rank": 0, "node_rank": 0, "host": "b", "user": ""}
    (_, plain) = next(preparations(job_of("-H a ./x"), first_worlds(job_of("-H a ./x"))[0], WorldFacts("m", "1", "2"), {}))
    assert plain["ranks"][0]["fields"] is None


def test_a_world_that_mpi_spawns_is_no_template() -> None:
    spec = job_of("--template -H a:2 -x A={rank} -np 1 ./x {rank}")
    child = {"program": ["c", "{rank}"], "count": 1, "environment": {}, "info": {}}
    ask = {"world": spec.job_id, "rank": 0, "apps": [child], "pairs": {}}
    world = spawned_world(spec, first_worlds(spec), ask, ())
    assert common_preparation(spec, world, WorldFacts("m", "1", "2"), 1)["apps"][0]["program"] == ["c", "{rank}"]
    check_templates(world.apps)


def test_the_ports_of_a_rank_are_in_variables_that_the_user_may_set() -> None:
    spec = job_of("-H a -np 1 -x NCCL_IB_HCA=mlx5_7 ./x")
    binding = {0: RankBinding(nics=("mlx5_0:1",))}
    ((_, message),) = preparations(spec, first_worlds(spec)[0], WorldFacts("m", "1", "2"), binding)
    variables = message["ranks"][0]["environment"]
    assert variables["UCX_NET_DEVICES"] == "mlx5_0:1" and "NCCL_IB_HCA" not in variables
