"""Rankfiles: what they say, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.placement.cpu_binding import Cores
from mpilaunch.placement.rankfile import RankLine, parse_rankfile


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("1:0-2", (Cores(1, (0, 1, 2)),)),
        ("0:0,1", (Cores(0, (0, 1)),)),
        ("1-2", (Cores(None, (1, 2)),)),
        ("5", (Cores(None, (5,)),)),
        ("0:*", (Cores(0),)),
        ("0:1;1:0-2", (Cores(0, (1,)), Cores(1, (0, 1, 2)))),
        ('"0:1 ; 1:3"', (Cores(0, (1,)), Cores(1, (3,)))),
        ("'0 : 1'", None),
    ],
)
def test_cores(text: str, cores: tuple[Cores, ...] | None) -> None:
    if cores is None:
        with pytest.raises(UsageError):
            parse_rankfile(f"rank 0=a slot={text}", "r")
    else:
        assert parse_rankfile(f"rank 0=a slot={text}", "r")[0].cores == cores


def test_lines_come_in_the_order_of_the_ranks() -> None:
    text = "# ranks\n\nRANK 1 = +N0 slots = 0 // one\nrank 0=node01 /* first */ slot=1\r\n"
    first, second = RankLine("node01", (Cores(None, (1,)),), "r:4"), RankLine("+n0", (Cores(None, (0,)),), "r:3")
    assert parse_rankfile(text, "r") == (first, second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r:1:1: no ranks in this file"),
        ("rank 0=a", "r:1:1: 'rank 0=a' is not a line of a rankfile"),
        ("  rank 0=a slot=", "r:1:3: 'rank 0=a slot=' is not a line"),
        ("a slots=2", "r:1:1: 'a slots=2' is not a line"),
        ("rank x=a slot=0", "r:1:6: 'x' is not a rank"),
        ("rank -1=a slot=0", "r:1:6: '-1' is not a rank"),
        ("rank 0=a slot=0\nrank 0=b slot=0", "r:2:6: rank 0 is given twice, first at r:1"),
        ("rank 0=a slot=0\nrank 2=b slot=0", "r: rank 1 is missing, but there is a rank 2"),
        ("rank 0=n[1-2] slot=0", "r:1:8: 'n[1-2]' is not the name of one host"),
        ("rank 0=a:2 slot=0", "r:1:8: 'a:2' is not the name of one host"),
        ("rank 0=+e slot=0", "r:1:8: '+e' is not the name of one host"),
        ("rank 0=+x slot=0", "r:1:8: '+x' names no node by its place"),
        ("rank 0=a slot=x", "r:1:15: 'x' is not a number or a range"),
        ("rank 0=a slot=3-1", "r:1:15: the range '3-1' is reversed"),
        ("rank 0=a slot=x:1", "r:1:15: 'x' is not the number of a socket"),
        ("rank 0=a slot=0:", "r:1:17: a number is missing"),
        ("rank 0=a slot=0;", "r:1:15: cores are missing"),
        ("rank 0=a slot=0:1:2", "r:1:17: '1:2' is not a number"),
        ("rank 0=a slot=0-99999999", "r:1:15: this stands for 100,000,000 items"),
    ],
)
def test_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rankfile(text, "r")
    assert caught.value.message.startswith(message)
    assert caught.value.hint or "items" in message


@given(st.text(st.sampled_from("rank slot=0:1-,;*ab#/\"\n+n"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        lines = parse_rankfile(text, "r")
    except UsageError:
        return
    assert lines
