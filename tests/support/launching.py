"""How a test runs mpilaunch as its users do, or one daemon alone over its wire.

Every launch has a deadline. When mpilaunch has ended by itself, nothing that it started may be left at that very moment;
where it was killed, the check around every test (tests/conftest.py) gives the rest a few seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mpilaunch.head.nodes import bundle
from mpilaunch.wire.frames import CONTROL, DATA, END, MARKER, STDERR, STDOUT, stream_channel
from mpilaunch.wire.session import Session
from tests.support.paths import ROOT
from tests.support.processes import everything, ours

LIMIT = 30.0
"""Seconds that anything here may take before it counts as hanging."""
MPILAUNCH = (sys.executable, "-m", "mpilaunch")
QUICK_HEARTBEAT = ("--heartbeat", "0.6", "--reconnect-timeout", "1")
"""Options with which the head gives up a silent node within seconds."""

Words = str | bytes | Path


@dataclass(frozen=True)
class Launched:
    """A launch that has ended by itself."""

    code: int
    out: bytes
    err: bytes

    @property
    def words(self) -> str:
        """What mpilaunch and the ranks said on stderr."""
        return self.err.decode("utf-8", "backslashreplace")

    @property
    def lines(self) -> list[str]:
        """The lines of stdout, sorted: ranks run side by side."""
        return sorted(self.out.decode("utf-8", "backslashreplace").splitlines())


def environment(extra: Mapping[str, str | bytes] | None = None) -> dict[bytes, bytes]:
    """Return this process's variables for a child that is to find the checkout."""
    variables = dict(os.environb)
    variables[b"PYTHONPATH"] = os.fsencode(f"{ROOT}{os.pathsep}{ROOT / 'agents'}")
    variables.update((os.fsencode(name), os.fsencode(value)) for name, value in (extra or {}).items())
    return variables


def launch(
    *words: Words,
    stdin: bytes | IO[bytes] | int = subprocess.DEVNULL,
    env: Mapping[str, str | bytes] | None = None,
    cwd: Path | None = None,
    limit: float = LIMIT,
) -> Launched:
    """Run mpilaunch to its end, and see that nothing of it is left."""
    before = everything()
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        [*MPILAUNCH, *words], capture_output=True, env=environment(env), cwd=cwd, timeout=limit, check=False, **given
    )
    left = ours(before)
    assert not left, f"left when mpilaunch had ended: {left}; it said: {done.stderr!r}"
    return Launched(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def launching(
    *words: Words,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.PIPE,
    stderr: IO[bytes] | int = subprocess.PIPE,
    env: Mapping[str, str | bytes] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run mpilaunch beside the test, in a session of its own; it is killed if it still runs at the end of the block."""
    streams: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "pass_fds": pass_fds}
    process = subprocess.Popen([*MPILAUNCH, *words], env=environment(env), cwd=cwd, start_new_session=True, **streams)
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def finish(process: subprocess.Popen[bytes], limit: float = LIMIT) -> Launched:
    """Wait for the end of mpilaunch, with its output."""
    out, err = process.communicate(timeout=limit)
    return Launched(process.returncode, out or b"", err or b"")


def launch_with_file_limit(files: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run mpilaunch to its end with a limit of `files` open files."""
    command = ["prlimit", f"--nofile={files}:{files}", *MPILAUNCH, *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def wait_until(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """Wait until a condition holds, and return its value; fails with `what` after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {limit:g} s: {what}"
        time.sleep(0.005)


def wait_for_files(*paths: Path) -> list[str]:
    """Wait until each file is there and not empty; return what they hold."""
    return [_wait_for_file(path) for path in paths]


def _wait_for_file(path: Path) -> str:
    wait_until(lambda: path.exists() and path.stat().st_size, f"{path.name} is written")
    return path.read_text(encoding="utf-8")


def wait_gone(*pids: int, limit: float = 10.0) -> None:
    """Wait until none of these processes lives."""
    wait_until(lambda: not any(map(living, pids)), f"of the processes {pids} none is left", limit)


def script(path: Path, text: str, *, mode: int = 0o755) -> Path:
    """Write a program for ranks."""
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def open_files(pid: int) -> set[str]:
    """Return what a process has open, as the links in its /proc say; what it closes meanwhile is left out."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return found


def living(pid: int) -> bool:
    """Say whether a process is there and has not ended."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """Return the kernel's letter for what a process does; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    return ""


def stopped(pid: int) -> bool:
    """Say whether a process is stopped; a shell that waits for the exec of a child which was stopped before it waits in D."""
    return state(pid) in ("T", "D")


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    return []


def guard_and_daemon(head: int) -> tuple[int, int]:
    """Return the process ids of the guard and the daemon of the one local node of a launch."""
    guard = wait_until(lambda: children(head), "the head has started its node")[0]
    daemon = wait_until(lambda: children(guard), "the guard stands behind its daemon")[0]
    return guard, daemon


def peak_memory(pid: int) -> int:
    """Return the most memory, in bytes, that a process has had; 0 when it has ended."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()
        return int(status[0]) << 10 if status else 0
    return 0


def daemon_with(settings: str) -> list[str]:
    """Return the command of a daemon from the files of the checkout, which runs some statements before it starts.

    Args:
        settings: statements that give limits the values of a test.
    """
    code = f"import sys;sys.path.append(sys.argv[1]);{settings};from mpilaunch.daemon.start import main;main()"
    return [sys.executable, "-I", "-S", "-c", code, str(ROOT)]


class WireToDaemon:
    """One daemon, started as an agent would, and the head's side of its wire; the test is the head.

    Args:
        python: the interpreter of the node.
        zip: what is sent as the bundle; None starts it from the files of the checkout instead, as the head does on its own
            machine.
        banner: a shell command that runs before it, as a login script would.
        env: variables over our own.
        settings: as of `daemon_with`.
    """

    def __init__(
        self,
        python: str = sys.executable,
        zip: bytes | None = None,
        banner: str = "",
        env: Mapping[str, str] | None = None,
        settings: str = "",
    ) -> None:
        command = bundle.local_command() if zip is None else bundle.boot_command(python, zip)
        if settings:
            command = daemon_with(settings)
        if banner:
            command = ["sh", "-c", f'{banner}; exec "$@"', "sh", *command]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env={**os.environ, **(env or {})}
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._stdin, self._stdout, self._stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self.session = Session()
        self.banner: bytes | None = None
        self.messages: list[dict[str, Any]] = []
        self.output: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.others: list[tuple[int, int, Any]] = []
        self._unmarked = b""

    def __enter__(self) -> WireToDaemon:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._stdout.close()
            self._stderr.close()

    # What the head does

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        view = memoryview(data)
        while view:
            view = view[self._stdin.write(view) or 0 :]

    def flush(self) -> None:
        """Write what the session has to say."""
        self.write(self.session.data_to_send())

    def send(self, kind: str, /, **members: Any) -> None:
        """Send a control message; `launch` and `cancel` are about the world that `prepare` prepares by default."""
        worlds: dict[str, dict[str, Any]] = {"launch": {"numbers": [0]}, "cancel": {"number": 0}}
        world = worlds.get(kind, {})
        self.session.send({"type": kind, **world, **members})
        self.flush()

    def prepare(
        self,
        *program: str,
        ranks: int = 1,
        first: int = 0,
        stdin: bool = False,
        window: int = 65536,
        unset: Sequence[str] = (),
        rank_environment: Mapping[str, str] | None = None,
        fields: Mapping[str, int | str] | None = None,
        **members: Any,
    ) -> None:
        """Send `prepare` for `ranks` ranks from `first` on, and open their streams; `members` replace those of the message."""
        extra = rank_environment or {}
        specs = [
            {
                "rank": rank,
                "app": 0,
                "environment": {"RANK": str(rank), **extra},
                "unset": list(unset),
                "cpus": None,
                "stdin": stdin,
                "fields": fields,
            }
            for rank in range(first, first + ranks)
        ]
        app: dict[str, Any] = {"program": list(program), "directory": "/", "directory_required": True}
        app |= {"environment": {}, "edits": []}
        app |= {name: members.pop(name) for name in app if name.startswith("directory") and name in members}
        message: dict[str, Any] = {
            "job": "0123456789abcdef",
            "apps": [app],
            "python": ["python3"],
            "environment": {},
            "defaults": {},
            "scrub": [],
            "stdout": "pipe",
            "merge_stderr": False,
            "window": window,
            "drain": 0.2,
            "silence": 60.0,
            "pulse": 60.0,
            "attach": None,
            "rendezvous": None,
            "mpi": None,
            "node": 0,
            "ranks": specs,
            "number": 0,
            "sweep": True,
            "independent": False,
            **members,
        }
        for rank in range(first, first + ranks):
            for stream in (STDOUT, STDERR):
                self.session.open_receiving(stream_channel(rank, stream), window)
            if stdin:
                self.session.open_sending(stream_channel(rank, 0), window)
        self.send("prepare", **message)

    def run(self, *program: str, **members: Any) -> None:
        """Prepare and launch, until the ranks have started."""
        self.prepare(*program, **members)
        assert self.until("ready")
        self.send("launch")
        self.until("started")

    def close_wire(self) -> None:
        """End the lifeline."""
        self._stdin.close()

    # What the daemon says

    def until(self, kind: str) -> dict[str, Any]:
        """Take events until a message of a type has come, and return it."""
        self.take_until(lambda: any(message["type"] == kind for message in self.messages), f"message {kind}")
        return next(message for message in self.messages if message["type"] == kind)

    def take_until(self, condition: Callable[[], bool], what: str) -> None:
        """Take events until a condition holds."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, f"not within {LIMIT:g} s: {what}"
            assert self.take(), f"the wire ended before: {what}; stderr: {self._stderr.read()!r}"

    def take(self) -> bool:
        """Take what one read gives; False at the end of the wire."""
        data = self._stdout.read(1 << 16)
        if not data:
            return False
        if self.banner is None:
            self._unmarked += data
            banner, marker, data = self._unmarked.partition(MARKER)
            if not marker:
                return True
            self.banner = banner
        for kind, channel, value in self.session.receive_data(data, time.monotonic()):
            if kind == CONTROL:
                self.messages.append(value)
            elif kind == DATA:
                self.output[channel] = self.output.get(channel, b"") + value
            elif kind == END:
                self.ended.add(channel)
            else:
                self.others.append((kind, channel, value))
        return True

    def end(self) -> tuple[int, str]:
        """Take everything to the end of the wire; return the exit code and what was said on stderr."""
        while self.take():
            pass
        words = self._stderr.read()
        return self.process.wait(LIMIT), words.decode("utf-8", "replace")

    def stdout_of(self, rank: int) -> bytes:
        """Return what a rank has written on stdout so far."""
        return self.output.get(stream_channel(rank, STDOUT), b"")


def kill_hard(pid: int) -> None:
    """SIGKILL to one process."""
    os.kill(pid, signal.SIGKILL)


def sh(text: str) -> Sequence[str]:
    """Return the words of a shell command as a rank's program."""
    return ("sh", "-c", text)
