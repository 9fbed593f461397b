"""What real parts need of this machine: it fails with what is missing, because no test is skipped for it.

`make check` leaves out every test that is marked: what it needs is known before it runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache

import pytest

PACKAGES = {
    "busybox": "busybox",
    "gcc": "gcc libc6-dev",
    "gdb": "gdb",
    "libpmix.so.2": "libpmix2",
    "mpicc.mpich": "mpich libmpich-dev",
    "mpicc.openmpi": "openmpi-bin libopenmpi-dev",
    "nodeset": "clustershell",
    "ssh": "openssh-client",
}
"""What a test may say that it `needs`, and the Debian packages; beside TORCH."""
TORCH = "torch"
"""What needs it asks for it by `torches.torch_python`, which fails without it."""

BY_FIXTURE = {
    "hosts": pytest.mark.testbed,
    "made_pods": pytest.mark.testbed,
    "openmpi": pytest.mark.needs("mpicc.openmpi", "libpmix.so.2"),
    "mpich": pytest.mark.needs("mpicc.mpich"),
}
"""Fixtures -> the mark of the tests that use them."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def require(what: str, programs: Mapping[str, str]) -> None:
    """Fail unless this process is root, who can make namespaces, and the programs are installed: program -> Debian package."""
    missing = {package for program, package in programs.items() if shutil.which(program, path=PATH) is None}
    if missing:
        raise RuntimeError(f"{what}: Debian packages missing: apt-get install {' '.join(sorted(missing))}")
    if os.geteuid() != 0:
        raise RuntimeError(f"{what}: needs root, to make namespaces")


def check_needs(item: pytest.Item) -> None:
    """Fail a test if something is missing that it says it needs."""
    named = {name for mark in item.iter_markers("needs") for name in mark.args} - {TORCH}
    missing = [PACKAGES[name] for name in sorted(named) if not _has(name)]
    assert not missing, f"Debian packages missing: apt-get install {' '.join(missing)}"


@cache
def _has(name: str) -> bool:
    if ".so" not in name:
        return shutil.which(name) is not None
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return f"\t{name} " in listed


def hand_down_no_ignored_signal() -> None:
    """Let no launch of this process inherit an ignored signal.

    A shell starts a background command with SIGINT and SIGQUIT ignored, nohup with SIGHUP. With a handler that does nothing,
    this process runs on, and what it starts has the default again.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
