"""--dry-run --topology: where ranks would be bound on machines that are made up."""

from __future__ import annotations

import pytest

from mpilaunch.job.preparation.made_up import bound_on
from tests.support.command_line import job as made


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ("-H a:2 --bind-to core", ["rank 0 on a: cpus 0-1 [BB/..][../..]", "rank 1 on a: cpus 2-3 [../BB][../..]"]),
        ("-H a:1,b:1 --map-by socket", ["rank 0 on a: cpus 0-3 [BB/BB][../..]", "rank 1 on b: cpus 0-3 [BB/BB][../..]"]),
        ("-H a:1", []),
        ("-H a:1 --report-bindings", ["rank 0 on a: not bound"]),
    ],
)
def test_the_cpus_of_ranks_are_shown_if_they_are_bound(options: str, lines: list[str]) -> None:
    assert bound_on("pack:2 core:2 pu:2", made(f"{options} prog"))[1] == lines
