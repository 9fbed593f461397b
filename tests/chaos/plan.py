"""A seed's plan: one job, and the faults that are done to it. Pure: the same seed makes the same plan, on every machine.

This module must never look at the clock, the machine or a run: run.py carries a plan out, checks.py judges what came of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

HOSTS = ("node01", "node02", "node03", "node04")
LOCAL = "local"
START_TIMEOUT = 30.0
"""Seconds: --start-timeout of every job."""
OPEN_MPI, MPICH, PLAIN = "openmpi", "mpich", "plain"
MOST_PLAIN, MOST_MPI = 16, 8
"""Ranks of a job. MPI ranks spin while they wait, and the loop is to leave the machine usable."""
MOST_BYTES = 6_000_000
"""Output of all ranks of a job together."""
REPEATED = {("signal", "head"), *(("kill", target) for target in ("rank", "child", "session", "client", "proxy"))}
"""Faults that a plan may have several times on one host."""
ENDING = {("signal", "head"), ("kill", "head"), ("kill", "daemon"), ("kill", "guard"), ("kill", "host")}
"""Faults that end a job. In some plans the ranks would run for LONG seconds, beyond the bounds in which they are to end."""
LONG = 60.0
HOST_DIES = 0.15
"""Of the plans of MPI jobs on several nodes, those in which everything on a host is killed, and nothing else is done."""
CONNECTION = ("session", "client", "proxy", "link")
"""Targets whose loss is the loss of a connection, and of nothing else."""


@dataclass(frozen=True)
class Job:
    """One launch.

    Attributes:
        program: PLAIN, MPICH or OPEN_MPI.
        nodes: (host, ranks) of each node; LOCAL is the head's own machine.
        agent: that reaches the hosts.
        lines, width: how many lines each rank prints, and of how many characters.
        seconds: that a rank runs.
        fails: (rank, exit code, seconds after its start) of ranks that fail.
        children: a letter for each child of every rank; tests/chaos/rank.c explains them.
        deaf: ranks ignore SIGTERM, SIGINT and SIGHUP.
        both: ranks print to stderr, too.
        stdin: "none", "file" or "pipe".
        stdin_bytes: how many bytes it holds.
        reads: rank 0 reads it to its end.
        timeout: --timeout in seconds, None for none.
        delays: (host, seconds): connections to it pass a proxy that delays every byte.
    """

    program: str
    nodes: tuple[tuple[str, int], ...]
    agent: str
    lines: int
    width: int
    seconds: float
    fails: tuple[tuple[int, int, float], ...]
    children: str
    deaf: bool
    both: bool
    stdin: str
    stdin_bytes: int
    reads: bool
    timeout: float | None
    continue_on_error: bool
    heartbeat: float
    reconnect: float
    grace: float
    delays: tuple[tuple[str, float], ...]

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return sum(count for _, count in self.nodes)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that are reached over the network."""
        return tuple(host for host, _ in self.nodes if host != LOCAL)


@dataclass(frozen=True)
class Fault:
    """Something that is done to a job.

    Attributes:
        at: seconds after the start of mpilaunch, or after all ranks have started.
        after_start: whether `at` counts from the start of all ranks.
        action: "kill", "stop" (and SIGCONT later), "signal", "down" (a link, and up later), "fill" (/tmp, to the run's end),
            "block" (the reader of stdout reads nothing for a while) or "close" (the reader of stdout goes).
        target: "head", "guard", "daemon", "helper", "rank", "child", "session" (sshd's process of the connection), "client"
            (the ssh process of the connection), "proxy", "link", "tmp", "reader" or "host" (everything there).
        host: where, "head" for the head's own machine.
        number: the signal's name for "signal"; which of several processes, for other targets.
        seconds: until it is undone, 0 for what stays to the end.
    """

    at: float
    after_start: bool
    action: str
    target: str
    host: str
    number: int | str = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What one seed decides."""

    seed: int
    job: Job
    faults: tuple[Fault, ...]


def make_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    dice = random.Random(seed)
    job = _job(dice)
    count = dice.choice((0, 1, 1, 1, 2, 2, 3, 4))
    faults: list[Fault] = []
    while len(faults) < count:
        fault = _fault(dice, job)
        if may_follow(fault, faults):
            faults.append(fault)
    if any((fault.action, fault.target) in ENDING for fault in faults) and dice.random() < 0.4:
        job = replace(job, seconds=LONG)
    apart = random.Random(f"a host dies {seed}")  # the plans of other seeds stay what they are
    if job.program != PLAIN and len(job.nodes) > 1 and job.hosts and apart.random() < HOST_DIES:
        faults = [Fault(round(apart.uniform(0.0, 3.0), 3), True, "kill", "host", apart.choice(job.hosts))]
        job = job if job.continue_on_error else replace(job, seconds=LONG)
    return Plan(seed, job, tuple(sorted(faults, key=lambda fault: (fault.after_start, fault.at))))


def may_follow(fault: Fault, others: list[Fault]) -> bool:
    """Tell whether a fault may be done beside others.

    Guard and daemon of a node are not killed both, as nothing is promised then (docs/design.md), and the guard kills a daemon
    that was stopped. A second fault of a kind on a host would undo the first, or find nothing.
    """
    for other in others:
        same = (fault.action, fault.target, fault.host) == (other.action, other.target, other.host)
        if same and (fault.action, fault.target) not in REPEATED:
            return False
        both = {(fault.action, fault.target), (other.action, other.target)}
        guarded = {target for _, target in both} <= {"guard", "daemon"}
        if fault.host == other.host and guarded and ("kill", "guard") in both:
            return False
        if {fault.target, other.target} == {"reader"}:
            return False
    return True


def describe(plan: Plan) -> str:
    """Return a plan as lines of text."""
    job = plan.job
    fields = {name: value for name, value in vars(job).items() if value not in ((), "", False, None, 0)}
    lines = [f"seed {plan.seed}: " + ", ".join(f"{name}={value!r}" for name, value in fields.items())]
    return "\n".join([*lines, *(f"    {describe_fault(fault)}" for fault in plan.faults)])


def describe_fault(fault: Fault) -> str:
    """Return a fault as a line of text."""
    which = f" {fault.number}" if isinstance(fault.number, str) else ""
    since = "after the start of the ranks" if fault.after_start else "after the start of mpilaunch"
    length = f", for {fault.seconds:g} s" if fault.seconds else ""
    return f"{fault.action}{which} {fault.target} on {fault.host}, {fault.at:.2f} s {since}{length}"


# The job


def _job(dice: random.Random) -> Job:
    program = dice.choice((PLAIN, PLAIN, PLAIN, OPEN_MPI, MPICH))
    # UCX reaches no host from the bridge that the head has for an interface.
    nodes = _nodes(dice, MOST_PLAIN if program == PLAIN else MOST_MPI, mixed=program != MPICH)
    ranks = sum(count for _, count in nodes)
    hosts = [host for host, _ in nodes if host != LOCAL]
    seconds = round(dice.choice((0.0, 1.0, 2.0, 3.0, 5.0)) + dice.random(), 2)
    width = dice.choice((20, 80, 500))
    lines = min(dice.choice((0, 1, 50, 50, 1000, 100_000)), MOST_BYTES // (width * ranks))
    fails = tuple(
        (rank, dice.choice((1, 3, 42, 125, 126, 255)), round(dice.random() * seconds, 2))
        for rank in dice.sample(range(ranks), dice.choice((0, 0, 0, 1, min(2, ranks))))
    )
    stdin = dice.choice(("none", "none", "file", "pipe"))
    continues = dice.random() < 0.2
    timeout = dice.choice((None, None, None, None, 1.5, 4.0))
    if program != PLAIN and timeout is None:
        # Ranks that have lost one of them may wait for it for ever, and so does MPI_Finalize over UCX's TCP now and then.
        timeout = 20.0
    return Job(
        program=program,
        nodes=nodes,
        agent=dice.choice(("ssh", "openssh")),
        lines=lines,
        width=width,
        seconds=seconds,
        fails=fails,
        children=dice.choice(("", "", "b", "s", "d", "k", "bsdk")) if ranks <= 8 else dice.choice(("", "d")),
        deaf=dice.random() < 0.15,
        both=dice.random() < 0.3,
        stdin=stdin,
        stdin_bytes=dice.choice((0, 100, 70_000, 300_000)) if stdin != "none" else 0,
        reads=stdin != "none" and dice.random() < 0.7,
        timeout=timeout,
        continue_on_error=continues,
        heartbeat=dice.choice((3.0, 5.0, 8.0)),
        reconnect=dice.choice((0.0, 6.0, 6.0, 10.0)),
        grace=dice.choice((0.5, 1.0, 3.0)),
        delays=tuple((host, round(dice.uniform(0.02, 0.15), 3)) for host in hosts if dice.random() < 0.2),
    )


def _nodes(dice: random.Random, most: int, *, mixed: bool) -> tuple[tuple[str, int], ...]:
    count = dice.choice((1, 2, 2, 3, 4))
    where = list(dice.sample(HOSTS, count))
    kind = dice.choice(("hosts", "hosts", "hosts", "mixed" if mixed else "hosts", "local"))
    if kind == "local":
        where = [LOCAL] * min(count, 2)
    elif kind == "mixed":
        where[0] = LOCAL
    return tuple((host, dice.choice((1, 1, 2, most // len(where)))) for host in where)


# The faults


def _fault(dice: random.Random, job: Job) -> Fault:
    after_start = dice.random() < 0.7
    at = round(dice.uniform(0.0, max(1.0, 1.2 * job.seconds)) if after_start else dice.uniform(0.0, 1.5), 3)
    host = "head" if (place := dice.choice(job.nodes)[0]) == LOCAL else place
    short, long = round(dice.uniform(0.1, 1.0), 2), round(job.heartbeat * dice.uniform(1.2, 2.0), 2)
    seconds = dice.choice((short, long))
    which = dice.randrange(16)
    remote = host != "head"
    helper = job.program == OPEN_MPI

    def fault(action: str, target: str, host: str = host, number: int | str = which, seconds: float = 0.0) -> Fault:
        return Fault(at, after_start, action, target, host, number, seconds)

    choices = [
        fault("kill", "head", "head"),
        fault("stop", "head", "head", seconds=seconds),
        *(fault("signal", "head", "head", dice.choice(("INT", "TERM", "HUP"))) for _ in range(2)),
        fault("kill", "daemon"),
        fault("stop", "daemon", seconds=seconds),
        fault("kill", "guard"),
        fault("stop", "guard", seconds=seconds),
        *(fault(action, "helper", seconds=seconds if action == "stop" else 0.0) for action in ("kill", "stop") if helper),
        fault("kill", "rank"),
        fault("stop", "rank", seconds=seconds),
        *(fault("kill", "child") for _ in range(bool(job.children))),
        fault("fill", "tmp", dice.choice((host, "head"))),
        fault("block", "reader", "head", seconds=dice.choice((short, 3.0))),
        fault("close", "reader", "head"),
    ]
    if remote:
        choices += [
            *(fault("kill", "session") for _ in range(2)),
            fault("stop", "session", seconds=seconds),
            *(fault("down", "link", seconds=length) for length in (short, long)),
        ]
        if job.agent == "openssh":
            choices.append(fault("kill", "client"))
        if host in dict(job.delays):
            choices += [fault("kill", "proxy"), fault("stop", "proxy", seconds=seconds)]
    return dice.choice(choices)
