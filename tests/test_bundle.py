"""The bundle: what travels to a node, and the line that runs it there."""

from __future__ import annotations

import ast
import importlib.util
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import mpilaunch
from mpilaunch.head import bundle

TOP = Path(mpilaunch.__file__).parent
TRAVELS = [TOP / "__init__.py", *TOP.glob("wire/*.py"), *TOP.glob("daemon/*.py")]


def unzipped() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle.build())) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_wire_and_daemon_travel_and_nothing_else() -> None:
    expected = {path.relative_to(TOP.parent).as_posix(): path.read_bytes() for path in TRAVELS}
    files = unzipped()
    assert {name: data for name, data in files.items() if name.endswith(".py")} == expected
    assert {name for name in files if not name.endswith(".py")} == {f"{name}c" for name in expected}


def test_the_byte_code_is_of_this_python_and_is_used_without_a_look_at_the_source() -> None:
    for name, data in unzipped().items():
        if name.endswith(".pyc"):
            assert data[:4] == importlib.util.MAGIC_NUMBER
            assert data[4:16] == b"\1\0\0\0" + bytes(8)


def test_the_same_files_give_the_same_bundle() -> None:
    assert bundle.build() == bundle.build()


def test_it_is_small() -> None:
    # It goes to every node, through connections that may be slow.
    assert len(bundle.build()) < 120_000


def test_what_travels_is_python_3_8() -> None:
    for path in TRAVELS:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def test_the_boot_line_is_one_short_argument_without_anything_of_the_job() -> None:
    zipped = bundle.build()
    command = bundle.boot_command("/opt/python3", zipped)
    assert command == ["/opt/python3", "-I", "-S", "-B", "-c", bundle.BOOT, str(len(zipped))]
    assert bundle.BOOT.isascii() and len(bundle.BOOT) < 1000
    # Some agents put the command between single quotes of a remote shell without looking.
    assert '"' not in bundle.BOOT


def test_the_boot_line_needs_no_more_than_its_bundle(tmp_path: Path) -> None:
    zipped = bundle.build()
    command = bundle.boot_command(sys.executable, zipped)
    done = subprocess.run(command, input=zipped, capture_output=True, cwd=tmp_path, env={}, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"\0mpilaunch-wire-1\0ML")


def test_the_local_command_names_the_files_that_are_here() -> None:
    command = bundle.local_command()
    assert command[0] == sys.executable and Path(command[-1]) / "mpilaunch" == TOP
