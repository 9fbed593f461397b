"""The byte code of what a launch loads, in one file: to find a hundred modules one by one takes longer than to run them.

The file has modules of the standard library, of ours and of those that we need, where Python itself found them in launches
before. As with Python's own `.pyc` files (PEP 3147), a module is taken from there as long as its source has the size and the
time of change that it had and nothing of its name has come before it on the search path; all others are found as ever, and
are in the file the next time. `PYTHONDONTWRITEBYTECODE` keeps it from being written.

It begins with the key of its name in `cache`, and the length of the table: see `Place`. What the table tells of follows.
"""

from __future__ import annotations

import marshal
import os
import sys

import mpilaunch
from mpilaunch.head import cache

TYPE_CHECKING = False  # `typing` is put off; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from importlib.util import spec_from_file_location
    from types import CodeType, ModuleType

    State = tuple[int, int]
    """Of a source: the time of its last change in nanoseconds, and its size in bytes."""
    Place = tuple[str, str, bool, State, int, int]
    """Of a module: origin, `.pyc` file, whether it is a package, state of its source, offset of its code, its length."""
else:
    # What `importlib` gives out; to load that takes a millisecond.
    from _frozen_importlib_external import SourceFileLoader, spec_from_file_location

LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGES = ("mpilaunch", "mpilaunch_agents", "asyncssh", "cryptography", "click", "psutil", "rich", "yaml")
MOST_FILES = 8
"""Versions, installations and machines with a home in common for which byte code is kept at a time."""
FORMAT = 1
LENGTH = 8


def state_of(source: str) -> State:
    """Return the state of a source; a file that is not there has one too."""
    try:
        found = os.stat(source)
    except OSError:
        return 0, -1
    return found.st_mtime_ns, found.st_size


KEY = (
    f"{FORMAT} {mpilaunch.__version__} {mpilaunch.__file__} {sys.version} {sys.flags.optimize} {state_of(os.__file__)}\n"
).encode("utf-8", "surrogateescape")
PREFIX = "code-"
NAME = f"{PREFIX}{sys.implementation.cache_tag}-{int.from_bytes(KEY, 'big') % (2**61 - 1):x}"


class KeptLoader(SourceFileLoader):
    """Loads a module whose code is there already."""

    def __init__(self, name: str, origin: str, code: CodeType) -> None:
        super().__init__(name, origin)
        self._code: CodeType | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code, the first time without a look at any file."""
        code, self._code = self._code, None
        return code or super().get_code(fullname)


class KeptModules:
    """A finder (PEP 451) of modules that were kept."""

    def __init__(self) -> None:
        self.file = -1
        self.begin = 0
        self.places: dict[str, Place] = {}
        self._names: dict[str, set[str] | None] = {}

    def read(self, file: int) -> None:
        """Take what is kept from a file that is open, which stays open; one that came to harm is closed."""
        start = len(KEY) + LENGTH
        try:
            length = min(os.fstat(file).st_size, int.from_bytes(os.pread(file, LENGTH, len(KEY)), "big"))
            places = marshal.loads(os.pread(file, length, start))
        except (OSError, ValueError, EOFError, TypeError):
            places = None
        if isinstance(places, dict):
            self.file, self.begin, self.places = file, start + length, places
        else:
            os.close(file)

    def bytes_of(self, name: str) -> bytes:
        """Return what `marshal` has made of the code of a module; nothing when it is not there any more."""
        *_, begin, size = self.places[name]
        try:
            found = os.pread(self.file, size, self.begin + begin)
        except OSError:
            return b""
        # Whoever closes all that is open closes our file too, and the next one to be opened has its number.
        head = name.encode() + b"\0"
        return found[len(head) :] if len(found) == size and found.startswith(head) else b""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load a module, None when it is for others to find."""
        if name not in self.places:
            return None
        origin, cached, is_package, state, _, _ = self.places[name]
        folder = os.path.dirname(origin)
        if not self._is_first(name, os.path.dirname(folder) if is_package else folder, path):
            return None
        try:
            code = marshal.loads(self.bytes_of(name)) if state_of(origin) == state else None
        except (ValueError, EOFError, TypeError):
            code = None
        if code is None:
            del self.places[name]
            return None
        loader = KeptLoader(name, origin, code)
        spec = spec_from_file_location(name, origin, loader=loader, submodule_search_locations=[folder] if is_package else None)
        if spec is not None:
            spec.cached = cached  # Python would ask for it, and make it of the origin
        return spec

    def _is_first(self, name: str, folder: str, path: Sequence[str] | None) -> bool:
        """Say whether a search path leads to a folder, and to nothing of this name before."""
        for entry in sys.path if path is None else path:
            if entry == folder:
                return True
            names = self._names_in(entry)
            if names is None or name.rpartition(".")[2] in names:
                return False
        return False

    def _names_in(self, entry: str) -> set[str] | None:
        """Return what modules in a folder might be called, None when that cannot be told, as of a zip file."""
        if entry not in self._names:
            try:
                self._names[entry] = {name.partition(".")[0] for name in os.listdir(entry or ".")}
            except FileNotFoundError:
                self._names[entry] = set()
            except OSError:
                self._names[entry] = None
        return self._names[entry]


_KEPT = KeptModules()


def use() -> None:
    """From now on, load what was kept from there; do it before anything else is loaded."""
    file = cache.opened(NAME, KEY)
    if file is not None:
        _KEPT.read(file)
    sys.meta_path.insert(0, _KEPT)


def keep() -> None:
    """Keep what has been loaded by now and was not there, for the next launch."""
    if _KEPT not in sys.meta_path or sys.dont_write_bytecode or not cache.can_be_written():
        return
    modules = {name: found for name, module in list(sys.modules.items()) if (found := _look_at(name, module)) is not None}
    if not modules:
        return
    for name, (origin, cached, is_package, state, _, _) in _KEPT.places.items():
        if name not in modules and (code := _KEPT.bytes_of(name)):
            modules[name] = origin, cached, is_package, state, code
    places, codes, begin = {}, [], 0
    for name, (origin, cached, is_package, state, code) in modules.items():
        codes.append(name.encode() + b"\0" + code)
        places[name] = origin, cached, is_package, state, begin, len(codes[-1])
        begin += len(codes[-1])
    table = marshal.dumps(places)
    cache.write(NAME, KEY, len(table).to_bytes(LENGTH, "big") + table + b"".join(codes))
    cache.keep_newest(PREFIX, MOST_FILES)


def _look_at(name: str, module: ModuleType) -> tuple[str, str, bool, State, bytes] | None:
    """Return what is to be kept of a module, None when it is there, another's, or was not found by Python in a file."""
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    # `os.path` is `posixpath`, which is here too.
    if spec is None or spec.name != name or type(loader) is not SourceFileLoader:
        return None
    origin = loader.path
    if name in _KEPT.places and _KEPT.places[name][0] == origin:
        return None
    of_python = origin.startswith(LIBRARY) and "-packages" not in origin
    if not of_python and name.partition(".")[0] not in PACKAGES:
        return None
    state = state_of(origin)  # before its code: what changes meanwhile is found out next time
    try:
        code = marshal.dumps(loader.get_code(name))
    except (ImportError, OSError, SyntaxError):
        return None  # it has been taken away meanwhile
    return origin, spec.cached or "", spec.submodule_search_locations is not None, state, code
