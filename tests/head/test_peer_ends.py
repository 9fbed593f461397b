"""The failures of independent hosts in the lines of pdsh and clush."""

from __future__ import annotations

import socket

import pytest

from mpilaunch.head.ending.peer_ends import host_ends
from mpilaunch.head.nodes.failures import NodeFailure
from mpilaunch.job.spec import OutputPolicy
from mpilaunch.job.state import RankEnd

HEAD = socket.gethostname().partition(".")[0]
REFUSED = "connection refused (is sshd running there? give another port with port=N in the hostfile)"


def told(policy: OutputPolicy) -> tuple[list[str], list[str]]:
    """Return the lines for one failure of each kind, and those that are told at the end."""
    lines: list[str] = []
    ends = host_ends(9, policy, lines.append)
    ends.exited("a1", RankEnd(0, code=0))
    ends.exited("a3", RankEnd(1, code=3))
    ends.exited("a2", RankEnd(2, code=3))
    for name in ("a4", "a5"):
        ends.unreached([NodeFailure(name, "connection-refused", "[Errno 111]", 0.1)])
    ends.unreached([NodeFailure("a6", "connection-closed", "one\ntwo", 0.1)])
    ends.timed_out("a7", 2.0)
    ends.lost("a8", "no sign of life")
    verdict = ends.verdict()
    assert (verdict.exit_code, verdict.largest) == (3, 255)
    assert verdict.detail.startswith("7 of 9 hosts failed\n"), "the report has it"
    assert verdict.instead is not None
    return lines, list(verdict.instead)


@pytest.mark.parametrize(("style", "program"), [("pdsh:", "ssh"), ("pdsh:prog", "prog")])
def test_pdsh_tells_each_failure_with_the_program_that_runs_the_command(style: str, program: str) -> None:
    lines, last = told(OutputPolicy(host_failures=style))
    expected = f"""\
        pdsh@{HEAD}: a3: {program} exited with exit code 3
        pdsh@{HEAD}: a2: {program} exited with exit code 3
        a4: {REFUSED}
        pdsh@{HEAD}: a4: {program} exited with exit code 255
        a5: connection refused
        pdsh@{HEAD}: a5: {program} exited with exit code 255
        a6: one
        a6: two
        a6: connection closed during the start (a limit such as sshd's MaxStartups? try --fanout 8)
        pdsh@{HEAD}: a6: {program} exited with exit code 255
        pdsh@{HEAD}: a7: command timeout
        {f"pdsh@{HEAD}: a7: ssh exited with exit code 255" if program == "ssh" else ""}
        a8: lost: no sign of life; its command may still run
        pdsh@{HEAD}: a8: {program} exited with exit code 255"""
    assert lines == [line.strip() for line in expected.splitlines() if line.strip()]
    assert last == []


def test_clush_tells_timeouts_together_at_the_end() -> None:
    lines, last = told(OutputPolicy(host_failures="clush"))
    assert [line for line in lines if line.startswith("clush")] == [
        *("clush: a3: exited with exit code 3", "clush: a2: exited with exit code 3"),
        *(f"clush: {name}: exited with exit code 255" for name in ("a4", "a5", "a6", "a8")),
    ]
    assert last == ["clush: a7: command timeout"]


def test_clush_that_folds_output_folds_exit_codes() -> None:
    lines, last = told(OutputPolicy(host_failures="clush", fold="blocks"))
    assert not [line for line in lines if line.startswith("clush")] and f"a4: {REFUSED}" in lines
    assert last == [
        "clush: a[2-3] (2): exited with exit code 3",
        "clush: a[4-6,8] (4): exited with exit code 255",
        "clush: a7: command timeout",
    ]


def test_quiet_clush_tells_only_what_ssh_would() -> None:
    lines, last = told(OutputPolicy(host_failures="clush", quiet=True))
    assert f"a4: {REFUSED}" in lines and not [line for line in [*lines, *last] if line.startswith("clush")]
