"""The images, made by hand as archives of docker's: there is no docker and no registry in these tests.

`training-worker` and `training-launcher` are what examples/kubernetes/Dockerfile.* make of Debian's packages, plus both MPIs,
and the programs of the tests; `operator-base` is the launcher set up as Kubeflow's mpioperator/base is, where mpirun is
mpilaunch; `bare` has busybox and no Python. The large layers come from `tests/cluster/build.py`; mpilaunch itself is that of
the checkout, in a small layer made each time.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from tests.cluster.build import BASE, DEBIAN, DEPENDENCIES, PYTHON_PACKAGES, ROOT
from tests.cluster.settings import PAUSE_IMAGE
from tests.support.requirements import PATH

HERE = Path(__file__).parent
WORKER = "training-worker"
LAUNCHER = "training-launcher"
OPERATOR_BASE = "operator-base"
BARE = "bare"
PROGRAMS = "/workspace"
"""Where the images have the programs of the examples and of the tests."""
MPI = {"openmpi": "mpicc.openmpi", "mpich": "mpicc.mpich"}
SECOND_KUBECTL = "/opt/second/kubectl"

USER = "mpiuser"
SSH = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
ACCOUNTS = {"etc/passwd": f"{USER}:x:1000:1000::/home/{USER}:/bin/bash\n", "etc/group": f"{USER}:x:1000:\n"}
WORKER_FILES = {
    "etc/ssh/sshd_config.d/pods.conf": "StrictModes no\nPermitRootLogin prohibit-password\n",
    "etc/ssh/ssh_config.d/pods.conf": SSH,
    f"home/{USER}/.sshd/config": f"""\
Port 2222
HostKey /home/{USER}/.sshd/host_key
PidFile /home/{USER}/.sshd/pid
StrictModes no
UsePAM no
""",
}
"""What Dockerfile.worker writes."""
OPERATOR_FILES = {
    "etc/ssh/sshd_config.d/pods.conf": "StrictModes no\nPort 2222\n",
    "etc/ssh/ssh_config.d/pods.conf": f"{SSH}  Port 2222\n",
    f"home/{USER}/.sshd_config": f"""\
PidFile /home/{USER}/sshd.pid
HostKey /home/{USER}/.ssh/id_rsa
StrictModes no
Port 2222
""",
}
"""What build/base/Dockerfile of kubeflow/mpi-operator writes; there it changes lines of Debian's own files."""

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
    with tarfile.open(place / "operator.tar", "w") as layer:
        _add_files(layer, OPERATOR_FILES)
        _add_script(layer, "mpirun", of="mpilaunch")
    with tarfile.open(place / "worker.tar", "w") as layer:
        folder = tarfile.TarInfo("run/sshd")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        layer.addfile(folder)
        _add_files(layer, {**_accounts(), **WORKER_FILES, f"home/{USER}/.sshd/host_key": _host_key(place)})
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
    _write(place, f"docker.io/library/{OPERATOR_BASE}:latest", [*launcher, place / "operator.tar"], ["/bin/bash"])


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


def _accounts() -> dict[str, str]:
    """Return the files of users and groups with the user of the Dockerfile."""
    with tarfile.open(BASE) as base:
        found = {path: base.extractfile(f"./{path}") for path in ACCOUNTS}
        return {path: file.read().decode() + ACCOUNTS[path] for path, file in found.items() if file}


def _host_key(place: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / "host_key"], check=True)
    return (place / "host_key").read_text()


def _add_files(archive: tarfile.TarFile, files: Mapping[str, str]) -> None:
    """Add files; those in a home are the user's own."""
    for path, text in files.items():
        _add_text(archive, path, text, 0o600 if path.endswith("_key") else 0o644, 1000 if path.startswith("home/") else 0)


def _add_script(archive: tarfile.TarFile, name: str, of: str = "") -> None:
    """Add the script of an entry point; `of` is the entry point's name where it is another one."""
    (point,) = entry_points(group="console_scripts", name=of or name)
    module, _, function = point.value.partition(":")
    _add_text(archive, f"usr/local/bin/{name}", SCRIPT.format(module=module, function=function), 0o755)


def _add_text(archive: tarfile.TarFile, name: str, text: str, mode: int = 0o644, owner: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid = len(text.encode()), mode, owner, owner
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
