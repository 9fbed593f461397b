"""Files as a tar archive on stdin."""

from __future__ import annotations

import os
import resource
import socket
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from mpilaunch.cli.archives import stdin as archive
from mpilaunch.errors import UsageError

pytestmark = pytest.mark.usefixtures("stdin_given_back")


def taken(*paths: Path | str) -> dict[str, tarfile.TarInfo]:
    """Take files as stdin, and return what is read there, by name."""
    archive.take_as_stdin(list(map(str, paths)))
    with open(os.dup(0), "rb") as file, tarfile.open(fileobj=file, mode="r|") as read:
        return {member.name: member for member in read}


def test_files_are_named_by_the_last_part_of_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "file").write_text("text")
    (folder / "file").chmod(0o640)
    (folder / "link").symlink_to("/no/such")
    (tmp_path / "named").symlink_to(folder / "file")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    monkeypatch.chdir(folder)
    found = taken("file", f"{folder}/", tmp_path / "named", ".", "../b")
    assert list(found) == ["file", "b", "b/file", "b/link", "named"]
    assert found["file"].mode == 0o640 and found["file"].uid == found["file"].gid == 0 and not found["file"].uname
    assert found["b/link"].issym() and found["b/link"].linkname == "/no/such"
    assert found["named"].isreg() and found["named"].size == 4, "what the user named is followed"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["/no/such/file"], "/no/such/file: no such file or directory"),
        (["/dev/null"], "/dev/null is neither a file nor a directory"),
        (["/"], "/ has no name"),
        (["/etc/hosts", "loop"], "loop: too many levels of symbolic links"),
        (["/proc/self/environ/x"], "/proc/self/environ/x: not a directory"),
    ],
)
def test_what_cannot_be_read_is_refused(
    paths: Sequence[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError) as caught:
        taken(*paths)
    assert caught.value.reference == "stdin-archive" and message in caught.value.message


def test_an_archive_that_cannot_be_kept_is_reported(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(1 << 20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(UsageError) as caught:
            taken(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the archive cannot be kept: file too large" in caught.value.message
