"""The program that sends files of a host: what it sends, and what it reports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

import pytest

from mpilaunch.cli.archives.tree import BROKEN
from mpilaunch.cli.dialects.shells import sender

PROGRAM = Path(sender.__file__)
MTIME = 1_000_000_000


def send(*paths: Path | str, recursive: str = "r", mask: str = "") -> tuple[dict[str, tarfile.TarInfo], str, int]:
    """Return the members by name, stderr and the exit code."""
    words = [sys.executable, "-I", "-S", PROGRAM, recursive, mask, *paths]
    done = subprocess.run(words, capture_output=True, timeout=30, check=False)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        return {member.name: member for member in archive}, done.stderr.decode(), done.returncode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with a file of two names, a link, a directory, a FIFO and a socket."""
    made = tmp_path / "a" / "folder"
    (made / "sub").mkdir(parents=True)
    (made / "file").write_text("text")
    (made / "file").chmod(0o666)
    os.utime(made / "file", (MTIME, MTIME))
    (made / "again").hardlink_to(made / "file")
    (made / "link").symlink_to("no/such")
    os.mkfifo(made / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(made / "socket"))
    return made


def test_files_directories_and_links_are_sent_under_their_last_names(folder: Path) -> None:
    (folder.parent / "named").symlink_to(folder / "file")
    members, stderr, code = send(folder, folder.parent / "named")
    assert (stderr, code) == ("", 0)
    assert [*members] == ["folder", "folder/again", "folder/file", "folder/link", "folder/sub", "named"]
    assert members["folder/again"].isreg() and members["folder/again"].size == 4, "a second file, as with scp"
    assert members["named"].isreg() and members["folder/link"].linkname == "no/such"
    assert (members["folder/file"].mode, members["folder/file"].mtime) == (0o666, MTIME)
    assert {(member.uid, member.gid, member.uname) for member in members.values()} == {(0, 0, "")}


def test_a_mask_takes_bits_and_times(folder: Path) -> None:
    members, _, _ = send(folder / "file", mask="27")
    assert members["file"].mode == 0o640 and abs(members["file"].mtime - time.time()) < 60


def test_what_cannot_be_read_is_reported_and_the_rest_is_sent(folder: Path) -> None:
    members, stderr, code = send(folder / "no", folder, folder / "file", recursive="")
    assert [*members] == ["file"] and code == 1
    assert stderr == f"{folder}/no: No such file or directory\n{folder}: is a directory, which needs -r\n"


def test_a_file_that_becomes_shorter_is_filled_up(tmp_path: Path) -> None:
    """A reader of its first part lets the program send a file of which the rest is gone by then."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4_000_000)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, "", "", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(1000)
        file.write_bytes(b"")
        with tarfile.open(fileobj=BytesIO(first + process.stdout.read())) as archive:
            member, mark = archive
            assert (mark.name, mark.type) == ("file", BROKEN)
            sent = archive.extractfile(member)
            assert sent is not None
            data = sent.read()
        assert len(data) == 4_000_000 and data.startswith(b"x") and data.endswith(b"\0")
        assert process.stderr.read().decode() == f"{file}: became shorter while it was read\n"
    assert process.returncode == 1


def test_what_other_users_put_into_the_place_of_a_directory_is_not_waited_for(tmp_path: Path) -> None:
    """Between the look and the opening a FIFO takes the place of a directory, as another user may arrange it."""
    (tmp_path / "top" / "sub").mkdir(parents=True)
    code = f"""if True:
        import os, runpy, sys
        opening = os.open
        def swap(path, *rest, **more):
            if path == "sub":
                os.rmdir({str(tmp_path / "top" / "sub")!r})
                os.mkfifo({str(tmp_path / "top" / "sub")!r})
            return opening(path, *rest, **more)
        os.open = swap
        sys.argv = ["sender", "r", "", {str(tmp_path / "top")!r}]
        runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=False, timeout=30, check=False)
    assert done.returncode == 1 and done.stderr.decode() == f"{tmp_path}/top/sub: Not a directory\n"


def test_a_reader_that_has_gone_ends_it_without_a_traceback(folder: Path) -> None:
    script = f"{sys.executable} -I -S {PROGRAM} r '' {PROGRAM.parent.parent.parent} | head -c 100 >/dev/null"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_what_is_named_and_no_file_is_reported(folder: Path) -> None:
    members, stderr, code = send(folder / "fifo", "/dev/null", folder / "file")
    assert ([*members], code) == (["file"], 1)
    assert stderr == f"{folder}/fifo: is neither a file nor a directory\n/dev/null: is neither a file nor a directory\n"


def test_a_file_that_cannot_be_read_to_its_end_shifts_nothing() -> None:
    """The memory of a process is a file whose first byte cannot be read."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        whole = sender.Whole(memory)
        assert whole.read(1000) == bytes(1000) and whole.fault == "Input/output error"
        assert whole.read(10) == bytes(10)


def test_a_tree_that_is_too_deep_is_reported_and_the_rest_is_sent(tmp_path: Path) -> None:
    before = os.getcwd()
    (tmp_path / "deep").mkdir()
    os.chdir(tmp_path / "deep")
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    try:
        members, stderr, code = send(tmp_path / "deep", PROGRAM)
        assert "sender.py" in members and len(members) == sender.DEEPEST + 1 and code == 1
        assert stderr == f"{tmp_path}/deep{'/d' * sender.DEEPEST}: is in too many directories\n"
    finally:
        subprocess.run(["rm", "-r", tmp_path / "deep"], check=True)
