"""The verdict on independent hosts: a line for each failure with its hosts, and both exit codes."""

from __future__ import annotations

from mpilaunch.head.ending.host_ends import HostEnds
from mpilaunch.head.nodes.failures import NodeFailure
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import Verdict, exit_code_of


def test_hosts_without_a_failure_have_succeeded() -> None:
    ends = HostEnds(2, print)
    ends.exited("a1", RankEnd(0, code=0))
    ends.exited("a2", RankEnd(1, signal=15, stopped=True))  # whoever stopped it gives the reason
    assert (ends.verdict().cause, ends.verdict().exit_code) == ("ok", 0)


def test_a_stop_names_the_hosts_that_were_stopped_and_those_that_never_began() -> None:
    ends = HostEnds(5, print)
    ends.exited("a1", RankEnd(0, code=3))
    ends.exited("a2", RankEnd(1, signal=15, stopped=True))
    ends.not_started(["a4", "a5"])
    verdict = ends.verdict_of_stop(Verdict(130, "interrupted", detail="SIGINT to mpilaunch"), ["a2"])
    lines = ["SIGINT to mpilaunch", "a1: exit code 3", "a2: stopped", "a[4-5]: not started"]
    assert (verdict.detail.splitlines(), verdict.exit_code, verdict.instead) == (lines, 130, None)


def test_the_first_failure_ends_all_where_that_is_wanted() -> None:
    ended: list[str] = []
    ends = HostEnds(5, print, lambda: ended.append("all"))
    ends.exited("a1", RankEnd(0, code=0))
    assert not ended
    ends.exited("a2", RankEnd(1, code=3))
    assert ended == ["all"]
    ends.not_started(["a5"])
    verdict = ends.verdict(["a2", "a3", "a4"])
    lines = ["1 of 5 hosts failed", "a2: exit code 3", "a[3-4]: stopped", "a5: not started"]
    assert (verdict.cause, verdict.detail.splitlines(), verdict.exit_code) == ("hosts-failed", lines, 3)


def test_hosts_at_work_are_described_by_what_they_do() -> None:
    said: list[str] = []
    ends = HostEnds(5, said.append)
    ends.tell_at_work([("a1", "connecting"), ("a2", "command in progress"), ("a3", "command in progress")])
    (line,) = said
    assert line.startswith("note: waiting for a1 (connecting), a[2-3] (command in progress); ")


def test_one_failure_is_the_message_itself() -> None:
    ends = HostEnds(3, print)
    ends.exited("a1", RankEnd(0, code=3))
    ends.exited("a3", RankEnd(2, code=3))
    verdict = ends.verdict()
    assert (verdict.cause, verdict.detail, verdict.exit_code) == ("hosts-failed", "a[1,3]: exit code 3", 3)
    assert [exit_code_of(verdict, policy) for policy in ("first", "largest", "zero")] == [3, 3, 0]


def test_several_failures_are_counted_and_reported_in_the_order_of_their_numbers_of_hosts() -> None:
    ends = HostEnds(9, print)
    ends.timed_out("a1", 2.5)
    ends.unreached([NodeFailure("a2", "connection-refused", "Connection refused", 0.1, 1)])
    ends.unreached([NodeFailure("a3", "program-missing", "no 'prog' in PATH", 0.1, 2)])
    ends.lost("a4", "its connection was lost")
    ends.exited("a5", RankEnd(4, signal=9))
    ends.exited("a6", RankEnd(5, signal=9))
    verdict = ends.verdict()
    assert verdict.detail.splitlines() == [
        "6 of 9 hosts failed",
        "a[5-6]: killed by SIGKILL (signal 9)",
        "a2: connection refused",
        "a4: lost: its connection was lost; its command may still run",
        "a3: no 'prog' in PATH",
        "a1: time limit of 2.5 s exceeded",
        "a2: Connection refused",
    ]
    assert verdict.hint is not None
    assert "is sshd running there?" in verdict.hint and "the program must be on every node" in verdict.hint
    assert [exit_code_of(verdict, policy) for policy in ("first", "largest", "zero")] == [124, 255, 0]
