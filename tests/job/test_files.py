"""The files of ranks' output: which paths streams have, and which other files are of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mpilaunch.job.output.files import earlier_run_note, is_of_an_earlier_run, patterns_of, templates_of
from tests.support.command_line import job

PART = "--nnodes 4 --master-addr m --master-port 1 -N 2 --node-rank 1"


def test_names_have_the_width_of_the_whole_job() -> None:
    assert templates_of(job("-np 2")) == {}
    words = PART.replace("4", "9000") + " --output-filename d{}"
    out, err = templates_of(job(words)).values()
    fields: dict[str, Any] = {"rank": 3, "local_rank": 1, "node_rank": 1, "host": "h", "restart": 0}
    fields |= dict.fromkeys(("stream", "job", "run"), "")
    assert (out.path(**fields), err.path(**fields)) == ("d{}/rank-00003.out", "d{}/rank-00003.err")


@pytest.mark.parametrize(
    ("words", "directory", "names", "others"),
    [
        ("--output-file /o.{rank}", "/", ["o.0", "o. 17 ", "o.003"], ["o.", "o.x", "o.1.bak", "o.-1"]),
        ("--output-file a.b/c.{rank}.{host}", "a.b", ["c.1.n\n1"], ["c.1.", "cx1.n"]),
        ("--output-file {{x}}/{rank}-{rank}", "{x}", ["1-1", "2-x"], ["x-1"]),
        ("--error-file ../{local_rank}", "..", ["0"], ["", "0" * 100]),
    ],
)
def test_a_pattern_fits_names_that_its_template_gives(words: str, directory: str, names: list[str], others: list[str]) -> None:
    (pattern,) = patterns_of(job(f"-np 1 {words}"))
    assert pattern.directory == directory
    (only,) = pattern.names
    assert [name for name in [*names, *others] if only.fullmatch(name)] == names


@pytest.mark.parametrize("words", ["--output-file {job}.{rank}", "--output-file x/{run}/{rank}", "--output-file {host}", ""])
def test_nothing_is_of_an_earlier_run_where_each_has_its_own_files_or_any_name_fits(words: str) -> None:
    assert not patterns_of(job(f"-np 1 {words}"))


@pytest.mark.parametrize(
    ("words", "numbers", "expected"),
    [
        ("-np 1", {"rank": 0}, True),
        (PART, {"rank": 1, "node_rank": 1}, False),
        (PART, {"rank": 2}, True),
        (PART, {"rank": 7}, False),
        (PART, {"rank": 8}, True),
        (PART, {"node_rank": 0, "local_rank": 5}, False),
        (PART, {"node_rank": 1, "local_rank": 5}, True),
        (PART, {"node_rank": 4}, True),
        (PART, {"local_rank": 2}, True),
    ],
)
def test_a_file_that_another_part_may_write_is_not_of_an_earlier_run(
    words: str, numbers: Mapping[str, int], expected: bool
) -> None:
    assert is_of_an_earlier_run(job(words), numbers) is expected


def test_the_note_shows_three_names() -> None:
    assert earlier_run_note("d", ["a"]) == "d keeps 1 file of an earlier run that this one does not replace: a"
    assert earlier_run_note("d", list("edcba")).endswith(": a, b, c and 2 more")
