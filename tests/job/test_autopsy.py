"""What ranks did at the time limit, in lines: equal ones together, the odd ones first."""

from __future__ import annotations

from mpilaunch.job.hangs.autopsy import FENCED, MOST_LINES, Observed, autopsy

REDUCES = "all_reduce (train.py:88)"
HOSTS = {rank: f"node{rank // 2 + 1:02}" for rank in range(64)}


def test_the_odd_ranks_come_first() -> None:
    busy = [Observed(rank, "R", 0.99, "", 30.0 + rank) for rank in range(6)]
    odd = [Observed(6, "T", 0.0, "", 49.2), Observed(7, "D", 0.0, "nfs_wait", 49.4)]
    assert autopsy([*busy, *odd], HOSTS, [8, 9]) == [
        "rank 6 on node04: stopped by a signal; kill -CONT lets it continue, no output for 49 s",
        "rank 7 on node04: blocked in nfs_wait of the kernel, as on a file server or a device that does not answer, "
        "no output for 49 s",
        "ranks 0-5 on node[01-03]: busy on a CPU, no output for 30 to 35 s",
        "ranks 8-9 on node05: no answer from the daemon",
    ]


def test_a_rank_that_waits_is_distinguished_from_one_that_computes() -> None:
    states = [("S", 0.0, "futex_wait"), ("S", 0.02, ""), ("S", 3.7, "futex_wait"), ("R", 1.0, "")]
    states += [("t", 0.0, ""), ("Z", 0.0, ""), ("R", 0.3, "")]
    assert [Observed(0, state, cpus, wait, 1.0).words for state, cpus, wait in states] == [
        *("idle, waits in futex_wait", "idle, waits", "busy on 4 CPUs", "busy on a CPU"),
        *("stopped by a debugger", "ended, but not yet collected", "busy on a part of a CPU"),
    ]


def test_there_are_few_lines_and_no_control_characters() -> None:
    lines = autopsy([Observed(rank, "S", 0.0, f"\x1b[2J{rank}", 1.0) for rank in range(64)], HOSTS, ())
    assert len(lines) == MOST_LINES + 1 and lines[-1] == f"and {64 - MOST_LINES} more groups of ranks"
    assert "\\x1b[2J0" in lines[0]
    assert autopsy([], HOSTS, ()) == []


def test_a_rank_that_was_stopped_is_reported_as_stopped_wherever_it_is_in_its_code() -> None:
    observed = [Observed(rank, "T" if rank == 3 else "S", 0.0, "futex", 9.0, place=REDUCES) for rank in range(4)]
    assert autopsy(observed, HOSTS, ()) == [
        "rank 3 on node02: stopped by a signal; kill -CONT lets it continue; in all_reduce (train.py:88), no output for 9 s",
        "ranks 0-2 on node[01-02]: in all_reduce (train.py:88), no output for 9 s",
    ]


def test_a_line_of_code_says_more_than_the_kernel() -> None:
    observed = [Observed(rank, "R" if rank % 2 else "S", rank % 2, "futex", 9.0, place=REDUCES) for rank in range(7)]
    observed.append(Observed(7, "R", 1.0, "", 9.0, place="load_batch (data.py:31)", steady=False))
    assert autopsy(observed, HOSTS, ()) == [
        "rank 7 on node04: running, seen in load_batch (data.py:31), no output for 9 s",
        "ranks 0-6 on node[01-04]: in all_reduce (train.py:88), no output for 9 s",
    ]


def test_ranks_in_a_fence_are_distinguished_from_the_one_that_is_missing_in_it() -> None:
    observed = [Observed(rank, "R", 1.0, "", 9.0, fenced=True) for rank in (0, 1, 3)] + [Observed(2, "S", 0.0, "", 9.0)]
    assert autopsy(observed, HOSTS, ()) == [
        "rank 2 on node02: idle, waits, no output for 9 s",
        f"ranks 0-1,3 on node[01-02]: busy on a CPU{FENCED}, no output for 9 s",
    ]
