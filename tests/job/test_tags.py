"""Tags: templates, presets, and the bytes before a line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.job.output.tags import FIELDS, parse_tag, parse_template, tag_template

NOW = 1_700_000_000.123456


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def prefix(template: str, now: float = NOW, **fields: Any) -> bytes:
    known = {"rank": 3, "local_rank": 1, "node_rank": 2, "host": "node07", "stream": "stdout"}
    known |= {"job": "4f0a-1", "run": "4f0a", "restart": 1}
    return parse_tag(template).bind(**{**known, **fields}).prefix(now)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("rank", b"[3] "),
        ("host", b"node07: "),
        ("ompi", b"[1,3]<stdout>:"),
        ("time", b"2023-11-14T22:13:20.123 "),
        ("{host}:{rank:4}|", b"node07:   3|"),
        ("{rank:04} ", b"0003 "),
        ("{host:<10}{local_rank:>3} ", b"node07      1 "),
        ("{{{rank}}} ", b"{3} "),
        ("{time} {rank} {time}", b"2023-11-14T22:13:20.123 3 2023-11-14T22:13:20.123"),
        ("{node_rank}/{job}/{stream}> ", b"2/4f0a-1/stdout> "),
        ("{run}.{restart} ", b"4f0a.1 "),
        ("→{rank} ", "→3 ".encode()),
        ("", b""),
    ],
)
def test_prefixes(template: str, expected: bytes) -> None:
    assert prefix(template) == expected


@pytest.mark.parametrize(
    ("template", "host"),
    [
        ("d/{host}", "a/../../x"),
        ("d/{host}", "a/b"),
        ("d/{host}", ".."),
        ("d/{host}", "."),
        ("d/{host}/out", ""),
        ("d/.{host}", "."),
        ("d/{host}", "/"),
        ("d/{host}", "a\0b"),
        ("{host}d", "/"),
    ],
)
def test_a_value_adds_no_component_to_the_path_of_a_file(template: str, host: str) -> None:
    fields: dict[str, Any] = {"rank": 3, "local_rank": 1, "node_rank": 2, "stream": "stdout", "job": "4f0a"}
    with pytest.raises(UsageError, match="its name is no part of a file's name") as caught:
        parse_tag(template, "--output-file").path(host=host, **fields)
    assert caught.value.reference == "output-directory"


def test_the_path_of_a_file_may_have_any_directories_of_its_own() -> None:
    fields: dict[str, Any] = {"rank": 3, "local_rank": 1, "node_rank": 2, "host": "n.1", "stream": "stdout", "job": "4f0a"}
    assert parse_tag("../d//./{host}/{rank:02}..", "--output-file").path(**fields) == "../d//./n.1/03.."


def test_a_host_name_that_is_not_utf8_is_kept_as_it_is() -> None:
    assert prefix("{host} ", host="n\udcff") == b"n\xff "


def test_the_clock_moves_by_milliseconds() -> None:
    bound = parse_tag("{time}|").bind(rank=0, local_rank=0, node_rank=0, host="h", stream="stdout", job="j")
    texts = [bound.prefix(1_700_000_000 + millisecond / 1000 + 0.0002) for millisecond in (0, 1, 2, 999)]
    assert texts == [b"2023-11-14T22:13:20.%s|" % text for text in (b"000", b"001", b"002", b"999")]


@pytest.mark.parametrize(
    ("text", "timestamp", "template"),
    [
        (None, False, None),
        (None, True, "{time} "),
        ("rank", False, "[{rank}] "),
        ("rank", True, "{time} [{rank}] "),
        ("{host}|", True, "{time} {host}|"),
    ],
)
def test_what_tag_and_timestamp_say_together(text: str | None, timestamp: bool, template: str | None) -> None:
    assert tag_template(text, timestamp=timestamp) == template


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{rnk} ", "--tag: unknown field '{rnk}'; did you mean rank?"),
        ("{} ", "--tag: unknown field '{}'"),
        ("{0} ", "--tag: unknown field '{0}'"),
        ("{rank.__class__}", "--tag: unknown field '{rank.__class__}'"),
        ("{rank!r}", "--tag: unknown field '{rank!r}'; did you mean rank?"),
        ("a {rank", "--tag: column 3 of 'a {rank': unmatched '{'"),
        ("rank} ", "--tag: column 5 of 'rank} ': unmatched '}'"),
        ("{rank:x}", "--tag: '{rank:x}': 'x' is not a width"),
        ("{rank:9999999}", "--tag: '{rank:9999999}': '9999999' is not a width"),
        ("{time:30}", "--tag: '{time:30}': the time has a fixed width"),
        ("rnk", "--tag: 'rnk' is not a tag; did you mean rank?"),
        ("a\nb{rank}", "--tag: a template cannot contain a line break"),
    ],
)
def test_wrong_templates(template: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tag_template(template)
    assert caught.value.message == message


@given(st.text(st.sampled_from("{}:<>0123 arnkhost_e\n"), max_size=20))
def test_any_text_is_a_tag_or_a_usage_error(text: str) -> None:
    try:
        tag = parse_tag(text)
    except UsageError:
        return
    bound = tag.bind(rank=0, local_rank=0, node_rank=0, host="h", stream="stdout", job="j")
    assert b"\n" not in bound.prefix(NOW)


def test_every_field_can_be_used() -> None:
    assert b"{" not in prefix("".join(f"{{{field}}} " for field in FIELDS))


def test_a_host_with_leading_zeros_is_a_format_that_python_38_takes() -> None:
    assert (
        parse_template("{host:04}{rank:04}{host:>3}", "--template", ["host", "rank"]).fill({}) == "{host:<04}{rank:04}{host:>3}"
    )
