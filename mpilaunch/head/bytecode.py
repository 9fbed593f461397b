"""The byte code of what a launch loads, in one file: to find a hundred modules one by one takes longer than to run them.

The file has modules of the standard library and of ours, where Python itself found them in launches before. As with Python's
own `.pyc` files (PEP 3147), a module is taken from there as long as its source has the size and the time of change that it
had; all others are found as ever, and are in the file the next time. `PYTHONDONTWRITEBYTECODE` keeps it from being written.

It begins with the key of its name in `cache`, and the length of the table: see `Place`. What the table tells of follows.
"""

from __future__ import annotations

import marshal
import os
import sys

from mpilaunch.head import cache

TYPE_CHECKING = False  # `typing` is put off; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    State = tuple[int, int]
    """Of a source: the time of its last change in nanoseconds, and its size in bytes."""
    Place = tuple[str, str, bool, State, int, int]
    """Of a module: origin, `.pyc` file, whether it is a package, state of its source, offset of its code, its length."""
else:
    ModuleSpec = type(sys.__spec__)


def _state(origin: str) -> State:
    try:
        found = os.stat(origin)
    except OSError:
        return 0, -1
    return found.st_mtime_ns, found.st_size


LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGES = ("mpilaunch", "mpilaunch_agents")
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = f"code-{sys.implementation.cache_tag}-{_state(os.__file__)[0]:x}{FOLDER.replace(os.sep, '-')[-150:]}"
"""Machines that share a home may have Pythons that were installed one after the other."""
KEY = f"1 {sys.version} {sys.flags.optimize} {LIBRARY} {FOLDER}\n".encode("utf-8", "surrogateescape")
"""The first number is that of the format."""
LENGTH = 8


class KeptModules:
    """A finder and loader of modules (PEP 451) that were kept."""

    def __init__(self) -> None:
        self.file = -1
        self.places: dict[str, Place] = {}
        self.begin = 0

    def read(self, file: int) -> None:
        """Take what is kept from a file that is open, which stays open."""
        start = len(KEY) + LENGTH
        try:
            length = min(os.fstat(file).st_size, int.from_bytes(os.pread(file, LENGTH, len(KEY)), "big"))
            places = marshal.loads(os.pread(file, length, start))
            self.file = file
            self.places, self.begin = places, start + length
        except (OSError, ValueError, EOFError, TypeError):
            os.close(file)  # somebody has cut it off: `keep` makes it anew

    def code(self, name: str) -> bytes | None:
        """Return what `marshal` has made of the code of a module, None when it is not there any more."""
        *_, begin, size = self.places[name]
        try:
            found = os.pread(self.file, size, self.begin + begin)
        except OSError:
            return None
        # Whoever closes all that is open closes our file too, and the next one to be opened has its number.
        head = name.encode() + b"\0"
        return found[len(head) :] if len(found) == size and found.startswith(head) else None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load a module, None when it is for others to find."""
        if name not in self.places:
            return None
        origin, cached, is_package, state, _, _ = self.places[name]
        try:
            code = marshal.loads(self.code(name) or b"") if _state(origin) == state else None
        except (ValueError, EOFError, TypeError):
            code = None
        if code is None:
            del self.places[name]
            return None
        spec = ModuleSpec(name, self, origin=origin, loader_state=code, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        spec.cached = cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(origin))
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of a module."""
        spec = module.__spec__
        assert spec is not None
        code, spec.loader_state = spec.loader_state, None
        exec(code, vars(module))


_KEPT = KeptModules()


def use() -> None:
    """From now on, load what was kept from there; do it before anything else is loaded."""
    file = cache.opened(NAME, KEY)
    if file is not None:
        _KEPT.read(file)
    sys.meta_path.insert(0, _KEPT)


def keep() -> None:
    """Keep what has been loaded by now and was not there, for the next launch."""
    if _KEPT not in sys.meta_path or sys.dont_write_bytecode or not cache.is_there():
        return
    new = {name: found for name, module in list(sys.modules.items()) if (found := _look_at(name, module)) is not None}
    if not new:
        return
    for name, place in _KEPT.places.items():
        code = _KEPT.code(name)
        if code is not None:
            new[name] = (*place[:4], code)
    places, codes, begin = {}, [], 0
    for name, (origin, cached, is_package, state, code) in new.items():
        codes.append(name.encode() + b"\0" + code)
        places[name] = origin, cached, is_package, state, begin, len(codes[-1])
        begin += len(codes[-1])
    table = marshal.dumps(places)
    cache.write(NAME, KEY, len(table).to_bytes(LENGTH, "big") + table + b"".join(codes))


def _look_at(name: str, module: ModuleType) -> tuple[str, str, bool, State, bytes] | None:
    """Return what is to be kept of a module, None when it is there, another's, or has no byte code of its own."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or ""
    of_python = origin.startswith(LIBRARY) and "-packages" not in origin
    if spec is None or name in _KEPT.places or not origin.endswith(".py"):
        return None
    if not of_python and name.partition(".")[0] not in PACKAGES:
        return None
    state = _state(origin)  # before its code: what changes meanwhile is found out next time
    try:
        code = spec.loader.get_code(name)
    except (AttributeError, ImportError, OSError, SyntaxError):
        return None
    return origin, spec.cached or "", spec.submodule_search_locations is not None, state, marshal.dumps(code)
