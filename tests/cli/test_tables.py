"""The tables of `mpilaunch jobs`, and the stacks of `mpilaunch stack`."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.cli.jobs.tables import duration, jobs_as_text, ranks_as_text, size_of, stacks_as_text, standby_as_text

ABOUT: dict[str, Any] = {
    "id": "1a2b3c4d5e6f7081", "name": "", "program": ["train.py", "--lr", "0.1"], "state": "running", "ranks": 4,
    "nodes": ["node01", "node02"], "began": 1.0, "age": 3725.0, "silent": 0.4, "pid": 4711, "restart": 0, "version": "1",
}  # fmt: skip
ROW: dict[str, Any] = {
    "rank": 0, "host": "node01", "how": "busy on a CPU", "alive": True, "silent": 50.0, "last_line": "step 3", "gpus": [],
    "pid": 17, "cpus": 0.99, "cpu_seconds": 75.0, "memory": 3 << 30,
}  # fmt: skip


def test_jobs_are_named_by_the_shortest_ids_that_differ() -> None:
    others = [("1a2b3c99000000ff", ABOUT), ("ffffffffffffffff", None)]
    assert jobs_as_text([("1a2b3c4d5e6f7081", ABOUT), *others]) == [
        "JOB      STATE      RANKS  NODES    AGE  SILENT  PROGRAM",
        "1a2b3c4  running        4      2  1h02m    0.4s  train.py --lr 0.1",
        "1a2b3c9  running        4      2  1h02m    0.4s  train.py --lr 0.1",
        "fffffff  no answer",
    ]


def test_names_are_shown_where_there_are_any_and_secrets_are_not() -> None:
    about = {**ABOUT, "name": "night\x1b[2J", "silent": None, "program": ["run", "--token=abcdefghijkl", "x" * 80]}
    head, row = jobs_as_text([("1a2b3c4d5e6f7081", about)])
    assert head == "JOB     NAME          STATE    RANKS  NODES    AGE  SILENT  PROGRAM"
    assert row.startswith("1a2b3c  night\\x1b[2J  running      4      2  1h02m          run ") and row.endswith("...")
    assert "abcdef" not in row


def test_odd_ranks_come_first_and_ended_ones_last() -> None:
    rows = [
        {**ROW, "rank": 0},
        {**ROW, "rank": 1, "alive": False, "how": "exited with code 0", "pid": None, "cpus": None, "cpu_seconds": None},
        {**ROW, "rank": 2},
        {**ROW, "rank": 3, "host": "node02", "how": "stopped by a signal", "cpus": 0.0, "last_line": "\x1b[31m" + "y" * 90},
    ]
    lines = ranks_as_text(ABOUT, rows)
    assert lines[0] == "job 1a2b3c4d5e6f7081: train.py --lr 0.1: 4 ranks on node[01-02], running for 1h02m"
    assert [line.split()[0] for line in lines[1:]] == ["RANK", "3", "0", "2", "1"]
    assert lines[3] == "   0  node01   17   1.0     1m15s    3.0G     50s  busy on a CPU        step 3"
    assert lines[2].endswith(f"...{'y' * 77}") and "\x1b" not in "".join(lines)


def test_gpus_are_shown_where_a_rank_has_any() -> None:
    rows = [{**ROW, "gpus": ["nvidia 2 GPU-8a1b", "nvidia 3 GPU-8a1c"]}, {**ROW, "rank": 1}]
    _, head, first, _ = ranks_as_text(ABOUT, rows)
    assert "GPUS" in head and " 2,3 " in first


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m00s"), (725, "12m05s"), (3600, "1h00m"), (187_400, "2d04h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0K"), (4096, "4K"), (1_048_576, "1.0M"), (123 << 20, "123M"), (3 << 29, "1.5G"), (1 << 41, "2.0T")]
)
def test_sizes(count: int, text: str) -> None:
    assert size_of(count) == text


def test_standby_daemons() -> None:
    assert standby_as_text(["node01", "node02"], ["node03"]) == "standby daemons: node[01-02] (idle), node03 (in use)"
    assert standby_as_text([], []) == "standby daemons: being started again"


def test_stacks_are_shown_with_the_odd_rank_first_and_the_ended_ones_last() -> None:
    def rank(number: int, how: str, line: int, alive: bool = True) -> dict[str, Any]:
        process = {"pid": 1, "steady": True, "threads": [[["/home/ann/train.py", line, "step"]]]}
        silent, processes = (10.0 + number, [process]) if alive else (None, [])
        shown = {"alive": alive, "silent": silent, "processes": processes, "native": None}
        return {"rank": number, "host": "node01", "how": how, **shown}

    ranks = [rank(0, "in a", 8), rank(1, "in a", 8), rank(2, "exit code 0", 0, alive=False), rank(3, "in b\x1b", 9)]
    assert stacks_as_text(ranks) == [
        "rank 3 on node01: in b\\x1b, no output for 13 s",
        *("    Main thread (most recent call first):", '      File "/home/ann/train.py", line 9 in step'),
        "ranks 0-1 on node01: in a, no output for 10 to 11 s",
        *("    Main thread (most recent call first):", '      File "/home/ann/train.py", line 8 in step'),
        "rank 2 on node01: exit code 0",
    ]
