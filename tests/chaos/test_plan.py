"""The plans of the chaos loop: a seed decides everything, and every job is small enough to keep the machine usable."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.plan import (
    ENDING,
    HOSTS,
    LOCAL,
    LONG,
    MOST_BYTES,
    MOST_MPI,
    MOST_PLAIN,
    PLAIN,
    Fault,
    Plan,
    describe,
    make_plan,
    may_follow,
)

PLANS = [make_plan(seed) for seed in range(3000)]
SEED_4 = """\
seed 4: program='plain', nodes=(('local', 8), ('node03', 1)), agent='openssh', lines=1000, width=80, seconds=0.07, \
children='d', stdin='none', timeout=1.5, heartbeat=5.0, reconnect=6.0, grace=0.5
    stop daemon on node03, 0.29 s after the start of mpilaunch, for 9.47 s
    kill session on node03, 0.28 s after the start of the ranks"""


def test_a_seed_decides_everything() -> None:
    assert [make_plan(plan.seed) for plan in PLANS] == PLANS
    # Every Python makes the same plan of it.
    assert describe(PLANS[4]) == SEED_4


@pytest.mark.parametrize("name", ["program", "agent", "children", "stdin", "timeout", "continue_on_error", "deaf", "reconnect"])
def test_every_kind_of_job_comes(name: str) -> None:
    count = Counter(getattr(plan.job, name) for plan in PLANS)
    assert len(count) >= 2 and min(count.values()) > len(PLANS) / 50


def test_every_fault_comes_and_most_after_the_start() -> None:
    faults = [fault for plan in PLANS for fault in plan.faults]
    count = Counter((fault.action, fault.target) for fault in faults)
    assert set(count) == {
        *(("kill", target) for target in ["head", "guard", "daemon", "helper", "rank", "child", "session", "client", "proxy"]),
        *(("stop", target) for target in ["head", "guard", "daemon", "helper", "rank", "session", "proxy"]),
        ("kill", "host"), ("signal", "head"), ("down", "link"), ("fill", "tmp"), ("block", "reader"), ("close", "reader"),
    }  # fmt: skip
    assert min(count.values()) >= 10
    assert len(faults) / 2 < sum(fault.after_start for fault in faults) < len(faults)


@pytest.mark.parametrize("plan", PLANS[::30], ids=lambda plan: str(plan.seed))
def test_a_plan_is_bounded_and_about_places_that_it_has(plan: Plan) -> None:
    job = plan.job
    assert 1 <= job.ranks <= (MOST_PLAIN if job.program == PLAIN else MOST_MPI) and 1 <= len(job.nodes) <= 4
    assert job.ranks * job.lines * job.width <= MOST_BYTES and job.seconds <= LONG
    assert set(job.hosts) <= set(HOSTS) and len(set(job.hosts)) == len(job.hosts)
    assert job.timeout is not None or job.program == PLAIN
    assert job.seconds <= 6 or ENDING & {(fault.action, fault.target) for fault in plan.faults}
    places = {"head", *job.hosts}
    for fault in plan.faults:
        assert fault.host in places and 0 <= fault.at < 10 and 0 <= fault.seconds < 20
        assert fault.seconds or fault.action not in ("stop", "down", "block")
    for rank, code, _ in job.fails:
        assert rank < job.ranks and 1 <= code <= 255


def test_all_plans_keep_guard_or_daemon_of_each_node() -> None:
    for plan in PLANS:
        done = {(fault.action, fault.target, fault.host) for fault in plan.faults}
        for host in (*HOSTS, "head", LOCAL):
            if ("kill", "guard", host) in done:
                assert not {("kill", "daemon", host), ("stop", "daemon", host), ("stop", "guard", host)} & done


@pytest.mark.parametrize(
    ("one", "other", "allowed"),
    [
        (("kill", "guard", "node01"), ("kill", "daemon", "node01"), False),
        (("kill", "guard", "node01"), ("stop", "daemon", "node01"), False),
        (("kill", "guard", "node01"), ("kill", "daemon", "node02"), True),
        (("stop", "guard", "node01"), ("kill", "daemon", "node01"), True),
        (("down", "link", "node01"), ("down", "link", "node01"), False),
        (("kill", "rank", "node01"), ("kill", "rank", "node01"), True),
        (("block", "reader", "head"), ("close", "reader", "head"), False),
        (("signal", "head", "head"), ("signal", "head", "head"), True),
    ],
)
def test_faults_that_may_be_done_together(one: tuple[str, str, str], other: tuple[str, str, str], allowed: bool) -> None:
    first, second = Fault(0.0, True, *one), Fault(1.0, True, *other)
    assert may_follow(second, [first]) is may_follow(first, [second]) is allowed
