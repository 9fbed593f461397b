"""What real parts need of this machine: it fails with what is missing, because no test is skipped for it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def require(what: str, programs: Mapping[str, str]) -> None:
    """Fail unless this process is root, who can make namespaces, and the programs are installed: program -> Debian package."""
    missing = {package for program, package in programs.items() if shutil.which(program, path=PATH) is None}
    if missing:
        raise RuntimeError(f"{what}: Debian packages missing: apt-get install {' '.join(sorted(missing))}")
    if os.geteuid() != 0:
        raise RuntimeError(f"{what}: needs root, to make namespaces")


def hand_down_no_ignored_signal() -> None:
    """Let no launch of this process inherit an ignored signal.

    A shell starts a background command with SIGINT and SIGQUIT ignored, nohup with SIGHUP. With a handler that does nothing,
    this process runs on, and what it starts has the default again.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
