"""Command lines of torchrun, under its name: what ranks get is what the real torchrun gives them, here and on hosts."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import environment, launch
from tests.support.paths import ROOT
from tests.support.torches import torch_on, torch_python

NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "OMP_NUM_THREADS"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)
"""Variables that both set to the same values; addresses, ports and ids follow only where the line gives them."""
SHOW = """import json, os, sys
given = {name: os.environ.get(name) for name in sys.argv[1].split()}
os.write(1, json.dumps([given, sys.argv[2:]]).encode() + b"\\n")  # at once: torchrun does not keep lines whole
"""
ALLREDUCE = ROOT / "tests" / "programs" / "torch_allreduce.py"
REAL = ("-m", "torch.distributed.run")
SECONDS = 300
"""The longest that one command may take: on a busy machine, torch takes a minute to import."""


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """Give the command under the name torchrun, and a script that prints a rank's variables and arguments."""
    (tmp_path / "show.py").write_text(SHOW, encoding="utf-8")
    command = tmp_path / "mpilaunch"
    command.write_text(f"#!{sys.executable}\nfrom mpilaunch.__main__ import entry\nentry()\n", encoding="utf-8")
    command.chmod(0o755)
    (tmp_path / "torchrun").symlink_to(command)
    return tmp_path / "torchrun"


@contextmanager
def started(folder: Path, *lines: Sequence[str | Path], **variables: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start command lines side by side; end those that are left."""
    own = environment({"PYTHON_EXEC": torch_python(), **variables})
    options = {"cwd": folder, "env": own, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(line, **options) for line in lines]  # type: ignore[call-overload]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def shown(folder: Path, *lines: Sequence[str | Path], **variables: str) -> list[str]:
    """Run command lines side by side; return what their ranks print, sorted."""
    with started(folder, *lines, **variables) as processes:
        ends = [(process.communicate(timeout=SECONDS), process.returncode) for process in processes]
    assert not any(code for _, code in ends), ends
    return sorted(line for (out, _), _ in ends for line in out.splitlines())


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ("--standalone --nproc_per_node 2", ""),
        ("--nproc-per-node=2 --role trainer --max_restarts 2 --rdzv_id 7 --master_port PORT",
         "TORCHELASTIC_RUN_ID MASTER_PORT"),
    ],
)  # fmt: skip
def test_a_line_gives_ranks_what_torchrun_gives(link: Path, options: str, more: str) -> None:
    words = [*options.replace("PORT", free_port()).split(), "show.py", f"{' '.join(NAMES)} {more}", "--lr", "1 : 2"]
    ours = shown(link.parent, [link, *words])
    assert len(ours) == 2 and ours == shown(link.parent, [torch_python(), *REAL, *words])
    assert json.loads(ours[0])[1] == ["--lr", "1 : 2"]


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_two_parts_started_by_hand_are_one_world_as_with_torchrun(link: Path) -> None:
    def lines(*command: str | Path) -> list[list[str | Path]]:
        port = free_port()
        common = ["--nnodes=2", "--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
        return [[*command, *common, f"--node_rank={rank}", "show.py", " ".join((*NAMES, "MASTER_ADDR"))] for rank in (0, 1)]

    ours = shown(link.parent, *lines(link))
    assert len(ours) == 4 and ours == shown(link.parent, *lines(torch_python(), *REAL))


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_parts_reduce_together_with_the_variables_of_a_trainer_pod(link: Path) -> None:
    common = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": free_port()}
    with (
        started(link.parent, [link, ALLREDUCE], PET_NODE_RANK="0", **common) as first,
        started(link.parent, [link, ALLREDUCE], PET_NODE_RANK="1", **common) as second,
    ):
        (out, err), (_, other) = (parts[0].communicate(timeout=SECONDS) for parts in (first, second))
    assert out == "2 ranks agree\n", err
    assert "note: as node 0 of 2, this machine starts rank 0 of the job's 2\n" in err
    assert "note: as node 1 of 2, this machine starts rank 1 of the job's 2\n" in other


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_torch_reduces_under_the_name_torchrun_and_alone_it_does_not(link: Path) -> None:
    assert shown(link.parent, [link, "--nproc-per-node", "2", ALLREDUCE]) == ["2 ranks agree"]
    assert shown(link.parent, [link, ALLREDUCE]) == ["1 ranks agree"]


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.timeout(3 * SECONDS)
def test_hosts_run_what_torchrun_runs_when_started_on_each(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tempfile.mkdtemp(dir=hosts.shared))
    Path("show.py").write_text(SHOW, encoding="utf-8")
    Path("reduce.py").write_text(ALLREDUCE.read_text(encoding="utf-8"), encoding="utf-8")
    names = ("node01", "node02")
    nodes = ["--nnodes", "2", "--nproc_per_node", "2"]
    show = ["show.py", " ".join(NAMES)]
    with torch_on(hosts, names) as options:
        line = ["--dialect", "torchrun", "-H", ",".join(names), *options, *nodes]
        ours, reduced = hosts.launch(*line, *show, timeout=SECONDS), hosts.launch(*line, "reduce.py", timeout=SECONDS)
        python, path = options[1], options[3]
        master = ["--master_addr", hosts.address("node01"), "--master_port", "29600"]
        script = f"cd {shlex.quote(os.getcwd())} && exec " + shlex.join(["env", path, python, *REAL, *nodes, *master])
        real = [
            subprocess.Popen(
                hosts.inside(name, ["sh", "-c", f"{script} --node_rank {rank} {shlex.join(show)}"]),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank, name in enumerate(names)
        ]  # fmt: skip
        try:
            ends = [process.communicate(timeout=SECONDS) for process in real]
        finally:
            for process in real:
                process.kill()
                process.wait()
    assert (ours.returncode, reduced.returncode) == (0, 0), (ours.stderr, reduced.stderr)
    assert "4 ranks agree" in reduced.stdout.splitlines()
    assert len(lines := sorted(ours.stdout.splitlines())) == 4
    assert lines == sorted(line for out, _ in ends for line in out.splitlines()), [err for _, err in ends]


# Without torch

OPTIONS = ("--dialect", "torchrun", "--no-python")


@pytest.mark.parametrize(("ranks", "threads"), [("2", ["1", "1"]), ("1", [""])])
def test_several_ranks_have_one_thread_each_as_with_torchrun(ranks: str, threads: list[str]) -> None:
    assert launch(*OPTIONS, "--nproc-per-node", ranks, "sh", "-c", "echo $OMP_NUM_THREADS").lines == threads


def test_ranks_for_each_cpu_and_the_error_without_a_gpu() -> None:
    lines = launch(*OPTIONS, "--nproc-per-node", "cpu", "sh", "-c", "echo $RANK/$WORLD_SIZE").lines
    size = len(os.sched_getaffinity(0))
    assert lines == sorted(f"{rank}/{size}" for rank in range(size))
    fails = "exit $((3 - TORCHELASTIC_RESTART_COUNT))"
    assert launch(*OPTIONS, "--nproc-per-node", "auto", "--max-restarts", "1", "sh", "-c", fails).code == 2
    done = launch(*OPTIONS, "--nproc-per-node", "gpu", "true")
    assert done.code and done.words.startswith("error[gpu-count]: localhost reports no GPU"), done.words


def test_only_some_local_ranks_are_printed_and_files_have_all(tmp_path: Path) -> None:
    words = ("--nproc-per-node", "3", "--tee", "3", "--role", "r", "--local-ranks-filter", "0,2", "--log-dir", "logs")
    done = launch(*OPTIONS, *words, "sh", "-c", "echo $RANK; echo e >&2", cwd=tmp_path)
    assert (done.lines, sorted(done.words.splitlines())) == (["[r0]:0", "[r2]:2"], ["[r0]:e", "[r2]:e"])
    files = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert files == {f"rank-{rank:04}.{kind}": f"{text}\n" for rank in range(3) for kind, text in (("out", rank), ("err", "e"))}


def test_redirected_streams_go_only_to_files(tmp_path: Path) -> None:
    done = launch(*OPTIONS, "-r", "1", "--log_dir", "logs", "sh", "-c", "echo $RANK; echo e >&2", cwd=tmp_path)
    assert (done.lines, done.words) == ([], "e\n")
    assert [(path.name, path.read_text()) for path in (tmp_path / "logs").iterdir()] == [("rank-0.out", "0\n")]
