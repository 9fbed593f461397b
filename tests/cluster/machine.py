"""The machine that the cluster believes to be alone on: namespaces that end with their first process, and leave nothing.

Processes, mounts, network, host name are its own. The first process ends when its stdin does, so even a killed test run ends
it; with it the kernel ends every process in there, containers included, and all mounts and networks go. What a kubelet would
change for the whole real machine (its settings of the kernel, /var/lib, /var/log) it changes in copies that are mounted over
them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.support.requirements import PATH

NODE = "node"
NODE_ADDRESS = "10.89.0.1"
NODE_LINK = "02:00:0a:59:00:01"
"""A bridge that is told none takes that of a port, and another one when that pod goes: what others know of it leads nowhere."""
SERVICE_ADDRESS = "10.96.0.1"
"""Of the Service `kubernetes`, which the kubelet tells every pod. No kube-proxy is needed: it is an address of the node."""

START_SECONDS = 20.0
STOP_SECONDS = 20.0
COMMAND_SECONDS = 60.0

TASKS = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
"""Where containerd keeps the number of each container's first process."""

FIRST = rf"""
hostname {NODE}
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount -t tmpfs tmpfs /var/lib
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    copy="/run/sysctl-$(echo $setting | tr / -)"
    cat /proc/sys/$setting >"$copy"
    mount --bind "$copy" /proc/sys/$setting
done
ip link set lo up
ip link add cni0 address {NODE_LINK} type bridge
ip addr add {NODE_ADDRESS}/16 dev cni0
ip addr add {SERVICE_ADDRESS}/32 dev cni0
ip link set cni0 up
ip route add default dev cni0
echo ready
read -r _
"""
"""bash, because it reaps whom it adopts while it reads."""


class Machine:
    """The namespaces, from `with` to its end.

    Attributes:
        state: a directory for all that the programs in there keep; it is gone afterwards.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self._services: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Machine:
        private = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self.state / "first.log").open("wb") as log:
            self._first = subprocess.Popen(
                [*private, "bash", "-euc", FIRST],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PATH": PATH},
                start_new_session=True,
            )
        assert self._first.stdout is not None
        ready, _, _ = select.select([self._first.stdout], [], [], START_SECONDS)
        if not ready or self._first.stdout.readline() != b"ready\n":
            said = (self.state / "first.log").read_text()
            self.__exit__()
            raise RuntimeError(f"cluster: the machine did not come up: {said}")
        return self

    def __exit__(self, *_: object) -> None:
        if not hasattr(self, "_first"):
            return
        assert self._first.stdin is not None and self._first.stdout is not None
        self._first.stdin.close()
        try:
            self._first.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._first.kill()
            self._first.wait(STOP_SECONDS)
        self._first.stdout.close()
        for service in self._services.values():
            service.wait(STOP_SECONDS)

    def inside(self, argv: Sequence[str | Path]) -> list[str]:
        """Return the argument list that runs a command in the machine."""
        pid = _only_child(self._first.pid)
        return ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--", *map(str, argv)]

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command in the machine, with nothing of our environment."""
        environment = {"PATH": PATH, "HOME": str(self.state), "TMPDIR": str(self.state), **(env or {})}
        streams: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        # Without a buffer: a test that has read a line leaves all others to `communicate`.
        return subprocess.Popen(self.inside(argv), bufsize=0, env=environment, start_new_session=True, **streams)

    def run(
        self, argv: Sequence[str | Path], stdin: bytes | None = None, limit: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine to its end."""
        return finish(self.popen(argv, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE), limit, stdin)

    def first_of_containers(self) -> dict[str, tuple[int, str]]:
        """Return each container's first process and its process namespace, by the container's id."""
        numbers = {}
        for file in Path(f"/proc/{_only_child(self._first.pid)}/root/{TASKS}").glob("*/init.pid"):
            numbers[file.read_text().strip()] = file.parent.name
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{entry}/status").read_text()
                # The number here, in the machine, and in the pod.
                spaces = status.partition("NSpid:")[2].partition("\n")[0].split()
                if len(spaces) == 3 and spaces[1] in numbers:
                    found[numbers[spaces[1]]] = int(entry), os.readlink(f"/proc/{entry}/ns/pid")
        return found

    # Services

    def start(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a service; what it says goes to NAME.log."""
        assert name not in self._services, name
        with (self.state / f"{name}.log").open("ab") as log:
            self._services[name] = self.popen(argv, stdout=log, stderr=log, env={"PATH": f"{Path(argv[0]).parent}:{PATH}"})

    def kill(self, name: str) -> None:
        """SIGKILL to a service, as a machine that runs out of memory does it."""
        service = self._services.pop(name)
        os.kill(_only_child(service.pid), signal.SIGKILL)
        service.wait(STOP_SECONDS)

    def check(self) -> None:
        """Fail when a service has ended, with the last that it said."""
        for name, service in self._services.items():
            if service.poll() is not None:
                raise RuntimeError(f"cluster: {name} ended with {service.returncode}:\n{self.log(name)}")

    def log(self, name: str) -> str:
        """Return the last that a service said."""
        return (self.state / f"{name}.log").read_text(errors="replace")[-4000:]


PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "bash": "bash", "gcc": "gcc"}
"""What is needed of this machine, and the Debian package it is in."""


def finish(
    process: subprocess.Popen[bytes], limit: float = COMMAND_SECONDS, stdin: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a command in the machine; one that takes too long is killed, and what it said told."""
    try:
        out, err = process.communicate(stdin, limit)
    except subprocess.TimeoutExpired as error:
        end(process)
        words = f"out: {error.output!r}, err: {error.stderr!r}"
        raise AssertionError(f"not within {limit:g} s: {process.args!r}; {words}") from error
    except BaseException:
        end(process)
        raise
    text = out.decode(errors="replace"), err.decode(errors="replace")
    return subprocess.CompletedProcess(process.args, process.returncode, *text)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command in the machine that still runs, and close what it wrote to."""
    with process:
        if process.poll() is None:
            os.kill(_only_child(process.pid), signal.SIGKILL)
            process.communicate()


def _only_child(pid: int) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children:
                return int(children[0])
        time.sleep(0.005)
    raise RuntimeError(f"cluster: process {pid} has no child")
