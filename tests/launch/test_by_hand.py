"""Jobs that the user starts once on each node: ranks and nodes have the same names in all messages, files and reports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.launching import Launched, launch, sh

HOST = os.uname().nodename
MASTER = ("--master-addr", "127.0.0.1", "--master-port", "29999")
NATIVE = ("-N", "2", "--nnodes", "2", *MASTER, "--node-rank")
TORCHRUN = ("--dialect", "torchrun", "--no-python", "--nproc-per-node", "2", "--nnodes", "2", *MASTER, "--node-rank")
ACCELERATE = (
    *("--dialect", "accelerate", "launch", "--cpu", "--no_python", "--num_processes", "4", "--num_machines", "2"),
    *("--main_process_ip", "127.0.0.1", "--main_process_port", "29999", "--machine_rank"),
)
DEEPSPEED = (
    *("--dialect", "deepspeed", "--no_python", "--no_local_rank", "--no_ssh", "--num_nodes", "2", "--num_gpus", "2"),
    *("--gpu-bind", "none", "--master_addr", "127.0.0.1", "--master_port", "29999", "--node_rank"),
)
SRUN = ("--dialect", "torchrun", "--no-python", "--nproc-per-node", "2", "--nnodes", "2", *MASTER)


def part(node_rank: int, *words: str, cwd: Path, stdin: bytes = b"") -> Launched:
    return launch(*NATIVE, str(node_rank), *words, cwd=cwd, stdin=stdin)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("line", [NATIVE, TORCHRUN, ACCELERATE, DEEPSPEED, SRUN])
def test_a_failed_rank_is_named_by_its_number_in_the_job_and_its_host(line: tuple[str, ...]) -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"} if line is SRUN else {}
    words = line if step else (*line, "1")
    done = launch(*words, *sh("[ $RANK = 3 ] || exec sleep 100; echo why >&2; exit 5"), env=step)
    assert done.code == 5
    assert "note: as node 1 of 2, this machine starts ranks 2-3 of the job's 4\n" in done.words
    assert f"error[rank-failed]: rank 3 on {HOST} exited with code 5" in done.words
    assert "rank 2 stopped after it" in done.words


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_files_of_all_parts_stand_side_by_side_in_one_directory(tmp_path: Path, order: tuple[int, int]) -> None:
    options = ("--output-filename", "logs", "--error-file", "errors/{rank}.{node_rank}.{local_rank}.{host}")
    for node_rank in order:
        assert part(node_rank, *options, *sh("echo $RANK; echo $RANK >&2"), cwd=tmp_path).code == 0
    assert texts(tmp_path / "logs") == {f"rank-{rank:04}.out": f"{rank}\n" for rank in range(4)}
    names = ("0.0.0", "1.0.1", "2.1.0", "3.1.1")
    assert texts(tmp_path / "errors") == {f"{name}.{HOST}": f"{rank}\n" for rank, name in enumerate(names)}


def test_tags_and_folded_output_have_the_numbers_of_the_job(tmp_path: Path) -> None:
    assert part(1, "--tag", "{rank} {node_rank} {host}|", "echo", "x", cwd=tmp_path).lines == [
        f"{rank} 1 {HOST}|x" for rank in (2, 3)
    ]
    assert part(1, "--fold", "echo", "x", cwd=tmp_path).lines == ["[2-3] x"]


def test_the_report_names_ranks_node_and_host_of_the_job(tmp_path: Path) -> None:
    assert part(1, "--report", "r.json", *sh("[ $RANK = 3 ] || exec sleep 100; exit 5"), cwd=tmp_path).code == 5
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [rank["rank"] for rank in report["ranks"]] == [2, 3]
    assert (report["verdict"]["first_rank"], report["verdict"]["host"]) == (3, HOST)
    assert [(node["name"], node["node_rank"]) for node in report["nodes"]] == [(HOST, 1)]
    plan = report["plan"]
    assert plan["part"] == {"node_rank": 1, "nodes": 2}
    assert (plan["nodes"][0]["name"], plan["nodes"][0]["ranks"]) == (HOST, [2, 3])
    assert [place["rank"] for place in plan["ranks"]] == [2, 3]


def test_a_restarted_part_keeps_its_numbers(tmp_path: Path) -> None:
    fails = sh("[ $RANK$MPILAUNCH_RESTART_COUNT != 30 ] || exit 5; sleep 0.2; echo $RANK")
    done = part(1, "--max-restarts", "1", "--output-filename", "logs", *fails, cwd=tmp_path)
    assert done.code == 0 and f"attempt 1: rank 3 on {HOST} exited with code 5" in done.words
    assert texts(tmp_path / "logs" / "restart-1") == {
        "rank-0002.err": "", "rank-0002.out": "2\n", "rank-0003.err": "", "rank-0003.out": "3\n"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "lines"),
    [("auto", ["2:given", "3:"]), ("3", ["2:", "3:given"]), ("all", ["2:given", "3:given"]), ("0", ["2:", "3:"])],
)
def test_stdin_goes_to_the_rank_of_the_job(tmp_path: Path, target: str, lines: list[str]) -> None:
    assert part(1, "--stdin", target, *sh("echo $RANK:$(cat)"), cwd=tmp_path, stdin=b"given\n").lines == lines


def test_a_rank_that_no_part_has_is_an_error(tmp_path: Path) -> None:
    done = part(1, "--stdin", "4", "true", cwd=tmp_path)
    assert done.code == 2 and "there is no rank 4: the job has ranks 0 to 3" in done.words
    done = launch("-N", "2", "--nnodes", "9999999", "--node-rank", "0", *MASTER, "true")
    assert done.code == 2 and done.words.startswith("error[rank-count]: 19,999,998 ranks asked for"), done.words


def test_the_environment_of_a_rank_is_shown_by_its_number_in_the_job(tmp_path: Path) -> None:
    shown = part(1, "--show-env", "3", "true", cwd=tmp_path).lines
    assert {"RANK=3", "LOCAL_RANK=1", "NODE_RANK=1", "WORLD_SIZE=4"} <= set(shown)
    done = part(1, "--show-env", "1", "true", cwd=tmp_path)
    assert done.code == 2 and "this machine does not start rank 1, but ranks 2-3" in done.words
    assert "there is no rank 4" in part(1, "--show-env", "4", "true", cwd=tmp_path).words


def test_the_map_and_bindings_have_the_numbers_of_the_job(tmp_path: Path) -> None:
    shown = part(1, "--dry-run", "true", cwd=tmp_path).out.decode()
    assert [line.split() for line in shown.splitlines()[2:4]] == [
        ["node", "host", "agent", "slots", "ranks"], ["1", HOST, "local", "2", "2-3"]
    ]  # fmt: skip
    (tmp_path / "ranks").write_text("rank 0=localhost slot=0\nrank 1=localhost slot=0\n", encoding="utf-8")
    done = part(1, "--rankfile", "ranks", "--report-bindings", "true", cwd=tmp_path)
    assert done.code == 0 and f"rank 2 on {HOST}: " in done.words and f"rank 3 on {HOST}: " in done.words, done.words
    done = part(1, "--gpus-per-rank", "1", "--map-by", "slot", "true", cwd=tmp_path)
    assert done.code and f"{HOST} has " in done.words and "localhost" not in done.words, done.words


def test_a_checkpoint_of_a_part_is_whole_when_its_ranks_have_saved(tmp_path: Path) -> None:
    saves = sh('trap "touch $MPILAUNCH_CHECKPOINT_DIR/rank-$RANK.saved; exit 0" USR1; echo ready; while :; do sleep 0.05; done')
    done = part(1, "--checkpoint-prefix", "sets", "--checkpoint-interval", "1", *saves, cwd=tmp_path)
    assert done.code == 0
    assert sorted(path.name for path in (tmp_path / "sets" / "000001").iterdir()) == ["rank-2.saved", "rank-3.saved"]
