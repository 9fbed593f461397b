"""The bundle: the modules that the head sends to a node, and the line that runs them there.

It contains `mpilaunch.wire` and `mpilaunch.daemon` as data: the head never imports the daemon. Packing takes tenths of a
second, so a bundle is kept in the user's cache until a source changes; without a cache, each launch packs its own.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

import mpilaunch
from mpilaunch.agent import CHECK_PYTHON
from mpilaunch.head.nodes import cache

NO_BUNDLE = "mpilaunch: the bundle broke off"
"""What BOOT says when stdin ends too early: most agents that lose it never had it."""

BUNDLE_SILENCE = 60
"""Seconds without a byte of the bundle after which a node waits for no more."""

BOOT = (
    "import os,sys\n"
    + CHECK_PYTHON
    + "import zlib,_signal as alarm\n"
    # A connection that dies while the bundle is on its way leaves nobody who waits for the rest.
    "alarm.signal(alarm.SIGALRM,alarm.SIG_DFL)\n"
    "left=int(sys.argv[1]);unpack=zlib.decompressobj()\n"
    "try:bundle=os.memfd_create('mpilaunch')\n"
    # Python was built for a C library without it, glibc before 2.27.
    "except AttributeError:import tempfile;bundle=os.dup(tempfile.TemporaryFile().fileno())\n"
    "while left:\n"
    f" alarm.alarm({BUNDLE_SILENCE})\n"
    " data=os.read(0,min(left,65536))\n"
    f" if not data:sys.exit({NO_BUNDLE!r})\n"
    " os.write(bundle,unpack.decompress(data));left-=len(data)\n"
    "sys.path.insert(0,'/proc/self/fd/%d'%bundle)\n"
    "from mpilaunch.daemon.main import main\n"
    "main()"
)
"""Run by `python3 -I -S -B -c`, with the bundle's length as argument, STANDBY behind it or not, and the bundle on stdin."""

LOCAL_BOOT = "import sys;sys.path.append(sys.argv[1]);from mpilaunch.daemon.main import main;main()"
"""The same without a bundle; our folder goes behind the standard library, whose names others there may bear too."""

LOCAL = "local"
"""The agent of this machine: there the daemon runs from the files that are installed, and nothing is sent."""


def boot_command(python: str, bundle: bytes) -> list[str]:
    """Return the argument list that starts the daemon; the caller sends `bundle` on its stdin."""
    return [python, "-I", "-S", "-B", "-c", BOOT, str(len(bundle))]


def local_command() -> list[str]:
    """Return the argument list that starts the daemon on the head's own machine, from the files that are there."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(mpilaunch.__file__)))
    return [sys.executable, "-I", "-S", "-c", LOCAL_BOOT, folder]


@lru_cache(None)
def load() -> bytes:
    """Return the bundle: that of an earlier launch while its sources are the same, else a new one."""
    import hashlib  # a launch on this machine has no bundle

    top = os.path.dirname(os.path.abspath(mpilaunch.__file__))
    files = _travelling(top)
    # Contents, not times: an image that is rebuilt may have new sources with the times of the old ones.
    sources = hashlib.blake2b(f"{mpilaunch.__version__}\0{sys.version}\0{top}".encode("utf-8", "surrogateescape"))
    for name in (*files, "head/nodes/bundle.py", "head/nodes/pack.py"):
        with open(os.path.join(top, name), "rb") as file:
            sources.update(name.encode() + b"\0" + hashlib.blake2b(file.read()).digest())
    place = hashlib.blake2b(top.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    kept = f"bundle-{sys.implementation.cache_tag}-{place}"
    packed = cache.read(kept, sources.digest())
    if packed is None:
        from mpilaunch.head.nodes.pack import pack  # few launches come here

        packed = pack(("mpilaunch/" + name, os.path.join(top, name)) for name in files)
        cache.write(kept, sources.digest(), packed)
    return packed


def _travelling(top: str) -> list[str]:
    """Return the files of the modules that travel, relative to our package: the folders wire/ and daemon/, whole."""
    files = [
        os.path.relpath(os.path.join(folder, name), top)
        for root in ("wire", "daemon")
        for folder, _, names in os.walk(os.path.join(top, root))
        for name in names
        if name.endswith(".py")
    ]
    return ["__init__.py", *sorted(files)]
