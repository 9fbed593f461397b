"""Measures mpilaunch and its installed peers side by side on one machine: `make bench`, as root.

Machines are noisy, so no time makes this fail. Every launcher does the same work in turn, round after round; a ratio is formed
within a round, and the page shows the median of the ratios and their spread. The output of every launch is checked, to the last
line: only a wrong result of mpilaunch makes this fail.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
sys.path[:0] = [str(CHECKOUT), str(HERE)]

from cases import LINE, Case, make_cases, slurm_cases  # noqa: E402  (this folder must be on the path first)
from groups import control_group  # noqa: E402
from launchers import ENVIRONMENT, Launcher, launchers  # noqa: E402
from page import picture, table_page  # noqa: E402
from quiet import quiet  # noqa: E402
from samples import Round, Sample, output_file  # noqa: E402
from scale import curves  # noqa: E402

from mpilaunch.wire.frames import STANDBY  # noqa: E402
from tests.support.hosts import Hosts, in_directory  # noqa: E402

HUNG = "did not end within"


def main() -> int:
    """Measure all, write results, page and picture; return 1 when mpilaunch gave a wrong result."""
    parser = argparse.ArgumentParser(description="Measure mpilaunch and its installed peers in turn.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, hosts and bytes; prints the page, writes nothing")
    parser.add_argument("--only", metavar="ROW", help="only the rows whose name begins with this, likewise")
    parser.add_argument("--renew", metavar="ROW", help="only these rows, and write them in the place of their old ones")
    arguments = parser.parse_args()
    # A user's installation has cached byte code, and does not set these variables.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)
    ours, peers, missing = launchers()
    with Hosts(8 if arguments.quick else 32) as hosts, control_group() as group:
        only = arguments.only or arguments.renew or ""
        cases = make_cases(hosts, arguments.quick, group)
        rows: list[dict[str, Any]] = []
        for case in itertools.chain(cases, slurm_cases(hosts, arguments.quick, only)):
            if not case.key.startswith(only):
                continue
            samples = [*measure(case, hosts, [ours, *peers])]
            rows.append(row_of(case.key, case.title, samples, "seconds", 1.0))
            if case.lines:
                rows[-1]["megabytes"] = case.work.ranks * case.lines * (len(LINE) + 1) / 1e6
            if case.cpu_per_host:
                title = f"CPU time of the launcher and its children per host ({len(case.work.hosts)} hosts)"
                rows.append(row_of("cpu-per-host", title, samples, "cpu_seconds", 1 / len(case.work.hosts)))
        for key, title, rounds in quiet(hosts, [ours, *peers], arguments.quick, only):
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
    if arguments.renew:
        old = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
        new = {row["key"]: row for row in rows}
        results = old | {"rows": [new.get(row["key"], row) for row in old["rows"]]}
    elif not (arguments.quick or arguments.only):
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


# Measuring


def measure(case: Case, hosts: Hosts, everyone: Sequence[Launcher]) -> Iterator[Round]:
    """Yield rounds; the launcher that begins changes from round to round."""
    ours, *others = everyone
    can = [peer.can(bool(case.work.hosts)) if case.peers is None else peer.name in case.peers for peer in others]
    peers = [*itertools.compress(others, can)]
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
    argv = [*case.before, launcher.command, *launcher.argv(case.work)]
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
