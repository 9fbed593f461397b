"""The table of options and the checks of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mpilaunch.cli.options import BY_FLAG, GROUPS, OPTIONS
from mpilaunch.errors import UsageError
from mpilaunch.job.environment import contracts
from mpilaunch.job.environment.contract import JobFacts, NodePlace, RankPlace
from tests.support.command_line import request, settings


def test_every_flag_and_name_is_declared_once() -> None:
    flags = [flag for option in OPTIONS for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags)) == len(BY_FLAG)
    assert {flag for option in OPTIONS for flag in option.flags} <= set(flags)
    assert len({option.key for option in OPTIONS}) == len({option.variable for option in OPTIONS}) == len(OPTIONS)


def test_what_a_rank_is_given_sets_no_option_of_a_launch_inside_it() -> None:
    job, node = JobFacts("j", "j", 1, 1, 1, "a", "1"), NodePlace(0, 1)
    given = {
        **contracts.job_environment(job),
        **contracts.node_environment(job, node),
        **contracts.rank_environment(job, node, RankPlace(0, 0, 0, 1)),
    }
    assert not given.keys() & {option.variable for option in OPTIONS if option.configurable}
    settings("", {"HOME": "/nowhere", **given})  # nor is one of them taken for a misspelled option


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_row_is_whole(option: Any) -> None:
    assert option.group in GROUPS
    assert option.help and not option.help.endswith(".")
    assert option.fixed_value(option.flag) is not None or option.metavar or option.choices, "no name of its argument"
    assert (option.default == ()) == option.multiple
    assert not option.choices or option.default is None or option.default in option.choices


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        *(("-n", "np"), ("--np", "np"), ("-H", "host"), ("-f", "hostfile"), ("--machinefile", "hostfile")),
        *(("-N", "npernode"), ("--ppn", "npernode"), ("-x", "export"), ("--mca", "mca"), ("-q", "quiet"), ("-vv", "verbose")),
    ],
)
def test_spellings_of_mpirun(spelled: str, name: str) -> None:
    assert BY_FLAG[spelled].key == name


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("1.5h", 5400), ("2d", 172800), ("0.1", 0.1)]
)
def test_times(text: str, seconds: float) -> None:
    assert settings(f"--timeout {text}")["timeout"] == seconds


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("timeout", "5x", "'5x' is not a time"),
        ("timeout", "-1", "'-1' is not a time"),
        ("timeout", "1e3", "'1e3' is not a time"),
        ("timeout", "٣", "'٣' is not a time"),
        ("timeout", "0", "0 is out of range: 0.1 or more"),
        ("np", "", "'' is not a whole number"),
        ("np", "0", "0 is out of range: 1 or more"),
        ("np", "-4", "-4 is out of range: 1 or more"),
        ("np", "9" * 5000, "is not a whole number"),
        ("timeout", "9" * 5000, "is not a time"),
        ("np", "4.0", "'4.0' is not a whole number"),
        ("np", "1_000", "'1_000' is not a whole number"),
        ("np", "٣", "'٣' is not a whole number"),
        ("master-port", "65536", "65536 is out of range: 1 to 65535"),
        ("quiet", "maybe", "'maybe' is neither yes nor no"),
        ("gpu-bind", "slt", "did you mean slot?"),
        ("network", "10.99.0.0/99", "'10.99.0.0/99' is neither a network like 10.99.0.0/24 nor an interface like eth0"),
        ("network", "10.99.0.7", "'10.99.0.7' is an address; a network has a prefix: 10.99.0.7/24"),
        ("network", "eth0:1", "is neither a network"),
        ("network", "a-name-of-16-long", "is neither a network"),
        ("network", "a b", "is neither a network"),
        ("network", "", "the value is empty"),
        ("wdir", "", "the value is empty"),
        ("wdir", "a\0b", "NUL"),
    ],
)
def test_wrong_texts(name: str, text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        request([f"--{name}={text}", "prog"])
    assert caught.value.message.startswith(f"--{name}: ") and what in caught.value.message
    assert caught.value.reference == "option-value" and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", "none"),
        ("eth0", "eth0"),
        ("bond0.7", "bond0.7"),
        ("10.99.0.7/24", "10.99.0.0/24"),
        ("FD00::7/64", "fd00::/64"),
    ],
)
def test_networks(text: str, value: str) -> None:
    assert settings(f"--network {text}")["network"] == value


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("np", 4, 4),
        ("np", "4", 4),
        ("timeout", 90, 90.0),
        ("timeout", 1.5, 1.5),
        ("timeout", "5m", 300.0),
        ("stdin", 0, "0"),
        ("quiet", True, True),
        ("export", ["A=1", "B"], ("A=1", "B")),
        ("export", "A=1", ("A=1",)),
        ("host", [], ()),
    ],
)
def test_values_of_yaml(tmp_path: Path, name: str, data: object, value: object) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({name: data}), encoding="utf-8")
    assert settings(f"--config {tmp_path}/x.yaml")[name] == value


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("np", True, "bool True where a whole number is expected"),
        ("np", [4], "list [4] where a whole number is expected"),
        ("np", 2.5, "'2.5' is not a whole number"),
        ("np", None, "NoneType None where a whole number is expected"),
        ("wdir", {"a": 1}, "where text is expected"),
        ("quiet", "yes", "'yes' is neither true nor false"),
        ("quiet", 1, "1 is neither true nor false"),
        ("export", ["A", ["B"]], "where text is expected"),
    ],
)
def test_wrong_values_of_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: object, what: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(yaml.safe_dump({name: data}), encoding="utf-8")
    with pytest.raises(UsageError, match=rf"^x\.yaml:1:1: {name}: ") as caught:
        settings("--config x.yaml")
    assert what in caught.value.message
