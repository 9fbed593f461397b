"""`make test-chaos`: runs seed after seed until the time is over, and says how to run those that failed again.

The seeds that once failed come first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

import mpilaunch
from mpilaunch.hosts.nodeset import fold_numbers
from tests.chaos.checks import Record, problems
from tests.chaos.places import ChaosHosts
from tests.chaos.plan import Plan, describe, describe_fault, make_plan
from tests.chaos.run import compile_rank, run_plan
from tests.support.requirements import hand_down_no_ignored_signal

FAILED_BEFORE = (5006,)
"""Seeds that found a fault, here or in the loop: add each. A change of plan.py that gives them other plans ends their use."""
MOST_FAILURES = 20
MOST_WORDS = 3000


def main() -> int:
    """Run the loop; return 1 when a run has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Random jobs, and random faults done to them.")
    parser.add_argument("--seconds", type=float, default=600.0, help="time budget; the last run may take longer (default 600)")
    parser.add_argument("--seed", type=int, help="the first seed; the following ones are taken in turn (default: by the clock)")
    parser.add_argument("--runs", type=int, default=0, help="so many runs of the first seed on, and none that failed before")
    parser.add_argument("--plan", action="store_true", help="print the plan of the first seed, and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print every plan and outcome")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as after an error, with everything cleaned up
    hand_down_no_ignored_signal()
    first = int(time.time()) if arguments.seed is None else arguments.seed
    if arguments.plan:
        print(describe(make_plan(first)))
        return 0
    seeds = range(first, first + arguments.runs) if arguments.runs else chain(FAILED_BEFORE, count(first))
    return _loop(seeds, arguments.seconds, arguments.verbose)


def _loop(seeds: Iterable[int], seconds: float, verbose: bool) -> int:
    for name in [name for name in os.environ if name.startswith(("MPILAUNCH_", "PYTHONDONTWRITE"))]:
        del os.environ[name]
    began = time.monotonic()
    ran: list[int] = []
    failed: list[int] = []
    codes: Counter[str] = Counter()
    done: Counter[str] = Counter()
    versions = _versions()
    with ChaosHosts() as hosts:
        programs = compile_rank(hosts.shared)
        for seed in seeds:
            if time.monotonic() - began >= seconds or len(failed) >= MOST_FAILURES:
                break
            ran.append(seed)
            plan = make_plan(seed)
            record = run_plan(plan, hosts, programs)
            wrong = problems(plan, record)
            codes[_code_name(record.code)] += 1
            done.update(f"{hit.fault.action} {hit.fault.target}" for hit in record.hits if hit.found)
            if wrong or verbose:
                print(_report(plan, record, wrong), flush=True)
            if wrong:
                failed.append(seed)
    print(f"exit codes: {_counts(codes)}")
    print(f"faults: {_counts(done)}")
    print(_summary(ran, sum(done.values()), time.monotonic() - began, failed, versions))
    return 1 if failed or not ran else 0


def _report(plan: Plan, record: Record, wrong: list[str]) -> str:
    gone = "processes left" if record.gone_after is None else f"the last process gone {record.gone_after:.1f} s later"
    lines = [describe(plan), f"    exit code {_code_name(record.code)} after {record.seconds:.1f} s; {gone}"]
    for hit in record.hits:
        found = "" if hit.found else ", nothing there"
        lines.append(f"    done at {hit.at:.2f} s ({hit.phase}{found}): {describe_fault(hit.fault)}")
    if wrong:
        lines += [f"  WRONG: {text}" for text in wrong]
        shown = [line for line in record.err.splitlines() if not re.match(r"e\d+:", line)]
        lines += [f"    stderr: {line}" for line in "\n".join(shown)[-MOST_WORDS:].splitlines()]
        lines.append(f"  again: {sys.executable} -m tests.chaos --seed {plan.seed} --runs 1 --verbose")
    return "\n".join(lines)


def _code_name(code: int | None) -> str:
    return "none" if code is None else str(code)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counter.items())) or "none"


def _summary(ran: list[int], faults: int, seconds: float, failed: list[int], versions: str) -> str:
    """Return the line for docs/failures.md."""
    told = fold_numbers(ran)
    result = f"{len(failed)} failed (seeds {', '.join(map(str, failed))})" if failed else "all passed"
    return f"{len(ran)} runs (seeds {told}) with {faults} faults in {seconds / 60:.0f} min, {result}: {versions}"


def _versions() -> str:
    kernel = ".".join(platform.release().split(".")[:2])
    return f"mpilaunch {mpilaunch.__version__}{_commit()}, Python {platform.python_version()}, Linux {kernel}"


def _commit() -> str:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return " at " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return ""


if __name__ == "__main__":
    sys.exit(main())
