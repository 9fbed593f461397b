"""What --slurm asks salloc for; tests/slurm asks a real one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpilaunch.cli.job import salloc
from mpilaunch.cli.job.salloc import options_of
from mpilaunch.errors import UsageError
from tests.support.command_line import settings
from tests.support.launching import launch, script


@pytest.mark.parametrize(
    ("request_", "ranks", "words"),
    [
        ("nodes=4", None, "--nodes=4"),
        ("nodes=4", 8, "--nodes=4 --ntasks=8"),
        ("nodes=4,gpus=8,time=1h", None, "--nodes=4 --gpus=8 --time=60 --ntasks=8"),
        ("nodes=2,gpus=a100:8,time=90s", None, "--nodes=2 --gpus=a100:8 --time=2 --ntasks=8"),
        ("nodes=2,gpus=8", 2, "--nodes=2 --gpus=8 --ntasks=2"),
        ("nodes=2,gpus-per-node=4,ranks-per-node=4", None, "--nodes=2 --gpus-per-node=4 --ntasks-per-node=4"),
        ("ranks=16, partition=short ,account=ml-1", None, "--ntasks=16 --partition=short --account=ml-1"),
        ("nodelist=n[1,3-4],time=1-12:00:00", None, "--nodelist=n[1,3-4] --time=1-12:00:00"),
        ("nodes=1-4,exclusive,name=train.1,mem=16G,constraint=a&b", 1,
         "--nodes=1-4 --exclusive --job-name=train.1 --mem=16G --constraint=a&b --ntasks=1"),
        ("time=5m", 4, "--time=5 --ntasks=4"),
    ],
)  # fmt: skip
def test_requests(request_: str, ranks: int | None, words: str) -> None:
    assert options_of(request_, ranks) == words.split()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("", "'' is not known"),
        ("nods=4", "'nods' is not known; did you mean nodes?"),
        ("nodes", "'nodes' is not nodes=VALUE"),
        ("nodes=", "'nodes=' is not nodes=VALUE"),
        ("nodes=4 --uid=0", "'nodes=4 --uid=0' is not nodes=VALUE"),
        ("nodes=2,exclusive=user", "'exclusive=user' is not exclusive"),
        ("time=1h", "it says neither nodes nor ranks"),
        ("nodes=2,time=60", "time=60 is not a time"),
        ("nodes=2,time=0m", "time=0m is not a time"),
        ("nodes=2,time=1:2:3:4", "time=1:2:3:4 is not a time"),
        ("nodes=2,,", "'' is not known"),
        ("nodes=2,name=\u0661\x1b", "'name=\u0661\x1b' is not name=VALUE"),
    ],
)
def test_requests_that_are_refused(request_: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        options_of(request_, None)
    assert caught.value.reference == "slurm-request" and caught.value.message.startswith(f"--slurm: {reason}")


def test_the_same_line_runs_within_a_job_as_it_is(tmp_path: Path) -> None:
    script(tmp_path / "salloc", "#!/bin/sh")
    environ = {"PATH": str(tmp_path)}
    asked = settings("--slurm nodes=2 -np 4")
    assert salloc.command(asked, {**environ, "SLURM_JOB_ID": "7"}, ["mpilaunch"]) is None
    assert salloc.command(settings("-np 4"), environ, ["mpilaunch"]) is None
    assert salloc.command(settings("-H a", {**environ, "MPILAUNCH_SLURM": "nodes=2"}), environ, ["mpilaunch"]) is None
    argv = salloc.command(asked, environ, ["/x/__main__.py", "--slurm", "nodes=2", "-np", "4", "a b"])
    options = [str(tmp_path / "salloc"), "--nodes=2", "--ntasks=4", "--", sys.executable, "-m", "mpilaunch"]
    assert argv == [*options, "--slurm", "nodes=2", "-np", "4", "a b"]
    with pytest.raises(UsageError) as caught:
        salloc.command(asked, {"PATH": ""}, ["mpilaunch"])
    assert caught.value.message == "--slurm: salloc is not installed here"


def test_the_plan_is_the_command_line_of_salloc(tmp_path: Path) -> None:
    script(tmp_path / "salloc", "#!/bin/sh\necho $MPILAUNCH_ALLOCATED $$ $*")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = launch("--slurm", "nodes=2,time=5m", "--dry-run", "true", env=environ)
    words = f"{tmp_path}/salloc --nodes=2 --time=5 -- {sys.executable} -m mpilaunch --slurm nodes=2,time=5m --dry-run true\n"
    assert (done.code, done.out.decode()) == (0, words)
    process, own, *words_ = launch("--slurm", "nodes=2", "true", env=environ).out.decode().split()
    assert process == own and words_[-1] == "true", "salloc is this process, by which the one within knows it"
