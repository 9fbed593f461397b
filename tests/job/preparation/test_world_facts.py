"""What all ranks of a world are told: where rank 0 is, and the ports."""

from __future__ import annotations

import json

from mpilaunch.job.preparation.messages import preparations
from mpilaunch.job.preparation.world_facts import world_facts
from mpilaunch.job.worlds import first_worlds
from tests.support.facts import node_facts
from tests.support.jobs import job_of_slots


def test_every_rank_has_a_port_on_its_own_node() -> None:
    spec = job_of_slots(2, 1, ranks=3, profiles=("tf",))
    (world,) = first_worlds(spec)
    facts = {
        index: node_facts(f"n{index}", f"10.0.0.{index}/24", free_port=20000 * (index + 1)) for index in range(2)
    }
    known = world_facts(spec, world, facts)
    assert (known.master_addr, known.master_port, known.second_port) == ("10.0.0.0", "20000", "20001")
    found = [
        json.loads(rank["environment"]["TF_CONFIG"])["cluster"]
        for _, message in preparations(spec, world, known, {})
        for rank in message["ranks"]
    ]
    assert found == [{"worker": ["10.0.0.0:20002", "10.0.0.0:20003", "10.0.0.1:40002"]}] * 3
