"""What the head forwards: prefixes, names, values and their limits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.job.environment.contracts import FIXED
from mpilaunch.job.environment.forwarded import (
    LONGEST_STRING,
    NEVER_FORWARDED,
    environment_edits,
    forwarded_environment,
)
from tests.support.variables import NAMES, VALUES, refused


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
        "SLURM_JOB_GPUS": "3",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_NTASKS": "8",
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
    usual |= {"SLURM_JOB_ID": "9", "SLURM_CONF": "/etc/slurm.conf", "PYTHONFAULTHANDLER": "1"}
    assert forwarded_environment(head, []) == usual
    assert {name for name in forwarded_environment(head, [], forward="all") if name.startswith("SLURM")} <= usual.keys()
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


@given(st.dictionaries(NAMES, VALUES))
def test_values_survive_as_they_are(variables: dict[str, str]) -> None:
    exports = [f"{name}={value}" for name, value in variables.items()]
    assert forwarded_environment({}, exports) == variables
    assert forwarded_environment(variables, list(variables)) == variables


def test_edits_of_variables() -> None:
    assert environment_edits(["A", "B_*"], ["PATH=/x", "LIST[;]=a=b"], ["C[ ]=d"]) == (
        ("unset", "A", "", ""),
        ("unset", "B_*", "", ""),
        ("prepend", "PATH", "/x", ":"),
        ("prepend", "LIST", "a=b", ";"),
        ("append", "C", "d", " "),
    )
    with pytest.raises(UsageError, match=r"--prepend-env 1=: '1=' is not|--prepend-env 1: '1' is not a variable's name"):
        environment_edits([], ["1=x"], [])
    assert environment_edits(["RANK"], [], []) == (("unset", "RANK", "", ""),)
    with pytest.raises(UsageError, match="--prepend-env RANK: 'RANK' says where a rank is"):
        environment_edits([], ["RANK=1"], [])
