"""The environment of a rank before its launch, as `--show-env` prints it."""

from __future__ import annotations

import json

from mpilaunch.job.environment.templates import AT_LAUNCH
from mpilaunch.job.preparation.before_launch import environment_before_launch
from tests.support.jobs import job_of_slots


def test_the_environment_of_a_rank() -> None:
    variables = environment_before_launch(job_of_slots(8, 4, 4, ranks=10), 9)
    assert list(variables) == sorted(variables)
    expected = {"RANK": "9", "WORLD_SIZE": "10", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    expected |= {"OMPI_UNIVERSE_SIZE": "16", "GROUP_WORLD_SIZE": "2", "CROSS_RANK": "1", "OMP_NUM_THREADS": "1"}
    expected |= dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "MPILAUNCH_JOB_ID", "TORCHELASTIC_RUN_ID"), AT_LAUNCH)
    assert expected.items() <= variables.items()


def test_the_user_sets_everything_but_the_facts_of_the_map() -> None:
    environment = {"MASTER_PORT": "1", "PYTHONUNBUFFERED": "", "RANK": "7"}
    variables = environment_before_launch(job_of_slots(1, ranks=1, environment=environment), 0)
    assert {"MASTER_PORT": "1", "PYTHONUNBUFFERED": "", "RANK": "0"}.items() <= variables.items()
    variables = environment_before_launch(job_of_slots(1, ranks=1, master_addr="m", master_port=9), 0)
    assert {"MASTER_PORT": "9", "MASTER_ADDR": "m"}.items() <= variables.items()
    assert "OMP_NUM_THREADS" not in variables


def test_a_profile_and_what_the_user_sets_instead() -> None:
    variables = environment_before_launch(job_of_slots(2, 2, ranks=4, profiles=("tf", "lightning")), 3)
    assert variables["PL_TRAINER_DEVICES"] == "2"
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 3}
    own = {"TF_CONFIG": "mine", "PL_TRAINER_DEVICES": "1", "JAX_COORDINATOR_ADDRESS": "a:1", "OMPI_MCA_orte_hnp_uri": "u"}
    variables = environment_before_launch(job_of_slots(2, 2, ranks=4, profiles=("tf", "lightning"), environment=own), 3)
    assert own.items() <= variables.items()
