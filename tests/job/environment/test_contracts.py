"""The environment of a rank: golden values for a small job, profiles, what a node drops, and the page about it."""

from __future__ import annotations

import json
import re

import pytest

from mpilaunch.job.environment import contracts
from mpilaunch.job.environment.contract import Endpoint, JobFacts, NodePlace, RankPlace, cross_places
from mpilaunch.job.environment.contracts import FIXED, PROFILE_NAMES, SCRUBBED, is_listed
from mpilaunch.job.environment.contracts.openmpi import pmix_defaults
from mpilaunch.job.environment.forwarded import (
    FORWARDED_NAMES,
    FORWARDED_PREFIXES,
    NEVER_FORWARDED,
)
from mpilaunch.job.environment.network_variables import VARIABLES
from mpilaunch.placement.mapping import Placement
from tests.support.paths import DOCS

DOCS = DOCS / "environment.md"
NODE_OF = (0, 0, 1, 1)
PLACEMENTS = [Placement(rank=rank, node=NODE_OF[rank], local_rank=rank % 2, slot=rank % 2) for rank in range(4)]
JOB = JobFacts("3f0a", "3f0a", 4, 2, 6, "10.0.0.1", "31047", "31048", max_restarts=3)


def environment_of(rank: int, job: JobFacts = JOB) -> dict[str, str]:
    """What mpilaunch sets for a rank of two nodes with two ranks each."""
    node = NodePlace(NODE_OF[rank], 2, address="10.0.0.2", name="ab"[NODE_OF[rank]])
    return {
        **contracts.job_environment(job),
        **contracts.node_environment(job, node),
        **contracts.rank_environment(job, node, RankPlace(rank, rank % 2, *cross_places(PLACEMENTS)[rank])),
    }


def test_golden_environment_of_rank_3_of_two_nodes_with_two_ranks() -> None:
    assert environment_of(3) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "31047",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "3f0a",
        "MPILAUNCH_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
        "OMPI_UNIVERSE_SIZE": "6",
        "OMPI_MCA_orte_hnp_uri": "",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:31048",
        "NNODES": "2",
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "2",
        "MPILAUNCH_JOB_ID": "3f0a",
        "MPILAUNCH_SIZE": "4",
        "MPILAUNCH_RANK": "3",
        "MPILAUNCH_LOCAL_RANK": "1",
        "MPILAUNCH_NODE_RANK": "1",
        "PMI_FD": "60",
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "MPI_LOCALRANKID": "1",
        "MPI_LOCALNRANKS": "2",
    }


@pytest.mark.parametrize(
    ("rank", "places"), [(0, ("0", "0", "0")), (1, ("1", "1", "0")), (2, ("2", "0", "1")), (3, ("3", "1", "1"))]
)
def test_each_rank_has_its_own_place(rank: int, places: tuple[str, str, str]) -> None:
    environment = environment_of(rank)
    assert (environment["RANK"], environment["LOCAL_RANK"], environment["NODE_RANK"]) == places
    # Open MPI's NODE_RANK is the place on the node.
    assert environment["OMPI_COMM_WORLD_NODE_RANK"] == environment["LOCAL_RANK"]


def test_no_two_contracts_or_layers_set_the_same_name() -> None:
    node, rank = NodePlace(0, 2, crowded=True), RankPlace(0, 0, 0, 1)
    layers = [
        layer
        for contract in contracts.CONTRACTS
        for layer in (contract.job(JOB), contract.node(JOB, node), contract.rank(JOB, node, rank), contract.defaults(JOB, node))
    ]
    names = [name for layer in layers for name in layer]
    assert len(names) == len(set(names)) > 30


def test_an_ipv6_address_has_brackets() -> None:
    assert environment_of(0, JOB._replace(master_addr="fd00::1"))["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:31048"


def test_maxtext_finds_the_coordinator_where_a_node_is_a_process() -> None:
    maxtext = {"JAX_COORDINATOR_IP": "10.0.0.1", "JAX_COORDINATOR_PORT": "31048"}
    assert not maxtext.keys() & environment_of(0).keys()
    assert maxtext.items() <= environment_of(0, JOB._replace(size=2)).items()


def test_jax_uses_all_gpus_that_a_rank_has_for_itself() -> None:
    place, node = RankPlace(3, 1, 1, 2, gpus=2), NodePlace(1, 2)
    assert contracts.rank_environment(JOB, node, place)["JAX_LOCAL_DEVICE_IDS"] == "0,1"


ENDPOINTS = tuple(Endpoint(host, port) for host in "ab" for port in "12")
RENDEZVOUS = ("10.0.0.1:31057/3f0a...", "31057")


def with_profiles(rank: int, *profiles: str, job: JobFacts = JOB) -> dict[str, str]:
    """What profiles add for a rank."""
    plain = environment_of(rank, job)
    found = environment_of(rank, job._replace(profiles=profiles, endpoints=job.endpoints or ENDPOINTS, rendezvous=RENDEZVOUS))
    assert plain.items() <= found.items()
    return {name: value for name, value in found.items() if name not in plain}


def test_no_two_profiles_set_the_same_name_and_the_user_may_set_each() -> None:
    together = with_profiles(3, *PROFILE_NAMES)
    assert len(together) == sum(len(with_profiles(3, name)) for name in PROFILE_NAMES)
    assert not together.keys() & FIXED


def test_each_role_of_tensorflow_has_its_own_numbers() -> None:
    roles = ("ps", "worker", "chief", "worker", "evaluator")
    endpoints = tuple(Endpoint("h", str(port), role) for port, role in enumerate(roles))
    job = JOB._replace(size=5, profiles=("tf",), endpoints=endpoints)
    found = [contracts.rank_environment(job, NodePlace(0, 5), RankPlace(rank, rank, 0, 1))["TF_CONFIG"] for rank in range(5)]
    assert [tuple(json.loads(text)["task"].values()) for text in found] == [
        *(("ps", 0), ("worker", 0), ("chief", 0), ("worker", 1), ("evaluator", 0))
    ]
    assert json.loads(found[0])["cluster"] == {"ps": ["h:0"], "worker": ["h:1", "h:3"], "chief": ["h:2"]}


@pytest.mark.parametrize(("ranks", "bounds"), [(1, "1,1,1"), (4, "2,2,1"), (8, "4,2,1"), (3, None)])
def test_the_chips_of_one_machine(ranks: int, bounds: str | None) -> None:
    job = JOB._replace(size=ranks, node_count=1, profiles=("tpu",), endpoints=ENDPOINTS)
    found = contracts.rank_environment(job, NodePlace(0, ranks), RankPlace(0, 0, 0, 1))
    assert found.get("TPU_PROCESS_BOUNDS") == bounds


def test_the_documented_profiles_are_the_real_ones() -> None:
    real = {(profile, *pair) for profile in PROFILE_NAMES for pair in with_profiles(3, profile).items()}
    columns = [documented("Profiles", column) for column in range(3)]
    assert set(zip(*columns, strict=True)) == real


def test_the_documented_variables_of_the_network_are_the_real_ones() -> None:
    assert set(documented("The network")) == {*VARIABLES}


def test_without_mpi_nothing_leads_to_pmi() -> None:
    names = environment_of(0, JOB._replace(mpi="none"))
    assert environment_of(0).keys() - names.keys() == {"PMI_FD", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}


PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


@pytest.mark.parametrize(
    ("local_size", "defaults"),
    [(1, PYTHON), (2, {**PYTHON, "OMP_NUM_THREADS": "1"})],
)
def test_defaults(local_size: int, defaults: dict[str, str]) -> None:
    assert contracts.defaults(JOB._replace(mpi="none"), NodePlace(0, local_size)) == defaults
    assert contracts.defaults(JOB._replace(mpi="none", threads="none"), NodePlace(0, local_size)) == PYTHON
    twelve = {**PYTHON, "OMP_NUM_THREADS": "12"}
    assert contracts.defaults(JOB._replace(mpi="none", threads="12"), NodePlace(0, local_size)) == twelve


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JOB_ID", "SLURM_NTASKS", "PMI_RANK", "PMIX_NAMESPACE", "OMPI_MCA_ess", "PRTE_LAUNCHED", "MPI_LOCALRANKID"),
        *("HYDI_CONTROL_FD", "HYDRA_HOST_FILE", "TORCHELASTIC_RUN_ID", "PET_NNODES", "HOROVOD_RANK", "TF_CONFIG"),
        *("MPILAUNCH_RANK", "RANK", "LOCAL_RANK", "MASTER_ADDR", "I_MPI_PMI_LIBRARY"),
    ],
)
def test_variables_of_a_surrounding_job_are_scrubbed(name: str) -> None:
    assert is_listed(name, SCRUBBED)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "RANKS", "MY_RANK", "SLURM", "MPICH_X", "HOROVOD_CYCLE_TIME"]
)
def test_the_nodes_own_variables_stay(name: str) -> None:
    assert not is_listed(name, SCRUBBED)


def test_what_mpilaunch_sets_is_scrubbed_from_an_outer_mpilaunch() -> None:
    assert [name for name in environment_of(0) if not is_listed(name, SCRUBBED)] == []


def test_the_patterns_are_names_or_prefixes() -> None:
    patterns = SCRUBBED
    assert len(set(patterns)) == len(patterns)
    assert all(re.fullmatch(r"[A-Z0-9_]+\*?", pattern) for pattern in patterns)


def test_no_facts_of_the_job_map_may_be_set_but_the_choices_may() -> None:
    choices = {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "JAX_COORDINATOR_ADDRESS", "NNODES", "OMPI_MCA_orte_hnp_uri"}
    choices |= {f"TORCHELASTIC_{name}" for name in ("RUN_ID", "USE_AGENT_STORE", "RESTART_COUNT", "MAX_RESTARTS")}
    assert {name for name in environment_of(0) if name not in FIXED} == choices


def documented(heading: str, column: int = 0) -> list[str]:
    """The names in back-quotes in one column of the tables under a heading of docs/environment.md."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert section, heading
    rows = [line for line in section[1].splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1 + column])]


def test_the_documented_variables_and_example_values_are_the_real_ones() -> None:
    rows = {name: value for heading in ("The job", "The node", "The rank") for name, value in documented_values(heading)}
    rows = {name: value for name, value in rows.items() if name not in ("MPILAUNCH_CHECKPOINT_DIR", "MPILAUNCH_RESTART_DIR")}
    real = environment_of(3) | {"OMPI_UNIVERSE_SIZE": "4", "TORCHELASTIC_MAX_RESTARTS": "0", "PMI_SPAWNED": "1"}
    real |= {"PMI_PORT": "127.0.0.1:40000", "PMI_ID": "1804289383"}
    real |= {"TORCHELASTIC_RUN_ID": "3f0a...", "MPILAUNCH_JOB_ID": "3f0a..."}
    assert real.pop("OMPI_MCA_orte_hnp_uri") == ""  # the page names it below its table
    assert rows == real


def documented_values(heading: str) -> list[tuple[str, str]]:
    return list(zip(documented(heading), documented(heading, column=1), strict=True))


def test_the_documented_variables_are_marked_fixed_where_they_are() -> None:
    rows = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith("| `") and line.count("|") == 6]
    fixed = {line.split("`")[1] for line in rows if line.endswith("| fixed |")}
    assert fixed == FIXED


def test_the_documented_lists_are_the_real_ones() -> None:
    forwarded = documented("Forwarded")
    assert sorted(name for name in forwarded if name.endswith("_")) == sorted(FORWARDED_PREFIXES)
    assert sorted(name for name in forwarded if not name.endswith("_")) == sorted(FORWARDED_NAMES + NEVER_FORWARDED)
    assert sorted(documented("Scrubbed")) == sorted(SCRUBBED)
    defaults = contracts.defaults(JOB, NodePlace(0, 2, crowded=True, address="10.0.0.2")) | pmix_defaults("auto", True)
    assert dict(documented_values("Set where unset")) == defaults
