"""The images, made by hand as archives of docker's: there is no docker and no registry in these tests.

`training-worker` and `training-launcher` are what examples/kubernetes/Dockerfile.* make of Debian's packages, plus both MPIs,
and the programs of the tests; `bare` has busybox and no Python. The large layers come from `tests/cluster/build.py`; mpilaunch
itself is that of the checkout, in a small layer made each time.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from tests.cluster.build import BASE, DEBIAN, DEPENDENCIES, PYTHON_PACKAGES, ROOT
from tests.cluster.settings import PAUSE_IMAGE
from tests.support.requirements import PATH

HERE = Path(__file__).parent
WORKER = "training-worker"
LAUNCHER = "training-launcher"
BARE = "bare"
PROGRAMS = "/workspace"
"""Where the images have the programs of the examples and of the tests."""
MPI = {"openmpi": "mpicc.openmpi", "mpich": "mpicc.mpich"}
SECOND_KUBECTL = "/opt/second/kubectl"

SCRIPT = """\
#!/usr/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def make_layers(place: Path, second_kubectl: Path | None) -> None:
    """Compile the programs and write the small layers into a directory; `second_kubectl` goes into the launcher, too."""
    subprocess.run(["gcc", "-Wall", "-Werror", "-static", "-Os", "-o", place / "pause", HERE / "pause.c"], check=True)
    for name, compiler in MPI.items():
        source, program = ROOT / "tests/programs/ring.c", place / f"ring.{name}"
        subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    with tarfile.open(place / "pause.tar", "w") as layer:
        layer.add(place / "pause", "pause")
    with tarfile.open(place / "bare.tar", "w") as layer:
        layer.add(DEBIAN / "bin/busybox", "bin/busybox")
        for name in ("sh", "sleep", "cat", "ls", "hostname", "ps"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    with tarfile.open(place / "worker.tar", "w") as layer:
        layer.add(ROOT / "examples/ring_allreduce.py", f"{PROGRAMS}/ring_allreduce.py")
        for name in MPI:
            layer.add(place / f"ring.{name}", f"{PROGRAMS}/ring.{name}")
    with tarfile.open(place / "launcher.tar", "w") as layer:
        layer.add(DEBIAN / "usr/bin/kubectl", "usr/bin/kubectl")
        if second_kubectl:
            layer.add(second_kubectl.resolve(), SECOND_KUBECTL)
        for package in (ROOT / "mpilaunch", ROOT / "agents/mpilaunch_agents"):
            layer.add(package, f"{PYTHON_PACKAGES}/{package.name}", filter=_without_byte_code)
        for name in ("mpilaunch", "mpilaunch-rsh"):
            _add_script(layer, name)


def write_images(place: Path) -> None:
    """Write every image as PLACE/NAME.image."""
    _write(place, PAUSE_IMAGE, [place / "pause.tar"], ["/pause"])
    _write(place, f"docker.io/library/{BARE}:latest", [place / "bare.tar"], ["/bin/sleep", "365d"])
    worker = [BASE, place / "worker.tar"]
    _write(place, f"docker.io/library/{WORKER}:latest", worker, ["/usr/sbin/sshd", "-De"])
    launcher = [*worker, DEPENDENCIES, place / "launcher.tar"]
    _write(place, f"docker.io/library/{LAUNCHER}:latest", launcher, ["mpilaunch", "--help"])


def import_images(place: Path, run: Callable[[Sequence[str | Path]], object]) -> None:
    """Hand every image to containerd; `run` runs a command where containerd is."""
    for image in sorted(place.glob("*.image")):
        run([DEBIAN / "usr/bin/ctr", "--namespace=k8s.io", "images", "import", image])
        image.unlink()


def _write(place: Path, name: str, layers: Sequence[Path], command: Sequence[str]) -> None:
    folder = PROGRAMS if BASE in layers else "/"
    settings = {"Env": [f"PATH={PATH}"], "Cmd": command, "WorkingDir": folder}
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}" for layer in layers]}
    config = {"architecture": _architecture(), "os": "linux", "config": settings, "rootfs": rootfs}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [layer.name for layer in layers]}]
    path = place / f"{name.rpartition('/')[2].partition(':')[0]}.image"
    with tarfile.open(path, "w") as archive:
        for file, content in (("config.json", config), ("manifest.json", manifest)):
            _add_text(archive, file, json.dumps(content))
        for layer in layers:
            archive.add(layer, layer.name)


def _add_script(archive: tarfile.TarFile, name: str) -> None:
    (point,) = entry_points(group="console_scripts", name=name)
    module, _, function = point.value.partition(":")
    _add_text(archive, f"usr/local/bin/{name}", SCRIPT.format(module=module, function=function), 0o755)


def _add_text(archive: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), mode
    archive.addfile(entry, io.BytesIO(text.encode()))


def _without_byte_code(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    return None if "__pycache__" in entry.name else entry


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
