"""The bundle: its content, its cache, and the command that runs it on a node."""

from __future__ import annotations

import ast
import base64
import importlib.util
import io
import marshal
import os
import py_compile
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import mpilaunch
from mpilaunch.agent import UNPACK
from mpilaunch.head.nodes import bundle, cache, pack

TOP = Path(str(mpilaunch.__file__)).parent
TRAVELS = [TOP / "__init__.py", *TOP.glob("wire/**/*.py"), *TOP.glob("daemon/**/*.py")]
PACKERS = [Path(str(module.__file__)) for module in (bundle, pack)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    forget()


def forget() -> None:
    """Clear the in-process cache, as in a new launch."""
    bundle.load.cache_clear()


def unzipped(packed: bytes) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return byte code and source."""
    first = zlib.decompressobj()
    archives = []
    for data in (first.decompress(packed), zlib.decompress(first.unused_data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.testzip() is None
            archives.append({name: archive.read(name) for name in archive.namelist()})
    return archives[0], archives[1]


# Content


def test_wire_and_daemon_travel_and_nothing_else() -> None:
    sources = {path.relative_to(TOP.parent).as_posix() for path in TRAVELS}
    byte_code, source = unzipped(bundle.load())
    assert source.keys() == sources and byte_code.keys() == {f"{name}c" for name in sources}


def test_the_byte_code_is_of_this_python_and_is_used_without_a_look_at_the_source() -> None:
    for name, data in unzipped(bundle.load())[0].items():
        assert data[:4] == importlib.util.MAGIC_NUMBER
        assert data[4:8] == b"\1\0\0\0"  # PEP 552: a hash that is not compared
        assert marshal.loads(data[16:]).co_filename == name[:-1]


@pytest.mark.parametrize("python", [bundle.BYTE_CODE, "cpython-38", ""])
def test_a_node_takes_the_byte_code_and_another_python_the_source(python: str) -> None:
    boot = bundle.BOOT.replace(f"=={bundle.BYTE_CODE!r}", f"=={python!r}")
    boot = boot.replace("\nmain()", "\nimport mpilaunch.daemon.start\nprint(mpilaunch.daemon.start.__file__)")
    command = [sys.executable, "-I", "-S", "-B", "-c", boot]
    sent = bundle.load()
    done = subprocess.run([*command, str(len(sent))], input=sent, capture_output=True, timeout=20, check=True)
    assert done.stdout.endswith(b"/daemon/start.pyc\n" if python == bundle.BYTE_CODE else b"/daemon/start.py\n")


def test_the_same_files_give_the_same_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    first = bundle.load()
    forget()
    monkeypatch.setattr(cache, "read", lambda name, key: None)
    assert bundle.load() == first


def test_it_is_small() -> None:
    # It goes to every node, through connections that may be slow.
    assert len(bundle.load()) < 316_000


# Parts that are left out


class Unread(ast.NodeTransformer):
    """Removes from a syntax tree what the packer removes, to compare both trees."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return ast.Pass()
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return ast.Pass()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
        elif isinstance(node, ast.AnnAssign):
            return ast.Assign([node.target], node.value) if node.value is not None else ast.Pass()
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        return node


@pytest.mark.parametrize("path", TRAVELS, ids=lambda path: str(path.stem))
def test_nothing_is_left_out_that_runs_and_every_line_keeps_its_number(path: Path) -> None:
    source = path.read_bytes()
    stripped = pack.strip(source)
    assert ast.dump(ast.parse(stripped)) == ast.dump(Unread().visit(ast.parse(source)))
    before, after = source.split(b"\n"), stripped.split(b"\n")
    assert len(before) == len(after)
    assert all(new.strip() in (old.strip(), b"", b"pass", b"''") or b":" in old for old, new in zip(before, after, strict=True))


def test_contents_left_out_of_the_bundle() -> None:
    source = """'''What this is.'''
from __future__ import annotations
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
SIZE: int = 4  # bytes
'''Of what.'''


def über(a: dict[str, list[int]], *rest: bytes, b: int | None = None) -> tuple[
    int, int
]:
    # A comment.
    x: int
    text = '''
'''
    return a["#"], b
"""
    assert pack.strip(source.encode()).decode().split("\n") == [
        *("''", "pass", "import os", "", "TYPE_CHECKING = False", "pass", "", "SIZE = 4  # bytes", "''", "", ""),
        *("def über(a, *rest, b = None) :", "", "", "", "    pass", "    text = '''", "'''", '    return a["#"], b', ""),
    ]


def test_no_text_of_several_lines_has_one_that_looks_like_a_comment() -> None:
    for path in TRAVELS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno != node.lineno:
                assert not any(line.lstrip().startswith("#") for line in node.value.splitlines()), path


# The cache


def kept() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"]).glob("mpilaunch/*"))


@pytest.mark.parametrize(("unwritten", "prefix"), [(False, None), (True, None), (False, "/nowhere")])
def test_byte_code_is_what_an_import_would_write_and_is_never_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten: bool, prefix: str | None
) -> None:
    source = tmp_path / "module.py"
    source.write_bytes(b"def f():\n    return 1\n")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    written = py_compile.compile(str(source), str(tmp_path / "c"), "wire/a.py", doraise=True, invalidation_mode=mode)
    assert written is not None
    monkeypatch.setattr(sys, "dont_write_bytecode", unwritten)
    monkeypatch.setattr(sys, "pycache_prefix", prefix)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    made = pack.compiled({"wire/a.py": source.read_bytes()})["wire/a.pyc"]
    theirs = Path(written).read_bytes()
    assert (made[:8], made[16:]) == (theirs[:8], theirs[16:]) and sys.dont_write_bytecode == unwritten


def test_it_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = bundle.load()
    assert [path.stat().st_mode & 0o777 for path in kept()] == [0o600]
    assert kept()[0].parent.stat().st_mode & 0o777 == 0o700
    forget()
    monkeypatch.setattr(pack, "pack", lambda modules: pytest.fail("packed again"))
    assert bundle.load() == packed


def test_a_changed_source_is_packed_again_despite_equal_size_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in an image that is rebuilt with clamped times.
    for path in [*TRAVELS, *PACKERS]:
        copy = tmp_path / path.relative_to(TOP)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        os.utime(copy, (0, 0))
    monkeypatch.setattr(mpilaunch, "__file__", str(tmp_path / "__init__.py"))
    source = tmp_path / "daemon" / "poller.py"
    for value in (b"OLD", b"NEW"):
        source.write_bytes((TOP / "daemon" / "poller.py").read_bytes() + value + b" = 1\n")
        os.utime(source, (0, 0))
        forget()
        assert value + b" = 1" in unzipped(bundle.load())[1]["mpilaunch/daemon/poller.py"]
    assert len(kept()) == 1
    for packer in PACKERS:
        before = kept()[0].read_bytes()
        (tmp_path / packer.relative_to(TOP)).write_bytes(b"# another\n")
        forget()
        bundle.load()
        assert kept()[0].read_bytes() != before


def flip(position: int) -> Callable[[Path], object]:
    """Return a function that flips one bit of a file."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:50]),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.chmod(0o666),
        *map(flip, (0, 64, 128, 5000, -1)),
    ],
)
def test_a_damaged_or_public_cache_file_is_replaced(spoil: Callable[[Path], object]) -> None:
    packed = bundle.load()
    good = kept()[0].read_bytes()
    spoil(kept()[0])
    forget()
    assert bundle.load() == packed
    assert (kept()[0].read_bytes(), kept()[0].stat().st_mode & 0o777) == (good, 0o600)


def test_a_directory_that_others_may_write_is_not_used() -> None:
    place = Path(os.environ["XDG_CACHE_HOME"]) / "mpilaunch"
    cache.write("x", b"key", b"data")
    assert cache.read("x", b"key") == b"data"
    place.chmod(0o770)
    assert cache.read("x", b"key") is None
    cache.write("y", b"key", b"data")
    assert [path.name for path in place.iterdir()] == ["x"]


def test_without_a_cache_directory_nothing_is_cached_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place in (tmp_path / "no" / "such" / "place", file, Path("/proc/self")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        forget()
        assert len(bundle.load()) > 50_000


def test_the_cache_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As with sudo, which may leave HOME as it was.
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    bundle.load()
    assert list(tmp_path.iterdir()) == []


# The boot line


def test_what_travels_is_python_3_8() -> None:
    for path in (*TRAVELS, TOP.parent / "agents/mpilaunch_agents/callback/node.py"):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def test_the_boot_line_is_one_short_argument_without_anything_of_the_job() -> None:
    zipped = bundle.load()
    command = bundle.boot_command("/opt/python3", zipped)
    *python, packed, size = command
    assert python == ["/opt/python3", "-I", "-S", "-B", "-c", f"{UNPACK} # mpilaunch.daemon"] and size == str(len(zipped))
    assert zlib.decompress(base64.b64decode(packed)).decode() == bundle.BOOT
    assert len(packed) < 1000
    # Login shells, and agents that quote without looking, leave only these characters alone.
    assert re.fullmatch(r"[\w/+=.,:;()# -]+", " ".join(command), re.ASCII)


def test_the_boot_line_needs_no_more_than_its_bundle(tmp_path: Path) -> None:
    zipped = bundle.load()
    command = bundle.boot_command(sys.executable, zipped)
    done = subprocess.run(command, input=zipped, capture_output=True, cwd=tmp_path, env={}, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"\0mpilaunch-wire-1\0ML")


def test_the_local_command_names_the_files_that_are_here() -> None:
    command = bundle.local_command()
    assert command[0] == sys.executable and Path(command[-1]) / "mpilaunch" == TOP
