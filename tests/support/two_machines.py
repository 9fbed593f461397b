"""Two machines out of namespaces for a real batch system, from `with` to its end.

They have their own host names, networks, /tmp and /dev/shm, and one space of process ids, whose first process ends when its
stdin does and takes all of them with it. There is no sshd. Files of this machine are the same in there; what a test and a job
share is below `shared`. Jobs run as root, since only root can read every checkout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from tests.support.launching import wait_until
from tests.support.paths import ROOT
from tests.support.requirements import PATH, require

NODE, SECOND = "n01", "n02"
ADDRESSES = {NODE: "10.87.0.1", SECOND: "10.87.0.2"}
START_SECONDS = 40.0
COMMAND_SECONDS = 20.0
PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
PYTHON_PATH = f"{ROOT}:{ROOT / 'agents'}"

Machines = TypeVar("Machines", bound="TwoMachines")

BOTH = r"""
show_interfaces() {  # of this machine, where UCX looks for them; the rest of /sys stays, since daemons want its control groups
    mkdir "$STATE/sys-$1"
    mount -t sysfs -o ro sysfs "$STATE/sys-$1"
    for folder in class/net devices/virtual/net; do mount --bind "$STATE/sys-$1/$folder" "/sys/$folder"; done
}
begin() {
    hostname "$1"
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    show_interfaces "$1"
    ip link set lo up
}
"""
FIRST = r"""
mount --bind "$STATE/hosts" /etc/hosts
begin "$NODE"
# Addresses are looked up only of families that an interface beside the loopback has.
ip link add eth0 type veth peer name eth1
ip addr add "$ADDRESS/24" dev eth0
unshare --net --uts --ipc --mount bash -ec "$SECOND_MACHINE" </dev/null &
while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link set eth1 netns $!
ip link set eth0 up
"""
OF_SECOND = r"""
begin "$SECOND"
cat /proc/sys/kernel/random/uuid >"$STATE/boot"  # by which UCX knows a machine
mount --bind "$STATE/boot" /proc/sys/kernel/random/boot_id
until ip link set eth1 up 2>/dev/null; do sleep 0.02; done
ip addr add "$SECOND_ADDRESS/24" dev eth1
"""


class TwoMachines:
    """Base of a batch system; a subclass says what it needs, what it is made of, and when it is up.

    Attributes:
        name: of the batch system.
        programs: which it needs beside PROGRAMS, and the Debian packages that have them.
        first, second: what the shells of the two machines run in the end.
        own: the programs of the batch system itself, beside the shells of the machines and of batch scripts.
        state, shared: directories that all see at the same path; `shared` is for the test and its jobs.
        environment: of all programs.
    """

    name: str
    programs: ClassVar[Mapping[str, str]]
    first: str
    second: str
    own: tuple[str, ...]

    def __enter__(self: Machines) -> Machines:
        require(self.name, {**PROGRAMS, **self.programs})
        # Not below /tmp: the machines have their own.
        self.state = Path(tempfile.mkdtemp(prefix="mpilaunch-batch-", dir="/var/tmp"))
        self._shell: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._shell is not None:
            assert self._shell.stdin is not None
            self._shell.stdin.close()
            self._shell.wait(COMMAND_SECONDS)
        shutil.rmtree(self.state)

    def prepare(self) -> Mapping[str, str]:
        """Write the files of the batch system below `state`; return the variables that its programs need."""
        raise NotImplementedError

    def is_up(self) -> bool:
        """Return whether it takes jobs for both machines."""
        raise NotImplementedError

    def _start(self) -> None:
        self.shared = self.state / "shared"
        self.shared.mkdir()
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
        (self.state / "hosts").write_text("\n".join([*lines, ""]))
        self.environment = {"PATH": PATH, "STATE": str(self.state), **self.prepare()}
        of_machines = {
            "NODE": NODE,
            "SECOND": SECOND,
            "ADDRESS": ADDRESSES[NODE],
            "SECOND_ADDRESS": ADDRESSES[SECOND],
            "SECOND_MACHINE": BOTH + OF_SECOND + self.second,
        }
        argv = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = BOTH + FIRST + self.first + "read -r _\n"
        with (self.state / "start.log").open("w") as log:
            self._shell = subprocess.Popen(
                [*argv, "bash", "-ec", script],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env={**self.environment, **of_machines},
            )  # fmt: skip
        try:
            wait_until(self.is_up, f"{self.name} is up", START_SECONDS)
        except AssertionError as error:
            logs = [f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(self.state.glob("*.log"))]
            raise RuntimeError("\n".join([f"{self.name} does not come up", *logs])) from error

    def run(self, *argv: str, env: Mapping[str, str] | None = None, node: str = NODE) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine, past the batch system."""
        try:
            first = self._first()
            target = first if node == NODE else _children(first)[0]
        except (OSError, IndexError):
            return subprocess.CompletedProcess(argv, 1, "", "the machine has not started")
        enter = ["nsenter", f"--target={target}", "--net", "--uts", "--ipc", "--mount", "--pid", f"--wd={self.shared}", "--"]
        environment = {**self.environment, **(env or {})}
        return subprocess.run(
            [*enter, *argv], env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL
        )

    def kill(self, pid: int) -> None:
        """Kill one of `processes`."""
        os.kill(pid, signal.SIGKILL)

    def output(self, job: str) -> Path:
        """Return the file to which a job writes its stdout and stderr."""
        return self.shared / f"job-{job}.out"

    def lines(self, job: str) -> list[str]:
        """Return the lines that a job has written on stdout and stderr so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.output(job).read_text().splitlines()
        return []

    def processes(self) -> dict[int, str]:
        """Return the processes on the machines beside those of the batch system, with their command lines."""
        space = os.readlink(f"/proc/{self._first()}/ns/pid")
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == space:
                    argv = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
                    if not {*self.own, "bash"} & {os.path.basename(argv[0]), argv[0].strip(" :-")}:
                        found[int(entry)] = " ".join(argv)
        return found

    def left_files(self) -> dict[str, list[str]]:
        """Return what is in the temporary directories of each machine."""
        return {node: self.run("ls", "-A", "/tmp", "/dev/shm", node=node).stdout.split() for node in (NODE, SECOND)}

    def _first(self) -> int:
        assert self._shell is not None
        return _children(self._shell.pid)[0]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
