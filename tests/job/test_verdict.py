"""Which node is suspected of having died before a rank failed. What the ranks' own ends decide is in test_state."""

from __future__ import annotations

import pytest

from mpilaunch.job.verdict import BROKE_TOGETHER, is_suspect


@pytest.mark.parametrize(
    ("heard", "broke", "suspect"),
    [
        (9.0, None, True),  # silent since before the failure, its connection still open
        (9.0, 9.5, True),
        (9.0, 60.0, True),  # power loss: the connection is given up long after
        (10.1, None, False),  # it has answered
        (10.1, 10.2, True),  # the daemon lived a moment longer than what the rank was connected to
        (10.1, 10.0 + BROKE_TOGETHER + 0.1, False),  # another loss
    ],
)
def test_a_node_is_suspected_by_its_last_sign_of_life_and_the_end_of_its_connection(
    heard: float, broke: float | None, suspect: bool
) -> None:
    assert is_suspect(10.0, heard, broke) is suspect
