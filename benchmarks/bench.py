"""Measures mpilaunch and its installed peers side by side on one machine: `make bench`, as root.

Machines are noisy, so no time makes this fail. Every launcher does the same work in turn, round after round; a ratio is formed
within a round, and the page shows the median of the ratios and their spread. The output of every launch is checked, to the last
line: only a wrong result of mpilaunch makes this fail.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
sys.path[:0] = [str(CHECKOUT), str(HERE)]

from launchers import ENVIRONMENT, Launcher, Work, launchers  # noqa: E402  (this folder must be on the path first)
from page import picture, table_page  # noqa: E402
from quiet import quiet  # noqa: E402
from samples import Round, Sample, output_file  # noqa: E402
from scale import curves  # noqa: E402

from mpilaunch.hosts.nodeset import fold  # noqa: E402
from mpilaunch.wire.frames import STANDBY  # noqa: E402
from tests.support.hosts import Hosts, in_directory  # noqa: E402

HUNG = "did not end within"
LINE = "x" * 83
"""A line that ranks print in the rows that measure output, without its newline."""


@dataclass(frozen=True)
class Case:
    """Work that every capable launcher does `rounds` times, after a first time that does not count."""

    key: str
    title: str
    work: Work
    rounds: int
    limit: float
    lines: int = 0
    """Number of times that each rank prints LINE; 0 for rows that do not measure output."""
    peers: tuple[str, ...] | None = None
    """The peers to measure; None for all capable ones."""
    hangs: bool = False
    """Whether the program itself hangs sometimes, under any launcher."""
    cpu_per_host: bool = False
    """Whether a second row has the CPU time."""


def main() -> int:
    """Measure all, write results, page and picture; return 1 when mpilaunch gave a wrong result."""
    parser = argparse.ArgumentParser(description="Measure mpilaunch and its installed peers in turn.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, hosts and bytes; prints the page, writes nothing")
    parser.add_argument("--only", metavar="ROW", help="only the rows whose name begins with this, likewise")
    arguments = parser.parse_args()
    # A user's installation has cached byte code, and does not set these variables.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)
    ours, peers, missing = launchers()
    with Hosts(8 if arguments.quick else 32) as hosts:
        cases = [case for case in make_cases(hosts, arguments.quick) if case.key.startswith(arguments.only or "")]
        rows: list[dict[str, Any]] = []
        for case in cases:
            samples = [*measure(case, hosts, [ours, *peers])]
            rows.append(row_of(case.key, case.title, samples, "seconds", 1.0))
            if case.lines:
                rows[-1]["megabytes"] = case.work.ranks * case.lines * (len(LINE) + 1) / 1e6
            if case.cpu_per_host:
                title = f"CPU time of the launcher and its children per host ({len(case.work.hosts)} hosts)"
                rows.append(row_of("cpu-per-host", title, samples, "cpu_seconds", 1 / len(case.work.hosts)))
        for key, title, rounds in quiet(hosts, [ours, *peers], arguments.quick, arguments.only or ""):
            rows.append(row_of(key, title, rounds, "cpu_seconds", 1.0))
        results = {
            "schema": "mpilaunch.bench/1",
            "machine": machine(),
            "versions": {launcher.name: launcher.version_text() for launcher in (ours, *peers)},
            "not_installed": [launcher.name for launcher in missing],
            "rows": rows,
            "footprint": footprint(ours, hosts),
            "standby": standby(ours, hosts, 3 if arguments.quick else 9),
        }
    if not (arguments.quick or arguments.only):
        results["scale"] = curves()
    if arguments.quick or arguments.only:
        print(table_page(results))
    else:
        (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (CHECKOUT / "docs" / "performance.md").write_text(table_page(results), encoding="utf-8")
        (CHECKOUT / "docs" / "performance.svg").write_text(picture(results), encoding="utf-8")
    known = {case.title for case in cases if case.hangs}
    faults = [
        f"{row['title']}: {fault}"
        for row in rows
        for fault in row["launchers"][ours.name]["faults"]
        if not (row["title"] in known and fault.startswith(HUNG))
    ]
    for fault in dict.fromkeys(faults):
        print(f"bench: mpilaunch is wrong: {fault}", file=sys.stderr)
    return 1 if faults else 0


def make_cases(hosts: Hosts, quick: bool) -> list[Case]:
    """Return what is measured."""
    lines = 240_000 if quick else 2_400_000
    script = hosts.shared / "lines"
    script.write_text(f"#!/bin/sh\nyes {LINE} | head -c {lines * (len(LINE) + 1)}\n")
    script.chmod(0o755)
    every = tuple(hosts.names)
    prints = Work((str(script),), 2, tagged=True)
    size = f"{lines * (len(LINE) + 1) / 1e6:.0f} MB of {len(LINE) + 1}-byte lines, tagged"
    return [
        Case("local-2", "here, `-np 2 true`", Work(("true",), 2), 5 if quick else 25, 30.0),
        Case("local-64", "here, `-np 64 true`", Work(("true",), 64), 3 if quick else 15, 30.0),
        Case("ssh-1", "1 ssh host, `hostname`", Work(("hostname",), 1, every[:1], prints=every[:1]), 3 if quick else 15, 30.0),
        Case(
            f"ssh-{len(every)}",
            f"{len(every)} ssh hosts, `hostname`",
            Work(("hostname",), len(every), every, prints=every),
            2 if quick else 5,
            60.0,
            cpu_per_host=True,
        ),
        Case("output-local", f"2 ranks here, each {size}", prints, 2 if quick else 3, 120.0, lines, ("mpirun", "Hydra")),
        Case(
            "output-ssh",
            f"2 ssh hosts, each {size}",
            replace(prints, hosts=every[:2]),
            2 if quick else 3,
            120.0,
            lines,
            ("mpirun", "Hydra", "pdsh"),
        ),
        Case(
            "output-mpirun",
            f"2 ranks here, each {size}, with mpirun's options",
            replace(prints, dialect="openmpi"),
            2 if quick else 3,
            120.0,
            lines,
            ("mpirun",),
        ),
        *hosts_cases(every, quick),
        *mpi_cases(hosts, quick),
        *torch_cases(quick),
    ]


def hosts_cases(every: tuple[str, ...], quick: bool) -> Iterator[Case]:
    """Yield commands on hosts that are on their own, in the options of pdsh and clush."""
    rounds, both = 2 if quick else 5, ("pdsh", "clush")
    eight = Work(("hostname",), len(every), every, prints=every, dialect="pdsh", options=("-f", "8"))
    yield Case("hosts-window", f"{len(every)} ssh hosts, 8 at a time, `hostname`", eight, rounds, 60.0, peers=both)
    names = tuple(f"n{number:03}" for number in range(1, 201))
    here = Work(("echo", "%h"), len(names), names, prints=names, dialect="pdsh", options=("-R", "exec"))
    yield Case("hosts-exec", "200 hosts, `-R exec`, `echo %h`", here, rounds, 60.0, peers=both)
    count, three = 100_000, every[:3]
    header = ("-" * 15, f"{fold(three)} (3)", "-" * 15)
    whole = tuple(sorted((*header, *map(str, range(1, count + 1)))))
    folds = Work(("seq", str(count)), 3, three, tagged=True, prints=whole, dialect="clush", options=("-b",))
    yield Case("hosts-fold", f"3 ssh hosts, `-b`, {count:,} equal lines each", folds, rounds, 200.0, peers=("clush",))


def mpi_cases(hosts: Hosts, quick: bool) -> Iterator[Case]:
    """Yield an MPI program of each library that can be compiled, started by mpilaunch and by the library's own launcher."""
    rounds, title = 3 if quick else 15, "MPI_Init + all-reduce + MPI_Finalize"
    # On several hosts MPICH 4.0.2 hangs in MPI_Finalize under any launcher: sometimes with two ranks, mostly with more.
    # More ranks than cores wait for each other by sched_yield under Open MPI; under MPICH they wait for the scheduler's clock.
    for key, library, own, ranks, times in (("openmpi", "Open MPI", "mpirun", 8, 20_000), ("mpich", "MPICH", "Hydra", 2, 50)):
        if compiler := shutil.which(f"mpicc.{key}"):
            program = str(hosts.shared / f"allreduce.{key}")
            subprocess.run([compiler, "-O2", "-o", program, CHECKOUT / "tests" / "programs" / "allreduce.c"], check=True)

            def work(ranks: int, *names: str, program: str = program) -> Work:
                return Work((program, str(ranks)), ranks, names, prints=(f"{ranks} ranks agree",))

            name, two, hangs = f"{title}: {library}", work(ranks, *hosts.names[:2]), key == "mpich"
            yield Case(f"mpi-{key}-local", f"{name}, 8 ranks here", work(8), rounds, 30.0, peers=(own,))
            crowd = Work((program, "8", str(times)), 8, prints=("8 ranks agree",))
            crowded = f"{times:,} all-reduces: {library}, 8 ranks here on {os.cpu_count()} cores"
            yield Case(f"crowd-{key}", crowded, crowd, 3 if quick else 7, 60.0, peers=(own,))
            there = f"{name}, {ranks} ranks on 2 ssh hosts"
            yield Case(f"mpi-{key}-ssh", there, two, rounds, 30.0, peers=(own,), hangs=hangs)


def torch_cases(quick: bool) -> Iterator[Case]:
    """Yield a PyTorch program, started by mpilaunch and by torchrun, where this Python has torch."""
    if importlib.util.find_spec("torch"):
        program = (sys.executable, str(CHECKOUT / "tests" / "programs" / "torch_allreduce.py"))
        work = Work(program, 2, prints=("2 ranks agree",))
        title = "PyTorch's init_process_group + all-reduce, 2 ranks here"
        yield Case("torch-local", title, work, 2 if quick else 7, 60.0, peers=("torchrun",))


# Measuring


def measure(case: Case, hosts: Hosts, everyone: Sequence[Launcher]) -> Iterator[Round]:
    """Yield rounds; the launcher that begins changes from round to round."""
    ours, *others = everyone
    peers = [peer for peer in others if peer.can(bool(case.work.hosts)) and (case.peers is None or peer.name in case.peers)]
    able = [ours, *peers]
    for number in range(case.rounds + 1):
        turn = number % len(able)
        samples = {launcher.name: launch(case, launcher, hosts) for launcher in able[turn:] + able[:turn]}
        shown = ", ".join(f"{name} {sample.fault or f'{sample.seconds:.3f} s'}" for name, sample in sorted(samples.items()))
        print(f"{case.key} {number or 'warm-up'}: {shown}", file=sys.stderr, flush=True)
        if number:
            yield samples


def launch(case: Case, launcher: Launcher, hosts: Hosts) -> Sample:
    """Let a launcher do the work once, and check its output."""
    argv = [launcher.command, *launcher.argv(case.work)]
    with in_directory(hosts.shared), output_file() as output, output_file() as errors:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors, "start_new_session": True}
        begun = time.monotonic()
        if case.work.hosts:
            process: subprocess.Popen[Any] = hosts.popen(argv, env={"PYTHONPATH": ""}, **streams)
        else:
            process = subprocess.Popen(argv, **streams)
        why = " (MPICH 4.0.2 sometimes hangs there, under any launcher)" if case.hangs else ""
        fault = "" if ends(process.pid, case.limit) else f"{HUNG} {case.limit:.0f} s{why}"
        if fault:
            os.killpg(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if not fault and process.returncode:
            errors.seek(0)
            fault = f"exit code {process.returncode}: {errors.read().decode(errors='replace').strip()[-300:]}"
        broken = 0
        if not fault:
            broken, fault = check(case, launcher, output)
    return Sample(seconds, usage.ru_utime + usage.ru_stime, broken, fault)


def ends(pid: int, limit: float) -> bool:
    """Wait until a child of ours has ended; return False when it does not in time."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


def check(case: Case, launcher: Launcher, output: IO[bytes]) -> tuple[int, str]:
    """Return the number of broken lines, and any other fault of the output."""
    work = case.work
    if case.lines:
        hosts = work.hosts or ("",) * work.ranks
        whole = [count_lines(output, launcher.tag.format(rank=rank, host=host) + LINE) for rank, host in enumerate(hosts)]
        if max(whole) > case.lines:
            return 0, f"a rank printed {case.lines} lines, {max(whole)} arrived"
        return work.ranks * case.lines - sum(whole), ""
    output.seek(0)
    lines = sorted(output.read().decode(errors="replace").splitlines())
    return 0, "" if lines == list(work.prints) else f"wrong output: {lines[:3]}"


def count_lines(output: IO[bytes], line: str) -> int:
    """Return how often a file has exactly this line."""
    output.seek(0)
    done = subprocess.run(
        ["grep", "--count", "--line-regexp", "--fixed-strings", "--", line],
        stdin=output,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    return int(done.stdout)


# Results


def row_of(key: str, title: str, rounds: Sequence[Round], quantity: str, factor: float) -> dict[str, Any]:
    """Return one row of the results: the values of each launcher, and the ratios of mpilaunch to each peer by round."""
    (ours, *peers) = sorted(rounds[0], key=lambda name: name != "mpilaunch")

    def value(sample: Sample) -> float:
        return float(getattr(sample, quantity)) * factor

    taken = {}
    for name in (ours, *peers):
        samples = [samples[name] for samples in rounds]
        good = [value(sample) for sample in samples if not sample.fault]
        faults = [sample.fault for sample in samples if sample.fault]
        if name == ours:
            faults += [f"{sample.broken} broken lines" for sample in samples if sample.broken]
        taken[name] = {
            "median": statistics.median(good) if good else None,
            "values": [round(one, 6) for one in good],
            "broken": max(sample.broken for sample in samples),
            "faults": faults,
        }
    ratios = {}
    for peer in peers:
        pairs = [both for both in ((one[ours], one[peer]) for one in rounds) if not any(sample.fault for sample in both)]
        of_round = [value(mine) / value(theirs) for mine, theirs in pairs]
        if of_round:
            ratios[peer] = {**spread_of(of_round), "pairs": len(of_round)}
    return {"key": key, "title": title, "rounds": len(rounds), "launchers": taken, "ratios": ratios}


def spread_of(ratios: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum of ratios."""
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def machine() -> str:
    """Return the properties of the machine that the results depend on most."""
    linux = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} cores, Linux {linux}, Python {platform.python_version()}"


def footprint(ours: Launcher, hosts: Hosts) -> dict[str, Any]:
    """Return the bytes that a node receives, its daemon's memory, and the time until all nodes have reported."""
    from mpilaunch.head.nodes import bundle

    hello: dict[str, float] = {}
    for names in (hosts.names[:1], hosts.names):
        times = []
        for _ in range(5):
            report = hosts.shared / "report.json"
            with in_directory(hosts.shared):
                argv = [ours.command, "-H", ",".join(names), "--report", str(report), "true"]
                hosts.run(argv, env={"PYTHONPATH": ""}).check_returncode()
            times.append(json.loads(report.read_text())["phases"]["launch-daemons"])
        hello[str(len(names))] = statistics.median(times)
    # A rank is a child of its node's daemon.
    done = hosts.run([ours.command, "-H", hosts.names[0], "sh", "-c", "cat /proc/$PPID/status"], env={"PYTHONPATH": ""})
    (kilobytes,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("VmRSS:"))
    sizes = {"bundle_bytes": len(bundle.load()), "daemon_bytes": int(kilobytes) * 1024}
    return {**sizes, "hello_seconds": hello}


def standby(ours: Launcher, hosts: Hosts, rounds: int) -> dict[str, Any]:
    """Return the times of launches with standby daemons (`mpilaunch up`) and of launches that start their own."""
    where = ["-H", ",".join(hosts.names)]
    taken: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory(prefix="mpilaunch-bench-") as folder, in_directory(hosts.shared):
        runtime = {"warm": {"PYTHONPATH": "", "XDG_RUNTIME_DIR": folder}, "cold": {"PYTHONPATH": ""}}
        hosts.run([ours.command, "up", *where], env=runtime["warm"]).check_returncode()
        try:
            for number in range(rounds + 1):
                for kind in ("cold", "warm") if number % 2 else ("warm", "cold"):
                    deadline = time.monotonic() + 60
                    while not all(any(argv[-1:] == [STANDBY] for _, argv in hosts.processes(name)) for name in hosts.names):
                        if time.monotonic() > deadline:
                            raise SystemExit("bench: mpilaunch is wrong: a daemon does not stand by")
                        time.sleep(0.1)
                    time.sleep(0.5)  # daemons that start for the next launch must not be measured
                    begun = time.monotonic()
                    done = hosts.run([ours.command, *where, "hostname"], env=runtime[kind])
                    taken[kind] += [time.monotonic() - begun] if number else []
                    if sorted(done.stdout.split()) != hosts.names:
                        raise SystemExit(f"bench: mpilaunch is wrong: {done.stdout!r}, {done.stderr!r}")
        finally:
            hosts.run([ours.command, "down"], env=runtime["warm"])
    ratios = [warm / cold for warm, cold in zip(taken["warm"], taken["cold"], strict=True)]
    medians = {kind: statistics.median(times) for kind, times in taken.items()}
    return {"hosts": len(hosts.names), "rounds": rounds, **medians, "ratio": spread_of(ratios)}


if __name__ == "__main__":
    sys.exit(main())
