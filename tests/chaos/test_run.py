"""The chaos loop on real hosts: a good run is good, and what a job leaves behind is seen and then removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.checks import problems
from tests.chaos.places import ChaosHosts
from tests.chaos.plan import PLAIN, Fault, Job, Plan
from tests.chaos.run import compile_rank, run_plan

pytestmark = [pytest.mark.slow, pytest.mark.testbed]

JOB = Job(
    program=PLAIN, nodes=(("node01", 2), ("local", 1)), agent="ssh", lines=100, width=80, seconds=0.3, fails=(), children="bk",
    deaf=True, both=True, stdin="pipe", stdin_bytes=70_000, reads=True, timeout=None, continue_on_error=False, heartbeat=3.0,
    reconnect=0.0, grace=0.5, delays=(("node01", 0.02),),
)  # fmt: skip
KILLED = (
    Fault(0.3, True, "stop", "guard", "node01", seconds=1.0),
    Fault(0.4, True, "kill", "daemon", "node01"),
    Fault(0.5, True, "kill", "guard", "node01"),
)
"""Which no plan of a seed does: nobody is left on the node to end the ranks."""


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[ChaosHosts, dict[str, Path]]]:
    """Give the hosts and the ranks' programs."""
    with ChaosHosts() as hosts:
        yield hosts, compile_rank(hosts.shared)


def test_a_good_run_is_good(made: tuple[ChaosHosts, dict[str, Path]]) -> None:
    plan = Plan(0, JOB, ())
    record = run_plan(plan, *made)
    assert (record.code, problems(plan, record)) == (0, [])
    assert record.out.count(b"\n") == 3 * 101 + 1


def test_what_is_left_is_seen_and_removed(made: tuple[ChaosHosts, dict[str, Path]]) -> None:
    hosts, _ = made
    plan = Plan(0, Job(**{**vars(JOB), "seconds": 30.0}), KILLED)
    record = run_plan(plan, *made)
    assert [(hit.phase, hit.found) for hit in record.hits] == [("run", True)] * 3
    assert record.code == 125 and record.gone_after is None
    wrong = problems(plan, record)
    assert any(text.startswith("process left: node01: ") and "/rank" in text for text in wrong)
    assert any(text.startswith("file left: node01:/run/user/0/mpilaunch-") for text in wrong)
    assert (hosts.left(), hosts.new_files()) == ([], [])


def test_a_program_that_prints_something_else_is_seen(made: tuple[ChaosHosts, dict[str, Path]], tmp_path: Path) -> None:
    hosts, programs = made
    program = hosts.shared / "other"
    program.write_text(f'#!/bin/sh\ntouch /tmp/left-$RANK\necho something else\nexec {programs[PLAIN]} "$@"\n')
    os.chmod(program, 0o755)
    plan = Plan(0, Job(**{**vars(JOB), "nodes": (("node02", 1),)}), ())
    wrong = problems(plan, run_plan(plan, hosts, {PLAIN: program}))
    assert wrong == ["file left: node02:/tmp/left-0", "line that no rank has printed: 'something else'"]
