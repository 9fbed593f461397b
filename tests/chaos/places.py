"""The hosts of the chaos loop: a head with its own /tmp, /run and /dev/shm too, and what runs and what lies in each of them.

Everything is looked at from outside, by /proc, so that looking starts no process that could be counted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.plan import HOSTS, Job
from tests.support.hosts import HEAD, HEAD_SCRIPT, HOST_SCRIPT, SSH_CONFIG, Hosts
from tests.support.paths import ROOT

WATCHED = ("tmp", "dev/shm", "run")
"""Directories in which a job leaves nothing; XDG_RUNTIME_DIR is /run/user/0."""
RUNTIME = "/run/user/0"
WITHOUT_RUNTIME = ("node02", "node04")
"""Hosts whose logins have no XDG_RUNTIME_DIR."""
TMP_SIZE = 24 << 20
FILL = "fill"
"""File in /tmp that fills it."""

CHAOS_HEAD = f"""
mkdir -p "$STATE/checkout"
mount --bind "$CHECKOUT" "$STATE/checkout"
for folder in /tmp /dev/shm /run; do mount -t tmpfs -o size={TMP_SIZE} tmpfs $folder; done
mkdir -p {RUNTIME} && chmod 700 {RUNTIME}
[ -d "$CHECKOUT" ] || {{ mkdir -p "$CHECKOUT"; mount --bind "$STATE/checkout" "$CHECKOUT"; }}
{HEAD_SCRIPT}"""

CHAOS_HOST = HOST_SCRIPT.replace(
    "/usr/sbin/sshd -f",
    f"[ -n \"$NO_RUNTIME\" ] || set -- -o 'SetEnv=PATH=/usr/bin:/bin XDG_RUNTIME_DIR={RUNTIME}'\n"
    f'mkdir -p {RUNTIME} && chmod 700 {RUNTIME}\nmount -o remount,size={TMP_SIZE} /tmp\n/usr/sbin/sshd "$@" -f',
).replace(
    'hostname "$NAME"', f'hostname "$NAME"\ncase "$NAME" in {"|".join(WITHOUT_RUNTIME)}) NO_RUNTIME=1;; esac'
)  # fmt: skip


@dataclass(frozen=True)
class Process:
    """A process of a host or of the head, with our number for it."""

    pid: int
    parent: int
    started: str
    name: str
    argv: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its command line, or its name when it has none."""
        return " ".join(self.argv)[:160] or f"[{self.name}]"


class ChaosHosts(Hosts):
    """Four hosts and the head."""

    head_script = CHAOS_HEAD
    host_script = CHAOS_HOST

    def __init__(self) -> None:
        super().__init__(len(HOSTS))

    def __enter__(self) -> ChaosHosts:
        super().__enter__()
        self._firsts = {self._first_process(place) for place in self.places}
        kinds = {place: "mnt" if place == HEAD else "pid" for place in self.places}
        self._spaces = {place: os.readlink(f"/proc/{self._first_process(place)}/ns/{kind}") for place, kind in kinds.items()}
        self._clean = {place: self._list_files(place) for place in self.places}
        return self

    @property
    def places(self) -> tuple[str, ...]:
        """The head and the hosts."""
        return (HEAD, *self.names)

    def write_ssh_config(self, job: Job) -> None:
        """Lead the connections to some hosts through a proxy."""
        command = f"{sys.executable} -I -S {ROOT}/tests/chaos/proxy.py %h %p"
        entries = "".join(f"Host {host}\n  ProxyCommand {command} {delay}\n" for host, delay in job.delays)
        (self.ssh / "config").write_text(entries + SSH_CONFIG.format(state=self._state))

    def all_processes(self) -> dict[str, list[Process]]:
        """Return the processes of each place, but its first and the listening sshd."""
        found: dict[str, list[Process]] = {place: [] for place in self.places}
        place_of = {space: place for place, space in self._spaces.items()}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                # The head has the process numbers of this machine, but its own mounts.
                spaces = (os.readlink(f"/proc/{entry}/ns/{kind}") for kind in ("pid", "mnt"))
                place = next((place_of[space] for space in spaces if space in place_of), None)
                process = _read_process(int(entry)) if place else None
                if process and process.pid not in self._firsts and not process.text.startswith("sshd: /usr/sbin/sshd"):
                    found[str(place)].append(process)
        return found

    def left(self) -> list[str]:
        """Return the processes that a job must not leave, as lines; sshd's own end with their connections."""
        return [
            f"{place}: {process.text}"
            for place, processes in self.all_processes().items()
            for process in processes
            if not process.name.startswith("sshd")
        ]

    def new_files(self) -> list[tuple[str, str]]:
        """Return the files that were not there before the first job, as (place, path below its root)."""
        return sorted((place, path) for place in self.places for path in self._list_files(place) - self._clean[place])

    def fill(self, place: str) -> None:
        """Fill /tmp to its last byte."""
        path = self._root(place) / "tmp" / FILL
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 20)):
                pass

    def empty(self, place: str) -> None:
        """Undo `fill`."""
        (self._root(place) / "tmp" / FILL).unlink(missing_ok=True)

    def die(self, place: str) -> Callable[[], None] | None:
        """Kill all processes of a place, but its first and the listening sshd; there is nothing to undo."""
        found = self.all_processes()[place]
        for process in found:  # none of them is to act on the end of another
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return (lambda: None) if found else None

    def clean(self) -> None:
        """Restore everything, whatever a job has left; raises RuntimeError when that is not possible."""
        for host in self.names:
            self.link(host, up=True)
        deadline = time.monotonic() + 20
        while running := [process for processes in self.all_processes().values() for process in processes]:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"chaos: processes that cannot be killed: {[process.text for process in running]}")
            time.sleep(0.02)
        for place, name in reversed(self.new_files()):
            path = self._root(place) / name
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    def _first_process(self, place: str) -> int:
        return self._first[place].pid if place == HEAD else self._pid_one(place)

    def _root(self, place: str) -> Path:
        return Path(f"/proc/{self._first_process(place)}/root")

    def _list_files(self, place: str) -> set[str]:
        root = self._root(place)
        found: set[str] = set()
        for folder in WATCHED:
            for path, folders, files in os.walk(root / folder):
                # A checkout below /tmp is not the job's.
                folders[:] = [name for name in folders if not f"/{os.path.relpath(path, root)}/{name}".startswith(str(ROOT))]
                found.update(os.path.relpath(os.path.join(path, name), root) for name in (*folders, *files))
        return found


def _read_process(pid: int) -> Process | None:
    """Return a process, None when it has ended."""
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return Process(pid, int(fields[1]), fields[19], name, tuple(argv) if argv != [""] else ())
