"""The same failures done to mpilaunch, `make test-failures`, and to its installed peers too, `make bench`; as root.

Real processes here, and hosts made of network namespaces with sshd. Every case ends: who has not ended by the limit is noted as
such, what is left is counted, and everything that was started is killed. Only mpilaunch doing wrong makes this fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
sys.path[:0] = [str(CHECKOUT), str(HERE)]

from launchers import ENVIRONMENT, Launcher, Work, launchers  # noqa: E402  (this folder must be on the path first)

from tests.support.failures import with_part  # noqa: E402
from tests.support.hosts import Hosts  # noqa: E402
from tests.support.requirements import hand_down_no_ignored_signal  # noqa: E402

RESULTS, PAGE = CHECKOUT / "docs" / "failures.json", CHECKOUT / "docs" / "failures.md"
LIMIT = 10.0
"""Seconds after which a launcher counts as one that does not end."""
SETTLE = 15.0
"""Seconds after the end of a launcher, when what is left is counted."""
MARK = "FAILURES_OF_LAUNCHERS"
AT_ONCE_RUNS, AT_ONCE_LIMIT = 10, 10.0
HOSTS = ("node01", "node02")

JOB = """#!/bin/sh
cd "$(dirname "$0")"
R=${RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$(hostname | tr -d a-z0 | sed 's/^$/1/; s/2/0/')}}}
%s
"""
"""The ranks' program; pdsh knows no ranks, so there node01 is rank 1 and node02 rank 0."""
UP = "touch up-$R\n"
STAY = UP + "exec sleep 600"


@dataclass
class Run:
    """One launcher in one case, under way."""

    process: subprocess.Popen[str]
    folder: Path
    hosts: Hosts | None

    def wait_up(self, ranks: int) -> None:
        """Wait until the ranks run, or the launcher has ended, or a few seconds have gone by."""
        deadline = time.monotonic() + LIMIT / 2
        while len(list(self.folder.glob("up-*"))) < ranks and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def daemon(self, host: str) -> int:
        """Return the daemon of a host: what starts the rank there."""
        assert self.hosts is not None
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for pid, argv in self.hosts.processes(host):
                if argv[0] == "sleep":
                    return _parent(pid)
        raise RuntimeError(f"no rank on {host}")

    def session(self, host: str) -> int:
        """Return the process of sshd that holds the launcher's connection to a host."""
        pid = self.daemon(host)
        while not Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
            pid = _parent(pid)
        return pid


def nothing(run: Run) -> None:
    """Let it run."""


def send(*numbers: int) -> Callable[[Run], None]:
    """Send signals to the launcher once its ranks run, half a second between them."""

    def act(run: Run) -> None:
        run.wait_up(2)
        for place, number in enumerate(numbers):
            time.sleep(0.5 if place else 0)
            run.process.send_signal(number)

    return act


def hit(victim: Callable[[Run, str], int], number: int) -> Callable[[Run], None]:
    """Send a signal to a process of node02."""

    def act(run: Run) -> None:
        run.wait_up(2)
        os.kill(victim(run, "node02"), number)

    return act


def unplug(run: Run) -> None:
    """Pull node02's cable."""
    assert run.hosts is not None
    run.wait_up(2)
    run.hosts.link("node02", up=False)


@dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        key: name of the row; where a test proves the same of mpilaunch, the name of its row (tests/support/failures.py).
        title: for the page.
        job: what the ranks do: lines of shell, $R is the rank.
        code: what mpilaunch is to exit with.
        act: what is done to it.
        hosts: where; none for this machine.
        options: of a launcher, by name.
        variables: of a launcher, by name.
        without: launchers to which it cannot be done fairly.
        shell: the launcher runs in this line of shell, as "$@".
    """

    key: str
    title: str
    job: str
    code: int
    act: Callable[[Run], None] = nothing
    ranks: int = 2
    hosts: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    shell: str = ""
    missing: bool = False


DEAF = UP + "trap '' INT TERM HUP\nwhile :; do sleep 0.1; done"
STRAYS = "setsid sleep 600 >/dev/null 2>&1 &\nsleep 600 >/dev/null 2>&1 &\n"
TIME_LIMIT = {"mpilaunch": ("--timeout", "1"), "mpirun": ("--timeout", "1"), "pdsh": ("-u", "1")}
QUICK = {"mpilaunch": ("--heartbeat", "1")}
QUICK_END = {"mpilaunch": ("--heartbeat", "1", "--reconnect-timeout", "1")}
SHORT_GRACE = {"mpilaunch": ("--grace", "2")}
NO_DAEMON = ("pdsh", "clush")

CASES = (
    Case("rank-exits", "a rank exits with 3, the others would continue", "[ $R = 1 ] && exit 3\nexec sleep 600", 3),
    Case(
        # Deaf, so that the second also exits by itself; later, so that it is the second also under load.
        "two-codes", "a rank exits with 3, the other with 4 after it",
        "[ $R = 1 ] || exit 3\ntrap '' INT TERM HUP\nsleep 0.5\nexit 4", 3,
    ),
    Case("rank-signal", "a rank dies of SIGSEGV", "ulimit -c 0\n[ $R = 1 ] && kill -SEGV $$\nexec sleep 600", 139),
    Case("rank-killed", "a rank dies of SIGKILL", "[ $R = 1 ] && kill -KILL $$\nexec sleep 600", 137),
    Case("program-missing", "the program is missing", "", 1, missing=True),
    Case("at-once", f"64 ranks end at once, {AT_ONCE_RUNS} times", "exit 0", 0, ranks=64),
    Case("interrupt", "Ctrl-C", STAY, 130, send(signal.SIGINT)),
    Case("interrupt-twice", "Ctrl-C twice, ranks that ignore signals", DEAF, 130, send(signal.SIGINT, signal.SIGINT)),
    Case("terminate", "SIGTERM, ranks that ignore signals", DEAF, 143, send(signal.SIGTERM), options=SHORT_GRACE),
    Case("hangup", "SIGHUP", STAY, 129, send(signal.SIGHUP)),
    Case("head-killed", "the launcher is killed", STAY, -9, send(signal.SIGKILL)),
    Case("head-1", "the reader of the output goes away (`| head -1`)", "exec yes", 0, shell='"$@" | head -1 >/dev/null'),
    Case("left-behind", "ranks end well and leave children in sessions of their own", STRAYS + "exit 0", 0),
    Case("left-failed", "a rank fails and leaves children", STRAYS + "[ $R = 1 ] && exit 5\nexec sleep 600", 5),
    Case("stdout-held", "a rank ends, its child holds stdout open", "sleep 600 &\nexit 0", 0),
    Case(
        "timeout", "the time limit is exceeded", STAY, 124, options=TIME_LIMIT, variables={"Hydra": {"MPIEXEC_TIMEOUT": "1"}},
        without=("torchrun",),
    ),
    Case("host-unknown", "a host name is unknown", "exit 0", 1, hosts=("node01", "no-such-host")),
    Case(
        "host-silent", "a host accepts TCP and says nothing", "exit 0", 1, hosts=("node01", "silent"),
        options={"mpilaunch": ("--start-timeout", "3"), "pdsh": ("-t", "3"), "clush": ("-t", "3")},
    ),
    Case("interrupt-hosts", "Ctrl-C twice, ranks on two hosts", STAY, 130, send(signal.SIGINT, signal.SIGINT), hosts=HOSTS),
    Case("head-killed-hosts", "the launcher is killed, ranks on two hosts", STAY, -9, send(signal.SIGKILL), hosts=HOSTS),
    Case("daemon-killed", "the daemon of a host is killed", STAY, 125, hit(Run.daemon, 9), hosts=HOSTS, without=NO_DAEMON),
    Case(
        "daemon-frozen", "the daemon of a host is frozen (SIGSTOP)", STAY, 125, hit(Run.daemon, signal.SIGSTOP), hosts=HOSTS,
        options=QUICK, without=NO_DAEMON,
    ),
    Case(
        # mpirun's daemons leave their connections behind.
        "sshd-session-killed", "sshd's process of the connection is killed, 5 s before the ranks exit with 0",
        UP + "exec sleep 5", 0, hit(Run.session, 9), hosts=HOSTS, without=("mpirun",),
    ),
    Case("link-down", "the link of a host goes down", STAY, 125, unplug, hosts=HOSTS, options=QUICK_END),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of it: the exit code (None: it had not ended by the limit), the seconds, and what one that ended has left."""

    code: int | None
    seconds: float
    left: int
    hung: int = 0


def main() -> int:
    """Do everything, write the results of a comparison; return 1 when mpilaunch did wrong."""
    parser = argparse.ArgumentParser(description="Do failures to mpilaunch; a run without --peers prints, and writes nothing.")
    parser.add_argument("--peers", action="store_true", help="do them to the installed peers too")
    parser.add_argument("--page", action="store_true", help="print the table of the results that were written")
    parser.add_argument("--only", metavar="CASE", help="only this case; prints, writes nothing")
    arguments = parser.parse_args()
    hand_down_no_ignored_signal()
    if arguments.page:
        print(page(json.loads(RESULTS.read_text(encoding="utf-8"))), end="")
        return 0
    os.environ.update(ENVIRONMENT)
    ours, peers, _ = launchers()
    peers = peers if arguments.peers else []
    wrong = []
    results: dict[str, dict[str, dict[str, object]]] = {}
    with Hosts(2) as hosts:
        for case in CASES:
            if arguments.only not in (None, case.key):
                continue
            for launcher in (ours, *peers):
                if launcher.name in case.without or not launcher.can(bool(case.hosts)):
                    continue
                outcome = attempt(case, launcher, hosts)
                print(f"{case.key:20} {launcher.name:10} {cell(vars(outcome))}", flush=True)
                results.setdefault(case.key, {})[launcher.name] = vars(outcome)
                if launcher is ours and (outcome.code, outcome.left, outcome.hung) != (case.code, 0, 0):
                    wrong.append(case.key)
    if arguments.peers and arguments.only is None:
        versions = {one.name: one.version_text() for one in (ours, *peers)}
        kernel = ".".join(platform.release().split(".")[:2])
        data = {"versions": versions, "python": platform.python_version(), "kernel": kernel, "cases": results}
        RESULTS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), "peers", page(data)), encoding="utf-8")
    if wrong:
        print(f"mpilaunch did wrong: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def attempt(case: Case, launcher: Launcher, hosts: Hosts) -> Outcome:
    """Do a case to a launcher; leave nothing behind."""
    if case.ranks <= 2:
        return attempt_once(case, launcher, hosts, LIMIT)
    outcomes = [attempt_once(case, launcher, hosts, AT_ONCE_LIMIT) for _ in range(AT_ONCE_RUNS)]
    hung = sum(one.code is None for one in outcomes)
    code = next((one.code for one in outcomes if one.code), 0)
    return Outcome(code, max(one.seconds for one in outcomes), sum(one.left for one in outcomes), hung)


def attempt_once(case: Case, launcher: Launcher, hosts: Hosts, limit: float) -> Outcome:
    """Run a case once, for at most `limit` seconds."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(dir=hosts.shared, ignore_cleanup_errors=True) as place:
        folder = Path(place)
        os.chdir(folder)  # a directory that the hosts have too: peers start their ranks there
        program = folder / "job.sh"
        if not case.missing:
            program.write_text(JOB % case.job, encoding="utf-8")
            program.chmod(0o755)
        names = tuple(hosts.address("node02") if name == "silent" else name for name in case.hosts)
        options = case.options.get(launcher.name, ())
        argv = [launcher.command, *options, *launcher.argv(Work((str(program),), case.ranks, names))]
        if case.shell:
            argv = ["bash", "-c", f"{case.shell}; exit 0", "bash", *argv]
        environment = {**case.variables.get(launcher.name, {}), MARK: mark}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        used = hosts if case.hosts else None
        with silent_host(hosts) if "silent" in case.hosts else contextlib.nullcontext():
            before = processes(mark, 0, used)
            if case.hosts:
                process = hosts.popen(argv, env=environment, start_new_session=True, **streams)
            else:
                process = subprocess.Popen(
                    argv, env={**os.environ, **environment}, start_new_session=True, text=True, **streams
                )  # type: ignore[call-overload]
            run = Run(process, folder, used)
            began = time.monotonic()
            try:
                case.act(run)
                began = time.monotonic() if case.act is not nothing else began
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            seconds = time.monotonic() - began
            left = 0 if code is None else count_left(mark, process.pid, used, before)
            clean(mark, process, used, before)
            if case.act is unplug:
                hosts.link("node02", up=True)
        os.chdir(CHECKOUT)
    return Outcome(code, round(seconds, 1), left)


def processes(mark: str, launcher: int, hosts: Hosts | None) -> set[int]:
    """Return what a launcher has started, wherever it is, and itself is not."""
    found = {pid for pid in _everything() if _has(pid, "environ", f"{MARK}={mark}") and pid != launcher}
    for host in HOSTS if hosts is not None else ():
        assert hosts is not None
        found |= {pid for pid, _ in hosts.processes(host)}
    return found


def count_left(mark: str, launcher: int, hosts: Hosts | None, before: set[int]) -> int:
    """Return how many processes are left; none, as soon as there are none."""
    deadline = time.monotonic() + SETTLE
    while (left := processes(mark, launcher, hosts) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(left)


def clean(mark: str, process: subprocess.Popen[str], hosts: Hosts | None, before: set[int]) -> None:
    """Kill everything that was started."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    while left := processes(mark, process.pid, hosts) - before:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


@contextlib.contextmanager
def silent_host(hosts: Hosts) -> Iterator[None]:
    """Let node02 accept connections and say nothing, on a port to which ssh's configuration leads."""
    script = "import socket; s = socket.create_server(('', 2222)); print('up', flush=True); open(0).read()"
    argv = hosts.inside("node02", ["python3", "-c", script])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdin and listener.stdout and listener.stdout.readline() == b"up\n"
        config = hosts.ssh / "config"
        text = config.read_text()
        config.write_text(f"Host {hosts.address('node02')}\n  Port 2222\n{text}")
        try:
            yield
        finally:
            config.write_text(text)
            listener.stdin.close()


def _everything() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _has(pid: int, file: str, text: str) -> bool:
    try:
        return text.encode() in Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# The page


def page(data: dict[str, Any]) -> str:
    """Return the table of the results."""
    cases: dict[str, dict[str, dict[str, object]]] = data["cases"]
    versions: dict[str, str] = data["versions"]
    names = list(versions)
    lines = ["| what happens | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for case in CASES:
        cells = [cell(cases[case.key][name]) if name in cases.get(case.key, {}) else "-" for name in names]
        title = case.title.replace("|", "\\|")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join([*lines, "", f"Measured: {told}; Linux {data['kernel']}.", ""])


def cell(outcome: dict[str, object]) -> str:
    """Return one cell: "3, 0.1 s" when all is well, in bold what is not."""
    code = "killed" if isinstance(outcome["code"], int) and outcome["code"] < 0 else outcome["code"]
    told = f"**still runs after {LIMIT:g} s**" if code is None else f"{code}, {outcome['seconds']} s"
    if outcome["hung"]:
        told = f"**{outcome['hung']} of {AT_ONCE_RUNS} hang**"
    return told + (f", **{outcome['left']} left**" if outcome["left"] else "")


if __name__ == "__main__":
    sys.exit(main())
