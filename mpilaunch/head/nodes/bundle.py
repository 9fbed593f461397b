"""The bundle: the modules that the head sends to a node, and the command that runs them there.

It contains `mpilaunch.wire` and `mpilaunch.daemon` as data: the head never imports the daemon. Packing takes tenths of a
second, so the bundle is cached until a source changes; without a cache, each launch packs its own.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

import mpilaunch
from mpilaunch.agent import CHECK_PYTHON, python_command

NO_BUNDLE = "mpilaunch: the bundle broke off"
"""Message of BOOT when stdin ends too early; usually the agent does not forward stdin at all."""

SPOILT = "mpilaunch: the bundle is not what was sent"
"""Message of BOOT when something has read from stdin before it: a script of the login shell."""

BUNDLE_SILENCE = 60
"""Seconds without a byte of the bundle after which a node gives up."""

BYTE_CODE = sys.implementation.cache_tag if sys.version_info.releaselevel == "final" else ""
"""The Python whose byte code is in the bundle; byte code changes between prereleases of a version, so they use the source."""

BOOT = (
    "import os,sys\n"
    + CHECK_PYTHON
    + "import zlib,_signal as alarm\n"
    # SIGALRM ends a node whose connection dies while the bundle is sent.
    "alarm.signal(alarm.SIGALRM,alarm.SIG_DFL)\n"
    "left=int(sys.argv[1]);unpack=zlib.decompressobj()\n"
    f"usable=sys.version_info[3]=='final' and sys.implementation.cache_tag=={BYTE_CODE!r}\n"
    "try:bundle=os.memfd_create('mpilaunch')\n"
    # Python has no memfd_create when it was built with glibc before 2.27.
    "except AttributeError:import tempfile;bundle=os.dup(tempfile.TemporaryFile().fileno())\n"
    "while left:\n"
    f" alarm.alarm({BUNDLE_SILENCE})\n"
    " data=os.read(0,min(left,65536))\n"
    f" if not data:sys.exit({NO_BUNDLE!r})\n"
    " left-=len(data)\n"
    " try:data=unpack.decompress(data)\n"
    f" except zlib.error:sys.exit({SPOILT!r})\n"
    " if usable:os.write(bundle,data)\n"
    "if not usable:os.write(bundle,zlib.decompress(unpack.unused_data))\n"
    "sys.path.insert(0,'/proc/self/fd/%d'%bundle)\n"
    "from mpilaunch.daemon.start import main\n"
    "main()"
)
"""Run by `python_command` with the bundle's length and optionally STANDBY as arguments, and the bundle on stdin."""

LOCAL_BOOT = "import sys;sys.path.append(sys.argv[1]);from mpilaunch.daemon.start import main;main()"
"""The same without a bundle. The folder is appended, so that other packages in it cannot hide the standard library."""
FORK_SERVER = "import sys;sys.path.append(sys.argv[1]);from mpilaunch.daemon.fork_server import serve;serve()"


def boot_command(python: str, bundle: bytes) -> list[str]:
    """Return the command that starts the daemon on a node; the caller sends `bundle` on its stdin."""
    return python_command(python, "mpilaunch.daemon", BOOT, str(len(bundle)))


def local_command(code: str = LOCAL_BOOT) -> list[str]:
    """Return the command that starts the daemon on this machine from the installed files, or with FORK_SERVER what forks it."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(mpilaunch.__file__)))
    return [sys.executable, "-I", "-S", "-c", code, folder]


@lru_cache(None)
def load() -> bytes:
    """Return the bundle, from the cache when it was made from the same sources."""
    import hashlib  # a local launch has no bundle

    from mpilaunch.head.nodes import cache

    top = os.path.dirname(os.path.abspath(mpilaunch.__file__))
    files = _travelling(top)
    # Contents, not modification times: a rebuilt container image may have new sources with old times.
    sources = hashlib.blake2b(f"{mpilaunch.__version__}\0{sys.version}\0{top}".encode("utf-8", "surrogateescape"))
    for name in (*files, "head/nodes/bundle.py", "head/nodes/pack.py"):
        with open(os.path.join(top, name), "rb") as file:
            sources.update(name.encode() + b"\0" + hashlib.blake2b(file.read()).digest())
    installation = hashlib.blake2b(top.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    cached_name = f"bundle-{sys.implementation.cache_tag}-{installation}"
    packed = cache.read(cached_name, sources.digest())
    if packed is None:
        from mpilaunch.head.nodes.pack import pack  # most launches use the cache

        packed = pack(("mpilaunch/" + name, os.path.join(top, name)) for name in files)
        cache.write(cached_name, sources.digest(), packed)
    return packed


def _travelling(top: str) -> list[str]:
    """Return the files that are sent to nodes, relative to the package: all of wire/ and daemon/."""
    files = [
        os.path.relpath(os.path.join(folder, name), top)
        for root in ("wire", "daemon")
        for folder, _, names in os.walk(os.path.join(top, root))
        for name in names
        if name.endswith(".py")
    ]
    return ["__init__.py", *sorted(files)]
