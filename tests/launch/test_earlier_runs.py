"""Runs that write to the directory of an earlier one: what that run has left is never taken for this one's without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import launch, sh

KEEPS = "keeps {} of an earlier run that this one does not replace: "


def run(folder: Path, ranks: int, *options: str, code: int = 0, program: str = "echo $RANK") -> str:
    """Run ranks that write one line each; return what mpilaunch said."""
    done = launch("-np", str(ranks), "--oversubscribe", *options, *sh(program), cwd=folder)
    assert done.code == code, done.words
    return done.words


def test_a_note_names_the_directory_and_the_files_of_a_run_with_more_ranks(tmp_path: Path) -> None:
    options = ("--output-filename", "logs/x")
    assert run(tmp_path, 3, *options) == ""
    assert run(tmp_path, 3, *options) == ""
    names = "rank-0001.err, rank-0001.out, rank-0002.err and 1 more"
    assert run(tmp_path, 1, *options) == f"note: logs/x {KEEPS.format('4 files')}{names}\n"
    assert run(tmp_path, 3, *options) == ""


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ("o.{rank}", f"note: the current directory {KEEPS.format('2 files')}o.1, o.2\n"),
        ("{{d}}/{rank:4}.{host}", f"note: {{d}} {KEEPS.format('2 files')}   1.localhost,    2.localhost\n"),
        ("d/{rank}/{local_rank}/out", f"note: d {KEEPS.format('2 files')}1/1/out, 2/2/out\n"),
        ("./d//n{node_rank}.{local_rank:03}", f"note: ./d/ {KEEPS.format('2 files')}n0.001, n0.002\n"),
        ("{job}.{rank}", ""),
        ("d/{run}/{rank}", ""),
        ("{host}", ""),
        ("one", ""),
    ],
)
def test_a_note_names_the_files_that_a_template_could_have_named(tmp_path: Path, template: str, note: str) -> None:
    (tmp_path / "o.x").touch()
    assert run(tmp_path, 3, "--output-file", template) == ""
    assert run(tmp_path, 1, "--output-file", template) == note


def test_the_streams_and_restarts_of_an_earlier_run_are_named_too(tmp_path: Path) -> None:
    options = ("--output-filename", "logs")
    fails = "echo $RANK; exit $((1 - MPILAUNCH_RESTART_COUNT))"
    assert "earlier run" not in run(tmp_path, 2, *options, "--max-restarts", "1", program=fails)
    names = "rank-0000.err, rank-0001.err, restart-1/rank-0000.err and 3 more"
    assert run(tmp_path, 2, *options, "--merge-stderr-to-stdout") == f"note: logs {KEEPS.format('6 files')}{names}\n"


def test_a_restart_replaces_what_the_restart_of_an_earlier_run_has_written(tmp_path: Path) -> None:
    fails = "echo $1 $MPILAUNCH_RESTART_COUNT; exit $((1 - MPILAUNCH_RESTART_COUNT))"
    for number in "12":
        run(tmp_path, 1, "--output-filename", "logs", "--max-restarts", "1", program=f"set {number}; {fails}")
    files = (tmp_path / "logs/rank-0000.out", tmp_path / "logs/restart-1/rank-0000.out")
    assert [path.read_text() for path in files] == ["2 0\n", "2 1\n"]


def test_the_files_of_another_part_of_the_job_are_not_those_of_an_earlier_run(tmp_path: Path) -> None:
    for files in (("--output-filename", "logs"), ("--error-file", "e.{node_rank}.{local_rank}")):
        for ranks, node_rank, kept in ((2, 0, ""), (2, 1, ""), (1, 0, "rank-0002.err"), (1, 1, "rank-0002.err")):
            part = ("--nnodes", "2", "--node-rank", str(node_rank), "--master-addr", "a", "--master-port", "1")
            done = launch("-N", str(ranks), *part, *files, "true", cwd=tmp_path)
            kept = kept and (kept if files[1] == "logs" else f"e.{node_rank}.1")
            assert done.code == 0 and ("earlier run" in done.words) == bool(kept) and kept in done.words, done.words


def test_a_name_that_is_no_directory_holds_no_file(tmp_path: Path) -> None:
    (tmp_path / "d" / "1").mkdir(parents=True)
    (tmp_path / "d" / "2").write_text("a file\n")
    (tmp_path / "d" / "3").symlink_to("/nowhere")
    (tmp_path / "d" / "4").symlink_to(".")
    assert run(tmp_path, 1, "--output-file", "d/{rank}/out") == ""
