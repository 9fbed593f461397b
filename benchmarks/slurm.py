"""A real Slurm on the testbed's hosts, from `with` to its end: slurmctld on the head, slurmd on every host."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from tests.slurm.cluster import CGROUP_CONF, CONF, KILL_WAIT, PLAIN
from tests.support.hosts import HEAD, Hosts
from tests.support.requirements import PATH

PROGRAMS = ("munged", "slurmctld", "slurmd", "salloc", "srun")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
END = b"\0end\n"


def installed() -> bool:
    """Return whether Slurm is installed here."""
    return all(map(shutil.which, PROGRAMS))


class Slurm:
    """The cluster; it has all hosts of the testbed."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._state = hosts.shared / "slurm"
        self._settings = {"SLURM_CONF": str(self._state / "slurm.conf")}
        self._services: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Slurm:
        names, state = self._hosts.names, self._state
        for name in ("slurmctld", *(f"slurmd-{name}" for name in names)):
            (state / name).mkdir(parents=True)
        controller = f"{HEAD}({self._hosts.head_address})"
        common = CONF.format(state=state, controller=controller, kill_wait=KILL_WAIT, first_job=1, **PLAIN)
        nodes = [f"NodeName={name} NodeAddr={self._hosts.address(name)} CPUs=8 State=UNKNOWN" for name in names]
        partition = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
        (state / "slurm.conf").write_text(common + "\n".join([*nodes, partition, ""]))
        (state / "cgroup.conf").write_text(CGROUP_CONF)
        (state / "munge.key").write_bytes(os.urandom(128))
        (state / "munge.key").chmod(0o400)
        munged = [f"--{kind}-file={state}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        try:
            self._start(["munged", "--foreground", "--force", f"--socket={state}/munge.socket", *munged])
            self._start(["slurmctld", "-D"])
            for name in names:
                self._start(["slurmd", "-D", "-N", name], name)
            self._until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._hosts.names:
            for pid, argv in self._hosts.processes(name):
                if argv[0].endswith("slurmd"):
                    os.kill(pid, signal.SIGTERM)
        for service in self._services[:2]:  # those of the head
            service.terminate()
        for service in self._services:
            service.wait(STOP_SECONDS)

    @contextlib.contextmanager
    def allocation(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Hold an allocation of these hosts, a task on each; yield the words before a command that run it in there.

        Steps have the PATH of the launcher: that of hosts reached by ssh is the system's.
        """
        wanted = ["salloc", "--quiet", f"--nodelist={','.join(names)}", f"--nodes={len(names)}", "--ntasks-per-node=1"]
        holder = self._hosts.popen(
            [*wanted, "sh", "-c", "env -0; echo end; read -r _"],
            env={**self._settings, "PYTHONPATH": ""}, stdin=subprocess.PIPE, stderr=None, text=False,
        )  # fmt: skip
        assert holder.stdin is not None and holder.stdout is not None
        try:
            said = b""
            while not said.endswith(END) and (data := os.read(holder.stdout.fileno(), 1 << 16)):
                said += data
            variables = [one.decode() for one in said.split(b"\0") if one.startswith(b"SLURM_")]
            if not variables:
                raise SystemExit("bench: Slurm gives no allocation")
            yield ("env", f"PATH={PATH}", *variables)
        finally:
            holder.stdin.close()
            holder.wait(STOP_SECONDS)
            holder.stdout.close()

    def _start(self, argv: Sequence[str], host: str = "") -> None:
        environment = {**os.environ, **self._settings}
        with (self._state / "services.log").open("ab") as log:
            if host:
                variables = [f"{name}={value}" for name, value in self._settings.items()]
                inside = self._hosts.inside(host, ["env", *variables, *argv])
                process = subprocess.Popen(inside, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
            else:
                process = self._hosts.popen(argv, env=self._settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._services.append(process)

    def _until_idle(self) -> None:
        wanted, deadline = {*self._hosts.names}, time.monotonic() + START_SECONDS
        asks = ["sinfo", "--noheader", "--states=idle", "--Node", "--format=%N"]
        while {*self._hosts.run(asks, env=self._settings).stdout.split()} != wanted:
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: Slurm does not come up, see {self._state}")
            time.sleep(0.2)
