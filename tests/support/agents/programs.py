"""Programs for the agents' tests: a local one that stands for a remote shell, and the console script mpilaunch-rsh."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launching import script
from tests.support.paths import ROOT

SCRIPT = 'if test $0 = somewhere; then eval "exec $1"; fi; echo ssh: $0: Connection refused >&2; exit 255'
TEMPLATE = f"sh -c '{SCRIPT}' {{host}} {{command}}"
"""The template of an agent command that reaches one host name, `somewhere`."""


def remote_shell(place: Path, name: str = "mpilaunch-rsh") -> Path:
    """Write the console script mpilaunch-rsh as pip does; return its path."""
    lines = [
        f"#!{sys.executable}",
        "import sys",
        f"sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'agents')!r}]",
        "from mpilaunch_agents.rsh.shell import main",
        "main()",
    ]
    return script(place / name, "".join(f"{line}\n" for line in lines))
