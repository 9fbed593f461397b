"""Command lines of torchrun, under its name: what ranks get is what the real torchrun gives them, here and on hosts."""

from __future__ import annotations

import json
import os
import re
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
from tests.support.launching import environment, launch, sh
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
FAIL_ONCE = """import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(rank, attempt, *sys.argv[2:])
print(rank, attempt, file=sys.stderr)
said = sys.argv[1] + attempt + "-"
open(said + rank, "w")
while not (os.path.exists(said + "0") and os.path.exists(said + "1")):
    time.sleep(0.01)
sys.exit(attempt == "0")
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


def test_ranks_for_each_cpu_and_without_a_gpu_an_error_or_one_rank() -> None:
    lines = launch(*OPTIONS, "--nproc-per-node", "cpu", "sh", "-c", "echo $RANK/$WORLD_SIZE").lines
    size = len(os.sched_getaffinity(0))
    assert lines == sorted(f"{rank}/{size}" for rank in range(size))
    fails = "exit $((3 - TORCHELASTIC_RESTART_COUNT))"
    assert launch(*OPTIONS, "--nproc-per-node", "auto", "--max-restarts", "1", "sh", "-c", fails).code == 2
    done = launch(*OPTIONS, "--nproc-per-node", "gpu", "true")
    assert done.code and done.words.startswith("error[gpu-count]: localhost reports no GPU"), done.words
    done = launch("-N", "gpu-or-one", "--bare-if-single", *sh("echo $MPILAUNCH_RANK of $MPILAUNCH_SIZE, ${RANK-plain}"))
    assert (done.code, done.out) == (0, b"0 of 1, plain\n")
    done = launch("-N", "2", "--bare-if-single", *sh("echo $RANK of $WORLD_SIZE"))
    assert (done.code, sorted(done.out.splitlines())) == (0, [b"0 of 2", b"1 of 2"])


def test_only_some_local_ranks_are_printed_and_files_have_all(tmp_path: Path) -> None:
    words = ("--nproc-per-node", "3", "--tee", "3", "--role", "r", "--local-ranks-filter", "0,2", "--log-dir", "logs")
    done = launch(*OPTIONS, *words, "sh", "-c", "echo $RANK; echo e >&2", cwd=tmp_path)
    assert (done.lines, sorted(done.words.splitlines())) == (["[r0]:0", "[r2]:2"], ["[r0]:e", "[r2]:e"])
    streams = [(rank, *stream) for rank in range(3) for stream in (("stdout", rank), ("stderr", "e"))]
    assert logs(tmp_path) == {f"none_*/attempt_0/{rank}/{name}.log": f"{text}\n" for rank, name, text in streams}


def test_redirected_streams_go_only_to_files(tmp_path: Path) -> None:
    done = launch(*OPTIONS, "-r", "1", "--log_dir", "logs", "sh", "-c", "echo $RANK; echo e >&2", cwd=tmp_path)
    assert (done.lines, done.words) == ([], "e\n")
    assert logs(tmp_path) == {"none_*/attempt_0/0/stdout.log": "0\n"}
    done = launch(*OPTIONS, "-t", "2", "--log_dir", "other", "sh", "-c", "echo $RANK; echo e >&2", cwd=tmp_path)
    assert (done.lines, done.words) == (["[default0]:0"], "[default0]:e\n")
    assert logs(tmp_path, "other") == {"none_*/attempt_0/0/stderr.log": "e\n"}


def test_streams_of_single_ranks_go_to_files_and_the_others_are_printed(tmp_path: Path) -> None:
    show = ("sh", "-c", "echo $RANK; echo e$RANK >&2")
    done = launch(*OPTIONS, "--nproc-per-node", "3", "-r", "0:1,1:2", "--log-dir", "logs", *show, cwd=tmp_path)
    assert (done.lines, sorted(done.words.splitlines())) == (["1", "2"], ["e0", "e2"])
    assert logs(tmp_path) == {"none_*/attempt_0/0/stdout.log": "0\n", "none_*/attempt_0/1/stderr.log": "e1\n"}
    done = launch(*OPTIONS, "--nproc-per-node", "2", "--tee", "0:2", "--log-dir", "tee", *show, cwd=tmp_path)
    assert sorted(done.words.splitlines()) == ["[default0]:e0", "[default1]:e1"]
    assert logs(tmp_path, "tee") == {"none_*/attempt_0/0/stderr.log": "e0\n"}


def logs(folder: Path, name: str = "logs") -> dict[str, str]:
    """Return what the files of --log-dir hold, by paths without the random part of a run's name."""
    paths = [path for path in (folder / name).rglob("*.log") if path.stat().st_size]
    return {re.sub("_[^/]*", "_*", str(path.relative_to(folder / name)), count=1): path.read_text() for path in paths}


def test_each_run_and_each_node_has_a_directory_of_its_own_with_the_attempts(tmp_path: Path) -> None:
    words = ("-r", "3", "--log-dir", "logs", "--max-restarts", "1", "--rdzv-id", "7")
    fails = ("sh", "-c", "echo $RANK $MPILAUNCH_RESTART_COUNT; exit $((1 - MPILAUNCH_RESTART_COUNT))")
    for ranks in ("2", "1"):
        assert launch(*OPTIONS, "--nproc-per-node", ranks, *words, *fails, cwd=tmp_path).code == 0
    runs = sorted((tmp_path / "logs").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [re.fullmatch("7_[0-9a-f]{16}_0", run.name) is not None for run in runs] == [True, True]
    found = [sorted(str(path.relative_to(run)) for path in run.rglob("stdout.log")) for run in runs]
    assert found == [[f"attempt_{n}/{rank}/stdout.log" for n in (0, 1) for rank in range(ranks)] for ranks in (2, 1)]
    assert (runs[1] / "attempt_1/0/stdout.log").read_text() == "0 1\n"
    nodes = ("-H", "local,local", "--nnodes", "2", "-r", "1", "--log-dir", "two", "sh", "-c", "echo $RANK")
    assert launch(*OPTIONS, *nodes, cwd=tmp_path).code == 0
    assert sorted(path.name.rpartition("_")[2] for path in (tmp_path / "two").iterdir()) == ["0", "1"]
    done = launch(*OPTIONS, "-r", "1", "--log-dir", "two", "--rdzv-id", "a/b", "true", cwd=tmp_path)
    assert done.code == 2 and "--rdzv-id a/b" in done.words


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ("-r 1", [("stdout", 0), ("stdout", 1)]),
        ("-r 0:1,1:2 --logs-specs default", [("stdout", 0), ("stderr", 1)]),
        ("--tee 1:3 --virtual-local-rank --duplicate-stdout-filters 0", [("stdout", 1), ("stderr", 1)]),
    ],
)
def test_the_log_files_are_those_of_torchrun(link: Path, options: str, streams: list[tuple[str, int]]) -> None:
    (link.parent / "fails.py").write_text(FAIL_ONCE, encoding="utf-8")
    words = ["--nproc_per_node=2", "--max_restarts=1", *options.split(), "--rdzv_id=7"]
    macros = ["{}", "a${local_rank}", "$local_rank$$", "$other"]
    real = {"cwd": link.parent, "env": environment(), "timeout": SECONDS, "check": True}
    for name, command in (("ours", [link]), ("theirs", [torch_python(), *REAL])):
        line = [*command, *words, f"--master_port={free_port()}", "--log-dir", name, "fails.py", name + "-", *macros]
        subprocess.run(line, **real)  # type: ignore[call-overload]
    ours, theirs = logs(link.parent, "ours"), logs(link.parent, "theirs")
    theirs = {path: text for path, text in theirs.items() if "filtered" not in path}
    assert set(ours) == {f"7_*/attempt_{n}/{rank}/{stream}.log" for n in (0, 1) for stream, rank in streams}
    assert ours == theirs
