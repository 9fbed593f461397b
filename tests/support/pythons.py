"""The Python interpreters of this machine, under which a test runs what travels to the nodes.

They are `/usr/bin/python3`, each `python3.N` in PATH, and the newest of each `~/.pyenv/versions/3.N.*`. The variable
`MPILAUNCH_REQUIRE_PYTHONS`, like "3.8,3.9,3.13", lists versions that must be among them: a test fails if one is missing.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import subprocess

import pytest

OLDEST = (3, 8)


def version_of(python: str) -> tuple[int, int] | None:
    """Return (major, minor) of an interpreter, None where it does not run."""
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


@functools.lru_cache
def found_pythons() -> dict[tuple[int, int], str]:
    """Return an interpreter of each version that is found here."""
    pyenv = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")), key=_numbers)
    named = [path for minor in range(30) if (path := shutil.which(f"python3.{minor}")) and "/shims/" not in path]
    paths = [*pyenv, *named, "/usr/bin/python3"]
    return {version: path for path in paths if (version := version_of(path)) is not None}


def _numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", path)]


PYTHONS = {version: path for version, path in sorted(found_pythons().items()) if version >= OLDEST}
REQUIRED = [tuple(map(int, text.split("."))) for text in os.environ.get("MPILAUNCH_REQUIRE_PYTHONS", "").split(",") if text]

each_python = pytest.mark.parametrize("python", list(PYTHONS.values()), ids=[f"{major}.{minor}" for major, minor in PYTHONS])
