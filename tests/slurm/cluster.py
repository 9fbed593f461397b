"""A real Slurm of two nodes: munged, slurmctld and slurmd in namespaces of their own, from `with` to its end.

The nodes have their own host names, networks, /tmp and /dev/shm, and nothing of them is bound to a name: all of it ends with
its first process, which ends when its stdin does. There is no sshd. Files of this machine are the same in there; what a test
and a job share is below `Slurm.shared`. Jobs run as root, since only root can read every checkout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mpilaunch.daemon.ranks.reaper import process_file
from tests.support.launching import wait_until
from tests.support.paths import ROOT
from tests.support.requirements import PATH, require

NODE, SECOND = "n01", "n02"
ADDRESSES = {NODE: "10.87.0.1", SECOND: "10.87.0.2"}
GPUS = 2
"""GPUs of each node, as far as Slurm knows: their device files are others."""
KILL_WAIT = 10
"""Seconds from the SIGTERM that Slurm sends to its SIGKILL."""
START_SECONDS = 40.0
COMMAND_SECONDS = 20.0
PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
"""What the cluster needs, and the Debian package that has it."""
PYTHON_PATH = f"{ROOT}:{ROOT / 'agents'}"
OF_SLURM = ("munged", "slurmctld", "slurmd", "slurmscriptd", "bash")
"""Programs of the cluster itself; the last is its first process, and a batch script."""

CONF = """\
ClusterName=tests
SlurmctldHost={node}({addresses[n01]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket
CredType=cred/munge
StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={state}/slurmd-%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
KillWait={kill_wait}
GresTypes=gpu
NodeName={node} NodeAddr={addresses[n01]} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
NodeName={second} NodeAddr={addresses[n02]} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
PartitionName=both Nodes=ALL MaxTime=INFINITE State=UP
"""

SYSFS = r"""
show_interfaces() {  # of this machine, where UCX looks for them; the rest of /sys stays, since slurmd wants its control groups
    mkdir "$STATE/sys-$1"
    mount -t sysfs -o ro sysfs "$STATE/sys-$1"
    for folder in class/net devices/virtual/net; do mount --bind "$STATE/sys-$1/$folder" "/sys/$folder"; done
}
"""
FIRST = r"""
hostname "$NODE"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$STATE/hosts" /etc/hosts
show_interfaces "$NODE"
ip link set lo up
# Slurm looks up addresses only of families that an interface beside the loopback has.
ip link add eth0 type veth peer name eth1
ip addr add "$ADDRESS/24" dev eth0
unshare --net --uts --ipc --mount bash -ec "$SECOND_MACHINE" </dev/null &
while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link set eth1 netns $!
ip link set eth0 up
munged --foreground --force --key-file="$STATE/munge.key" --socket="$STATE/munge.socket" --pid-file="$STATE/munge.pid" \
    --log-file="$STATE/munge.log" --seed-file="$STATE/munge.seed" </dev/null &
slurmctld -D -f "$SLURM_CONF" </dev/null &
slurmd -D -f "$SLURM_CONF" -N "$NODE" </dev/null &
read -r _
"""
SECOND_MACHINE = r"""
hostname "$SECOND"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cat /proc/sys/kernel/random/uuid >"$STATE/boot"  # by which UCX knows a machine
mount --bind "$STATE/boot" /proc/sys/kernel/random/boot_id
show_interfaces "$SECOND"
ip link set lo up
until ip link set eth1 up 2>/dev/null; do sleep 0.02; done
ip addr add "$SECOND_ADDRESS/24" dev eth1
exec slurmd -D -f "$SLURM_CONF" -N "$SECOND"
"""


class Slurm:
    """A cluster of two nodes; the partition `both` has the second one too.

    Attributes:
        shared: a directory that the test and its jobs see at the same path.
    """

    def __enter__(self) -> Slurm:
        require("Slurm", PROGRAMS)
        # Not below /tmp: the node has its own.
        self._state = Path(tempfile.mkdtemp(prefix="mpilaunch-slurm-", dir="/var/tmp"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._first.stdin is not None
        self._first.stdin.close()
        self._first.wait(COMMAND_SECONDS)
        shutil.rmtree(self._state)

    def _start(self) -> None:
        self.shared = self._state / "shared"
        for folder in (self.shared, *(self._state / name for name in ("slurmctld", f"slurmd-{NODE}", f"slurmd-{SECOND}"))):
            folder.mkdir()
        conf = self._state / "slurm.conf"
        more = {"node": NODE, "second": SECOND, "addresses": ADDRESSES, "gpus": GPUS}
        conf.write_text(CONF.format(state=self._state, kill_wait=KILL_WAIT, **more))
        (self._state / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self._state / "gres.conf").write_text(f"Name=gpu File={self._state}/nvidia[0-{GPUS - 1}]\n")
        for number in range(GPUS):
            os.mknod(self._state / f"nvidia{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
        (self._state / "hosts").write_text("\n".join([*lines, ""]))
        (self._state / "munge.key").write_bytes(os.urandom(128))
        (self._state / "munge.key").chmod(0o400)
        self._environment = {
            "PATH": PATH,
            "SLURM_CONF": str(conf),
            "STATE": str(self._state),
            "NODE": NODE,
            "SECOND": SECOND,
            "SECOND_MACHINE": SYSFS + SECOND_MACHINE,
            "ADDRESS": ADDRESSES[NODE],
            "SECOND_ADDRESS": ADDRESSES[SECOND],
        }
        argv = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self._state / "start.log").open("w") as log:
            self._first = subprocess.Popen(
                [*argv, "bash", "-ec", SYSFS + FIRST], stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environment
            )
        idle = ("sinfo", "--noheader", "--states=idle", "--Node", "--format=%N")
        try:
            wait_until(lambda: {*self.run(*idle).stdout.split()} == {NODE, SECOND}, "the nodes are idle", START_SECONDS)
        except AssertionError as error:
            logs = [f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(self._state.glob("*.log"))]
            raise RuntimeError("\n".join(["Slurm does not come up", *logs])) from error

    def run(self, *argv: str, env: Mapping[str, str] | None = None, node: str = NODE) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, past Slurm."""
        try:
            target = self._pid_one() if node == NODE else self._slurmd(node)
        except (OSError, IndexError, StopIteration):
            return subprocess.CompletedProcess(argv, 1, "", "the node has not started")
        enter = ["nsenter", f"--target={target}", "--net", "--uts", "--ipc", "--mount", "--pid", f"--wd={self.shared}", "--"]
        environment = {**self._environment, **(env or {})}
        return subprocess.run(
            [*enter, *argv], env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL
        )

    def kill(self, pid: int) -> None:
        """Kill one of `processes`."""
        os.kill(pid, signal.SIGKILL)

    def sbatch(self, text: str, *options: str) -> str:
        """Submit a batch script, which finds the checkout and writes to `job-ID.out` in `shared`; return the job's id."""
        path = self.shared / "script"
        path.write_text(f"#!/bin/bash\n{text}\n")
        variables = f"PATH={PATH},PYTHONPATH={PYTHON_PATH},HOME=/root"
        done = self.run("sbatch", "--parsable", f"--export={variables}", f"--output={self._output('%j')}", *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def lines(self, job: str) -> list[str]:
        """Return the lines that a job has written on stdout and stderr so far."""
        with contextlib.suppress(FileNotFoundError):
            return self._output(job).read_text().splitlines()
        return []

    def queued(self) -> str:
        """Return what squeue lists."""
        done = self.run("squeue", "--noheader")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def describe(self, job: str) -> dict[str, str]:
        """Return the properties of a job, as scontrol shows them."""
        words = self.run("scontrol", "show", "job", job, "--oneliner").stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def processes(self) -> dict[int, str]:
        """Return the processes on the node beside Slurm's own, with their command lines."""
        space = os.readlink(f"/proc/{self._pid_one()}/ns/pid")
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == space:
                    argv = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
                    if not set(OF_SLURM) & {os.path.basename(argv[0]), argv[0].strip(" :")}:
                        found[int(entry)] = " ".join(argv)
        return found

    def _slurmd(self, node: str) -> int:
        words = f"slurmd\0-D\0-f\0{self._state}/slurm.conf\0-N\0{node}\0".encode()
        processes = map(int, filter(str.isdigit, os.listdir("/proc")))
        return next(pid for pid in processes if process_file(pid, "cmdline") == words)

    def _output(self, job: str) -> Path:
        return self.shared / f"job-{job}.out"

    def _pid_one(self) -> int:
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return int(children[0])
