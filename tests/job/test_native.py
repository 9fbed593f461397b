"""C stacks, as a daemon tells of them: the user's call, and the lines for the user."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.job.hangs import native
from mpilaunch.job.hangs.native import Backtrace, errors_as_lines, threads_in

SPINS = ["/usr/lib/libmpi.so.40", 0, "opal_progress"]
BARRIER = ["/usr/lib/libmpi.so.40", 0, "PMPI_Barrier"]
SLEEPS = ["../sysdeps/posix/sleep.c", 55, "__sleep"]
LOADS = ["src/data.c", 4, "load_batch"]
MAIN = ["solver.c", 8, "main"]
POLLS = ["pt_watchdog", [["/lib/libc.so.6", 0, "poll"]]]


def backtrace(*calls: list[Any], others: tuple[Any, ...] = (), error: str = "") -> Backtrace:
    return Backtrace.of({"error": error, "threads": [["solver", list(calls)], *others] if calls else []})


@pytest.mark.parametrize(
    ("calls", "place"),
    [
        ([SPINS, BARRIER, MAIN], "PMPI_Barrier (solver.c:8)"),
        ([SLEEPS, LOADS, MAIN], "__sleep (data.c:4)"),
        ([LOADS, MAIN], "load_batch (data.c:4)"),
        ([["/home/ann/solver", 0, "step"], ["/home/ann/solver", 0, "main"]], "step (solver:?)"),
        ([["/lib/x86_64-linux-gnu/libc.so.6", 0, "raise"], ["/home/ann/a", 0, "<signal handler called>"], MAIN], "<signal h"),
        ([SPINS, ["/lib/libx.so", 0, "start"]], "opal_progress (libx.so:?)"),
        ([SPINS], "opal_progress (libmpi.so.40:?)"),
        ([], ""),
    ],
)
def test_the_place_is_the_innermost_line_of_the_program_and_what_that_calls(calls: list[Any], place: str) -> None:
    assert backtrace(*calls).place.startswith(place)


def test_equal_threads_are_shown_once_and_nothing_rules_the_terminal() -> None:
    evil = ["x\x1b", [["/tmp/\x1b[2J.so", 0, "f\n"]]]
    shown = list(backtrace(BARRIER, MAIN, others=(POLLS, evil, POLLS)).as_lines())
    assert shown == [
        "Main thread in C (most recent call first):",
        "  PMPI_Barrier in /usr/lib/libmpi.so.40",
        "  main at solver.c:8",
        "2 threads pt_watchdog in C (most recent call first):",
        "  poll in /lib/libc.so.6",
        "Thread x\\x1b in C (most recent call first):",
        "  f\\x0a in /tmp/\\x1b[2J.so",
    ]


def test_what_a_daemon_reported_is_passed_on_as_it_was() -> None:
    told = {"error": "", "threads": [["solver", [BARRIER, MAIN]], POLLS]}
    assert Backtrace.of(told).as_data() == told


def test_reasons_are_reported_once_for_all_ranks_that_have_them() -> None:
    hosts = {0: "node01", 1: "node01", 2: "node02", 3: "node03"}
    errors = {0: "there is no gdb", 1: "there is no gdb", 2: "there is no gdb", 3: "gdb: ptrace: \x1b"}
    assert errors_as_lines(errors, hosts) == [
        "no C stacks of ranks 0-2 on node[01-02]: there is no gdb",
        "no C stacks of rank 3 on node03: gdb: ptrace: \\x1b",
    ]


PRINTED = """
[New LWP 1957]
0x00007f1ba13cd0f0 in opal_progress@plt () from /lib/libmpi.so.40

Thread 3 (Thread 0x7f1b9bfff6c0 (LWP 1959) "a "name" (1)"):
#0  0x00007f1ba12c8f36 in epoll_wait (...) at ../sysdeps/unix/epoll_wait.c:30
#1  0x00007f1ba0edf724 in ?? () from /lib/libevent_core-2.1.so.7

Thread 2 (Thread 0x7f1b9bfff6c0 (LWP 1958) "empty"):

Thread 1 (Thread 0x7f1ba0e81740 (LWP 1954) "hang"):
#0  0x00007f1ba140d568 in std::vector<int, std::allocator<int> >::at(unsigned long) const (...) at /usr/include/vector.h:8
#1  <signal handler called>
#2  operator() (...) at my dir/at 9 from x.cc:77
#3  0x000055d029d6a21c in main ()
(More stack frames follow...)
[Inferior 1 (process 1954) detached]
"""


def test_what_gdb_prints_is_read() -> None:
    threads = threads_in(PRINTED, "/home/ann/hang")
    assert [(stack.name, [tuple(frame) for frame in stack.frames]) for stack in threads] == [
        (
            "hang",
            [
                ("/usr/include/vector.h", 8, "std::vector<int, std::allocator<int> >::at(unsigned long) const"),
                ("/home/ann/hang", 0, "<signal handler called>"),
                ("my dir/at 9 from x.cc", 77, "operator()"),
                ("/home/ann/hang", 0, "main"),
            ],
        ),
        ('a "name" (1)', [("../sysdeps/unix/epoll_wait.c", 30, "epoll_wait"), ("/lib/libevent_core-2.1.so.7", 0, "??")]),
    ]


@pytest.mark.parametrize(
    "text", ["", "#0 x\n#1", "Thread ):\n#", 'Thread "):\n#0\n# at :\n#1  at a:\u0661\n#2 from ', "Thread (" * 9]
)
def test_what_is_no_stack_breaks_nothing(text: str) -> None:
    for stack in threads_in(text, ""):
        assert all(frame.line in (0, 1) for frame in stack.frames)


def test_much_output_is_cut() -> None:
    text = 'Thread 1 (LWP 1 "x"):\n' + "#0  " + "f" * 9000 + " () from " + "g" * 9000 + "\n"
    first, *others = threads_in(text * 70 + "#1  main ()\n" * 200, "")
    assert (len(first.frames), len(others)) == (native.MOST_FRAMES, native.MOST_THREADS - 1)
    assert max(len(word) for file, _, function in first.frames for word in (file, function)) == native.LONGEST_TEXT
