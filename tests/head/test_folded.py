"""What --fold prints in each of its styles."""

from __future__ import annotations

import time

import pytest

from mpilaunch.head.output.folded import RULE, Folded, difference, folded
from mpilaunch.wire.frames import STDERR, STDOUT

NAMES = {0: "n1", 1: "n2", 2: "n3"}
OUTPUTS = {(STDOUT, 0): b"b\n", (STDOUT, 1): b"a\n", (STDOUT, 2): b"a\n", (STDERR, 0): b"e\n"}


def test_lines_have_the_names_of_the_nodes_that_wrote_them() -> None:
    texts = list(folded(OUTPUTS, NAMES, "lines", tagged=True))
    assert texts == [
        Folded(STDOUT, "", "n1: ", b"b\n"), Folded(STDOUT, "", "n[2-3]: ", b"a\n"), Folded(STDERR, "", "n1: ", b"e\n"),
    ]  # fmt: skip
    ranks = list(folded(OUTPUTS, {0: "n1", 1: "n1", 2: "n1"}, "lines", tagged=True))
    assert [text.label for text in ranks] == ["[0] ", "[1-2] ", "[0] "]


@pytest.mark.parametrize("tagged", [True, False])
def test_the_block_of_most_nodes_is_the_first(tagged: bool) -> None:
    texts = list(folded(OUTPUTS, NAMES, "blocks", tagged=tagged))
    assert [text.text for text in texts] == [b"a\n", b"b\n", b"e\n"]
    assert texts[0].header == (f"{RULE}n[2-3] (2)\n{RULE}" if tagged else "")


def test_hosts_are_not_merged() -> None:
    texts = list(folded(OUTPUTS, NAMES, "hosts", tagged=True))
    assert [(text.label, text.text) for text in texts[:3]] == [("n1: ", b"b\n"), ("n2: ", b"a\n"), ("n3: ", b"a\n")]


def test_differences_are_those_to_the_most_frequent_text_and_of_silent_nodes_too() -> None:
    outputs = {key: text for key, text in OUTPUTS.items() if key[0] == STDOUT}
    first, second = folded(outputs, {**NAMES, 3: "n4"}, "diff", tagged=True)
    assert first.text == b"--- n[2-3] (2)\n+++ n1\n@@ -1 +1 @@\n-a\n+b\n"
    assert second.text == b"--- n[2-3] (2)\n+++ n4\n@@ -1 +0,0 @@\n-a\n"


def test_texts_whose_comparison_would_take_long_are_not_compared() -> None:
    long = "".join(f"{number}\n" for number in range(100_000))
    began = time.process_time()
    text = difference("n1", long.encode(), "n2", long[::2].encode())
    assert text.startswith(b"--- n1\n+++ n2\n@@ too long to compare: 100,000 and ")
    alike = b"same\n" * 3000
    assert b"@@ too long" in difference("n1", alike, "n2", alike + b"x\n")
    assert time.process_time() - began < 10
