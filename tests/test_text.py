"""Texts of others made printable, suggestions, and command lines for a shell."""

from __future__ import annotations

import pytest

from mpilaunch.cli.options import BY_FLAG
from mpilaunch.text import (
    aligned,
    closest,
    did_you_mean,
    escape_braces,
    is_whole_number,
    last_line,
    numbered_ranks,
    plural,
    printable,
    seconds_of,
    shell_line,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain tab\there ä 漢", "plain tab\there ä 漢"),
        ("a\nb\r\x1b]0;t\x07", "a\\x0ab\\x0d\\x1b]0;t\\x07"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\udcff\ud800", "\\xff\\ud800"),
        (b"\xc3\xa4 \xff\x1b[0m", "ä \\xff\\x1b[0m"),
    ],
)
def test_what_is_not_plain_text_is_written_out(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown


def test_near_names() -> None:
    assert did_you_mean("--hostfle", BY_FLAG) == "; did you mean --hostfile?"
    assert did_you_mean("--zzz", BY_FLAG) == ""


def test_near_words() -> None:
    assert closest("nod01", ["node01", "other"]) == "node01"
    assert closest("zzz", ["node01"]) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5", 5.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("1d", 86400.0)),
        *(("", None), ("-1", None), ("1w", None), ("1e3", None)),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "whole"),
    [("0", True), ("123", True), ("1234", False), ("", False), ("-1", False), ("\u0661", False), (" 1", False)],
)
def test_whole_numbers(text: str, whole: bool) -> None:
    assert is_whole_number(text, 3) is whole


def test_counts_and_ranks() -> None:
    assert (plural(1, "node"), plural(0, "node")) == ("1 node", "0 nodes")
    assert (numbered_ranks(1), numbered_ranks(4)) == ("rank 0", "ranks 0 to 3")


def test_a_template_stands_for_a_text() -> None:
    assert escape_braces("{rank}").format() == "{rank}"


def test_words_that_no_shell_changes_are_plain() -> None:
    assert shell_line(["a-b", "x=1", "=x", "", "it's", "a!b", "c\\d"]) == "a-b x=1 '=x' '' 'it'\\''s' 'a'\\!'b' 'c'\\\\'d'"


def test_columns_end_where_they_are_to() -> None:
    assert list(aligned(["A", "B"], [["xyz", "1"], ["", "22"]], right=("B",))) == ["A     B", "xyz   1", "     22"]


@pytest.mark.parametrize(("text", "line"), [("", ""), (" \n", ""), ("a\n b \n\n", "b"), ("x" * 400, "x" * 300)])
def test_the_last_line_that_is_not_blank(text: str, line: str) -> None:
    assert last_line(text) == line
