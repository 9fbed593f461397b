"""The rows of a quiet job: what a launcher costs its head in each second of a long job whose ranks print little."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from launchers import Launcher, Work
from samples import Round, Sample, output_file

from tests.support.hosts import Hosts, in_directory

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "programs" / "ticks.c"
ROWS = {"quiet-bursts": (5000, "all within 5 ms"), "quiet-lines": (900_000, "one after the other")}
"""The microseconds over which the lines of a second are spread, and how the page says that."""
MARGIN = 2
"""Seconds of the job before it is measured, and after."""


def quiet(hosts: Hosts, everyone: Sequence[Launcher], quick: bool, only: str) -> Iterator[tuple[str, str, list[Round]]]:
    """Yield rows of the CPU time that a launcher takes on the head in a second of a long job that prints little."""
    compiler = shutil.which("cc")
    if compiler is None:
        return
    program = str(hosts.shared / "ticks")
    subprocess.run([compiler, "-O2", "-o", program, PROGRAM], check=True)
    seconds = 5 if quick else 20
    for key, (spread, when) in ROWS.items():
        if not key.startswith(only):
            continue
        work = Work((program, str(seconds + 2 * MARGIN), str(spread)), 64, tuple(hosts.names[:2]))
        rounds: list[Round] = [{} for _ in range(2 if quick else 3)]
        for one in rounds:
            for launcher in everyone:
                if launcher.name in ("mpilaunch", "mpirun"):
                    one[launcher.name] = watch(launcher, work, hosts, seconds)
                    print(f"{key}: {launcher.name} {one[launcher.name]}", file=sys.stderr, flush=True)
        yield key, f"CPU time of the head in a second: 64 ranks on 2 ssh hosts print a line each, {when}", rounds


def watch(launcher: Launcher, work: Work, hosts: Hosts, seconds: float) -> Sample:
    """Run a job and measure the launcher and its children for some seconds in its middle."""
    with in_directory(hosts.shared), output_file() as output:
        argv = [launcher.command, *launcher.argv(work)]
        with hosts.popen(argv, env={"PYTHONPATH": ""}, stdin=subprocess.DEVNULL, stdout=output) as process:
            root = psutil.Process(process.pid)
            while not os.fstat(output.fileno()).st_size:
                if process.poll() is not None:
                    return Sample(0, 0, fault=f"exit code {process.returncode} before a line")
                time.sleep(0.1)
            time.sleep(MARGIN)
            family = [root, *root.children(recursive=True)]
            before, begun = cpu_seconds(family), time.monotonic()
            time.sleep(seconds)
            taken, took = cpu_seconds(family) - before, time.monotonic() - begun
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                return Sample(took, 0, fault="did not end")
        output.seek(0)
        lines, wanted = len(output.readlines()), 64 * int(work.program[1])
        fault = "" if (code, lines) == (0, wanted) else f"exit code {code}, {lines} lines of {wanted}"
    return Sample(took, taken / took, fault=fault)


def cpu_seconds(family: Sequence[psutil.Process]) -> float:
    """Return the CPU time of all threads, which the kernel counts in nanoseconds (sched-stats.rst), and its clock in 10 ms."""
    tasks = (Path(f"/proc/{one.pid}/task/{thread.id}/schedstat") for one in family for thread in one.threads())
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
