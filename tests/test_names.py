"""Published names: found by all, in the space of their protocol, and waited for."""

from __future__ import annotations

from typing import Any

from mpilaunch.head.names import MAX_NAMES, Names


def looked_up(names: Names, space: str, *wanted: str, wait: bool = False) -> list[dict[str, Any]]:
    """Return the list that gets what is found."""
    found: list[dict[str, Any]] = []
    names.lookup(space, wanted, wait, found.append)
    return found


def test_a_name_is_found_until_it_is_taken_back() -> None:
    names = Names()
    assert looked_up(names, "pmi", "s") == [{}]
    assert names.publish("pmi", {"s": "port", "t": "other"}) == ""
    assert looked_up(names, "pmi", "s") == [{"s": "port"}]
    assert looked_up(names, "pmi", "s", "t", "u") == [{"s": "port", "t": "other"}]
    assert names.unpublish("pmi", ["s"]) == ""
    assert looked_up(names, "pmi", "s") == [{}]
    assert names.unpublish("pmi", ["s"]) == "s is not published"


def test_a_name_is_taken_once_in_its_space() -> None:
    names = Names()
    assert names.publish("pmi", {"s": "1"}) == ""
    assert names.publish("pmi", {"s": "2"}) == "s is published already"
    assert names.publish("pmix", {"s": "3"}) == ""
    assert looked_up(names, "pmi", "s") == [{"s": "1"}]


def test_who_waits_hears_when_all_are_there() -> None:
    names = Names()
    found = looked_up(names, "pmix", "a", "b", wait=True)
    names.publish("pmix", {"a": 1})
    names.publish("pmi", {"b": 0})
    assert found == []
    names.publish("pmix", {"b": 2})
    assert found == [{"a": 1, "b": 2}]


def test_names_are_limited_in_number() -> None:
    names = Names()
    assert names.publish("pmi", {str(number): "" for number in range(MAX_NAMES)}) == ""
    assert "10,000" in names.publish("pmi", {"one more": ""})
