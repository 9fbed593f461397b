"""Horovod, built with MPI and Gloo: by --profile, by the options of horovodrun, and by its own launcher, which calls mpirun.

Each test fills one row of docs/frameworks.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.frameworks.places import HERE, HOROVOD_PYTHON, Place, horovod_python
from tests.frameworks.results import Seen
from tests.support.hosts import Hosts
from tests.support.paths import ROOT

ONCE, TWICE = ((str(HOROVOD_PYTHON), "horovod_sum.py", times) for times in "12")
GLOO = ("-x", "HOROVOD_CONTROLLER=gloo", "-x", "HOROVOD_CPU_OPERATIONS=gloo")
WITHOUT_SECRET = ("sh", "-c", 'HOROVOD_GLOO_RENDEZVOUS_ADDR=${HOROVOD_GLOO_RENDEZVOUS_ADDR%%:*} exec "$@"', "sh")
ALONE = "rank 0 of 1 cross 0 of 1 sum 1"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Give two hosts that see Horovod at its place."""
    horovod_python()
    with Hosts(2, visible=HOROVOD_PYTHON.parents[1]) as made:
        yield made


def together(place: Place, prefix: str = "") -> list[str]:
    """The lines of two ranks that meet, on one node or on two."""
    crosses = ("0 of 1", "0 of 1") if place.name == HERE else ("0 of 2", "1 of 2")
    return [f"{prefix.format(rank)}rank {rank} of 2 cross {crosses[rank]} sum 3" for rank in (0, 1)]


@pytest.mark.framework("Horovod on Gloo", "horovod", "`hvd.init()`", "`--profile horovod`")
def test_horovod_on_gloo(place: Place, seen: Seen) -> None:
    done = place.mpilaunch("-np", "2", "--profile", "horovod", *TWICE)  # in the same processes
    seen.ranks(done, *together(place))
    assert sorted(done.stdout.splitlines()) == sorted(2 * together(place))
    refused = place.mpilaunch("-np", "2", "--profile", "horovod", *WITHOUT_SECRET, *ONCE)
    assert refused.returncode != 0 and "HTTP response not OK, got 403" in refused.stderr, refused.stderr
    seen.alone(place.mpilaunch("-np", "2", *GLOO, *ONCE), ALONE)


@pytest.mark.framework(
    "Horovod's horovodrun", "horovod", "`hvd.init()`", "`--dialect horovodrun`, also with `--gloo` or `--mpi`"
)
def test_horovodrun(place: Place, seen: Seen) -> None:
    words = ("--dialect", "horovodrun", "-np", "2")
    seen.ranks(place.mpilaunch(*words, "--mpi", *ONCE), *together(place, "[1,{}]<stdout>:"))
    seen.ranks(place.mpilaunch(*words, *ONCE), *together(place, "[{}]<stdout>:"))
    seen.ranks(place.mpilaunch(*words, "--gloo", *ONCE), *together(place, "[{}]<stdout>:"))
    seen.text = "; ".join(together(place))
    seen.fails(place.mpilaunch(*words, "--gloo", *WITHOUT_SECRET, *ONCE), "HTTP response not OK, got 403")


@pytest.mark.framework("Horovod's own launcher", "horovod", "`horovodrun --mpi`", "mpilaunch under the name `mpirun`")
def test_horovods_own_launcher(place: Place, seen: Seen) -> None:
    mpirun = place.directory / "links" / "mpirun"
    mpirun.parent.mkdir()
    path = [str(ROOT), str(ROOT / "agents")]
    code = f"import sys\nsys.path[:0] = {path}\nfrom mpilaunch.__main__ import entry\nentry()\n"
    mpirun.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
    mpirun.chmod(0o755)
    hosts = "localhost:2" if place.hosts is None else ",".join(f"{name}:1" for name in place.hosts.names)
    words = ("horovodrun", "--mpi", "--disable-cache", "-np", "2", "-H", hosts, *ONCE)
    env = {"PATH": os.pathsep.join([str(mpirun.parent), str(HOROVOD_PYTHON.parent), os.environ["PATH"]])}
    seen.ranks(place.run(*words, env=env), *together(place, "[1,{}]<stdout>:"))
    alone = place.run(*words, env={**env, "MPILAUNCH_MPI": "none"})
    assert sorted(alone.stdout.splitlines()) == [f"[1,{rank}]<stdout>:{ALONE}" for rank in (0, 1)], alone.stderr
    seen.text = "; ".join(together(place))
    seen.control = f"two worlds of one: {ALONE}, twice"
