"""Finds the interpreter in a process: in a library or in the program, by the symbols that CPython exports.

This reads files that a process has mapped, in its own view of the file system, so it can block where a file server does.
"""

from __future__ import annotations

import os

from mpilaunch.daemon.node.elf import ElfError, read_elf
from mpilaunch.daemon.observe.python.layout import DESCRIPTION_BYTES, LAYOUTS, described
from mpilaunch.daemon.observe.python.memory import Unreadable
from mpilaunch.daemon.observe.workers import program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpilaunch.daemon.node.elf import Elf
    from mpilaunch.daemon.observe.python.layout import Layout
    from mpilaunch.daemon.observe.python.memory import Memory

RUNTIME, CODE_TYPE, VERSION = b"_PyRuntime", b"PyCode_Type", b"Py_Version"
_SYMBOLS = frozenset((RUNTIME, CODE_TYPE, VERSION))
LARGEST_MAP = 4 << 20
"""Bytes of /proc/PID/maps that are read."""
MOST_FILES = 16
"""Files of which the symbols are kept: the ranks of a node mostly run one interpreter."""
_kept: dict[tuple[int, int, int, int], Elf] = {}


class Runtime:
    """An interpreter.

    Attributes:
        version: (major, minor).
        layout: of its structures.
        state: the address of its state.
        code_type: the address of the type of code objects, by which they are known.
    """

    def __init__(self, version: tuple[int, int], layout: Layout, state: int, code_type: int) -> None:
        self.version, self.layout, self.state, self.code_type = version, layout, state, code_type


def find_runtime(pid: int, memory: Memory) -> Runtime:
    """Return the interpreter of a process; raises Unreadable where it has none, or one that is not known."""
    program = program_of(pid)
    for path, start in _mapped(pid, program):
        file = "/proc/%d/exe" % pid if path == program else "/proc/%d/root%s" % (pid, path)
        elf = _elf(file)
        if elf is None or not {RUNTIME, CODE_TYPE} <= elf.symbols.keys():
            continue
        bias = start - elf.start
        places = {name: bias + value for name, value in elf.symbols.items()}
        if VERSION in places:
            number = memory.word(places[VERSION])
            version = number >> 24 & 255, number >> 16 & 255
        else:
            version = version_in(os.path.basename(path))
        layout = LAYOUTS.get(version)
        if layout is None and version > max(LAYOUTS):
            layout = described(memory.read(places[RUNTIME], DESCRIPTION_BYTES))
        if layout is None:
            raise Unreadable("Python %d.%d is not known" % version)
        return Runtime(version, layout, places[RUNTIME], places[CODE_TYPE])
    raise Unreadable("no interpreter of Python")


def _mapped(pid: int, program: str) -> list[tuple[str, int]]:
    """Return the files that may have the interpreter, with the addresses at which their first bytes are; libraries first."""
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            rows = file.read(LARGEST_MAP).splitlines()
    except OSError as error:
        raise Unreadable(str(error)) from None
    found: dict[str, int] = {}
    for row in rows:
        # address-address permissions offset device inode path
        fields = row.split(None, 5)
        if len(fields) == 6 and fields[2].strip(b"0") == b"":
            path = os.fsdecode(fields[5])
            if path == program or version_in(os.path.basename(path)) != (0, 0):
                found.setdefault(path, int(fields[0].partition(b"-")[0], 16))
    return sorted(found.items(), key=lambda item: item[0] == program)


def version_in(name: str) -> tuple[int, int]:
    """Return the version in the name of an interpreter or of its library, such as libpython3.9.so.1.0; (0, 0) without one."""
    stem, _, rest = name.partition(".so")
    minor = stem.partition("python3.")[2]
    is_one = stem in ("python3." + minor, "libpython3." + minor) and not rest.strip(".0123456789")
    return (3, int(minor)) if is_one and minor.isdigit() and len(minor) < 4 else (0, 0)


def _elf(path: str) -> Elf | None:
    try:
        status = os.stat(path)
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if key not in _kept:
            if len(_kept) >= MOST_FILES:
                _kept.clear()
            _kept[key] = read_elf(os.fsencode(path), symbols=_SYMBOLS)
        return _kept[key]
    except (OSError, ElfError):
        return None
