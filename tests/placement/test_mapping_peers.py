"""Where the ranks go under the names of mpirun and mpiexec, compared with theirs.

tests/support/placement/peers.py asked them, and wrote their answers to tests/golden/maps.
"""

from __future__ import annotations

import re

import pytest

from mpilaunch.errors import LaunchError
from tests.support.paths import GOLDEN
from tests.support.placement.topologies import bound

NAMES = {"openmpi": "mpirun.openmpi", "hydra": "mpiexec.hydra"}
CASES = {
    f"{peer}: {line}": (NAMES[peer], line)
    for peer in NAMES
    for line in (GOLDEN / "maps" / f"{peer}.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
}


@pytest.mark.parametrize(("name", "line"), CASES.values(), ids=CASES)
def test_ranks_go_where_the_peer_puts_them(name: str, line: str) -> None:
    topologies, hosts, options, said, *ours = (cell.strip() for cell in line.split("|"))
    match = re.fullmatch(r"(\S.*?)  +# (\S.*)", ours[0]) if ours else None
    expected = said if match is None else match[1]
    assert bool(ours) == (match is not None), "what mpilaunch does instead comes with a reason"
    assert expected != said or not ours, "the peer says the same"
    try:
        found = bound(topologies.split("+"), hosts, options, name)
    except LaunchError as error:
        found = error.reference
    assert found == expected


def test_the_peers_have_answered_enough() -> None:
    answers = [line.split("|")[3].strip() for _, line in CASES.values()]
    assert not [answer for answer in answers if answer.startswith("?")]
    assert len(CASES) > 200
