"""The environment of a rank: golden values for a small job, what is forwarded, what is dropped, and where rank 0 is."""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment import contracts
from mpilaunch.job.environment.contract import Endpoint, JobFacts, NodePlace, RankPlace, cross_places
from mpilaunch.job.environment.contracts import FIXED, PROFILES, SCRUBBED, is_listed
from mpilaunch.job.environment.contracts.openmpi import pmix_defaults
from mpilaunch.job.environment.forwarded import (
    FORWARDED_NAMES,
    FORWARDED_PREFIXES,
    LONGEST_STRING,
    NEVER_FORWARDED,
    forwarded_environment,
)
from mpilaunch.job.environment.master_address import choose_master_address
from mpilaunch.placement.mapping import Placement
from tests.support.paths import DOCS

DOCS = DOCS / "environment.md"

NODE_OF = (0, 0, 1, 1)
PLACEMENTS = [Placement(rank=rank, node=NODE_OF[rank], local_rank=rank % 2, slot=rank % 2) for rank in range(4)]


JOB = JobFacts("3f0a", "3f0a", 4, 2, 6, "10.0.0.1", "31047", "31048", max_restarts=3)


def environment_of(rank: int, job: JobFacts = JOB) -> dict[str, str]:
    """What mpilaunch sets for a rank of two nodes with two ranks each."""
    node = NodePlace(NODE_OF[rank], 2)
    return {
        **contracts.job_environment(job),
        **contracts.node_environment(job, node),
        **contracts.rank_environment(job, node, RankPlace(rank, rank % 2, *cross_places(PLACEMENTS)[rank])),
    }


# What mpilaunch sets


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


# Profiles

ENDPOINTS = tuple(Endpoint(host, port) for host in "ab" for port in "12")
RENDEZVOUS = ("10.0.0.1:31057/3f0a...", "31057")


def with_profiles(rank: int, *profiles: str, job: JobFacts = JOB) -> dict[str, str]:
    """What profiles add for a rank."""
    plain = environment_of(rank, job)
    found = environment_of(rank, job._replace(profiles=profiles, endpoints=job.endpoints or ENDPOINTS, rendezvous=RENDEZVOUS))
    assert plain.items() <= found.items()
    return {name: value for name, value in found.items() if name not in plain}


def test_no_two_profiles_set_the_same_name_and_the_user_may_set_each() -> None:
    together = with_profiles(3, *PROFILES)
    assert len(together) == sum(len(with_profiles(3, name)) for name in PROFILES)
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
    real = {(profile, *pair) for profile in PROFILES for pair in with_profiles(3, profile).items()}
    columns = [documented("Profiles", column) for column in range(3)]
    assert set(zip(*columns, strict=True)) == real


def test_without_mpi_nothing_leads_to_pmi() -> None:
    names = environment_of(0, JOB._replace(mpi="none"))
    assert environment_of(0).keys() - names.keys() == {"PMI_FD", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}


def test_cross_places_count_only_the_nodes_that_have_the_local_rank() -> None:
    # Nodes with 1, 3 and 2 ranks, ranks dealt round the nodes.
    layout = [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]
    placements = [Placement(rank, node, local_rank, local_rank) for rank, (node, local_rank) in enumerate(layout)]
    assert cross_places(placements) == [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1)]


@pytest.mark.parametrize(
    ("local_size", "defaults"),
    [(1, {"PYTHONUNBUFFERED": "1"}), (2, {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"})],
)
def test_defaults(local_size: int, defaults: dict[str, str]) -> None:
    assert contracts.defaults(JOB._replace(mpi="none"), NodePlace(0, local_size)) == defaults
    python = {"PYTHONUNBUFFERED": "1"}
    assert contracts.defaults(JOB._replace(mpi="none", threads="none"), NodePlace(0, local_size)) == python
    twelve = {**python, "OMP_NUM_THREADS": "12"}
    assert contracts.defaults(JOB._replace(mpi="none", threads="12"), NodePlace(0, local_size)) == twelve


# What a node drops


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


# What the head forwards


def refused(exports: list[str], environ: dict[str, str] | None = None, file: str | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        forwarded_environment(environ or {}, exports, [("job.env", file)] if file is not None else [])
    assert caught.value.exit_code == 2
    return caught.value


def test_a_value_after_a_space_is_not_shown() -> None:
    assert refused(["A secret"]).message == "-x 'A ...': 'A ...' is not a variable's name"


def test_default_prefixes_without_masks_and_without_a_surrounding_job() -> None:
    head = {
        "NCCL_DEBUG": "INFO",
        "CUDA_LAUNCH_BLOCKING": "1",
        "HOROVOD_CYCLE_TIME": "5",
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_HOSTID": "head",
        "TF_VAR_password": "terraform's",
        "HOROVOD_RANK": "3",
        "TF_CONFIG": "{}",
        "SLURM_JOB_ID": "9",
        "RANK": "7",
        "PATH": "/bin",
        "NEURON_RT_VISIBLE_CORES": "0-3",
        "VLLM_HOST_IP": "10.0.0.1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONFAULTHANDLERS": "1",
        "I_MPI_DEBUG": "5",
        "BASH_FUNC_NCCL_x%%": "() { :; }",
        "NCCL_x%%": "a name that no shell can have made",
    }
    usual = {"NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1", "HOROVOD_CYCLE_TIME": "5", "I_MPI_DEBUG": "5"}
    assert forwarded_environment(head, []) == {**usual, "PYTHONFAULTHANDLER": "1"}
    assert forwarded_environment(head, [], forward="none") == {}


def test_what_belongs_to_one_machine_is_kept_back_from_prefixes_and_patterns_and_passes_by_name() -> None:
    for pattern in NEVER_FORWARDED:
        name = pattern.replace("*", "x")
        assert forwarded_environment({name: "0"}, []) == {}
        prefix = name.split("_")[0] + "_"
        assert forwarded_environment({name: "0", prefix + "OTHER": "1"}, [prefix + "*"]) == {prefix + "OTHER": "1"}
        assert forwarded_environment({name: "0"}, [name]) == {name: "0"}


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("A=b", {"A": "b"}),
        ("A=", {"A": ""}),
        ("A=b=c", {"A": "b=c"}),
        ("A=1,B=2", {"A": "1,B=2"}),
        ('A="a b"', {"A": '"a b"'}),
        ("A=*", {"A": "*"}),
        ("A=line\nline", {"A": "line\nline"}),
        ("MINE", {"MINE": "m"}),
        ("spark.ui.port=1", {"spark.ui.port": "1"}),
        ("SLURM_JOB_ID", {"SLURM_JOB_ID": "42"}),
        ("SLURM_*", {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "2"}),
        ("OMPI_*", {"OMPI_MCA_btl": "tcp"}),
        ("MASTER_ADDR=node01", {"MASTER_ADDR": "node01"}),
        ("OMPI_MCA_btl=self", {"OMPI_MCA_btl": "self"}),
    ],
)
def test_exports(export: str, expected: dict[str, str]) -> None:
    head = {"MINE": "m", "SLURM_JOB_ID": "42", "SLURM_NTASKS": "2", "OMPI_MCA_btl": "tcp", "OMPI_COMM_WORLD_RANK": "5"}
    assert forwarded_environment(head, [export], forward="none") == expected


def test_the_later_value_wins_and_exports_come_after_files_and_prefixes() -> None:
    head = {"NCCL_DEBUG": "prefix", "NCCL_A": "prefix", "NCCL_B": "prefix"}
    files = [("1.env", "NCCL_A=first\nNCCL_B=first"), ("2.env", "NCCL_B=second")]
    result = forwarded_environment(head, ["NCCL_DEBUG=early", "NCCL_DEBUG=late"], files)
    assert result == {"NCCL_DEBUG": "late", "NCCL_A": "first", "NCCL_B": "second"}


def test_an_unset_name_is_an_error_with_the_near_ones() -> None:
    error = refused(["NCCL_DEBGU"], {"NCCL_DEBUG": "INFO", "PATH": "/bin"})
    assert (error.reference, error.message) == ("export-unset", "-x 'NCCL_DEBGU': this variable is not set")
    assert error.hint == "did you mean 'NCCL_DEBUG', or give it a value: -x NCCL_DEBGU=VALUE"
    assert refused(["QQQ"], {"PATH": "/bin"}).hint == "give it a value: -x QQQ=VALUE"


def test_a_search_path_may_be_unset_but_not_misspelt() -> None:
    assert forwarded_environment({}, ["LD_LIBRARY_PATH", "PYTHONPATH"]) == {}
    error = refused(["LD_LIBARY_PATH"], {"LD_LIBRARY_PATH": "/opt/lib"})
    assert error.reference == "export-unset" and "LD_LIBRARY_PATH" in (error.hint or "")


@pytest.mark.parametrize("head", [{}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_a_pattern_that_matches_nothing_is_an_error(head: dict[str, str]) -> None:
    error = refused(["CUDA_*"], head)
    assert error.reference == "export-unset"
    assert "'CUDA_*'" in error.message


@pytest.mark.parametrize("export", ["", "=v", "1A=v", "-np", "A B=v", "A*B", "NÉ=v", "*", "A**", "A\n=v"])
def test_a_wrong_name_is_an_error(export: str) -> None:
    assert refused([export], {"A_": "1"}).reference == "export-name"


@pytest.mark.parametrize("name", sorted(FIXED))
def test_a_fact_of_the_job_map_cannot_be_set(name: str) -> None:
    assert refused([f"{name}=1"]).reference == "export-reserved"
    assert refused([name], {name: "1"}).reference == "export-reserved"
    error = refused([], file=f"A=b\n  {name}=1")
    assert error.reference == "export-reserved"
    assert error.message.startswith("job.env:2:3: ")


def test_the_longest_variable_passes_and_one_byte_more_does_not() -> None:
    longest = "é" * ((LONGEST_STRING - 3) // 2)
    assert len(f"AB={longest}".encode()) == LONGEST_STRING
    assert forwarded_environment({}, [f"AB={longest}"]) == {"AB": longest}
    error = refused([f"ABC={longest}"])
    assert error.message == "'ABC' has 131,072 bytes with its name, and Linux hands a program at most 131,071 in one"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_the_longest_variable_is_what_this_kernel_takes() -> None:
    if os.sysconf("SC_PAGE_SIZE") != 4096:
        pytest.skip("the limit is counted in pages of 4 KiB")
    subprocess.run(["true"], env={"PATH": os.environ["PATH"], "A": "x" * (LONGEST_STRING - 2)}, check=True)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["true"], env={"PATH": os.environ["PATH"], "A": "x" * (LONGEST_STRING - 1)}, check=True)


@pytest.mark.parametrize("value", ["secret\0", "secret\ud800"])
def test_a_value_that_no_program_can_get_is_an_error_that_does_not_show_it(value: str) -> None:
    error = refused([f"TOKEN={value}"])
    assert error.reference == "export-value"
    assert "'TOKEN'" in error.message
    assert "secret" not in error.message


names = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=20).map(lambda text: "V" + text)
values = st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


@given(st.dictionaries(names, values))
def test_values_survive_as_they_are(variables: dict[str, str]) -> None:
    exports = [f"{name}={value}" for name, value in variables.items()]
    assert forwarded_environment({}, exports) == variables
    assert forwarded_environment(variables, list(variables)) == variables


@given(st.dictionaries(names, values))
def test_env_files_give_back_what_was_quoted_into_them(variables: dict[str, str]) -> None:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    lines = [f'{name}="{"".join(escapes.get(c, c) for c in value)}"' for name, value in variables.items()]
    assert forwarded_environment({}, [], [("job.env", "\n".join(lines))]) == variables


@given(st.text())
def test_any_env_file_gives_variables_or_an_error_with_a_place(text: str) -> None:
    try:
        result = forwarded_environment({}, [], [("job.env", text)])
    except UsageError as error:
        assert error.reference == "export-value" or re.match(r"job\.env:\d+:\d+: ", error.message)
    else:
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name) for name in result)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("\n  \n# c\n  # c\n", {}),
        ("A=b", {"A": "b"}),
        ("A=b\r\nC=d\r\n", {"A": "b", "C": "d"}),
        ("\ufeffA=b", {"A": "b"}),
        ("  export   A=b", {"A": "b"}),
        ("exported=b", {"exported": "b"}),
        ("A=b # c", {"A": "b"}),
        ("A= # c", {"A": ""}),
        ("A=b#c", {"A": "b#c"}),
        ("A=#c", {"A": "#c"}),
        ("A= b c \t", {"A": "b c"}),
        ("A=b=c", {"A": "b=c"}),
        (r"A=b\n$X", {"A": r"b\n$X"}),
        (r"A='b\n # $X' # c", {"A": r"b\n # $X"}),
        (r'A="a\n\t\r\\\"\$\` # b"  # c', {"A": 'a\n\t\r\\"$` # b'}),
        ('A=b"c"', {"A": 'b"c"'}),
        ("A=''", {"A": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=a\u2028b\x0bc", {"A": "a\u2028b\x0bc"}),
    ],
)
def test_env_file(text: str, expected: dict[str, str]) -> None:
    assert forwarded_environment({}, [], [("job.env", text)]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=b\n  NAME", "job.env:2:3: a line without '='"),
        ("\n1A=b", "job.env:2:1: '1A' is not a variable's name"),
        ("export A B=c", "job.env:1:8: 'A B' is not a variable's name"),
        ("=b", "job.env:1:1: '' is not a variable's name"),
        ("A='secret", "job.env:1:3: this quote is not closed on its line"),
        ('export A="secret\nB=c"', "job.env:1:10: this quote is not closed on its line"),
        (r'A="secret\d"', r"job.env:1:10: unknown escape '\d' between double quotes"),
        ('A="secret\\', "job.env:1:10: unknown escape '\\' between double quotes"),
        ("A='secret'secret", "job.env:1:11: text after the closing quote"),
    ],
)
def test_env_file_errors_name_the_place_and_never_the_value(text: str, message: str) -> None:
    error = refused([], file=text)
    assert error.message == message
    assert error.hint
    assert "secret" not in repr((error.message, error.context, error.hint))


# Where rank 0 is


def facts(
    *addresses: str, hostname: str = "", seen_from: str | None = None, seen_at: str | None = None
) -> NodeFacts:
    connection = (seen_from or "10.0.0.9", "50000", seen_at or "10.0.0.1", "22") if seen_from or seen_at else None
    return NodeFacts(
        hostname=hostname or "-".join(addresses) or "bare",
        python="3.11.7",
        executable="/usr/bin/python3",
        cpus=(),
        gpus=(),
        addresses=addresses,
        ssh_connection=connection,
        free_port=31000,
    )


OTHER = facts("10.0.0.2", seen_from="10.0.0.9")
MASTER_ADDRESSES = {
    "one node": (facts("10.0.0.1", seen_at="10.0.0.1"), [], False, "127.0.0.1"),
    "several nodes on the head": (facts("10.0.0.9"), [facts("10.0.0.9")], True, "127.0.0.1"),
    "several nodes on a head without a network": (facts(), [facts()], True, "127.0.0.1"),
    "several nodes on a head that the user came to by ssh": (
        facts("10.0.0.9", seen_from="192.0.2.7", seen_at="10.0.0.9"),
        [facts("10.0.0.9", seen_from="192.0.2.7", seen_at="10.0.0.9")],
        True,
        "127.0.0.1",
    ),
    "where ssh reached rank 0": (facts("172.16.0.1", "10.0.0.1", seen_at="10.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by IPv6": (facts("10.0.0.1", "2001:db8::1", seen_at="2001:db8::1"), [OTHER], False, "2001:db8::1"),
    "a mapped address is IPv4": (facts("172.16.0.1", seen_at="::ffff:10.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by loopback": (facts("10.0.0.1", seen_at="127.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by mapped loopback": (facts("10.0.0.1", seen_at="::ffff:127.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by a link-local address": (facts("10.0.0.1", seen_at="fe80::1%eth0"), [OTHER], False, "10.0.0.1"),
    "a zone is stripped": (facts("10.0.0.1", seen_at="fd00::1%eth0"), [OTHER], False, "fd00::1"),
    "reached without ssh": (facts("10.0.0.1", "10.1.0.1"), [OTHER], False, "10.0.0.1"),
    "nothing known but the name": (facts(), [OTHER], False, "node-as-written"),
    "the head, where the others saw it": (facts("172.16.0.9", "10.0.0.9"), [OTHER], True, "10.0.0.9"),
    "the head, where the others saw it, without addresses": (facts(), [OTHER], True, "10.0.0.9"),
    "the head, behind a jump host": (facts("172.16.0.9"), [OTHER], True, "172.16.0.9"),
    "the head, its own ssh session does not count": (
        facts("172.16.0.9", "10.0.0.9", seen_from="192.0.2.7", seen_at="172.16.0.9"),
        [OTHER],
        True,
        "10.0.0.9",
    ),
    "the head, the first other is local too": (
        facts("172.16.0.9", "10.0.0.9", hostname="head"),
        [facts("172.16.0.9", "10.0.0.9", hostname="head"), OTHER],
        True,
        "10.0.0.9",
    ),
    "the head, nothing known": (facts(hostname="head"), [facts("10.0.0.2")], True, "head"),
}


@pytest.mark.parametrize("case", MASTER_ADDRESSES)
def test_master_address(case: str) -> None:
    rank0, others, rank0_is_head, expected = MASTER_ADDRESSES[case]
    assert choose_master_address(rank0, others, rank0_is_head, "node-as-written") == expected


# The documentation


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
