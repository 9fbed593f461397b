"""One run: starts a plan's job on the hosts, does the faults at their times, and records what is seen.

One loop without threads reads the job's output, writes its stdin and does what is due. It always ends: what was done is undone,
and what is left is ended, even when a check has failed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from tests.chaos.checks import Hit, Record, end_bound, gone_bound
from tests.chaos.places import RUNTIME, ChaosHosts, Process
from tests.chaos.plan import LOCAL, MPICH, OPEN_MPI, PLAIN, START_TIMEOUT, Fault, Job, Plan
from tests.chaos.targets import find
from tests.support.hosts import HEAD
from tests.support.mpi.programs import debian_compiler
from tests.support.paths import ROOT

STEP = 0.01
LONGEST_START = 60.0
"""Seconds after which faults come that were to follow the start of all ranks."""
MOST_READ = 1 << 20
VARIABLES = {
    PLAIN: {},
    # UCX takes hosts of one kernel for one host.
    MPICH: {"UCX_TLS": "tcp,self"},
    OPEN_MPI: {"OMPI_MCA_mpi_yield_when_idle": "1"},
}


def compile_rank(folder: Path) -> dict[str, Path]:
    """Compile tests/chaos/rank.c for each kind of job; the executables are all called `rank`."""
    source = ROOT / "tests" / "chaos" / "rank.c"
    compilers = {PLAIN: ["gcc"], **{name: [debian_compiler(name), "-DWITH_MPI"] for name in (MPICH, OPEN_MPI)}}
    made = {}
    for name, command in compilers.items():
        made[name] = folder / name / "rank"
        made[name].parent.mkdir()
        subprocess.run([*command, "-O1", "-Wall", "-Wextra", "-Werror", "-o", made[name], source], check=True)
    return made


def run_plan(plan: Plan, hosts: ChaosHosts, programs: dict[str, Path]) -> Record:
    """Do what a plan says, and leave nothing behind."""
    folder = Path(tempfile.mkdtemp(dir=hosts.shared))
    run = _Run(plan, hosts, folder, programs[plan.job.program])
    try:
        return run.record()
    finally:
        run.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, plan: Plan, hosts: ChaosHosts, folder: Path, program: Path) -> None:
        self._plan, self._job, self._hosts, self._folder = plan, plan.job, hosts, folder
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._hits: list[Hit] = []
        self._undo: dict[Fault, Callable[[], None]] = {}
        self._out = bytearray()
        self._blocked = self._eof = self._closed = self._up = False
        self._ended: float | None = None
        self._calm = 0.0
        hosts.write_ssh_config(self._job)
        self._stdin = bytes(index * 7 % 251 for index in range(self._job.stdin_bytes))
        self._process = self._start(program)

    def record(self) -> Record:
        """Watch the run to its end."""
        self._began = time.monotonic()
        for fault in self._plan.faults:
            if not fault.after_start:
                self._at(fault.at, partial(self._do, fault))
        self._watch()
        code, seconds = self._process.poll(), self._ended or self._now()
        gone_after: float | None = None
        processes: tuple[str, ...] = ()
        files: tuple[str, ...] = ()
        if code is not None:
            bound = gone_bound(self._job, code, self._hits)
            gone_after, processes = self._wait_gone(max(seconds, self._calm), bound)
            self._read()
            files = tuple(f"{place}:/{name}" for place, name in self._hosts.new_files())
        return Record(
            code=code,
            seconds=seconds,
            late=max(0.0, seconds - self._calm),
            hits=tuple(self._hits),
            out=bytes(self._out),
            err=(self._folder / "stderr").read_text(errors="backslashreplace"),
            read_all=not self._closed,
            stdin_sum=(len(self._stdin), _checksum(self._stdin)),
            gone_after=gone_after,
            processes=processes,
            files=files,
        )

    def close(self) -> None:
        """End and undo everything."""
        self._undo_all()
        self._process.kill()
        self._hosts.clean()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _undo_all(self) -> None:
        self._due.clear()
        while self._undo:
            self._undo.popitem()[1]()

    # The job

    def _start(self, program: Path) -> subprocess.Popen[bytes]:
        (self._folder / "hosts").write_text("".join(f"{line}\n" for line in host_lines(self._job)))
        words = command(self._job, program, self._folder)
        stdin: int | IO[bytes] = subprocess.DEVNULL
        if self._job.stdin == "pipe":
            stdin = subprocess.PIPE
        elif self._job.stdin == "file":
            (self._folder / "stdin").write_bytes(self._stdin)
            stdin = (self._folder / "stdin").open("rb")
        with (self._folder / "stderr").open("wb") as errors:
            process = self._hosts.popen(
                words, env={"XDG_RUNTIME_DIR": RUNTIME}, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, text=False,
                bufsize=0, start_new_session=True,
            )  # fmt: skip
        if not isinstance(stdin, int):
            stdin.close()
        os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        self._unwritten = self._stdin
        return process  # type: ignore[return-value]

    def _watch(self) -> None:
        """Run the loop until mpilaunch has ended and no fault is under way, or its bound is over."""
        while True:
            while self._due and self._due[0][0] <= self._now():
                heapq.heappop(self._due)[2]()
            self._read()
            self._write()
            self._look_up()
            if self._ended is None and self._process.poll() is not None:
                self._ended = self._now()
            if self._ended is not None and not (self._due and self._hosts.left()):
                break
            if not self._due and self._now() > self._calm + end_bound(self._job, self._hits):
                break
            time.sleep(STEP)
        self._undo_all()

    def _look_up(self) -> None:
        if self._up or self._ended is not None:
            return
        later = [fault for fault in self._plan.faults if fault.after_start]
        if len(list(self._folder.glob("up-*"))) < self._job.ranks and self._now() < LONGEST_START:
            if later:
                self._calm = self._now()
            return
        self._up = True
        for fault in later:
            self._at(self._now() + fault.at, partial(self._do, fault))

    def _read(self) -> None:
        if self._blocked or self._eof or self._closed:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):
                data = os.read(self._process.stdout.fileno(), MOST_READ)  # type: ignore[union-attr]
                self._out += data
                if not data:
                    self._eof = True
                    return

    def _write(self) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(stdin.fileno(), self._unwritten[:65536]) :]
        except BlockingIOError:
            return
        except OSError:
            pass
        stdin.close()

    def _wait_gone(self, since: float, bound: float) -> tuple[float | None, tuple[str, ...]]:
        while True:
            left = self._hosts.left()
            if not left:
                return max(0.0, self._now() - since), ()
            if self._now() > since + bound:
                return None, tuple(left)
            self._read()
            time.sleep(0.05)

    # Faults

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    def _do(self, fault: Fault) -> None:
        phase = "end" if self._ended is not None else "run" if self._up else "start"
        undo = self._apply(fault)
        self._hits.append(Hit(fault, self._now(), phase, undo is not None))
        self._calm = max(self._calm, self._now())
        if undo is None:
            return
        self._undo[fault] = undo

        def end() -> None:
            self._undo.pop(fault)()
            self._calm = max(self._calm, self._now())

        if fault.seconds:
            self._at(self._now() + fault.seconds, end)

    def _apply(self, fault: Fault) -> Callable[[], None] | None:
        """Do a fault; return what undoes it, None when there was nothing to do it to."""
        if fault.target == "reader":
            return self._stop_reading(close=fault.action == "close")
        if fault.target == "link":
            self._hosts.link(fault.host, up=False)
            return lambda: self._hosts.link(fault.host, up=True)
        if fault.target == "tmp":
            self._hosts.fill(fault.host)
            return lambda: self._hosts.empty(fault.host)
        if fault.target == "host":
            return self._hosts.die(fault.host)
        process = self._choose(fault)
        if process is None:
            return None
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(fault.action) or signal.Signals[f"SIG{fault.number}"]
        try:
            os.kill(process, number)
        except ProcessLookupError:
            return None
        return lambda: _continue(process)

    def _stop_reading(self, *, close: bool) -> Callable[[], None] | None:
        if self._closed or self._eof:
            return None
        if close:
            self._process.stdout.close()  # type: ignore[union-attr]
            self._closed = True
        self._blocked = not close

        def go_on() -> None:
            self._blocked = False

        return go_on

    def _choose(self, fault: Fault) -> int | None:
        """Return the process that a fault is done to."""
        if fault.target == "head":
            return self._process.pid if self._process.poll() is None else None
        place = HEAD if fault.target in ("client", "proxy") else fault.host
        found = find(self._hosts.all_processes()[place], fault.target)
        if fault.target in ("client", "proxy"):
            found = [process for process in found if fault.host in process.argv]
        chosen: Process | None = found[int(fault.number) % len(found)] if found else None
        return chosen.pid if chosen else None


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _checksum(data: bytes) -> int:
    """Return FNV-1a of 32 bits."""
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def host_lines(job: Job) -> list[str]:
    """Return the lines of the job's hostfile."""
    agent = "" if job.agent == "ssh" else f" agent={job.agent}"
    return [f"{host} slots={count}{'' if host == LOCAL else agent}" for host, count in job.nodes]


def command(job: Job, program: Path, folder: Path) -> list[str]:
    """Return the command line of a job."""
    options = {
        "-f": f"{folder}/hosts",
        "--wdir": "/",
        "--heartbeat": f"{job.heartbeat:g}",
        "--reconnect-timeout": f"{job.reconnect:g}",
        "--grace": f"{job.grace:g}",
        "--start-timeout": f"{START_TIMEOUT:g}",
    }
    if job.timeout is not None:
        options["--timeout"] = f"{job.timeout:g}"
    words = [sys.executable, "-m", "mpilaunch", *itertools.chain(*options.items())]
    words += ["--continue-on-error"] * job.continue_on_error
    for name, value in VARIABLES[job.program].items():
        words += ["-x", f"{name}={value}"]
    words += [str(program), "-l", str(job.lines), "-w", str(job.width), "-s", str(job.seconds), "-u", str(folder)]
    for rank, code, seconds in job.fails:
        words += ["-f", f"{rank}:{code}:{seconds}"]
    words += ["-c", job.children] if job.children else []
    return words + ["-d"] * job.deaf + ["-e"] * job.both + ["-i"] * job.reads
