"""What belongs to a process of an agent: descendants, in its group or not, and members of the group."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from mpilaunch_agents import process_tree

PROGRAM = """
import os, subprocess, sys, threading
first = subprocess.Popen(["sleep", "60"])
def leave():
    words = ["sh", "-c", "sleep 60 & echo $! $$; wait"]
    left = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, text=True)
    print(first.pid, left.stdout.readline().strip(), flush=True)
    sys.stdin.read()
threading.Thread(target=leave).start()
"""
"""A child in the group; another that has left it, with a child of its own, started by a thread that still runs."""


@pytest.fixture
def tree() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Give a leader, and its child, its grandchild that left, and the parent of that one."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        assert leader.stdout
        pids = [int(word) for word in leader.stdout.readline().split()]
        yield leader, pids
        process_tree.kill(map(psutil.Process, filter(psutil.pid_exists, pids)))
        leader.kill()


@pytest.mark.parametrize("listed", [True, False], ids=["by the kernel", "by a look at all"])
def test_descendants_are_found_whatever_their_group(
    listed: bool, tree: tuple[subprocess.Popen[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "_KERNEL_LISTS_CHILDREN", listed)
    leader, (child, grandchild, left) = tree
    assert {process.pid for process in process_tree.descendants(leader.pid)} == {child, grandchild, left}
    groups = {pid: process_tree.living_group(psutil.Process(pid)) for pid in (child, grandchild, left)}
    assert groups == {child: leader.pid, grandchild: left, left: left}
    assert process_tree.parent_of(psutil.Process(grandchild)) == left


def test_a_long_chain_of_processes_is_followed_to_its_end() -> None:
    script = 'n=$(($1 - 1)); [ $n = 0 ] && { echo up; sleep 60; }; sh -c "$0" "$0" $n'
    with subprocess.Popen(["sh", "-c", script, script, "150"], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout and leader.stdout.readline() == b"up\n"
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack()) + 100)
        try:
            found = process_tree.descendants(leader.pid)
        finally:
            sys.setrecursionlimit(limit)
        assert len(found) == 150
        os.killpg(leader.pid, signal.SIGKILL)


def test_a_dead_member_is_no_member(tree: tuple[subprocess.Popen[str], list[int]]) -> None:
    leader, (child, _, left) = tree
    assert process_tree.has_members(leader.pid)
    process_tree.kill([psutil.Process(child)])
    while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not process_tree.has_members(leader.pid) and process_tree.has_members(left)
    assert process_tree.living_group(psutil.Process(child)) is None


def test_what_is_gone_has_nothing() -> None:
    with subprocess.Popen(["true"]) as ended:
        process = psutil.Process(ended.pid)
    assert process_tree.descendants(ended.pid) == set()
    assert (process_tree.parent_of(process), process_tree.group_of(ended.pid)) == (0, None)
    process_tree.kill([process])
