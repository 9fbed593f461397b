"""Jobs launched from Python: what they return, what they raise, and that they end with whoever launched them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpilaunch.api import JobFailed, run
from mpilaunch.api.job import Option, option_words
from tests.support.launching import environment, wait_until
from tests.support.processes import everything, ours


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"np": 4, "map_by": "node"}, ["--np=4", "--map-by=node"]),
        ({"x": ["A=1", "B"], "N": 2}, ["-x", "A=1", "-x", "B", "-N", "2"]),
        ({"host": ("a", "b:2"), "oversubscribe": True}, ["--host=a", "--host=b:2", "--oversubscribe"]),
        ({"hostfile": Path("/h/f"), "timeout": 1.5, "tag": ""}, ["--hostfile=/h/f", "--timeout=1.5", "--tag="]),
        ({"oversubscribe": False, "tag": None, "export": []}, []),
        ({"np": 0}, ["--np=0"]),
    ],
)
def test_options_are_words(options: dict[str, Option], words: list[str]) -> None:
    assert option_words(options) == words


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process of a job find the checkout."""
    monkeypatch.setenv("PYTHONPATH", os.fsdecode(environment()[b"PYTHONPATH"]))


def test_a_job_returns_its_report_and_its_output(tmp_path: Path) -> None:
    program = ["sh", "-c", "cat; echo $RANK $A in $PWD; echo $RANK >&2"]
    done = run(program, np=2, capture_output=True, input="in\n", cwd=tmp_path, x="A=b")
    assert sorted(done.stdout.splitlines()) == [f"0 b in {tmp_path}", f"1 b in {tmp_path}", "in"]
    assert sorted(done.stderr.splitlines()) == ["0", "1"]
    assert (done.exit_code, done.cause, done.first_rank, done.detail, str(done)) == (0, "ok", None, "", "ok")
    assert [rank["exit_code"] for rank in done.members["ranks"]] == [0, 0]


def test_output_goes_where_that_of_the_caller_goes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run(["sh", "-c", "echo up; cat"], np=1, cwd=tmp_path, report="kept.json")
    assert (capfd.readouterr().out, done.stdout) == ("up\n", "")
    assert json.loads((tmp_path / "kept.json").read_text()) == done.members


def test_a_failure_is_raised_with_its_reason() -> None:
    with pytest.raises(JobFailed) as raised:
        run(["sh", "-c", "[ $RANK = 0 ] && exec sleep 60; echo bad >&2; exit 3"], np=2, capture_output=True)
    ended = raised.value.report
    assert (ended.exit_code, ended.cause, ended.first_rank) == (3, "rank-failed", 1)
    assert str(raised.value) == f"rank-failed: rank 1 on {ended.host} exited with code 3\n  bad"
    assert run(["false"], np=1, check=False, capture_output=True).exit_code == 1


@pytest.mark.parametrize(
    ("command", "options", "cause"),
    [
        (["true"], {"nop": 1}, "option-unknown"),
        (["true"], {"np": "many"}, "option-value"),
        (["/no/such"], {"np": 1}, "start-program-missing"),
        ([], {"np": 1}, "no-program"),
        (["true"], {"config": "/no/such"}, "file-unreadable"),
    ],
)
def test_a_job_that_does_not_start_says_why(command: list[str], options: dict[str, Option], cause: str) -> None:
    with pytest.raises(JobFailed) as raised:
        run(command, capture_output=True, **options)  # type: ignore[arg-type]
    assert raised.value.report.cause == cause and raised.value.report.detail


KILLER = """
import os, signal
from pathlib import Path
pid = os.getppid()
while b"import main; main()" not in Path(f"/proc/{pid}/cmdline").read_bytes():
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
os.kill(pid, signal.SIGKILL)
"""


def test_modules_in_the_directory_of_the_job_are_not_those_of_mpilaunch(tmp_path: Path) -> None:
    for name in ("signal", "click", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    assert run(["echo", "up"], np=1, cwd=tmp_path, capture_output=True, env={"PATH": os.defpath}).stdout == "up\n"


def test_an_earlier_report_is_not_taken_for_that_of_a_launcher_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text('{"verdict": {"cause": "ok", "detail": null, "context": [], "last_lines": []}}')
    with pytest.raises(JobFailed, match="killed: mpilaunch ended with -9"):
        run([sys.executable, "-c", KILLER], np=1, capture_output=True, cwd=tmp_path, report="kept.json")


def test_a_place_for_the_report_that_cannot_be_written_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobFailed) as raised:
        run(["touch", "ran"], np=1, capture_output=True, cwd=tmp_path, report="file/kept.json")
    assert raised.value.report.exit_code == 2 and not (tmp_path / "ran").exists()
    run(["true"], np=1, cwd=tmp_path, report="new/kept.json")
    assert json.loads((tmp_path / "new" / "kept.json").read_text())["verdict"]["cause"] == "ok"
    assert run(["true"], np=1, report=os.devnull).exit_code == 0


def test_what_is_no_job_has_no_report_and_is_well() -> None:
    done = run(["true"], np=1, dry_run=True, capture_output=True)
    assert (done.exit_code, done.cause, str(done)) == (0, "ok", "ok") and "1 rank on 1 node" in done.stdout
    with pytest.raises(TypeError, match="ends with its caller"):
        run(["true"], np=1, detach=True)


def test_words_of_the_program_are_its_own() -> None:
    done = run(["sh", "-c", 'echo "$@"', "sh", "--np", "3", "-x"], np=1, capture_output=True)
    assert done.stdout == "--np 3 -x\n"
    with pytest.raises(JobFailed, match="-n"):
        run(["-n", "2", "true"], np=1, capture_output=True)


def test_jobs_run_side_by_side_in_threads() -> None:
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda number: run(["echo", str(number)], np=1, capture_output=True), range(3)))
    assert [each.stdout for each in done] == ["0\n", "1\n", "2\n"]


CALLER = """
import sys
from mpilaunch.api import run
try:
    run(["sh", "-c", "touch up.$RANK; while sleep 0.01; do printf %0100000d 0; done"], np=2, capture_output=True)
finally:
    print("ended", flush=True)
"""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "ended\n"), (signal.SIGKILL, "")])
def test_a_job_ends_with_its_caller(tmp_path: Path, number: signal.Signals, said: str) -> None:
    before = everything()
    with subprocess.Popen(
        [sys.executable, "-c", CALLER], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as caller:
        wait_until(lambda: all((tmp_path / f"up.{rank}").exists() for rank in range(2)), "the ranks run")
        caller.send_signal(number)
        assert caller.communicate(timeout=30)[0] == said
        assert caller.returncode == -number
    wait_until(lambda: not ours(before), "the job has ended")


def test_a_launcher_that_is_killed_is_no_success() -> None:
    before = everything()
    with pytest.raises(JobFailed, match="killed: mpilaunch ended with -9 and wrote no report"):
        run([sys.executable, "-c", KILLER], np=1, capture_output=True)
    wait_until(lambda: not ours(before), "the job has ended")
