"""Failures of the start, folded by cause."""

from __future__ import annotations

import pytest

from mpilaunch.agent import CAUSES
from mpilaunch.head.nodes.failures import CONFIGURED, HINTS, WORDS, NodeFailure, fold_failures


def failures(names: str, cause: str, detail: str = "", seconds: float = 0.0) -> list[NodeFailure]:
    return [NodeFailure(name, cause, detail, seconds) for name in names.split()]


def test_one_cause_is_the_message_itself() -> None:
    error = fold_failures(failures("node04 node09 node17", "connection-refused", seconds=0.42), 32)
    assert error.reference == "start-connection-refused"
    assert error.message == "3 of 32 nodes: node[04,09,17]: connection refused after 0.4 s"
    assert error.context == ("no rank was started anywhere",)
    assert error.hint == HINTS["connection-refused"]
    assert error.exit_code == 1


def test_the_time_is_that_of_the_slowest() -> None:
    found = failures("a1", "timeout", seconds=1.0) + failures("a2", "timeout", seconds=59.96)
    assert fold_failures(found, 2).message.endswith(" after 60.0 s")


def test_a_job_of_one_node_does_not_count() -> None:
    assert "of 1" not in fold_failures(failures("localhost", "timeout", seconds=60), 1).message


def test_a_node_with_several_problems_counts_once() -> None:
    found = failures("n1", "program-missing", "/a: not found") + failures("n1", "program-not-executable", "/b: not executable")
    assert fold_failures(found, 1).message == "1 of 1 node did not start"
    assert fold_failures(found, 2).message == "1 of 2 nodes did not start"
    twice = failures("n1 n1", "program-missing", "/a: not found")
    assert fold_failures(twice, 2).message.startswith("1 of 2 nodes: n1: ")


def test_the_hint_to_run_the_agents_command_shows_the_command_of_the_first_node() -> None:
    found = failures("n1", "timeout") + [
        NodeFailure(name, "agent-failed", "", 0.0, command=f"ssh -- {name} 'python3 --version'") for name in ("n2", "n3")
    ]
    assert fold_failures(found[1:], 3).hint == "run the agent's command by hand: ssh -- n2 'python3 --version'"
    hint = fold_failures(found, 3).hint
    assert hint and hint.startswith("run the agent's command by hand: ssh -- n2 'python3 --version'; ")


def test_several_causes_are_lines_with_the_most_frequent_first() -> None:
    found = failures("n1", "host-unknown") + failures("n2 n3", "key-refused") + failures("n4", "timeout")
    error = fold_failures(found, 5)
    assert (error.reference, error.message) == ("start-failed", "4 of 5 nodes did not start")
    assert [line.partition(": ")[0] for line in error.context[:3]] == ["n[2-3]", "n1", "n4"]
    assert error.hint == "; ".join(HINTS[cause] for cause in ("key-refused", "host-unknown", "timeout"))


@pytest.mark.parametrize("cause", CONFIGURED)
def test_what_the_user_can_set_right_stands_in_the_message_by_its_detail(cause: str) -> None:
    one = fold_failures(failures("n1 n2", cause, "/a: broken"), 2)
    assert one.message == f"2 of 2 nodes: n[1-2]: {WORDS[cause]}: /a: broken"
    two = fold_failures(failures("n1", cause, "/a: broken") + failures("n2", cause, "/b: broken"), 2)
    assert two.context[:2] == (f"n1: {WORDS[cause]}: /a: broken", f"n2: {WORDS[cause]}: /b: broken")


def test_equal_words_of_nodes_stand_once() -> None:
    found = failures("n1 n2", "agent-failed", "banner\nno route") + failures("n3", "agent-failed", " other \n")
    error = fold_failures(found, 3)
    assert error.context == ("n[1-2]: banner", "n[1-2]: no route", "n3: other", "no rank was started anywhere")


def test_words_are_bounded_in_lines_and_length() -> None:
    found = [NodeFailure(f"n{number}", "agent-failed", f"{number}\n" * 50 + "x" * 9999, 0.0) for number in range(50)]
    error = fold_failures(found, 50)
    assert len(error.context) <= 13
    assert max(map(len, error.context)) < 250
    assert error.context[0] == "n0: 0"


def test_every_cause_has_words_and_a_hint() -> None:
    assert set(CAUSES) | set(CONFIGURED) <= set(WORDS) == set(HINTS)


@pytest.mark.parametrize("cause", sorted(WORDS))
def test_hints_and_words_are_phrases(cause: str) -> None:
    for text in (WORDS[cause], HINTS[cause]):
        assert text and not text.endswith(".") and "\n" not in text
