"""tests/programs, compiled with an MPI library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.paths import PROGRAMS

PACKAGES = {"mpich": "mpich libmpich-dev", "openmpi": "openmpi-bin libopenmpi-dev"}


def debian_compiler(family: str) -> str:
    """Return the path of Debian's compiler for a family, `mpich` or `openmpi`."""
    compiler = shutil.which(f"mpicc.{family}")
    assert compiler, f"mpicc.{family} is missing: apt-get install {PACKAGES[family]}"
    return compiler


def compile_programs(compiler: str, place: Path) -> Path:
    """Compile every program; return the directory of the executables, which is `place`."""
    for source in PROGRAMS.glob("*.c"):
        subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", place / source.stem, source], check=True)
    return place
