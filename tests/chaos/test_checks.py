"""The checks of the chaos loop see each thing that can be wrong, and allow what the documents allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mpilaunch
from tests.chaos.checks import Hit, Record, end_bound, expected_line, gone_bound, possible_codes, problems
from tests.chaos.places import Process
from tests.chaos.plan import MPICH, PLAIN, Fault, Job, Plan
from tests.chaos.run import command, host_lines
from tests.chaos.targets import find

JOB = Job(
    program=PLAIN, nodes=(("node01", 1), ("local", 1)), agent="openssh", lines=2, width=20, seconds=1.0, fails=(), children="",
    deaf=False, both=False, stdin="none", stdin_bytes=0, reads=False, timeout=None, continue_on_error=False, heartbeat=5.0,
    reconnect=6.0, grace=1.0, delays=(),
)  # fmt: skip


def lines(job: Job, letter: str, *ranks: int) -> str:
    printed = []
    for rank in ranks:
        printed += [expected_line(job, letter, rank, number) for number in range(job.lines)] + [f"{letter}{rank}:end"]
    return "".join(f"{line}\n" for line in printed)


GOOD = Record(
    code=0, seconds=1.5, late=1.5, hits=(), out=lines(JOB, "o", 0, 1).encode(), err="", read_all=True,
    stdin_sum=(0, 2166136261), gone_after=0.0, processes=(), files=(),
)  # fmt: skip


def hit(action: str, target: str, seconds: float = 0.0, phase: str = "run", number: Any = 0, found: bool = True) -> Hit:
    return Hit(Fault(0.0, True, action, target, "node01", number, seconds), 1.0, phase, found)


def wrong(job: Job = JOB, **changes: Any) -> list[str]:
    return problems(Plan(0, job, ()), replace(GOOD, **changes))


def test_a_good_run_is_good() -> None:
    assert wrong() == []
    both = replace(JOB, both=True)
    assert wrong(both, err=f"note: something\n{lines(both, 'e', 1, 0)}") == []
    cut = b"o0:0:aaaaaaaaaaaaaaa\no1:0:aa"
    assert wrong(code=137, err="error[rank-failed]: rank 1", hits=(hit("kill", "rank"),), out=cut) == []


def test_a_killed_head_may_leave_its_socket_and_nothing_else() -> None:
    socket = ("head:/tmp/mpilaunch-0", "head:/tmp/mpilaunch-0/0123456789abcdef.4711")
    killed = (hit("kill", "head"),)
    assert wrong(code=-9, hits=killed, files=socket, out=b"") == wrong(code=-9, hits=killed, out=b"")
    assert wrong(hits=(), files=socket) == [f"file left: {path}" for path in socket]
    assert "file left: head:/tmp/x" in wrong(code=-9, hits=killed, files=("head:/tmp/x",), out=b"")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"code": None}, "had not ended"),
        ({"processes": ("node01: sleep",)}, "process left: node01: sleep"),
        ({"files": ("head:/tmp/x",)}, "file left: head:/tmp/x"),
        ({"code": 1, "err": "error[start-timeout]: "}, "exit code 1; possible are [0]"),
        ({"code": 70, "err": "error[internal]: "}, "exit code 70"),
        ({"code": 125, "err": "", "hits": (hit("kill", "daemon"),)}, "without an error that explains it"),
        ({"code": 125, "err": "error[timeout]: ", "hits": (hit("kill", "daemon"),)}, "without an error that explains it"),
        ({"err": "error[node-lost]: node01"}, "exit code 0 with an error"),
        ({"err": "Traceback (most recent call last):"}, "Traceback"),
        ({"out": lines(JOB, "o", 0).encode()}, "o1: no end, after 0 lines"),
        ({"out": lines(JOB, "o", 0, 1).replace("o1:1:", "o1:2:").encode()}, "where line 1 was due"),
        ({"out": lines(JOB, "o", 0, 1, 1).encode()}, "line after the end of rank 1"),
        ({"out": lines(JOB, "o", 0, 1).replace("o1:0:aaaaaaaaaaaaaaa\n", "").encode()}, "where line 0 was due"),
        ({"out": lines(JOB, "o", 0, 1).replace("o1:0:aaaaaaaaaaaaaaa\n", "o1:0:aaaaaaaaaaaaaaa\n" * 2).encode()}, "was due"),
        ({"out": lines(JOB, "o", 0, 1).replace("o1:0:aaaaaaaa", "o1:0:aaaaaaaa\n").encode()}, "no rank has printed"),
        ({"out": b"something else\n" + lines(JOB, "o", 0, 1).encode()}, "no rank has printed"),
        ({"out": lines(JOB, "o", 0, 1).replace("o0:end", "o0:en").encode()}, "o0: no end"),
        ({"out": lines(JOB, "o", 0, 1, 7).encode()}, "rank 7"),
    ],
)
def test_each_thing_that_is_wrong_is_seen(changes: dict[str, Any], problem: str) -> None:
    found = wrong(**changes)
    assert any(problem in text for text in found), found


def test_stdin_must_have_come_as_it_was() -> None:
    job = replace(JOB, stdin="pipe", stdin_bytes=3, reads=True)
    printed = lines(job, "o", 0, 1)
    assert wrong(job, out=f"o0:stdin:3:7\n{printed}".encode(), stdin_sum=(3, 7)) == []
    assert wrong(job, out=f"o0:stdin:2:7\n{printed}".encode(), stdin_sum=(3, 7)) != []
    assert wrong(job, out=printed.encode(), stdin_sum=(3, 7)) == ["rank 0 said nothing of its stdin"]


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        (hit("kill", "head"), {-9}),
        (hit("signal", "head", number="TERM"), {143, -15}),
        (hit("stop", "head", 1.0), set()),
        (hit("kill", "daemon"), {125}),
        (hit("kill", "daemon", phase="start"), {1, 125}),
        (hit("kill", "daemon", phase="end"), set()),
        (hit("kill", "daemon", found=False), set()),
        (hit("stop", "daemon", 1.0), set()),
        (hit("stop", "daemon", 9.0), {125}),
        (hit("kill", "guard"), {125}),
        (hit("kill", "rank"), {137}),
        (hit("kill", "child"), set()),
        (hit("kill", "session"), set()),
        (hit("kill", "session", phase="start"), {1, 125}),
        (hit("down", "link", 1.0), set()),
        (hit("down", "link", 9.0), {125}),
        (hit("fill", "tmp"), set()),
        (hit("close", "reader"), {141}),
    ],
)
def test_what_a_fault_may_lead_to(fault: Hit, codes: set[int]) -> None:
    assert possible_codes(JOB, [fault], 1.0) == {0, *codes}


def test_what_a_job_does_by_itself() -> None:
    assert possible_codes(replace(JOB, fails=((0, 3, 0.1), (1, 4, 0.2))), [], 1.0) == {3, 4}
    timed = replace(JOB, timeout=4.0)
    assert possible_codes(timed, [], 1.0) == {0} and possible_codes(timed, [], 4.0) == {0, 124}
    assert possible_codes(replace(JOB, reconnect=0.0), [hit("kill", "session")], 1.0) == {0, 125}
    assert possible_codes(JOB, [hit("kill", "session"), hit("down", "link", 1.0)], 1.0) == {0, 125}
    # What MPI makes of a full disk is its own matter, but it must be explained.
    mpi = replace(JOB, program=MPICH, timeout=20.0)
    assert wrong(mpi, code=15, err="error[rank-failed]: rank 0", hits=(hit("fill", "tmp"),)) == []
    assert wrong(mpi, code=15, err="error[rank-failed]: rank 0") != []


def test_a_traceback_of_an_interrupt_is_pythons_own_only_before_our_first_line() -> None:
    python = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 15, in <module>\nKeyboardInterrupt\n'
    ours = python.replace("<frozen runpy>", mpilaunch.__file__ or "")
    interrupt = hit("signal", "head", phase="start", number="INT")
    assert wrong(code=1, err=python, out=b"", hits=(interrupt,)) == []
    assert wrong(code=1, err=ours, out=b"", hits=(interrupt,)) != []
    assert wrong(code=2, err=python, out=b"", hits=(interrupt,)) != []
    assert wrong(code=1, err=python.replace("Keyboard", "Import"), out=b"", hits=(interrupt,)) != []
    assert wrong(code=1, err=python, out=b"", hits=(hit("signal", "head", phase="start", number="TERM"),)) != []
    assert wrong(code=1, err=python, out=b"", hits=(hit("signal", "head", number="INT"),)) != []


def test_bounds_are_short_where_nothing_was_lost() -> None:
    assert gone_bound(JOB, 0, [hit("kill", "rank")]) == gone_bound(JOB, 125, [hit("kill", "daemon")]) == 5
    assert 5 < gone_bound(JOB, -9, [hit("kill", "head")]) < gone_bound(JOB, 125, [hit("down", "link", 9.0)]) < 60
    assert gone_bound(JOB, -9, [hit("kill", "head", phase="start")]) < 120
    # A job that a fault ends does not go on to its natural end.
    endless = replace(JOB, seconds=60.0)
    assert end_bound(endless, [hit("signal", "head", number="INT")]) < 60 < end_bound(endless, [])
    assert end_bound(replace(endless, timeout=4.0), []) < 60 < end_bound(endless, [hit("kill", "daemon", found=False)])
    going_on = replace(endless, continue_on_error=True)
    assert end_bound(going_on, [hit("signal", "head", number="INT")]) < 60 < end_bound(going_on, [hit("kill", "guard")])
    lost, lost_early = hit("kill", "session"), hit("kill", "session", phase="start")
    assert end_bound(JOB, []) < end_bound(JOB, [lost]) < end_bound(JOB, [lost_early]) < 90


def test_processes_are_known_by_their_place_in_the_tree() -> None:
    node = ("python3", "-c", "# mpilaunch.daemon")
    tree = [
        Process(10, 1, "5", "sshd", ("sshd: root@notty",)),
        Process(11, 10, "6", "python3", node),
        Process(12, 11, "7", "python3", node),
        Process(13, 12, "8", "python3", node),
        Process(14, 12, "9", "rank", ("/x/rank",)),
        Process(15, 14, "10", "chaos-child", ("/x/rank",)),
        Process(16, 1, "4", "ssh", ("ssh", "node01")),
        Process(17, 16, "11", "python3", ("python3", "/x/tests/chaos/proxy.py", "node01", "22")),
    ]
    roles = ["session", "guard", "daemon", "helper", "rank", "child", "client", "proxy"]
    assert [[process.pid for process in find(tree, role)] for role in roles] == [[pid] for pid in range(10, 18)]


def test_the_command_of_a_job() -> None:
    job = replace(JOB, fails=((1, 3, 0.5),), timeout=4.0, deaf=True, children="bs")
    words = " ".join(command(job, Path("/x/rank"), Path("/y")))
    assert "-m mpilaunch -f /y/hosts --wdir / --heartbeat 5 " in words
    assert " --timeout 4 /x/rank -l 2 -w 20 -s 1.0 -u /y" in words
    assert words.endswith("-f 1:3:0.5 -c bs -d")
    assert host_lines(job) == ["node01 slots=1 agent=openssh", "local slots=1"]
