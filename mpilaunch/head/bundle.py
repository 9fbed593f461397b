"""The bundle: what the head sends to a node, and the line that runs it there.

The bundle is made of `mpilaunch.wire` and `mpilaunch.daemon` as data: the head never imports the daemon. Each module goes
along as source, which any Python from 3.8 on can run, and as byte code for the head's own version, which saves a node of the
same version the compiling (zipimport passes over byte code of other versions).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator

import mpilaunch

BOOT = (
    "import os,sys\n"
    "if sys.version_info<(3,8):\n"
    " sys.stderr.write('mpilaunch: python '+sys.version.split()[0]+' is older than 3.8\\n')\n"
    " sys.exit(97)\n"
    "left=int(sys.argv[1]);bundle=os.memfd_create('mpilaunch')\n"
    "while left:\n"
    " data=os.read(0,min(left,65536))\n"
    " if not data:sys.exit('mpilaunch: the bundle broke off')\n"
    " os.write(bundle,data);left-=len(data)\n"
    "sys.path.insert(0,'/proc/self/fd/%d'%bundle)\n"
    "from mpilaunch.daemon.main import main\n"
    "main()"
)
"""Run by `python3 -I -S -B -c`, with the bundle's length as the only argument and the bundle on stdin."""

LOCAL_BOOT = "import sys;sys.path.append(sys.argv[1]);from mpilaunch.daemon.main import main;main()"
"""The same without a bundle; our folder goes behind the standard library, whose names others there may bear too."""

LOCAL = "local"
"""The agent of this machine: there the daemon runs from the files that are installed, and nothing is sent."""

PYTHON_TOO_OLD = 97
"""Exit code of BOOT under a Python older than 3.8."""

_UNCHECKED_HASH = b"\1\0\0\0" + bytes(8)
"""Flags and hash field of byte code that is to be used without a look at its source (PEP 552)."""


def boot_command(python: str, bundle: bytes) -> list[str]:
    """Return the argument list that starts the daemon; the caller sends `bundle` on its stdin."""
    return [python, "-I", "-S", "-B", "-c", BOOT, str(len(bundle))]


def local_command() -> list[str]:
    """Return the argument list that starts the daemon on the head's own machine, from the files that are there."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(mpilaunch.__file__)))
    return [sys.executable, "-I", "-S", "-c", LOCAL_BOOT, folder]


def build() -> bytes:
    """Return the bundle, a zip file of some tens of kilobytes."""
    import zipfile  # a launch on this machine alone needs none

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, path in _modules():
            with open(path, "rb") as file:
                archive.writestr(zipfile.ZipInfo(name + ".py"), file.read(), zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(name + ".pyc"), _byte_code(name, path), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _modules() -> Iterator[tuple[str, str]]:
    """Yield every module that travels, as its path in the bundle without suffix and its file."""
    top = os.path.dirname(os.path.abspath(mpilaunch.__file__))
    yield "mpilaunch/__init__", os.path.join(top, "__init__.py")
    for package in ("wire", "daemon"):
        for entry in sorted(os.listdir(os.path.join(top, package))):
            if entry.endswith(".py"):
                yield f"mpilaunch/{package}/{entry[:-3]}", os.path.join(top, package, entry)


def _byte_code(name: str, path: str) -> bytes:
    import importlib.machinery
    import importlib.util
    import marshal

    # The loader takes the byte code that the installation has cached, and compiles only where there is none.
    code = importlib.machinery.SourceFileLoader(name, path).get_code(name)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + marshal.dumps(code)
