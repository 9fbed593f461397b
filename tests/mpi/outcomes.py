"""How the run of a case is judged."""

from __future__ import annotations

from tests.mpi.cases import MPILAUNCH, Case
from tests.mpi.results import LIMITED, PASSED
from tests.mpi.runs import HUNG, Run

UCX = " UCX  "
"""In a line that UCX prints on stdout, as where a peer of a failing job was gone before it was connected to."""


def outcome(case: Case, done: Run) -> str:
    """Check that a run printed and left what its case says; return PASSED or LIMITED."""
    limit = case.limit
    if limit and limit.says:
        assert done.code not in (0, HUNG), "it can do now what is listed as a limit"
        assert limit.says in done.errors
        return LIMITED
    hung = limit is not None and done.code == HUNG
    assert done.code == (HUNG if hung else case.work.code), done.errors
    lines = [line for line in done.lines if not (case.work.code and UCX in line)]
    assert lines == sorted(case.work.lines(case.place)), done.errors
    if done.received is not None:
        assert done.received > case.work.network, "the network was not used"
    leftover = case.leftover if case.launcher == MPILAUNCH else None
    if case.launcher == MPILAUNCH:
        assert [path for path in done.left if not (leftover and leftover.files in path)] == []
        if not hung and case.work.code == 0:
            assert done.errors == ""
    return LIMITED if hung or (leftover and done.left) else PASSED
