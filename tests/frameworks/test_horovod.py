"""Horovod, built with MPI and Gloo: by --profile, by the options of horovodrun, and by its own launcher, which calls mpirun."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.places import HERE, Place
from tests.support.hosts import Hosts
from tests.support.paths import ROOT

PYTHON = Path(os.environ.get("MPILAUNCH_TEST_HOROVOD_PYTHON", ROOT / ".venv-horovod" / "bin" / "python"))
"""The Python that has Horovod. Read here, since the tests themselves see no MPILAUNCH_*."""
PROGRAM = (str(PYTHON), "horovod_sum.py", "1")
GLOO = ("-x", "HOROVOD_CONTROLLER=gloo", "-x", "HOROVOD_CPU_OPERATIONS=gloo")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Give two hosts that see Horovod at its place."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-frameworks` makes it; or set MPILAUNCH_TEST_HOROVOD_PYTHON")
    with Hosts(2, visible=PYTHON.parents[1]) as made:
        yield made


def expected(place: Place, prefix: str = "") -> list[str]:
    """The lines of two ranks that meet, on one node or on two."""
    crosses = ("0 of 1", "0 of 1") if place.name == HERE else ("0 of 2", "1 of 2")
    return [f"{prefix.format(rank)}rank {rank} of 2 cross {crosses[rank]} sum 3" for rank in (0, 1)]


def test_the_profile_connects_ranks_on_gloo_and_again_after_a_shutdown(place: Place) -> None:
    done = place.mpilaunch("--profile", "horovod", *PROGRAM[:-1], "2")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sorted(2 * expected(place))), done.stderr


def test_without_the_profile_each_rank_is_a_world_of_its_own(place: Place) -> None:
    done = place.mpilaunch(*GLOO, *PROGRAM)
    assert (done.returncode, done.stdout.splitlines()) == (0, 2 * ["rank 0 of 1 cross 0 of 1 sum 1"]), done.stderr


def test_the_store_serves_no_rank_without_the_secret(place: Place) -> None:
    without = 'HOROVOD_GLOO_RENDEZVOUS_ADDR=${HOROVOD_GLOO_RENDEZVOUS_ADDR%%:*} exec "$@"'
    done = place.mpilaunch("--profile", "horovod", "sh", "-c", without, "sh", *PROGRAM)
    assert done.returncode != 0 and "HTTP response not OK, got 403" in done.stderr, done.stderr


@pytest.mark.parametrize("controller", ["--gloo", "--mpi", ""])
def test_horovodrun(place: Place, controller: str) -> None:
    done = place.mpilaunch("--dialect", "horovodrun", *([controller] if controller else []), *PROGRAM)
    prefix = "[1,{}]<stdout>:" if controller == "--mpi" else "[{}]<stdout>:"
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, expected(place, prefix)), done.stderr


def test_horovods_own_launcher_calls_mpilaunch_as_mpirun(place: Place, tmp_path: Path) -> None:
    links = place.directory / "links"
    links.mkdir(exist_ok=True)
    mpirun = links / "mpirun"
    mpirun.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {[str(ROOT), str(ROOT / 'agents')]}\n"
        "from mpilaunch.__main__ import entry\nentry()\n",
        encoding="utf-8",
    )
    mpirun.chmod(0o755)
    names = ["localhost"] if place.hosts is None else place.hosts.names
    path = os.pathsep.join([str(links), str(PYTHON.parent), os.environ["PATH"]])
    slots = ",".join(f"{name}:{2 // len(names)}" for name in names)
    words = ("horovodrun", "--mpi", "--disable-cache", "--network-interfaces", "lo", "-np", "2", "-H", slots)
    if place.hosts is not None:
        words = tuple(word for word in words if word not in ("--network-interfaces", "lo"))
    done = place.run(*words, *PROGRAM, env={"PATH": path})
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, expected(place, "[1,{}]<stdout>:")), done.stderr
