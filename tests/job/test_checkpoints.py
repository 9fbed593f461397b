"""Checkpoints: which set is whole and which the newest, and real ranks that save when they are asked and go on from there."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from mpilaunch.head.checkpoints import number_set
from mpilaunch.job.checkpoints import missing_ranks, newest_first, next_name, unfinished
from tests.support.launching import Launched, finish, launch, launching, script, sh, wait_until
from tests.support.paths import ROOT

PROGRAM = str(ROOT / "examples" / "save_on_signal.py")


# Names


def test_the_newest_set_is_the_one_with_the_highest_number() -> None:
    assert newest_first([]) == []
    assert newest_first(["unfinished-00c0ffee00c0ffee", "x", "00001", "000001.part"]) == []
    assert newest_first(["000009", "000010", "unfinished-00c0ffee00c0ffee"]) == ["000010", "000009"]
    assert newest_first(["999999", "1000000"]) == ["1000000", "999999"]
    assert next_name(["999999999999"]) == "1000000000000" and next_name(["1000000000000"]) == "1000000000001"
    assert (next_name([]), next_name(["000041"]), next_name(["999999"])) == ("000001", "000042", "1000000")
    assert unfinished("/p", "00c0ffee00c0ffee") == "/p/unfinished-00c0ffee00c0ffee"


def test_a_rank_without_its_mark_is_missing() -> None:
    assert missing_ranks([], range(2)) == [0, 1]
    assert missing_ranks(["rank-0.saved", "rank-1.saved.part", "state-1", "rank-2.saved"], range(3)) == [1]
    assert missing_ranks(["rank-0.saved", "rank-1.saved", "rank-17.saved"], range(2)) == []


def test_a_number_that_another_launch_takes_is_not_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "unfinished-1"
    mine.mkdir()
    (mine / "state").touch()
    real = os.listdir
    seen: list[list[str]] = []

    def listdir(path: str) -> list[str]:
        names = real(path)
        if not seen:  # between our look and our renaming, another launch numbers its set
            (tmp_path / "000001").mkdir()
            (tmp_path / "000001" / "state").touch()
        seen.append(names)
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    assert number_set(str(tmp_path), str(mine)) == str(tmp_path / "000002")
    assert real(mine) == [] and real(tmp_path / "000002") == ["state"]


# Real ranks


def sets(prefix: Path) -> list[str]:
    return sorted(path.name for path in prefix.iterdir() if path.name.isdigit()) if prefix.exists() else []


def steps(words: str, what: str) -> dict[str, int]:
    return {rank: int(step) for rank, step in re.findall(rf"rank (\d+) {what} (\d+)", words)}


def checked(done: Launched, code: int) -> str:
    assert done.code == code, done.words
    return done.out.decode()


def test_a_job_that_was_killed_continues_from_its_newest_whole_set(tmp_path: Path) -> None:
    prefix = tmp_path / "sets"
    words = ("-np", "3", "--checkpoint-prefix", prefix, "--checkpoint-interval", "1", PROGRAM)
    with launching(*words, "100000") as process:
        wait_until(lambda: len(sets(prefix)) >= 2, "two sets are whole")
        process.kill()
        killed = finish(process)
    last = sets(prefix)[-1]
    saved = {path.name: int(path.read_text()) for path in (prefix / last).glob("state-*")}
    assert set(saved) == {"state-0", "state-1", "state-2"}
    assert f"checkpoint {prefix}/000001 is whole" in killed.words
    again = checked(launch(*words, str(max(saved.values()) + 20)), 0)
    assert {f"state-{rank}": step for rank, step in steps(again, "begins at step").items()} == saved
    assert steps(again, "has done") == dict.fromkeys("012", max(saved.values()) + 20)


def test_the_signal_to_mpilaunch_asks_for_a_checkpoint(tmp_path: Path) -> None:
    words = ("-np", "2", "--checkpoint-prefix", tmp_path, "--checkpoint-signal", "USR2", PROGRAM, "100000")
    with launching(*words, env={"CHECKPOINT_SIGNAL": "SIGUSR2"}) as process:
        wait_until(lambda: list(tmp_path.glob("unfinished-*")), "the directory of the set is there")
        assert process.stdout
        for _ in range(2):
            assert b"begins at step 0" in process.stdout.readline()
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: sets(tmp_path), "the set is whole")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    assert done.code == 143


def test_before_a_scheduler_ends_the_job_the_ranks_save(tmp_path: Path) -> None:
    with launching("-np", "2", "--checkpoint-prefix", tmp_path, PROGRAM, "100000") as process:
        assert process.stdout
        for _ in range(2):
            assert b"begins at step 0" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    assert done.code == 143
    assert sets(tmp_path) == ["000001"]
    assert "asked to save before they end" in done.words and "checkpoint" in done.words
    assert sorted(steps(done.out.decode(), "has saved step")) == ["0", "1"]


def test_a_rank_that_does_not_save_is_named_and_its_set_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "000007").mkdir()
    (tmp_path / "000007" / "rank-0.saved").touch()
    (tmp_path / "20240131").mkdir()  # of the user: no set, as no rank has left a mark there
    (tmp_path / "20240201").touch()
    program = script(
        tmp_path / "program",
        "#!/bin/sh\n"
        "trap 'echo $RANK saves >&2; [ $RANK = 1 ] || : > $MPILAUNCH_CHECKPOINT_DIR/rank-$RANK.saved' USR1\n"
        "echo from $MPILAUNCH_RESTART_DIR\n"
        "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.4; done\n",
    )
    done = launch("-np", "3", "--checkpoint-prefix", tmp_path, "--checkpoint-interval", "1", program)
    assert checked(done, 0).splitlines() == [f"from {tmp_path}/000007"] * 3
    assert re.search("the last checkpoint is not whole: no mark of ranks 1 in .*unfinished-", done.words)
    assert done.words.count("no mark of ranks 1 in") == 1
    # A rank that has been asked may still save: a second request would mix two states.
    assert [done.words.count(f"{rank} saves\n") for rank in range(3)] == [1] * 3
    assert sets(tmp_path) == ["000007", "20240131", "20240201"]
    assert sorted(path.name for path in tmp_path.glob("unfinished-*/*")) == ["rank-0.saved", "rank-2.saved"]


def test_a_rank_that_does_not_take_the_signal_lives_on(tmp_path: Path) -> None:
    # Its shell does not take it either: what is asked is a process, not a group.
    program = f"if [ $RANK = 0 ]; then sleep 3; else timeout 2.5 {sys.executable} {PROGRAM} 100000; true; fi; echo $RANK ends"
    done = launch("-np", "2", "--checkpoint-prefix", tmp_path, "--checkpoint-interval", "1", *sh(program))
    assert done.code == 0, done.words
    assert {"0 ends", "1 ends"} <= set(done.lines)
    assert "rank 1 has saved step" in done.out.decode()
    assert "no mark of ranks 0 in" in done.words and sets(tmp_path) == []


SLOW = """
import os, signal, sys, time
due = []
signal.signal(signal.SIGUSR1, lambda *_: due.append(time.time()))
rank, step = os.environ["RANK"], 0
print("begins", flush=True)
while step < 40:
    time.sleep(0.1)
    step += 1
    if due:
        asked = due[0]
        due.clear()
        time.sleep(2.0 if rank == "1" else 0.0)
        folder = os.environ["MPILAUNCH_CHECKPOINT_DIR"]
        open(f"{folder}/state-{rank}", "w").write(str(asked))
        open(f"{folder}/rank-{rank}.saved", "w").close()
"""


def test_a_save_that_takes_longer_than_the_interval_mixes_no_states(tmp_path: Path) -> None:
    words = ("-np", "2", "--checkpoint-prefix", tmp_path, "--checkpoint-interval", "1", sys.executable, "-c", SLOW)
    assert checked(launch(*words), 0)
    assert sets(tmp_path)
    for name in sets(tmp_path):
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == ["rank-0.saved", "rank-1.saved", "state-0", "state-1"]
        asked = [float((tmp_path / name / f"state-{rank}").read_text()) for rank in range(2)]
        assert abs(asked[0] - asked[1]) < 0.7, "by the same request: the next one comes a second later"


def test_a_rank_that_was_not_ready_is_asked_again(tmp_path: Path) -> None:
    slow = SLOW.replace("due = []", "due = []; time.sleep(1.5 if os.environ['RANK'] == '1' else 0)").replace("2.0", "0.0")
    words = ("-np", "2", "--checkpoint-prefix", tmp_path, "--checkpoint-interval", "1", sys.executable, "-c", slow)
    done = launch(*words)
    assert done.code == 0 and "no mark of ranks 1 in" in done.words
    assert "000001" in sets(tmp_path)


@pytest.mark.parametrize("ends", ["by the same signal", "well"])
def test_a_preemption_is_told_however_the_ranks_end_while_they_save(tmp_path: Path, ends: str) -> None:
    saves = f"echo saving; {'exit 0' if ends == 'well' else 'while :; do sleep 0.01; done'}"
    program = f"trap '{saves}' USR1; echo $$ >{tmp_path}/up-$RANK; while :; do sleep 0.01; done"
    arguments = ("-np", "2", "--checkpoint-prefix", str(tmp_path / "sets"), "--max-restarts", "3")
    with launching(*arguments, *sh(program), cwd=tmp_path) as process:
        wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(2)), "the ranks run")
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        assert b"are asked to save" in process.stderr.readline()
        if ends != "well":
            for rank in range(2):
                os.kill(int((tmp_path / f"up-{rank}").read_text()), signal.SIGTERM)
        done = finish(process)
    assert done.code == 143 and "error[preempted]: SIGTERM to mpilaunch\n" in done.words, done.words


def test_a_preemption_after_a_failure_does_not_hide_it(tmp_path: Path) -> None:
    """Rank 0, whom the failure ends, tells that it has got the signal of that end."""
    stays = f"trap 'echo ending' TERM; trap : USR1; echo >{tmp_path}/up; while :; do sleep 0.01; done"
    program = f"[ $RANK = 0 ] || {{ while [ ! -e {tmp_path}/up ]; do sleep 0.01; done; exit 7; }}; {stays}"
    arguments = ("-np", "2", "--grace", "1", "--checkpoint-prefix", str(tmp_path / "sets"))
    with launching(*arguments, *sh(program), cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ending\n"
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    assert done.code == 7 and "error[rank-failed]: rank 1 on " in done.words, done.words


def test_a_node_that_is_lost_while_the_ranks_save_leaves_a_preemption_one(tmp_path: Path) -> None:
    program = f"trap : USR1; echo $PPID >{tmp_path}/up-$RANK; while :; do sleep 0.01; done"
    arguments = ("-H", "local,local", "--grace", "3", "--checkpoint-prefix", str(tmp_path / "sets"))
    with launching(*arguments, *sh(program), cwd=tmp_path) as process:
        wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(2)), "the ranks run")
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        assert b"are asked to save" in process.stderr.readline()
        os.kill(int((tmp_path / "up-1").read_text()), signal.SIGKILL)
        done = finish(process)
    assert done.code == 143 and "error[preempted]: SIGTERM to mpilaunch\n" in done.words, done.words


def test_a_job_without_a_request_leaves_nothing(tmp_path: Path) -> None:
    done = launch("-np", "2", "--checkpoint-prefix", tmp_path / "a" / "b", *sh("test -d $MPILAUNCH_CHECKPOINT_DIR"))
    assert done.code == 0 and not done.words
    assert list((tmp_path / "a" / "b").iterdir()) == []
    done = launch(*sh('echo "${MPILAUNCH_CHECKPOINT_DIR-none}"'), env={"MPILAUNCH_CHECKPOINT_DIR": "/from/outside"})
    assert done.lines == ["none"] * len(done.lines)


def test_what_all_ranks_have_saved_by_their_end_is_a_set(tmp_path: Path) -> None:
    save = "trap 'sleep 0.1; : > $MPILAUNCH_CHECKPOINT_DIR/rank-$RANK.saved; exit 0' USR1; while :; do sleep 0.05; done"
    done = launch("-np", "2", "--checkpoint-prefix", tmp_path, "--checkpoint-interval", "1", *sh(save))
    assert done.code == 0 and sets(tmp_path) == ["000001"]


def test_the_options_of_hydra_say_what_became_of_blcr(tmp_path: Path) -> None:
    words = ("-ckpointlib", "blcr", "-ckpoint-prefix", tmp_path, "-ckpoint-interval", "3600", "-n", "2")
    done = launch(*words, *sh("echo $MPILAUNCH_CHECKPOINT_DIR"))
    assert done.code == 0 and all(line.startswith(str(tmp_path)) for line in done.lines)
    assert done.words.startswith("note: -ckpointlib blcr has no effect: BLCR had its last release in 2013")


def test_a_prefix_that_cannot_be_written_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = launch("--checkpoint-prefix", tmp_path / "file" / "sets", "true")
    assert done.code == 2 and done.words.startswith("error[checkpoint-prefix]: ")
