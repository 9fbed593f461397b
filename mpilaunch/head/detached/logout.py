"""Whether systemd ends this process when its user logs out (logind.conf(5), KillUserProcesses). Pure, but for `warning`."""

from __future__ import annotations

import glob
from collections.abc import Iterable

FILES = (
    "/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf", "/usr/lib/systemd/logind.conf.d/*.conf",
    "/run/systemd/logind.conf.d/*.conf", "/etc/systemd/logind.conf.d/*.conf",
)  # fmt: skip
LARGEST = 64 << 10
"""Bytes of a file that are read."""


def warning() -> str:
    """Return what to tell the user, "" where the job outlives the login."""
    paths = [path for pattern in FILES for path in sorted(glob.glob(pattern))]
    if not is_ended(_read("/proc/self/cgroup"), map(_read, paths)):
        return ""
    how = "systemd-run --user --scope mpilaunch --detach ..., after loginctl enable-linger, is left alone"
    return f"systemd ends this job when you log out (KillUserProcesses=yes in logind.conf): {how}"


def is_ended(cgroup: str, configs: Iterable[str]) -> bool:
    """Return whether a process of this control group ends with its login session; later files count more."""
    kills = False
    for line in (line.strip() for config in configs for line in config.splitlines()):
        name, _, value = line.partition("=")
        if name.strip() == "KillUserProcesses":
            kills = value.strip().lower() in ("yes", "true", "1", "on")
    units = {unit for line in cgroup.splitlines() for unit in line.split("/")}
    return kills and any(unit.startswith("session-") and unit.endswith(".scope") for unit in units)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(LARGEST)
    except OSError:
        return ""
