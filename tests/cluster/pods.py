"""What a test does in a pod: run a command in a container, and look at its processes, from outside and past the API server.

A command is started by containerd, with the container's variables, directory and user, and outlives the API server. A pod is
clean when nothing but the first processes of its containers is in it, zombies included.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import machine
from tests.cluster.build import DEBIAN
from tests.cluster.machine import COMMAND_SECONDS, Machine
from tests.support.processes import parent

GRACE_SECONDS = 15.0
"""Within which everything of a job that was killed must be gone: mpilaunch's own grace of 10 s, and a bit."""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Done:
    """A command in a pod that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout, sorted: ranks run side by side."""
        return sorted(self.out.splitlines())


@dataclass(frozen=True)
class Pod:
    """A pod that runs.

    Attributes:
        containers: their ids.
    """

    name: str
    containers: Sequence[str]
    machine: Machine

    def popen(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command in the first container."""
        ctr = [f"{DEBIAN}/usr/bin/ctr", "--namespace=k8s.io", "tasks", "exec", f"--exec-id=test-{next(_numbers)}"]
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        return self.machine.popen([*ctr, self.containers[0], *(["env", *variables] if variables else []), *argv])

    def run(self, *argv: str, env: Mapping[str, str] | None = None, limit: float = COMMAND_SECONDS) -> Done:
        """Run a command in the first container to its end."""
        return finish(self.popen(*argv, env=env), limit)

    @contextlib.contextmanager
    def running(self, *argv: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command in the first container beside the test."""
        process = self.popen(*argv, env=env)
        try:
            yield process
        finally:
            machine.end(process)

    def processes(self) -> dict[int, str]:
        """Return what runs in the pod, but for first processes: command lines by this machine's process ids."""
        first = self.machine.first_of_containers()
        ours = [first[identity] for identity in self.containers if identity in first]
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                space = os.readlink(f"/proc/{entry}/ns/pid")
                if any(space == other for _, other in ours) and all(int(entry) != pid for pid, _ in first.values()):
                    words = Path(f"/proc/{entry}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                    found[int(entry)] = words.decode(errors="replace")[:300] or "a zombie"
        return found

    def left(self, limit: float = GRACE_SECONDS) -> dict[int, str]:
        """Return what has not gone at the end of a time."""
        deadline = time.monotonic() + limit
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def find(self, words: str) -> list[int]:
        """Return the processes whose command lines have these words, parents before their children."""
        found = {pid for pid, line in self.processes().items() if words in line}
        return sorted(found, key=lambda pid: (parent(pid) in found, pid))


def finish(process: subprocess.Popen[bytes], limit: float = COMMAND_SECONDS) -> Done:
    """Wait for the end of a command in a pod."""
    done = machine.finish(process, limit)
    return Done(done.returncode, done.stdout, done.stderr)
