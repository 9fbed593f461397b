"""The page of frameworks shows what `make test-frameworks` found: each of its rows is a test, and each test has a row."""

from __future__ import annotations

import json

from tests.frameworks.places import HERE, HOSTS
from tests.frameworks.results import BEGIN, END, FILE, PAGE, names_of_tests, replace_table, table

DATA = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_page_shows_what_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert BEGIN in page and END in page
    assert page == replace_table(page, table(DATA))


def test_each_row_is_a_test_that_passed_here_and_on_hosts_and_failed_without() -> None:
    assert DATA["tests"].keys() == names_of_tests()
    for row in DATA["tests"].values():
        assert row["seen"].keys() == {HERE, HOSTS} and all(row["seen"].values()) and row["control"] and row["version"]
