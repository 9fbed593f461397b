"""Shell completion: a real bash asks for words, and takes what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

COMPLETING = r"""
eval "$(_MPILAUNCH_COMPLETE=bash_source mpilaunch)"
complete -p mpilaunch >/dev/null || exit 9
compopt() { printf 'compopt %s %s\n' "$@"; }
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p mpilaunch | sed 's/.* -F \([^ ]*\) .*/\1/') mpilaunch
printf '%s\n' "${COMPREPLY[@]}"
"""
"""Load the script as ~/.bashrc would, and call its function as readline does; `compopt` runs inside readline only."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "mpilaunch"
    command.write_text(f"#!{sys.executable}\nfrom mpilaunch.__main__ import entry\nentry()\n", encoding="utf-8")
    command.chmod(0o755)
    return folder


def completed(folder: Path, *words: str) -> list[str]:
    folders = f"{ROOT}{os.pathsep}{ROOT / 'agents'}"
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": folders}
    argv = ["bash", "--norc", "-c", COMPLETING, "bash", "mpilaunch", *words]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["u"], ["compopt -o default", "up"]),
        (["--hostf"], ["--hostfile"]),
        (["-hostf"], ["-hostfile"]),
        (["-np", "4", "--gpu-b"], ["--gpu-bind"]),
        (["-np", "4", "--gpu-bind", "v"], ["virtual"]),
        (["-bind-to", "nu"], ["numa"]),
        (["--hostfile", "h"], ["compopt -o default", ""]),
        (["--wdir", "h"], ["compopt -o dirnames", ""]),
        (["up", "--up-i"], ["--up-idle"]),
        (["-np", "4", "tr"], ["compopt -o default", ""]),
        (["-np", "4", "train.py", "--np"], ["compopt -o default", ""]),
        (["-genv", "A", "1", "--tag-o"], ["--tag-output"]),
    ],
)
def test_bash_completes(folder: Path, words: list[str], expected: list[str]) -> None:
    assert completed(folder, *words) == expected


def test_a_dash_alone_offers_each_option_once(folder: Path) -> None:
    offered = completed(folder, "-")
    assert {"--np", "-n", "-H", "--bind-to"} <= set(offered)
    assert not [flag for flag in offered if not flag.startswith("--") and len(flag) > 2]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(folder: Path, shell: str) -> None:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "_MPILAUNCH_COMPLETE": f"{shell}_source"}
    done = subprocess.run([folder / "mpilaunch"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "_MPILAUNCH_COMPLETE" in done.stdout


def test_a_reader_that_has_gone_is_no_error(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    environ = {**os.environ, "_MPILAUNCH_COMPLETE": "bash_source"}
    try:
        done = subprocess.run([folder / "mpilaunch"], env=environ, stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
