"""The bundle: what the head sends to a node, and the line that runs it there.

The bundle is made of `mpilaunch.wire`, `mpilaunch.daemon` and `mpilaunch.later` as data: the head never imports the daemon. It
has two parts: what every node needs to start, and what a node asks for when programs may need PMIx. Packing takes a tenth of a
second, so it is done once and kept in the user's cache; without one, each launch packs for itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache

import mpilaunch
from mpilaunch.agent import CHECK_PYTHON
from mpilaunch.head import cache

NO_BUNDLE = "mpilaunch: the bundle broke off"
"""What BOOT says when stdin ends too early: most agents that lose it never had it."""

FRONT = 8192
"""Bytes before the zip file, in which the byte code of `bundled` and the places of the modules have room."""

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
    "from _frozen_importlib_external import MAGIC_NUMBER\n"
    f"front=os.pread(bundle,{FRONT},0)\n"
    "if front[:4]==MAGIC_NUMBER:\n"
    " import marshal\n"
    " loader,places=marshal.loads(front[4:]);names={'__name__':''};exec(loader,names)\n"
    " sys.meta_path.insert(0,names['BundledModules'](bundle,places))\n"
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
def first_part() -> bytes:
    """Return the bundle, which every node gets: all but the second part."""
    return _part("first", lambda name: not _is_later(name), front=FRONT)


@lru_cache(None)
def second_part() -> bytes:
    """Return what a node asks for that serves PMIx, as one more archive."""
    return _part("second", _is_later, front=0)


def _is_later(name: str) -> bool:
    return name.startswith("pmix") and name != "pmix_search"


def _part(part: str, belongs: Callable[[str], bool], front: int) -> bytes:
    """Return the modules that belong to a part, packed; what was packed once is kept for the launches to come.

    `front` is as for `pack`.
    """
    top = os.path.dirname(os.path.abspath(mpilaunch.__file__))
    files = [name for name in _travelling(top) if belongs(os.path.basename(name)[:-3])]
    import binascii  # a launch on this machine has none

    # Valid as long as these are the files, and the same Python packs them in the same way.
    sizes = [(name, os.stat(os.path.join(top, name))) for name in (*files, "bundled.py", "head/bundle.py", "head/pack.py")]
    states = [(name, found.st_size, found.st_mtime_ns) for name, found in sizes]
    key = repr((mpilaunch.__version__, top, sys.hexversion, states)).encode() + b"\n"
    kept = f"{part}-{sys.implementation.cache_tag}-{binascii.crc32(top.encode()):08x}"
    packed = cache.read(kept, key)
    if packed is None:
        from mpilaunch.head.pack import pack  # few launches come here

        packed = pack((("mpilaunch/" + name, os.path.join(top, name)) for name in files), front)
        cache.write(kept, key, packed)
    return packed


def _travelling(top: str) -> list[str]:
    """Return the files of the modules that travel, relative to our package."""
    files = [f"{folder}/{name}" for folder in ("wire", "daemon") for name in sorted(os.listdir(os.path.join(top, folder)))]
    return ["__init__.py", "later.py", *(name for name in files if name.endswith(".py"))]
