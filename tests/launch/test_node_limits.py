"""Nodes with little: few open files, an old Python, no room for the environment. The error names what is too small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpilaunch.job.environment.forwarded import explain_size
from tests.support.launching import launch, script

FEW_FILES = '#!/bin/sh\nshift\nulimit -n {}\nexec /bin/sh -c "$1"\n'
PYTHON_2 = "#!/bin/sh\necho 'Unknown option: -I' >&2\necho 'usage: python2.7 [option] ...' >&2\nexit 2\n"


@pytest.mark.parametrize("files", [6, 8, 10, 12, 16])
def test_a_node_with_few_open_files_says_so(tmp_path: Path, files: int) -> None:
    agent = script(tmp_path / "agent", FEW_FILES.format(files))
    done = launch("--agent", f"{agent} {{host}} {{command}}", "--python", sys.executable, "-H", "a", "true")
    assert "Traceback" not in done.words and "File " not in done.words
    message = f"a node needs 40 for itself, the limit there is {files}"
    assert f"error[start-file-limit]: a: limit of open files too low: Too many open files: {message}" in done.words


def test_python_2_is_too_old(tmp_path: Path) -> None:
    old = script(tmp_path / "python2.7", PYTHON_2)
    done = launch("--agent", "sh -c 'shift; exec sh -c \"$1\"' sh {host} {command}", "--python", old, "-H", "a", "true")
    assert "error[start-python-too-old]: a: " in done.words


def test_an_environment_that_is_too_long_is_named(tmp_path: Path) -> None:
    many = tmp_path / "env"
    many.write_text("".join(f"FILLER_{number}={'x' * 50_000}\n" for number in range(100)) + f"LONGEST={'y' * 60_000}\n")
    done = launch("--env-file", str(many), "-n", "1", "true")
    assert "could not be executed: Argument list too long" in done.words
    assert "hint: the environment is too long: " in done.words
    assert "; the longest, LONGEST, has 60,008; --unset-env LONGEST leaves it out" in done.words


def test_an_argument_that_is_too_long_is_named() -> None:
    size = explain_size({"A": "b"}, ["true", "x" * 200_000])
    assert size == "one argument has 200,000 bytes, and the kernel allows 131,071: write it to a file"


@pytest.mark.parametrize("time", [["--timestamp-output"], ["--tag", "{time} {rank}"], ["--tag", "time"]])
def test_folded_output_has_no_time(time: list[str]) -> None:
    done = launch("--fold", *time, "-n", "2", "echo", "up")
    assert done.code == 2
    assert "error[option-conflict]: --fold and " in done.words
