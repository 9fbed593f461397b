"""Ray on two hosts: `--profile ray` starts the cluster for one program, and ends it with the program."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.frameworks.places import PYTHON, frameworks_python
from tests.support.hosts import Hosts

PROGRAM = Path(__file__).parent / "programs" / "ray_sum.py"


def ray(hosts: Hosts, *words: str) -> tuple[int, list[str], str]:
    """Run a program with the profile on two hosts; return its code, its own lines, and what else is said."""
    options = ("--profile", "ray", "--prepend-env", "PATH", str(PYTHON.parent), "-x", "RAY_USAGE_STATS_ENABLED=0")
    done = hosts.launch("--wdir", "/", "-H", "node01:2,node02:2", "--timeout", "100", *options, *words, timeout=120)
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("nodes ")], done.stderr


@pytest.mark.testbed
def test_a_program_runs_once_on_a_cluster_of_both_hosts(hosts: Hosts) -> None:
    program = str(shutil.copy(PROGRAM, tempfile.mkdtemp(dir=hosts.shared)))
    code, lines, errors = ray(hosts, frameworks_python(), program)
    assert (code, lines) == (0, ["nodes 2 total 2"]), errors


@pytest.mark.testbed
def test_its_exit_code_is_that_of_the_program(hosts: Hosts) -> None:
    code, _, errors = ray(hosts, "sh", "-c", "exit 7")
    assert code == 7 and "rank 0 on node01 exited with code 7" in errors
