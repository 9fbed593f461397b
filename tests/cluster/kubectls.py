"""Which kubectl the tests run: always Debian's, which speaks SPDY; and the newest from 1.30 on, which tries WebSocket first.

The second is MPILAUNCH_TEST_KUBECTL, or found beside any kubectl of the PATH. A kubectl may be a dispatcher over several; it is
the several that count.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.cluster.images import SECOND_KUBECTL

FIRST_KUBECTL = "/usr/bin/kubectl"
WEBSOCKET = (1, 30)
ASK_SECONDS = 10


def find_second() -> tuple[str, Path] | None:
    """Return a kubectl of this machine that speaks WebSocket, with its version."""
    named = os.environ.get("MPILAUNCH_TEST_KUBECTL")
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    folders += [(folder / "kubectl").resolve().parent for folder in folders if (folder / "kubectl").exists()]
    candidates = [Path(named)] if named else sorted({path.resolve() for folder in folders for path in folder.glob("kubectl*")})
    found = [(version, path) for path in candidates if (version := _version(path)) >= WEBSOCKET]
    if not found:
        return None
    version, path = max(found)
    return ".".join(map(str, version)), path


def _version(path: Path) -> tuple[int, ...]:
    """Return a kubectl's version, nothing for what is none itself."""
    try:
        command = [str(path), "version", "--client", "--output=json"]
        done = subprocess.run(command, capture_output=True, timeout=ASK_SECONDS, check=True)
        text = json.loads(done.stdout)["clientVersion"]["gitVersion"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return ()
    numbers = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)(-gke\S*)?", text)
    return tuple(int(number) for number in numbers.groups()[:3]) if numbers else ()


SECOND = find_second()
KUBECTLS = {"1.20": FIRST_KUBECTL, **({SECOND[0]: SECOND_KUBECTL} if SECOND else {})}
"""Where the launcher's image has each."""
