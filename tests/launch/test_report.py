"""What a launch tells scripts: the report as documented, the map, notes and silence."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mpilaunch
from tests.support.launching import finish, launch, launching, script, sh, wait_for_files
from tests.support.paths import DOCS

PAGE = (DOCS / "report.md").read_text(encoding="utf-8")


def report_of(tmp_path: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = launch("--report", "report.json", *words, cwd=tmp_path)
    assert done.code == code
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"], "no part of it is left"
    found: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    return found


def members(data: object, name: str = "") -> set[str]:
    """Return the names of all members as the page writes them; the plan has a table of its own."""
    if isinstance(data, dict) and name != "plan":
        prefix = f"{name}." if name else ""
        return set().union(*(members(value, prefix + key) for key, value in data.items()))
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return set().union(*(members(item, f"{name}[]") for item in data))
    return {name}


def test_the_report_of_a_good_job(tmp_path: Path) -> None:
    before = time.time()
    report = report_of(tmp_path, "-H", "local:2,local:1", "true", "x")
    after = time.time()
    assert (report["schema"], report["mpilaunch"]) == ("mpilaunch.report/1", mpilaunch.__version__)
    assert report["plan"]["apps"][0]["program"] == ["true", "x"]
    assert re.fullmatch("[0-9a-f]{16}", report["job_id"])
    verdict = report["verdict"]
    assert (verdict["exit_code"], verdict["cause"], verdict["first_rank"], verdict["detail"]) == (0, "ok", None, None)
    assert [(node["index"], node["name"], node["hostname"]) for node in report["nodes"]] == [
        (index, "local", os.uname().nodename) for index in range(2)
    ]
    assert [(rank["rank"], rank["node"], rank["exit_code"]) for rank in report["ranks"]] == [(0, 0, 0), (1, 0, 0), (2, 1, 0)]
    for rank in report["ranks"]:
        assert before <= rank["started"] <= rank["ended"] <= after
    assert list(report["phases"]) == ["launch-daemons", "prepare", "start-ranks", "run", "end"]
    assert 0 < sum(report["phases"].values()) < after - before


def test_the_report_of_independent_hosts_has_the_code_and_the_bytes_of_each(tmp_path: Path) -> None:
    """And the failures, which the style of clush has told on the terminal."""
    words = ("-H", "a,b", "--agent", "local", "--independent", "--host-failures", "clush", "--template")
    report = report_of(tmp_path, *words, *sh("printf 12345; printf 12 >&2; test {host} = a || exit 3"), code=3)
    assert (report["verdict"]["cause"], report["verdict"]["detail"]) == ("hosts-failed", "b: exit code 3")
    found = [(rank["exit_code"], rank["stdout_bytes"], rank["stderr_bytes"]) for rank in report["ranks"]]
    assert found == [(0, 5, 2), (3, 5, 2)]


def test_the_report_of_a_failed_job(tmp_path: Path) -> None:
    program = sh("ulimit -c 0; [ $RANK = 1 ] || exec sleep 100; sleep 0.3 & sleep 0.1; echo why >&2; kill -ABRT $$")
    report = report_of(tmp_path, "-np", "2", *program, code=134)
    verdict = report["verdict"]
    assert (verdict["exit_code"], verdict["cause"], verdict["first_rank"]) == (134, "rank-failed", 1)
    assert verdict["host"] == "localhost" and verdict["detail"].startswith("killed by SIGABRT (signal 6)")
    assert verdict["last_lines"] == ["why"]
    stopped, failed = report["ranks"]
    assert (stopped["signal"], stopped["exit_code"], stopped["how"]) == (15, None, "killed by SIGTERM (signal 15)")
    assert failed["signal"] == 6 and failed["ended"] <= stopped["ended"]
    assert (stopped["stopped"], failed["stopped"]) == (True, False)


def test_every_member_is_documented_and_every_documented_member_is_there(tmp_path: Path) -> None:
    # The shell goes on when the pipe of $() is closed: after the setsid.
    report = report_of(tmp_path, "-np", "1", *sh("up=$(setsid sh -c 'exec sleep 1000 >/dev/null' &); exit 1"), code=1)
    documented = set(re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## The plan")[0], re.MULTILINE))
    # What is told of a GPU is there only where GPUs are.
    found = members(report) - {"nodes[].gpus"}
    assert {name for name in found ^ documented if "gpus[]" not in name} == set()


@pytest.mark.parametrize(
    ("words", "code", "cause", "detail", "host", "nodes"),
    [
        ("-H nod3,local true", 1, "start-host-unknown", "1 of 2 nodes: nod3: host name unknown", "nod3", ["nod3", "local"]),
        ("-H local,local ./nope", 1, "start-program-missing", "2 of 2 nodes: local", "local", ["local", "local"]),
        ("-H local:1 -np 2 true", 2, "not-enough-slots", "2 ranks", None, []),
        ("-np 0 true", 2, "option-value", "--np: 0 is out of range", None, []),
        ("--no-such true", 2, "option-unknown", "unknown option --no-such", None, []),
        ("-np 2", 2, "no-program", "no program to run", None, []),
        ("-H local -x TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaaaa= --app=hf_aaaaaaaaaaaaaaaaaaaaaaaa", 2, "", "<masked>", None, []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_report_of_a_job_that_does_not_start(
    words: str, code: int, cause: str, detail: str, host: str | None, nodes: list[str], tmp_path: Path
) -> None:
    report = report_of(tmp_path, *words.split(), code=code)
    verdict = report["verdict"]
    assert (verdict["exit_code"], verdict["host"]) == (code, host)
    assert cause in verdict["cause"] and detail in verdict["detail"] and "hf_" not in json.dumps(report)
    assert [node["name"] for node in report["nodes"]] == nodes
    assert (report["plan"] is None, report["job_id"] is None) == (not nodes, not nodes)
    assert (report["ranks"], report["attempts"], verdict["swept"]) == ([], [], [])
    if cause.startswith("start-"):
        assert verdict["context"][-1] == "no rank was started anywhere" and verdict["hint"]


def test_the_report_of_a_signal_that_comes_before_the_ranks(tmp_path: Path) -> None:
    agent = "sh -c 'echo x >waits; exec sleep 100'"
    with launching("--report", "report.json", "--agent", agent, "-H", "n1", "true", cwd=tmp_path) as process:
        wait_for_files(tmp_path / "waits")
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130 and "SIGINT to mpilaunch during the start" in done.words
    assert json.loads((tmp_path / "report.json").read_text())["verdict"]["cause"] == "interrupted"


def test_a_report_makes_its_directories_and_is_written_by_the_variable_too(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "1" / "report.json"
    assert launch("-np", "1", "true", env={"MPILAUNCH_REPORT": str(path)}).code == 0
    assert json.loads(path.read_text())["verdict"]["cause"] == "ok"
    assert launch("--frob", "true", env={"MPILAUNCH_REPORT": str(path)}).code == 2
    assert json.loads(path.read_text())["verdict"]["cause"] == "option-unknown"


def test_what_only_shows_a_plan_writes_no_report(tmp_path: Path) -> None:
    for option in ("--dry-run", "--show-config", "--show-env=0"):
        assert launch("--report", "report.json", option, "true", cwd=tmp_path).code == 0
        assert launch("--report", "report.json", option, "-H", "local:1", "-np", "2", "true", cwd=tmp_path).code in (0, 2)
    assert not list(tmp_path.iterdir())


def test_a_report_that_cannot_be_written_is_reported_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = launch("-np", "1", "--report", "file/report.json", *sh("touch ran"), cwd=tmp_path)
    assert (done.code, list(tmp_path.iterdir())) == (2, [tmp_path / "file"])
    assert done.words.startswith("error[report-file]: --report file/report.json: ")
    assert launch("--report", "file/report.json", "--frob", cwd=tmp_path).words.count("error[") == 2


def test_an_old_report_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("old", encoding="utf-8")
    assert report_of(tmp_path, "-np", "1", "true")["verdict"]["cause"] == "ok"


def test_what_is_no_file_or_leads_elsewhere_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "real.json").touch(mode=0o600)
    (tmp_path / "link.json").symlink_to("real.json")
    assert launch("-np", "1", "--report", "link.json", "true", cwd=tmp_path).code == 0
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "real.json").read_text())["verdict"]["cause"] == "ok"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert launch("-np", "1", "--report", "pipe", "true", cwd=tmp_path).code == 0
        assert json.loads(os.read(reader, 1 << 20))["verdict"]["cause"] == "ok"
    finally:
        os.close(reader)
    done = launch("-np", "1", "--report", "pipe", "true", cwd=tmp_path)
    assert "error[report-file]: --report pipe: " in done.words, "nobody reads it"
    words = ("--report", "/dev/stdout", "-np", "1", "echo", "hi")
    with (tmp_path / "out").open("wb") as out, launching(*words, stdout=out) as job:
        assert finish(job).code == 0
    assert (tmp_path / "out").read_text().startswith("hi\n{\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "out", "pipe", "real.json"]


def test_a_timed_out_job_says_so(tmp_path: Path) -> None:
    verdict = report_of(tmp_path, "-np", "1", "--timeout", "0.2", "sleep", "100", code=124)["verdict"]
    assert verdict["cause"] == "timeout"
    assert verdict["detail"].startswith("time limit of 0.2 s exceeded\nrank 0 on localhost: idle, waits in "), "its last state"
    assert 0.15 <= verdict["seconds"] < 5


def test_quiet_says_nothing_but_the_ranks_and_errors() -> None:
    program = sh("echo out; echo err >&2; setsid sleep 1000 & exit 0")
    done = launch("-np", "1", "-q", "--wdir", "/", *program)
    assert (done.code, done.out) == (0, b"out\n")
    assert "note:" not in done.words
    assert "error[rank-failed]" in launch("-np", "1", "-q", "false").words


def test_the_map_and_the_bindings_are_shown_on_stderr_before_the_ranks_run() -> None:
    done = launch("-np", "2", "--display-map", "--report-bindings", *sh("echo out; echo ran >&2"))
    assert done.out == b"out\nout\n"
    words = done.words
    assert words.index("2 ranks on 1 node") < words.index("rank 0 on localhost: ") < words.index("ran\n")


def test_a_directory_that_is_gone_is_no_fault_of_ours(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    agent = script(tmp_path / "agent", '#!/bin/sh\ncd /; rmdir "$GONE"; shift\neval "exec $*"\n')
    words = ["--agent", f"{agent} {{host}} {{command}}", "-H", "node1", "--python", sys.executable]
    done = launch(*words, *sh("pwd"), cwd=gone, env={"HOME": str(tmp_path), "GONE": str(gone), "PWD": str(gone)})
    assert (done.code, done.out.decode()) == (0, f"{tmp_path}\n")
    assert done.words == f"note: node1: no {gone} here: ranks start in the home directory\n"
