"""Bracket ranges expand and fold exactly, point at what is wrong, and never fill the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import MAX_ITEMS, Span, combine, expand, fold, fold_numbers, parse_numbers
from tests.support.cpu_time import cpu_seconds


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node", ["node"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03]", ["n01", "n02", "n03"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[5]", ["n5"]),
        ("n[3,1,2]", ["n3", "n1", "n2"]),
        ("n[1-10/3]", ["n1", "n4", "n7", "n10"]),
        ("n[1-10/3,20]", ["n1", "n4", "n7", "n10", "n20"]),
        ("n[0-1]-eth0", ["n0-eth0", "n1-eth0"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("[1-2]", ["1", "2"]),
        ("gpu[01-02].cluster.example", ["gpu01.cluster.example", "gpu02.cluster.example"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(Span.of(text, "hosts")) == names


@pytest.mark.parametrize(
    ("text", "reference", "column", "told"),
    [
        ("n[3-1]", "nodeset-syntax", 3, "the range '3-1' is reversed"),
        ("n[1-", "nodeset-syntax", 2, "'[' is never closed"),
        ("n1-2]", "nodeset-syntax", 5, "']' without a '[' before it"),
        ("n[1]x]", "nodeset-syntax", 6, "']' without a '[' before it"),
        ("n[1[2]]", "nodeset-syntax", 3, "'1[2' is not a number or a range"),
        ("n[]", "nodeset-syntax", 3, "a number is missing"),
        ("n[1,,2]", "nodeset-syntax", 5, "a number is missing"),
        ("n[1,a-c]", "nodeset-syntax", 5, "'a-c' is not a number or a range"),
        ("n[-3]", "nodeset-syntax", 3, "'-3' is not a number or a range"),
        ("n[\u0663]", "nodeset-syntax", 3, "'\u0663' is not a number or a range"),
        ("n[1-5/0]", "nodeset-syntax", 3, "the step of '1-5/0' is 0"),
        ("n[1-65537]", "nodeset-size", 3, "65,537 items"),
        ("n[1-999999999999999999]", "nodeset-size", 3, "999,999,999,999,999,999 items"),
        ("n[1-256][1-257]", "nodeset-size", 1, "65,792 items"),
        ("n[" + "9" * 5000 + "]", "nodeset-syntax", 3, "is not a number or a range"),
    ],
)
def test_expand_refuses(text: str, reference: str, column: int, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(Span.of(text, "hosts.txt", 7))
    assert caught.value.reference == reference
    assert caught.value.message.startswith(f"hosts.txt:7:{column}: ")
    assert told in caught.value.message


def test_expand_reaches_its_bound() -> None:
    assert len(expand(Span.of(f"n[1-{MAX_ITEMS}]", "hosts"))) == MAX_ITEMS


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a,b", ["a", "b"]),
        ("a,n[1,3-4],b", ["a", "n[1,3-4]", "b"]),
        ("[fe80::1]:4,b", ["[fe80::1]:4", "b"]),
        ("", [""]),
        ("a,", ["a", ""]),
        ("n[1,2", ["n[1,2"]),
        ("a],b", ["a]", "b"]),
    ],
)
def test_split_list(text: str, items: list[str]) -> None:
    assert [span.text for span in Span.of(text, "").split()] == items


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["node07"], "node07"),
        ([*(f"node{number:02}" for number in range(1, 31)), "node32"], "node[01-30,32]"),
        (["b2", "a1", "b1", "a2"], "b[1-2],a[1-2]"),
        (["n3", "n1", "n2", "n1"], "n[1-3]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n1", "n01"], "n1,n01"),
        (["n1", "n2", "n01", "n02"], "n[1-2],n[01-02]"),
        (["n99", "n100", "n098"], "n99,n[098,100]"),
        (["n1-eth0", "n2-eth0"], "n[1-2]-eth0"),
        (["gpu1.c7.example", "gpu2.c7.example"], "gpu[1-2].c7.example"),
        (["r1n0", "r1n1", "r1n2", "r2n0"], "r1n[0-2],r2n0"),
        (["10.0.0.7", "10.0.0.8"], "10.0.0.[7-8]"),
        (["fe80::1", "fe80::2"], "fe80::1,fe80::2"),
        (["1", "2"], "[1-2]"),
        (["x" + "9" * 30, "x" + "8" * 30], "x" + "9" * 30 + ",x" + "8" * 30),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    assert fold(names) == folded


NAMES = st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{0,3}(-[a-z][0-9]{1,2})?", fullmatch=True), max_size=30)


@given(NAMES)
def test_fold_is_the_inverse_of_expand(names: list[str]) -> None:
    folded = [name for item in Span.of(fold(names), "").split() if item.text for name in expand(item)]
    assert sorted(folded) == sorted(set(names))


def test_combining_many_sets_is_fast() -> None:
    text = ",".join(f"n[{number}-{number + 9}]" for number in range(3000)) + "!n[10-2900]" * 50 + "^m[1-9]" * 301
    names: list[str] = []
    assert cpu_seconds(lambda: names.extend(combine(Span.of(text, "-w"), expand))) < 2
    assert len(names) == 10 + 108 + 9


def test_combined_sets_keep_the_bound() -> None:
    with pytest.raises(UsageError) as raised:
        combine(Span.of(f"a[1-{MAX_ITEMS}],b", "-w"), expand)
    assert raised.value.reference == "nodeset-size"


@pytest.mark.parametrize("text", ["&a", "a!", "a,!b", "a^,b", "a!&b", " ^ "])
def test_an_operator_needs_two_sets(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        combine(Span.of(text, "-w"), expand)
    assert raised.value.reference == "nodeset-syntax"


def test_fold_is_fast_for_10_000_names() -> None:
    names = [f"r{rack:02}n{node:03}.cluster.example" for rack in range(10) for node in range(1000)]
    folded = []
    assert cpu_seconds(lambda: folded.append(fold(names))) < 2
    assert folded[0].startswith("r00n[000-999].cluster.example,r01n[000-999]")


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", (0, 1, 2, 3, 8)), ("3,1", (3, 1)), ("0-14/7", (0, 7, 14)), ("007", (7,))]
)
def test_parse_numbers_keeps_the_order_written(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_numbers(Span.of(text, "--gpus")) == numbers


@given(st.lists(st.integers(0, 300), min_size=1))
def test_fold_numbers_is_the_inverse_of_parse_numbers(numbers: list[int]) -> None:
    assert parse_numbers(Span.of(fold_numbers(numbers), "folded")) == tuple(sorted(set(numbers)))


def test_fold_numbers() -> None:
    assert fold_numbers([4, 0, 1, 2, 1]) == "0-2,4"
    assert fold_numbers([]) == ""


def test_an_error_shows_the_line_with_a_caret_under_the_spot() -> None:
    error = Span.of("\ta slots=two", "hosts.txt", 3).part(9, 12).error("hostfile-slots", "wrong", "right")
    assert error.message == "hosts.txt:3:10: wrong"
    assert error.context == (" a slots=two", "         ^^^")
    assert (error.hint, error.exit_code) == ("right", 2)


def test_an_error_in_a_long_line_shows_the_part_around_the_spot() -> None:
    text = ",".join(f"node{number:04}" for number in range(1000))
    start = text.index("node0500")
    shown, carets = Span.of(text, "--host").part(start, start + 8).error("x", "y").context
    assert len(shown) <= 100
    assert shown[carets.index("^") : carets.index("^") + carets.count("^")] == "node0500"


@given(st.text(max_size=40) | st.text("n[]0129-,/ ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = expand(Span.of(text, "fuzz"))
    except UsageError as error:
        assert error.message.startswith("fuzz:1:")
    else:
        assert 1 <= len(names) <= MAX_ITEMS
