"""The master connections that a user's own ssh keeps open (ControlMaster and ControlPath in ssh_config(5)), as where a login
asks for a code: a live one is used by a process of ssh for each session. None is started, and none is kept open.

Where a master refuses one more session (MaxSessions), its ssh makes a connection of its own. The end of a master is a lost
connection for each of its sessions.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress

from mpilaunch.agent import AgentFailure
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch_agents.capture import capture
from mpilaunch_agents.ssh.settings import HostSettings

CHECK_SECONDS = 5.0
"""Limit on the wait for the answer of a master, which may be stopped."""
USE = ("-o", "BatchMode=yes", "-o", "ControlMaster=no")


async def answers(settings: HostSettings) -> bool:
    """Return whether a master of this user answers at the host's ControlPath."""
    path = settings.get("controlpath")
    if not path or not _is_own_socket(path):
        return False
    with suppress(AgentFailure, asyncio.TimeoutError):
        words = ("ssh", "-F", "none", "-O", "check", "-S", path.replace("%", "%%"), "--", settings.original)
        async with timeout(CHECK_SECONDS):
            code, _, _ = await capture(words)
        return code == 0
    return False


def hint(settings: HostSettings) -> str:
    """Return what a message on a refused login adds where the host has a ControlPath and no master answers, "" else."""
    path = settings.get("controlpath")
    if not path:
        return ""
    return f"; no master connection answers at {path}, `ssh -fNM {settings.original}` would start one"


def forward_command(settings: HostSettings, host: str, port: int) -> list[str]:
    """Return the command that connects stdin and stdout to a port of a host, over the master connection of a jump host."""
    login = ["-l", settings.get("user"), "-p", str(settings.port)]
    return ["ssh", "-T", *USE, "-W", f"[{host}]:{port}", *login, "--", settings.original]


def _is_own_socket(path: str) -> bool:
    """Return whether a path is a socket of this user; nobody else can make one."""
    with suppress(OSError, ValueError):
        status = os.lstat(path)
        return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid()
    return False
