"""A real Slurm of two nodes: munged, slurmctld and slurmd on two machines out of namespaces."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import ClassVar

from tests.support import cgroups
from tests.support.requirements import PATH
from tests.support.two_machines import ADDRESSES, NODE, PYTHON_PATH, SECOND, TwoMachines

DEVICES = os.makedev(10, 229), os.makedev(10, 200)
"""Of what is no GPU, fuse and tun, and what nobody misses to whom Slurm forbids it."""
GPUS = len(DEVICES)
"""GPUs of each node, as far as Slurm knows."""
PORTS = range(61001, 61201)
"""At which programs on the nodes may reach others."""
KILL_WAIT = 10
"""Seconds from the SIGTERM that Slurm sends to its SIGKILL."""

CONF = """\
ClusterName=tests
SlurmctldHost={controller}
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
ProctrackType={tracks}
TaskPlugin={tasks}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
KillWait={kill_wait}
FirstJobId={first_job}
"""
"""What every Slurm on one machine has; `state` is a directory, `controller` a host name and its address in parentheses."""
PLAIN = {"tracks": "proctrack/linuxproc", "tasks": "task/none"}
CGROUPS = {"tracks": "proctrack/cgroup", "tasks": "task/affinity,task/cgroup"}
"""How Slurm knows and confines the processes of a job: by their parents, or by control groups, as most sites have it."""
CGROUP_CONF = """\
CgroupAutomount=no
IgnoreSystemd=yes
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainDevices=yes
"""
NODES = """\
GresTypes=gpu
SrunPortRange={ports}
NodeName={node} NodeAddr={addresses[n01]} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
NodeName={second} NodeAddr={addresses[n02]} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
PartitionName=both Nodes=ALL MaxTime=INFINITE State=UP GraceTime={kill_wait}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=20
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""


class Slurm(TwoMachines):
    """A cluster of two nodes; the partition `both` has the second one too, and jobs of `urgent` preempt others.

    Args:
        ways: PLAIN or CGROUPS.
    """

    name = "Slurm"
    programs: ClassVar[Mapping[str, str]] = {
        "munged": "munge",
        "slurmctld": "slurmctld",
        "slurmd": "slurmd",
        "sbatch": "slurm-client",
    }
    own = ("munged", "slurmctld", "slurmd", "slurmscriptd")
    first = r"""
munged --foreground --force --key-file="$STATE/munge.key" --socket="$STATE/munge.socket" --pid-file="$STATE/munge.pid" \
    --log-file="$STATE/munge.log" --seed-file="$STATE/munge.seed" </dev/null &
slurmctld -D -f "$SLURM_CONF" </dev/null &
slurmd -D -f "$SLURM_CONF" -N "$NODE" </dev/null &
"""
    second = 'exec slurmd -D -f "$SLURM_CONF" -N "$SECOND"\n'

    def __init__(self, ways: Mapping[str, str] = PLAIN) -> None:
        self._ways = ways

    def prepare(self) -> Mapping[str, str]:
        for name in ("slurmctld", f"slurmd-{NODE}", f"slurmd-{SECOND}"):
            (self.state / name).mkdir()
        conf = self.state / "slurm.conf"
        # Control groups have the job's number in their names, also those of another Slurm on this machine.
        more = {"kill_wait": KILL_WAIT, "first_job": os.getpid(), "ports": f"{PORTS.start}-{PORTS.stop - 1}", **self._ways}
        common = CONF.format(state=self.state, controller=f"{NODE}({ADDRESSES[NODE]})", **more)
        conf.write_text(common + NODES.format(node=NODE, second=SECOND, addresses=ADDRESSES, gpus=GPUS, **more))
        (self.state / "cgroup.conf").write_text(CGROUP_CONF)
        (self.state / "gres.conf").write_text(f"Name=gpu File={self.state}/nvidia[0-{GPUS - 1}]\n")
        for number in range(GPUS):
            os.mknod(self.state / f"nvidia{number}", 0o600 | stat.S_IFCHR, DEVICES[number])
        (self.state / "munge.key").write_bytes(os.urandom(128))
        (self.state / "munge.key").chmod(0o400)
        return {"SLURM_CONF": str(conf)}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for node in (NODE, SECOND):
            with contextlib.suppress(OSError):  # another Slurm is using it
                cgroups.remove(f"slurm_{node}")

    def is_up(self) -> bool:
        idle = self.run("sinfo", "--noheader", "--states=idle", "--Node", "--format=%N").stdout
        return {*idle.split()} == {NODE, SECOND}

    def sbatch(self, text: str, *options: str) -> str:
        """Submit a batch script, which finds the checkout and writes to `output`; return the job's id."""
        path = self.shared / "script"
        path.write_text(f"#!/bin/bash\n{text}\n")
        variables = f"PATH={PATH},PYTHONPATH={PYTHON_PATH},HOME=/root"
        done = self.run("sbatch", "--parsable", f"--export={variables}", f"--output={self.output('%j')}", *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def queued(self) -> str:
        """Return what squeue lists."""
        done = self.run("squeue", "--noheader")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def describe(self, job: str) -> dict[str, str]:
        """Return the properties of a job, as scontrol shows them."""
        words = self.run("scontrol", "show", "job", job, "--oneliner").stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)
