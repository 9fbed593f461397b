"""A real Slurm on one machine: munged, slurmctld and slurmd in namespaces of their own, from `with` to its end.

The machine has its own host name, network, processes, /tmp and /dev/shm, and nothing of it is bound to a name: all of it
ends with its first process, which ends when its stdin does. Files of this machine are the same in there; what a test and a job
share is below `Slurm.shared`. Jobs run as root, since only root can read every checkout.
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

from tests.support.launching import wait_until
from tests.support.paths import ROOT
from tests.support.requirements import PATH, require

NODE, ADDRESS = "n01", "10.87.0.1"
SECOND = "n02"
"""Another node of Slurm, with a slurmd of its own; it is the same machine."""
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
SlurmctldHost={node}({address})
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
SchedulerParameters=batch_sched_delay=0,sched_interval=2
KillWait={kill_wait}
NodeName={node} NodeAddr={address} Port=6818 CPUs=8 State=UNKNOWN
NodeName={second} NodeHostname={node} NodeAddr={address} Port=6819 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
PartitionName=both Nodes=ALL MaxTime=INFINITE State=UP
"""

FIRST = r"""
hostname "$NODE"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$STATE/hosts" /etc/hosts
ip link set lo up
# Slurm looks up addresses only of families that an interface beside the loopback has.
ip link add eth0 type veth peer name eth1
ip addr add "$ADDRESS/24" dev eth0
ip link set eth1 up
ip link set eth0 up
munged --foreground --force --key-file="$STATE/munge.key" --socket="$STATE/munge.socket" --pid-file="$STATE/munge.pid" \
    --log-file="$STATE/munge.log" --seed-file="$STATE/munge.seed" </dev/null &
slurmctld -D -f "$SLURM_CONF" </dev/null &
slurmd -D -f "$SLURM_CONF" -N "$NODE" </dev/null &
slurmd -D -f "$SLURM_CONF" -N "$SECOND" </dev/null &
read -r _
"""


class Slurm:
    """A cluster of one node, and of a second one in the partition `both`.

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
        conf.write_text(CONF.format(node=NODE, second=SECOND, address=ADDRESS, state=self._state, kill_wait=KILL_WAIT))
        (self._state / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self._state / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {NODE}\n")
        (self._state / "munge.key").write_bytes(os.urandom(128))
        (self._state / "munge.key").chmod(0o400)
        self._environment = {
            "PATH": PATH,
            "SLURM_CONF": str(conf),
            "STATE": str(self._state),
            "NODE": NODE,
            "SECOND": SECOND,
            "ADDRESS": ADDRESS,
        }
        argv = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self._state / "start.log").open("w") as log:
            self._first = subprocess.Popen(
                [*argv, "bash", "-ec", FIRST], stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environment
            )
        idle = ("sinfo", "--noheader", "--states=idle", "--Node", "--format=%N")
        try:
            wait_until(lambda: {*self.run(*idle).stdout.split()} == {NODE, SECOND}, "the nodes are idle", START_SECONDS)
        except AssertionError as error:
            logs = [f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(self._state.glob("*.log"))]
            raise RuntimeError("\n".join(["Slurm does not come up", *logs])) from error

    def run(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, past Slurm."""
        try:
            first = self._pid_one()
        except (OSError, IndexError):
            return subprocess.CompletedProcess(argv, 1, "", "the node has not started")
        enter = ["nsenter", f"--target={first}", "--net", "--uts", "--ipc", "--mount", "--pid", f"--wd={self.shared}", "--"]
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

    def _output(self, job: str) -> Path:
        return self.shared / f"job-{job}.out"

    def _pid_one(self) -> int:
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return int(children[0])
