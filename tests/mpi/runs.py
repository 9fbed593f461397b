"""One run of one case: the command line, its deadline, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.mpi.cases import MPILAUNCH, Case
from tests.mpi.families import ROOT, App, launch_with_mpilaunch
from tests.mpi.limits import needs_of
from tests.support.hosts import Hosts, in_directory

LIMIT_SECONDS = 60
HANG_SECONDS = 6
"""After which a run that is known to hang, having printed all, is ended."""
HUNG = 124
"""Exit code of timeout(1)."""

PRIVATE = r"""
set -e
mkdir "$LEFT.mounts"
mount -t tmpfs tmpfs "$LEFT.mounts"
for keep in $KEEP; do mkdir -p "$LEFT.mounts$keep"; mount --bind "$keep" "$LEFT.mounts$keep"; done
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
for keep in $KEEP; do mkdir -p "$keep"; mount --move "$LEFT.mounts$keep" "$keep"; done
umount "$LEFT.mounts"
rmdir "$LEFT.mounts"
find /tmp /dev/shm -xdev >"$LEFT.before"
code=0
"$@" || code=$?
find /tmp /dev/shm -xdev | grep --line-regexp --invert-match --fixed-strings --file="$LEFT.before" >"$LEFT" || true
exit $code
"""
"""Shell that runs a command with /tmp and /dev/shm of its own, but for the directories KEEP, and tells what it leaves there."""

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Run:
    """What became of a case.

    Attributes:
        code: of the launcher; HUNG when it had to be ended.
        lines: what the ranks printed, sorted.
        errors: what everybody said on stderr.
        left: files in /tmp and /dev/shm that were not there before, on all machines.
        received: least bytes that a host received; None when no host took part.
    """

    code: int
    lines: list[str]
    errors: str
    left: list[str]
    received: int | None


def command(case: Case, programs: Path) -> list[str]:
    """Return the command line of a case, less its deadline."""
    variables = dict(case.family.variables)
    for need in needs_of(case.family.name, case.work.name, case.place):
        variables.update(need.variables)
    ours = case.launcher == MPILAUNCH
    apps: list[App] = []
    for ranks, (program, *words) in case.work.apps(case.place):
        if case.work.universe and not case.family.has_universe:
            words[-1] = "-1"
        elif case.work.universe and not ours:
            words[-1] = "0"  # Open MPI's launchers count the universe in their own way.
        start = [programs / program] if case.language == "C" else [case.family.python, programs / "works.py", program]
        apps.append((ranks, [*map(str, start), *words]))
    if ours:
        return launch_with_mpilaunch(case.place, apps, variables)
    return [case.family.own, *case.family.arguments(case.place, apps, variables)]


def run(case: Case, programs: Path, hosts: Hosts, variables: Mapping[str, str] | None = None) -> Run:
    """Run a case on the head of the testbed, in a directory that all hosts see; the launcher gets `variables` too."""
    involved = [host for host, _ in case.place.nodes] if case.place.remote else []
    hangs = case.limit is not None and not case.limit.says
    left_here = programs.parent / "left"
    deadline = ["timeout", "--kill-after=10", str(HANG_SECONDS if hangs else LIMIT_SECONDS)]
    apart = [ROOT] if Path(sys.prefix).is_relative_to(ROOT) else [ROOT, Path(sys.prefix)]
    keep = [str(path) for path in apart if path.is_relative_to("/tmp")]
    environment = {**AS_ROOT, "LEFT": str(left_here), "KEEP": " ".join(keep), **(variables or {})}
    private = ["unshare", "--mount", "sh", "-c", PRIVATE, "sh"]
    before = {host: (set(_files(hosts, host)), hosts.received(host)) for host in involved}
    with in_directory(hosts.shared):
        done = hosts.run(
            [*private, *deadline, *command(case, programs)], env=environment, timeout=LIMIT_SECONDS + 30
        )
    received = min((hosts.received(host) - before[host][1] for host in involved), default=None)
    left = left_here.read_text(encoding="utf-8").splitlines()
    for host in involved:
        new = [path for path in _files(hosts, host) if path not in before[host][0]]
        left += [f"{host}:{path}" for path in new]
        if case.launcher != MPILAUNCH:
            _clean(hosts, host, new)
    lines = sorted(line for line in done.stdout.splitlines() if line)  # Hydra prints an empty one when it is ended
    return Run(done.returncode, lines, done.stderr, left, received)


def _files(hosts: Hosts, host: str) -> list[str]:
    return hosts.on(host, ["find", "/tmp", "/dev/shm", "-xdev", "-mindepth", "1"]).stdout.splitlines()


def _clean(hosts: Hosts, host: str, files: list[str]) -> None:
    """Take away what another launcher left on a host; that mpilaunch leaves nothing is what is tested."""
    for pid, _ in hosts.processes(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if files:
        hosts.on(host, ["rm", "-rf", "--one-file-system", "--", *files])
