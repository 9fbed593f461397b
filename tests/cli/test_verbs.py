"""Verbs: what counts as one, and what they refuse. What `up` and `down` do is in test_standby."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.cli import verbs
from mpilaunch.cli.main import main
from tests.support.launching import script


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verbs that were called, in the place of what they do."""
    called: list[str] = []

    def main_of(name: str) -> Callable[[Any], int]:
        def main(request: Any) -> int:
            called.append(" ".join([name, *request.sections[0].program]))
            return 0

        return main

    monkeypatch.setattr(verbs, "main_of", main_of)
    monkeypatch.setattr(sys, "argv", ["mpilaunch"])
    return called


@pytest.mark.parametrize(
    ("words", "called"),
    [
        ("prog", "run prog"),
        ("-np 2 prog up", "run prog up"),
        ("run -np 2 prog", "run prog"),
        ("run up", "run up"),
        ("up -H a", "up"),
        ("down", "down"),
        ("-- up", "run up"),
        ("./up", "run ./up"),
        ("-np 2 up", "run up"),
        ("-H a : up", "run"),
    ],
)
def test_a_verb_stands_in_the_first_place_only(named: list[str], words: str, called: str) -> None:
    code = main(words.split())
    assert (code, named) == ((2, []) if ":" in words else (0, [called]))


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "orterun"])
def test_there_are_no_verbs_under_the_name_of_another_launcher(
    named: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{name}"])
    assert main(["up"]) == 0
    assert named == ["run up"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("up -H a prog", "error[option-conflict]: mpilaunch up runs no program, but was given 'prog'"),
        ("down prog", "error[option-conflict]: mpilaunch down runs no program, but was given 'prog'"),
        ("down -H a", "error[option-conflict]: --host has no effect on mpilaunch down"),
        ("down -np 2", "error[option-conflict]: --np has no effect on mpilaunch down"),
        ("down --up-idle 5", "error[option-conflict]: --up-idle has no effect on mpilaunch down"),
        ("down -genv A 1", "error[option-conflict]: -genv has no effect on mpilaunch down"),
        ("down --dry-run", "error[option-conflict]: mpilaunch down and --dry-run cannot be used together"),
        ("up -H a --dry-run", "error[option-conflict]: mpilaunch up and --dry-run cannot be used together"),
        ("up --hostfil h", "error[option-unknown]: unknown option --hostfil; did you mean --hostfile?"),
        ("down --np two", "error[option-value]: --np: 'two' is not a whole number"),
    ],
)
def test_what_a_verb_refuses(capsys: pytest.CaptureFixture[str], words: str, error: str) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err.splitlines()[0] == error


@pytest.mark.parametrize("words", ["down", "down -v", "down -q --config c.yaml"])
def test_down_accepts_options_that_matter_and_settings_from_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (here / "c.yaml").write_text("host: [a]\n")
    monkeypatch.setenv("MPILAUNCH_NP", "2")
    monkeypatch.setattr("mpilaunch.head.standby.client.take_down", lambda: True)
    assert main(words.split()) == 0


@pytest.mark.parametrize("name", verbs.NAMES)
def test_a_verb_is_one_file_with_its_help(name: str) -> None:
    module = verbs.module_of(name)
    assert module.SUMMARY and module.USAGE.startswith(f"mpilaunch {name}".removesuffix(" run")) and callable(module.main)
    assert isinstance(getattr(module, "TOPICS", ()), tuple)
    assert hasattr(module, "TOPICS") != hasattr(module, "COMMAND"), "it takes the options of a launch, or declares all"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("jobs a b", "error[option-value]: mpilaunch jobs: Got unexpected extra argument (b)"),
        ("jobs --np 2", "error[option-value]: mpilaunch jobs: No such option '--np'. Did you mean '--json'?"),
        ("stop", "error[option-value]: mpilaunch stop: Missing argument 'JOB'"),
        ("signal x", "error[option-value]: mpilaunch signal: Missing argument 'SIGNAL'"),
        ("signal x USR3", "error[option-value]: 'USR3' is no signal; did you mean USR2?"),
        ("signal x 65", "error[option-value]: '65' is no signal"),
        ("signal x USR1 --ranks 3-1", "error[nodeset-syntax]: --ranks:1:1: the range '3-1' is reversed"),
        ("stop 0123456789abcdef", "error[job-unknown]: no job '0123456789abcdef' of yours runs on this machine"),
    ],
)
def test_what_a_verb_for_running_jobs_refuses(capsys: pytest.CaptureFixture[str], words: str, error: str) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err.splitlines()[0] == error


def test_a_program_with_the_name_of_a_verb_is_mentioned(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(here / "stop", "true")
    monkeypatch.setenv("PATH", str(here))
    assert main(["stop", "0123456789abcdef"]) == 2
    assert capsys.readouterr().err.startswith(f"note: mpilaunch run stop runs the program {here}/stop; this is the verb 'stop'")
