"""What the cluster is made of, fetched and built once into `.cluster/`: nothing is installed, and no service started.

Debian's packages are unpacked, not installed: an installed etcd or containerd would start, and kubernetes-client excludes
other packages that have a kubectl. The four programs of Kubernetes that Debian has no package of are built from Debian's
source package, which carries all that it needs but for one newer library, by Debian's Go, without a network. Where from is
what apt on this machine says.

    python -m tests.cluster.build
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = ROOT / ".cluster"
DEBIAN = MADE / "debian"
"""Debian's packages, unpacked."""
BIN = MADE / "bin"
"""Kubernetes, built."""
BASE = MADE / "base.tar"
"""The worker's image, less the programs: Debian with Python, sshd, both MPIs."""
DEPENDENCIES = MADE / "dependencies.tar"
"""What mpilaunch needs of PyPI, a layer over BASE."""
STAMP = MADE / "built"

APT = MADE / "apt"
GET = (
    *("apt-get", "-qq", "-oAPT::Sandbox::User=root", f"-oDir::State::lists={APT}/lists", f"-oDir::Cache={APT}/cache"),
    *(f"-oDir::Etc::sourcelist={APT}/sources.list", "-oDir::Etc::sourceparts=/dev/null"),
)

RELEASE = "bookworm"
VERSION = "1.20.2"
PYTHON = "3.11"
"""The release's Kubernetes and Python."""
PYTHON_PACKAGES = f"usr/local/lib/python{PYTHON}/dist-packages"

GO = "usr/lib/go-1.19", "usr/share/go-1.19", "usr/share/gocode"
REFLECT = "github.com/modern-go/reflect2"
"""That of Kubernetes's source crashes with Debian's Go at the first custom resource."""
PACKAGES = (
    *("etcd-server", "containerd", "runc", "containernetworking-plugins", "kubernetes-client", "busybox-static"),
    *("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"),
)
IN_WORKERS = ("python3", "openssh-server", "openssh-client", "openmpi-bin", "mpich", "procps", "libpmix2", "libpmi2-0")
PROGRAMS = ("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler")
NEEDED = (
    *(BIN / program for program in PROGRAMS),
    *(DEBIAN / path for path in ("usr/bin/etcd", "usr/bin/containerd", "usr/bin/ctr", "usr/bin/kubectl", "usr/sbin/runc")),
    *(DEBIAN / path for path in ("usr/lib/cni/bridge", "usr/lib/cni/host-local", "bin/busybox")),
    *(BASE, DEPENDENCIES, STAMP),
)
LEFT_OUT = tuple(f"./{name}/*" for name in ("proc", "sys", "dev", "var/cache", "var/lib/apt", "usr/share/doc", "usr/share/man"))
RECIPE = f"Kubernetes {VERSION} of Debian {RELEASE}, {', '.join(PACKAGES)}; in workers {', '.join(IN_WORKERS)}\n"
"""What STAMP says: what was built by another one is built anew."""
GIT_VERSION = f"""\
KUBE_GIT_VERSION=v{VERSION}
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
KUBE_GIT_COMMIT={RELEASE}
KUBE_GIT_TREE_STATE=clean
"""


class CannotBuild(Exception):
    """What is missing, in words."""


def build() -> None:
    """Fetch and build what is not there yet."""
    if not missing() and STAMP.read_text() == RECIPE:
        return
    shutil.rmtree(MADE, ignore_errors=True)
    MADE.mkdir()
    read_lists()
    for step in (unpack_packages, make_base, make_dependencies, make_kubernetes):
        with tempfile.TemporaryDirectory(dir=MADE, prefix="making-") as folder:
            step(Path(folder))
    for unused in (APT, *(DEBIAN / folder for folder in GO)):
        shutil.rmtree(unused)
    STAMP.write_text(RECIPE)
    if missing():
        raise CannotBuild(f"built, and yet missing: {', '.join(map(str, missing()))}")


def missing() -> list[Path]:
    """Return what the cluster needs and `.cluster/` does not have."""
    return [path for path in NEEDED if not path.exists()]


def read_lists() -> None:
    """Fetch what the release has, sources too; apt's own lists stay as they are."""
    (APT / "lists/partial").mkdir(parents=True)
    (APT / "cache").mkdir()
    (APT / "sources.list").write_text("".join(f"{kind} {line}\n" for line in _archive() for kind in ("deb", "deb-src")))
    _run([*GET, "update"], MADE)


def unpack_packages(folder: Path) -> None:
    """Fetch Debian's packages and unpack them beside each other."""
    _run([*GET, "download", *PACKAGES], folder)
    for package in sorted(folder.glob("*.deb")):
        _run(["dpkg-deb", "--extract", package, DEBIAN], folder)


def make_base(folder: Path) -> None:
    """Make the worker's file system of Debian's packages; what is mounted for it goes with its namespace."""
    mirror = _archive()[0].split()[0]
    packages = ",".join(IN_WORKERS)
    tree = folder / "tree"
    private = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    _run([*private, "debootstrap", "--variant=minbase", f"--include={packages}", RELEASE, tree, mirror], folder)
    left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    _run(["tar", f"--directory={tree}", "--one-file-system", *left_out, "--create", f"--file={BASE}", "."], folder)


def make_dependencies(folder: Path) -> None:
    """Fetch what mpilaunch needs of PyPI, for the Python of the images."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", f"--wheel-dir={folder}", ROOT], folder)
    (wheel,) = folder.glob("mpilaunch-*.whl")
    target = folder / PYTHON_PACKAGES
    _run([*pip, "install", f"--target={target}", f"--python-version={PYTHON}", "--only-binary=:all:", wheel], folder)
    # They are those of the checkout, see `images`.
    ours = [f"--exclude={PYTHON_PACKAGES}/{name}" for name in ("mpilaunch*", "bin")]
    _run(["tar", "--create", f"--file={DEPENDENCIES}", "--owner=0", "--group=0", *ours, "usr"], folder)


def make_kubernetes(folder: Path) -> None:
    """Build Kubernetes, nicely: what else runs on this machine comes first."""
    tree = _source(folder)
    shutil.rmtree(tree / "vendor" / REFLECT)
    shutil.copytree(DEBIAN / "usr/share/gocode/src" / REFLECT, tree / "vendor" / REFLECT)
    (folder / "version").write_text(GIT_VERSION)
    go = DEBIAN / GO[0]
    environ = {
        "PATH": f"{go}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        "GOROOT": str(go),
        "GOCACHE": str(folder / "cache"),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION_FILE": str(folder / "version"),
    }
    _run(["nice", "make", f"WHAT={' '.join(f'cmd/{program}' for program in PROGRAMS)}"], tree, environ)
    BIN.mkdir()
    for program in PROGRAMS:
        shutil.copy2((tree / "_output/bin" / program).resolve(), BIN / program)


def _source(folder: Path) -> Path:
    """Fetch and unpack Debian's source package of Kubernetes."""
    _run([*GET, "source", "--download-only", "kubernetes"], folder)
    described = next(folder.glob("kubernetes_*.dsc"), None)
    if described is None:
        raise CannotBuild("apt-get source kubernetes fetched nothing")
    tree = folder / "tree"
    _run(["dpkg-source", "--no-check", "--extract", described, tree], folder)
    if not (tree / "cmd/kube-apiserver").exists():
        raise CannotBuild(f"{described.name} is not the whole of Kubernetes, as Debian {RELEASE}'s is")
    return tree


def _archive() -> list[str]:
    """Return where apt on this machine gets the release from: address, suite and component of each part."""
    wanted = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    try:
        said = subprocess.run(wanted, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBuild(f"this needs Debian {RELEASE}: {error}") from error
    parts = [line for line in dict.fromkeys(said) if line.split()[1:] == [RELEASE, "main"]]
    if not parts:
        raise CannotBuild(f"this needs Debian {RELEASE}: apt gets no packages of it")
    return parts


def _run(argv: Sequence[str | Path], where: Path, environ: Mapping[str, str] | None = None) -> None:
    print("+", *argv, flush=True)
    try:
        subprocess.run(argv, cwd=where, env=environ, stdin=subprocess.DEVNULL, check=True)
    except FileNotFoundError as error:
        raise CannotBuild(f"{argv[0]} is missing; `make test-cluster` installs it") from error
    except subprocess.CalledProcessError as error:
        raise CannotBuild(f"{argv[0]} ended with {error.returncode}, see above") from error


if __name__ == "__main__":
    try:
        build()
    except CannotBuild as error:
        sys.exit(f"tests/cluster: {error}")
