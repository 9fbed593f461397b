"""The program that puts copied files into their places on a host, under every Python that a host may have."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from mpilaunch.cli.dialects.shells import remote
from tests.support.pythons import PYTHONS, each_python

MTIME = 1_000_000_000


@pytest.fixture(autouse=True)
def _umask() -> None:
    os.umask(0o022)


def received(folder: Path, python: str, target: Path | str, member: str = "", kept: str = "") -> tuple[int, str]:
    """Copy all that is in a directory, or its `member`; return exit code and stderr."""
    with open(folder.parent / "archive", "w+b") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path in [folder / member] if member else sorted(folder.iterdir()):
                archive.add(path, path.name)
        file.seek(0)
        return put(file.read(), python, target, member, kept)


def put(data: bytes, python: str, target: Path | str, member: str = "", kept: str = "") -> tuple[int, str]:
    _, (_, *words) = remote.copy([member or "a", *([] if member else ["b"])], str(target), preserve=bool(kept))
    done = subprocess.run([python, *words], input=data, capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode(errors="surrogateescape")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Give a directory that has a directory, which takes no further members, with a file, two names of one, and a link."""
    folder = tmp_path / "source"
    data = folder / "data"
    (data / "closed").mkdir(parents=True)
    (data / "closed" / "file").write_text("new")
    os.link(data / "closed" / "file", data / "same")
    (data / "link").symlink_to("closed/file")
    (data / "program").write_text("#!")
    (data / "program").chmod(0o6775)
    (data / "closed").chmod(0o555)
    for path in (data / "closed", data / "program", data):
        os.utime(path, (MTIME, MTIME))
    return folder


@each_python
def test_new_ones_have_modes_of_the_umask_or_are_as_here(python: str, source: Path, tmp_path: Path) -> None:
    new, kept = tmp_path / "new", tmp_path / "kept"
    assert received(source, python, new, "data") == (0, "")
    assert received(source, python, kept, "data", "p") == (0, "")
    for place, mode in ((new, 0o755), (kept, 0o6775)):
        assert stat.S_IMODE((place / "program").stat().st_mode) == mode
        assert stat.S_IMODE((place / "closed").stat().st_mode) == 0o555
        assert (place / "same").samefile(place / "closed" / "file") and os.readlink(place / "link") == "closed/file"
        old = {path.stat().st_mtime == MTIME for path in (place, place / "closed", place / "program")}
        assert old == {place == kept}
    assert received(source, python, new, "data") == (0, "")
    assert (new / "data" / "program").read_text() == "#!", "into a directory"


def test_what_is_there_stays_what_it_is(source: Path, tmp_path: Path) -> None:
    real, place = tmp_path / "real", tmp_path / "place"
    (real / "closed").mkdir(parents=True)
    real.chmod(0o2775)
    place.mkdir()
    (place / "data").symlink_to(real)
    (real / "program").write_text("a longer one")
    (real / "program").chmod(0o600)
    os.link(real / "program", real / "other")
    (real / "link").write_text("no link")
    os.mkfifo(real / "same")
    code, errors = received(source, next(iter(PYTHONS.values())), place)
    assert (code, errors) == (0, "")
    assert (place / "data").is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o2775
    assert (real / "other").read_text() == "#!" and stat.S_IMODE((real / "other").stat().st_mode) == 0o600
    assert (real / "link").is_symlink() and (real / "same").read_text() == "new"
    assert sorted(path.name for path in real.iterdir()) == ["closed", "link", "other", "program", "same"]


def test_a_device_is_written_to(source: Path) -> None:
    (source / "text").write_text("x" * 100_000)
    assert received(source, next(iter(PYTHONS.values())), "/dev/null", "text") == (0, "")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda place: (place / "data" / "program").mkdir(parents=True), "program: Is a directory"),
        (lambda place: (place / "data" / "link").mkdir(parents=True), "data/link: "),
        (lambda place: (place / "data").write_text(""), "data: File exists"),
        (lambda place: (place / "data").symlink_to("/no/such"), "data: File exists"),
    ],
    ids=["a directory for a file", "a directory for a link", "a file for a directory", "a broken link"],
)
def test_what_is_in_the_way_is_named(make: object, words: str, source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    make(place)  # type: ignore[operator]
    code, errors = received(source, next(iter(PYTHONS.values())), place)
    assert code == 1 and words in errors and str(place) in errors and "Traceback" not in errors


@pytest.mark.parametrize("size", [0, 100, 512, 1024, 9000])
def test_an_archive_that_breaks_off_is_no_success(size: int, source: Path, tmp_path: Path) -> None:
    (source / "large").write_bytes(bytes(20_000))
    with tarfile.open(tmp_path / "archive", "w") as archive:
        archive.add(source / "large", "large")
    code, errors = put((tmp_path / "archive").read_bytes()[:size], next(iter(PYTHONS.values())), tmp_path / "to", "large")
    assert code == 1 and "not come whole" in errors and "Traceback" not in errors


def test_several_need_a_directory(source: Path, tmp_path: Path) -> None:
    assert received(source, next(iter(PYTHONS.values())), tmp_path / "no") == (1, f"{tmp_path}/no: not a directory\n")
