"""A Python that has torch, for tests on this machine and on hosts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT, Hosts

TORCH_PYTHON = os.environ.get("MPILAUNCH_TEST_TORCH_PYTHON")
"""A Python that has torch, for those whose own has not. Read here, since the tests themselves see no MPILAUNCH_*."""


def torch_python() -> str:
    """Return a Python that has torch; a test that needs it is never skipped."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    if TORCH_PYTHON is None:
        pytest.fail("torch is missing: `make test` installs it; else name a Python that has it in MPILAUNCH_TEST_TORCH_PYTHON")
    return TORCH_PYTHON


@contextlib.contextmanager
def torch_on(hosts: Hosts, names: Sequence[str]) -> Iterator[list[str]]:
    """Let hosts see torch; give the options that a job on them needs.

    The job's Python is the one under torch's environment; torch itself is on PYTHONPATH, as from a shared directory. That
    environment usually lies in what the hosts do not see (the checkout, /tmp): there it is mounted from underneath.
    """
    ask = "import sys, torch; print(sys._base_executable); print(torch.__path__[0])"
    told = subprocess.run([torch_python(), "-c", ask], capture_output=True, text=True, check=True).stdout.splitlines()
    packages = Path(told[1]).parent
    hidden = next((place for place in (Path("/tmp"), CHECKOUT) if packages.is_relative_to(place)), None)
    seen = packages
    if hidden is not None:
        seen = Path("/run/packages")
        script = 'umount "$1"; mkdir /run/packages; mount --bind "$2" /run/packages; mount -t tmpfs tmpfs "$1"'
        for name in names:
            done = hosts.on(name, ["sh", "-ec", script, "sh", str(hidden), str(packages)])
            assert done.returncode == 0, done.stderr
    try:
        yield ["--python", os.path.realpath(told[0]), "-x", f"PYTHONPATH={seen}", "--timeout", "150"]
    finally:
        if hidden is not None:
            for name in names:
                hosts.on(name, ["sh", "-c", "umount /run/packages; rmdir /run/packages"])
