"""What `--show-env` prints, compared with the environment that a real rank has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpilaunch.job.environment.contracts import SCRUBBED, is_listed
from mpilaunch.job.environment.templates import AT_LAUNCH
from mpilaunch.job.preparation.before_launch import OF_THE_NODE
from tests.support.launching import environment, launch

OPTIONS: dict[str, list[str]] = {
    "nothing": [],
    "exports": ["-x", "MINE=1", "-x", "NCCL_DEBUG=INFO", "-x", "MASTER_ADDR=here", "-x", "MASTER_PORT=7"],
    "facts of the map": ["-x", "WORLD_SIZE=3", "-x", "LOCAL_SIZE=3", "-x", "NODE_RANK=0"],
    "a value with spaces and a line break": ["-x", "MINE=a b\nc"],
    "an env file": ["--env-file", "job.env"],
    "forward everything": ["--forward", "all"],
    "forward nothing": ["--no-forward"],
    "edits": ["--unset-env", "OMP_NUM_THREADS", "--prepend-env", "PATH", "/first", "--append-env", "NEW[;]", "last"],
    "unset a prefix": ["--unset-env", "TORCHELASTIC_*", "-x", "TORCHELASTIC_OTHER=1"],
    "unset what mpilaunch sets": ["--unset-env", "RANK", "--unset-env", "OMPI_*", "--unset-env", "PMI_FD"],
    "edits of an exported variable": ["-x", "MINE=middle", "--prepend-env", "MINE", "a", "--append-env", "MINE", "b"],
    "a prefix": ["--prefix", "/opt/mpi"],
    "no MPI": ["--mpi", "none"],
    "PMI-1": ["--mpi", "pmi1"],
    "PMI-2": ["--mpi", "pmi2"],
    "PMIx": ["--mpi", "pmix"],
    "PMI by a port": ["--pmi-port"],
    "MCA parameters": ["--mca", "btl", "self,tcp"],
    "Open MPI's dialect": ["--dialect", "openmpi"],
    "Hydra's dialect": ["--dialect", "hydra"],
    "CPUs for each rank": ["--map-by", "slot:PE=1", "--bind-to", "none"],
    "a master": ["--master-addr", "10.1.2.3", "--master-port", "4000"],
    "a universe": ["--universe-size", "77"],
    "restarts": ["--max-restarts", "3"],
    "checkpoints": ["--checkpoint-prefix", "sets"],
    "two nodes": ["-H", "local:1,local:2"],
    "ranks dealt out": ["-H", "local:2,local:2", "--map-by", "node"],
    "a virtual GPU binding without GPUs": ["--gpu-bind", "none"],
}


def shown(text: bytes) -> dict[str, str]:
    """Return the variables that `--show-env` prints; a line break is written as \\\\x0a."""
    lines = text.decode("utf-8", "surrogateescape").splitlines()
    return {name: value.replace("\\x0a", "\n") for name, _, value in (line.partition("=") for line in lines)}


def of_rank(text: bytes) -> dict[str, str]:
    """Return the variables that `env -0` printed."""
    items = text.decode("utf-8", "surrogateescape").rstrip("\n").split("\0")
    return {name: value for name, _, value in (item.partition("=") for item in items if item)}


@pytest.mark.needs("libpmix.so.2")
@pytest.mark.parametrize("case", OPTIONS)
def test_show_env_prints_what_the_rank_gets(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_FORWARDED", "by prefix")
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")
    (tmp_path / "job.env").write_text("FROM_FILE='a # b'\n")
    (tmp_path / "sets").mkdir()
    options = ["-np", "3", "--oversubscribe", *OPTIONS[case]]
    expected = shown(launch(*options, "--show-env", "2", "--show-secrets", "env").out)
    done = launch(*options, "--output-file", "out.{rank}", "env", "-0")
    assert done.code == 0, done.words
    real = of_rank((tmp_path / "out.2").read_bytes())
    own = {name.decode(): value.decode() for name, value in environment().items() if not is_listed(name.decode(), SCRUBBED)}

    assert set(expected) <= set(real)
    for name, value in expected.items():
        if AT_LAUNCH in value:
            assert re.fullmatch("(.+)".join(map(re.escape, value.split(AT_LAUNCH))), real[name]), name
        else:
            assert real[name] == value.replace(OF_THE_NODE, own.get(name, "")).strip(":;"), name
    # All else is the node's own, or depends on what the node is.
    others = {name for name in real if name not in expected and real[name] != own.get(name)}
    others = {name for name in others if not name.startswith("PMIX_")}
    assert others <= {"OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_btl", "OMPI_MCA_coll"}


def test_a_rank_lacks_what_the_user_removes() -> None:
    options = ["--unset-env", "RANK", "--unset-env", "OMPI_COMM_WORLD_*", "--unset-env", "PMI_FD"]
    done = launch("-np", "1", *options, "env", "-0")
    assert done.code == 0, done.words
    names = of_rank(done.out).keys()
    assert not {"RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_FD"} & names
    assert {"LOCAL_RANK", "PMI_RANK", "OMPI_UNIVERSE_SIZE"} <= names


def test_show_env_of_several_programs_shows_each_its_own() -> None:
    words = ["-np", "1", "-x", "ONE=1", "env", "-0", ":", "-np", "1", "-x", "TWO=2", "env", "-0"]
    first, second = (shown(launch("--show-env", rank, *words).out) for rank in ("0", "1"))
    assert first["ONE"] == "1" and "TWO" not in first
    assert second["TWO"] == "2" and "ONE" not in second
