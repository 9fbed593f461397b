"""The environment of a rank before its launch, as `--show-env` prints it."""

from __future__ import annotations

import json
from typing import Any

from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment.templates import AT_LAUNCH
from mpilaunch.job.preparation.before_launch import environment_before_launch
from mpilaunch.job.preparation.messages import preparations
from mpilaunch.job.preparation.world_facts import world_facts
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.job.worlds import first_worlds
from mpilaunch.placement.mapping import MappingPolicy, map_ranks


def job(*slots: int, ranks: int, **members: Any) -> JobSpec:
    nodes = tuple(Node(index, f"n{index}", (Slot(),) * count, "ssh") for index, count in enumerate(slots))
    allocation = Allocation(nodes, "hosts.txt")
    return JobSpec("00c0ffee00c0ffee", (App(("prog",)),), allocation, map_ranks(allocation, MappingPolicy(ranks)), **members)


def test_the_environment_of_a_rank() -> None:
    variables = environment_before_launch(job(8, 4, 4, ranks=10), 9)
    assert list(variables) == sorted(variables)
    expected = {"RANK": "9", "WORLD_SIZE": "10", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    expected |= {"OMPI_UNIVERSE_SIZE": "16", "GROUP_WORLD_SIZE": "2", "CROSS_RANK": "1", "OMP_NUM_THREADS": "1"}
    expected |= dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "MPILAUNCH_JOB_ID", "TORCHELASTIC_RUN_ID"), AT_LAUNCH)
    assert expected.items() <= variables.items()


def test_the_user_sets_everything_but_the_facts_of_the_map() -> None:
    environment = {"MASTER_PORT": "1", "PYTHONUNBUFFERED": "", "RANK": "7"}
    variables = environment_before_launch(job(1, ranks=1, environment=environment), 0)
    assert {"MASTER_PORT": "1", "PYTHONUNBUFFERED": "", "RANK": "0"}.items() <= variables.items()
    variables = environment_before_launch(job(1, ranks=1, master_addr="m", master_port=9), 0)
    assert {"MASTER_PORT": "9", "MASTER_ADDR": "m"}.items() <= variables.items()
    assert "OMP_NUM_THREADS" not in variables


def test_a_profile_and_what_the_user_sets_instead() -> None:
    variables = environment_before_launch(job(2, 2, ranks=4, profiles=("tf", "lightning")), 3)
    assert variables["PL_TRAINER_DEVICES"] == "2"
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 3}
    own = {"TF_CONFIG": "mine", "PL_TRAINER_DEVICES": "1", "JAX_COORDINATOR_ADDRESS": "a:1", "OMPI_MCA_orte_hnp_uri": "u"}
    variables = environment_before_launch(job(2, 2, ranks=4, profiles=("tf", "lightning"), environment=own), 3)
    assert own.items() <= variables.items()


def test_every_rank_has_a_port_on_its_own_node() -> None:
    spec = job(2, 1, ranks=3, profiles=("tf",))
    (world,) = first_worlds(spec)
    facts = {
        index: NodeFacts(f"n{index}", "3.11.0", "/usr/bin/python3", (), (), (f"10.0.0.{index}",), None, 20000 * (index + 1))
        for index in range(2)
    }
    known = world_facts(spec, world, facts)
    assert (known.master_addr, known.master_port, known.second_port) == ("10.0.0.0", "20000", "20001")
    found = [
        json.loads(rank["environment"]["TF_CONFIG"])["cluster"]
        for _, message in preparations(spec, world, known, {})
        for rank in message["ranks"]
    ]
    assert found == [{"worker": ["10.0.0.0:20002", "10.0.0.0:20003", "10.0.0.1:40002"]}] * 3
