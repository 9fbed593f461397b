"""A real Grid Engine of two hosts: sge_qmaster and sge_execd on two machines out of namespaces, with the root of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.support.requirements import PATH
from tests.support.two_machines import NODE, PYTHON_PATH, SECOND, TwoMachines

SLOTS = 8
"""Slots of each host."""
TIGHT, LOOSE = "tight", "loose"
"""Parallel environments with two slots on each host: qrsh reaches the other host of a job in the first one only."""
ROOT, LIB = Path("/var/lib/gridengine"), Path("/usr/lib/gridengine")
"""Where Debian has the programs of Grid Engine, and those that make a cell."""
TABLES = Path("/usr/share/gridengine")

BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn false
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {state}/spool
binary_path /usr/sbin
qmaster_spool_dir {state}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
ENVIRONMENT = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 2
control_slaves {tight}
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
QUEUE = {
    "qname": "all.q",
    "hostlist": f"{NODE} {SECOND}",
    "slots": str(SLOTS),
    "pe_list": f"{TIGHT} {LOOSE}",
    "shell": "/bin/bash",
    "load_thresholds": "NONE",
    "rerun": "FALSE",
}
SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}


class GridEngine(TwoMachines):
    """A cluster of two hosts with one queue."""

    name = "Grid Engine"
    programs: ClassVar[Mapping[str, str]] = {
        "sge_qmaster": "gridengine-master",
        "sge_execd": "gridengine-exec",
        "qrsh": "gridengine-client",
    }
    own = ("sge_qmaster", "sge_execd", "sge_shepherd", "sleep")
    first = r"""
SGE_ND=1 sge_qmaster </dev/null &
until qconf -ah "$SECOND" && qconf -as "$NODE" && qconf -Ap "$STATE/tight" && qconf -Ap "$STATE/loose"; do sleep 0.1; done
SGE_ND=1 sge_execd </dev/null &
"""
    second = r"""
until qconf -sh | grep -q "$SECOND"; do sleep 0.1; done
SGE_ND=1 exec sge_execd
"""

    def prepare(self) -> Mapping[str, str]:
        root = self.state / "root"
        for folder in (root / "default/common", self.state / "qmaster/job_scripts", self.state / "spool", self.state / "execd"):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (root / name).symlink_to(ROOT / name)
        (root / "default/common/bootstrap").write_text(BOOTSTRAP.format(state=self.state))
        (root / "default/common/act_qmaster").write_text(f"{NODE}\n")
        for name, tight in ((TIGHT, "TRUE"), (LOOSE, "FALSE")):
            (self.state / name).write_text(ENVIRONMENT.format(name=name, tight=tight))
        ours = {"execd_spool_dir": str(self.state / "execd"), "min_uid": "0", "min_gid": "0"}
        configuration = self.state / "configuration"
        configuration.write_text(_changed((TABLES / "default-configuration").read_text(), ours))
        environment = {"SGE_ROOT": str(root), "SGE_CELL": "default", "SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        defaults = LIB / "spooldefaults"
        for argv in (
            (LIB / "spoolinit", "berkeleydb", "libspoolb", self.state / "spool", "init"),
            (defaults, "configuration", configuration),
            (defaults, "complexes", TABLES / "util/resources/centry"),
            (defaults, "usersets", TABLES / "util/resources/usersets"),
            (defaults, "managers", "root"),
        ):
            subprocess.run(argv, env={"PATH": PATH, **environment}, check=True, capture_output=True)
        return environment

    def is_up(self) -> bool:
        return self._has_queue() and len(re.findall(r"^all\.q@.* 0/0/8 .* lx-\S+ *$", self.queues(), re.MULTILINE)) == 2

    def _has_queue(self) -> bool:
        """Make the queue, if the qmaster answers; return whether it is there."""
        if "all.q" in self.run("qconf", "-sql").stdout:
            return True
        for show, change, ours in (("-ssconf", "-Msconf", SCHEDULER), ("-sq", "-Aq", QUEUE)):
            shown = self.run("qconf", show)
            (self.state / "changed").write_text(_changed(shown.stdout, ours))
            if shown.returncode or self.run("qconf", change, str(self.state / "changed")).returncode:
                return False
        return True

    def queues(self) -> str:
        """Return what qstat lists of the queue on each host; a job on one makes it another line."""
        return self.run("qstat", "-f").stdout

    def qsub(self, text: str, *options: str, environment: str = TIGHT) -> str:
        """Submit a batch script for both hosts, which finds the checkout and writes to `output`; return the job's id."""
        path = self.shared / "script"
        path.write_text(f"#!/bin/bash\n{text}\n")
        words = ["-terse", "-cwd", "-j", "y", "-o", str(self.output("$JOB_ID"))]
        words += ["-pe", environment, "4", "-masterq", f"all.q@{NODE}"]
        variables = f"PATH={PATH},PYTHONPATH={PYTHON_PATH},HOME=/root"
        done = self.run("qsub", *words, "-v", variables, *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(".")[0]

    def queued(self) -> str:
        """Return what qstat lists."""
        done = self.run("qstat")
        assert done.returncode == 0, done.stderr
        return done.stdout


def _changed(table: str, ours: Mapping[str, str]) -> str:
    """Return a table of Grid Engine, a name and a value on each line, with our values."""
    lines = table.replace("\\\n", " ").splitlines()
    return "".join(f"{name} {ours[name]}\n" if (name := line.split(" ")[0]) in ours else f"{line}\n" for line in lines)
