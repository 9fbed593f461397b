"""A real Slurm of two nodes: munged, slurmctld and slurmd on two machines out of namespaces."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import ClassVar

from tests.support.requirements import PATH
from tests.support.two_machines import ADDRESSES, NODE, PYTHON_PATH, SECOND, TwoMachines

GPUS = 2
"""GPUs of each node, as far as Slurm knows: their device files are others."""
KILL_WAIT = 10
"""Seconds from the SIGTERM that Slurm sends to its SIGKILL."""

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


class Slurm(TwoMachines):
    """A cluster of two nodes; the partition `both` has the second one too."""

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

    def prepare(self) -> Mapping[str, str]:
        for name in ("slurmctld", f"slurmd-{NODE}", f"slurmd-{SECOND}"):
            (self.state / name).mkdir()
        conf = self.state / "slurm.conf"
        more = {"node": NODE, "second": SECOND, "addresses": ADDRESSES, "gpus": GPUS}
        conf.write_text(CONF.format(state=self.state, kill_wait=KILL_WAIT, **more))
        (self.state / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.state / "gres.conf").write_text(f"Name=gpu File={self.state}/nvidia[0-{GPUS - 1}]\n")
        for number in range(GPUS):
            os.mknod(self.state / f"nvidia{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        (self.state / "munge.key").write_bytes(os.urandom(128))
        (self.state / "munge.key").chmod(0o400)
        return {"SLURM_CONF": str(conf)}

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
