"""Where a framework runs its two ranks: on this machine, or on two hosts with sshd; and the Python that has the frameworks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import MPILAUNCH, environment
from tests.support.paths import ROOT

PYTHON = Path(os.environ.get("MPILAUNCH_TEST_FRAMEWORKS_PYTHON", ROOT / ".venv-frameworks" / "bin" / "python"))
"""The Python that has the frameworks. Read here, since the tests themselves see no MPILAUNCH_*."""
HOROVOD_PYTHON = Path(os.environ.get("MPILAUNCH_TEST_HOROVOD_PYTHON", ROOT / ".venv-horovod" / "bin" / "python"))
"""The Python that has Horovod, which is built for it."""
SCRIPTS = Path(__file__).parent / "programs"
HERE, HOSTS = "here", "hosts"
RUN_SECONDS = 120.0


def frameworks_python() -> str:
    """Return the Python that has the frameworks; a test that needs it is never skipped."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-frameworks` makes it; or set MPILAUNCH_TEST_FRAMEWORKS_PYTHON")
    return str(PYTHON)


def horovod_python() -> str:
    """Return the Python that has Horovod; a test that needs it is never skipped."""
    if not HOROVOD_PYTHON.exists():
        pytest.fail(f"{HOROVOD_PYTHON} is missing: `make test-frameworks` makes it; or set MPILAUNCH_TEST_HOROVOD_PYTHON")
    return str(HOROVOD_PYTHON)


class Place(NamedTuple):
    """Where two ranks run.

    Attributes:
        name: HERE or HOSTS.
        directory: the current one of the head and of the ranks, with copies of all `programs`; the hosts see it.
        hosts: the hosts; None: this machine.
    """

    name: str
    directory: Path
    hosts: Hosts | None = None

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout: float = RUN_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head; programs of the frameworks' environment are found first."""
        path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, **(env or {})}
        if self.hosts is not None:
            return self.hosts.run(command, env=variables, timeout=timeout)
        return subprocess.run(
            command,
            env=environment(variables),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @property
    def slots(self) -> tuple[str, ...]:
        """Options of mpilaunch for up to four ranks: two on each host, dealt round them."""
        return () if self.hosts is None else ("-H", ",".join(f"{name}:2" for name in self.hosts.names), "--map-by", "node")

    def mpilaunch(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run mpilaunch with the place's slots and these words."""
        return self.run(*MPILAUNCH, *self.slots, "--timeout", str(int(RUN_SECONDS - 20)), *words, env=env)

    def ranks(
        self, program: str, *options: str, count: int = 2, without: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run one of `programs` on two ranks, with options of mpilaunch, and without variables that mpilaunch sets."""
        wrapper = ["env", *(word for name in without for word in ("-u", name))] if without else []
        return self.mpilaunch("-np", str(count), *options, *wrapper, frameworks_python(), program)


def copy_programs(directory: Path) -> None:
    """Copy all programs to where the ranks run."""
    shutil.copytree(SCRIPTS, directory, dirs_exist_ok=True)
