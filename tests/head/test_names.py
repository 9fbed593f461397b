"""Published names: every node finds them, in their protocol's space, and may wait for them."""

from __future__ import annotations

from typing import Any

from mpilaunch.head.mpi.names import MAX_NAMES, PublishedNames


def looked_up(names: PublishedNames, space: str, *wanted: str, wait: bool = False) -> list[dict[str, Any]]:
    """Return the list to which results are appended."""
    found: list[dict[str, Any]] = []
    names.lookup(0, space, wanted, wait, lambda values, error: found.append(values))
    return found


def examine(names: PublishedNames) -> None:
    """Answer the look-ups that are due, as a slice of the loop does."""
    while names.examine_next():
        pass


def test_a_name_is_found_until_it_is_unpublished() -> None:
    names = PublishedNames()
    assert looked_up(names, "pmi", "s") == [{}]
    assert names.publish(0, "pmi", {"s": "port", "t": "other"}) == ""
    assert looked_up(names, "pmi", "s") == [{"s": "port"}]
    assert looked_up(names, "pmi", "s", "t", "u") == [{"s": "port", "t": "other"}]
    assert names.unpublish(0, "pmi", ["s"]) == ""
    assert looked_up(names, "pmi", "s") == [{}]
    assert names.unpublish(0, "pmi", ["s"]) == "s is not published"


def test_a_name_is_published_once_in_its_space() -> None:
    names = PublishedNames()
    assert names.publish(0, "pmi", {"s": "1"}) == ""
    assert names.publish(0, "pmi", {"s": "2"}) == "s is published already"
    assert names.publish(0, "pmix", {"s": "3"}) == ""
    assert looked_up(names, "pmi", "s") == [{"s": "1"}]


def test_a_look_up_waits_until_all_names_are_published() -> None:
    names = PublishedNames()
    found = looked_up(names, "pmix", "a", "b", wait=True)
    names.publish(0, "pmix", {"a": 1})
    names.publish(0, "pmi", {"b": 0})
    examine(names)
    assert found == []
    names.publish(0, "pmix", {"b": 2})
    examine(names)
    assert found == [{"a": 1, "b": 2}]


def test_names_are_limited_in_number() -> None:
    names = PublishedNames()
    assert names.publish(0, "pmi", {str(number): "" for number in range(MAX_NAMES)}) == ""
    assert "10,000" in names.publish(0, "pmi", {"one more": ""})


def test_a_pmix_name_is_unpublished_by_its_node_only() -> None:
    names = PublishedNames()
    assert names.publish(0, "pmix", {"s": "1"}) == ""
    assert names.unpublish(1, "pmix", ["s"]) == "s is not published by this node"
    assert looked_up(names, "pmix", "s") == [{"s": "1"}]


def test_names_and_look_ups_are_limited_in_bytes() -> None:
    names, errors = PublishedNames(max_bytes=1000), []
    assert names.publish(0, "pmi", {"a": "x" * 600}) == ""
    assert "more than 1,000 bytes" in names.publish(0, "pmi", {"b": "x" * 600})
    names.lookup(1, "pmi", ["y" * 600], True, lambda values, error: errors.append(error))
    assert "more than 1,000 bytes" in errors[0]
    assert names.unpublish(0, "pmi", ["a"]) == ""
    names.lookup(1, "pmi", ["y" * 600], True, lambda values, error: errors.append(error))
    assert len(errors) == 1 and "more than 1,000 bytes" in names.publish(0, "pmi", {"b": "x" * 600})
    names.forget(1)
    assert names.publish(0, "pmi", {"b": "x" * 600}) == ""


def test_a_look_up_waits_again_for_what_is_unpublished_meanwhile() -> None:
    names = PublishedNames()
    found = looked_up(names, "pmi", "a", "b", wait=True)
    names.publish(0, "pmi", {"a": "1"})
    examine(names)
    names.unpublish(0, "pmi", ["a"])
    names.publish(0, "pmi", {"b": "2"})
    examine(names)
    assert found == []
    names.publish(0, "pmi", {"a": "3"})
    names.forget(1)
    examine(names)
    assert found == [{"a": "3", "b": "2"}]


def test_a_lost_node_is_not_answered() -> None:
    names = PublishedNames()
    waiting, due = looked_up(names, "pmi", "a", wait=True), looked_up(names, "pmi", "b", wait=True)
    names.publish(1, "pmi", {"b": ""})
    names.forget(0)
    names.publish(1, "pmi", {"a": ""})
    examine(names)
    assert waiting == due == []
