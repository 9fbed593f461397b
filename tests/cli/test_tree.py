"""Tar archives of hosts, honest and hostile, as files of this machine."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpilaunch.cli.archives.tree import BROKEN, Tree

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size, info.mtime = kind, link, mode, len(data), 1_000_000_000
    return info, data


def archive_of(*entries: Entry, kind: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def unpack(data: bytes, place: Path, suffix: str = ".host") -> str:
    """Unpack and move, as for one host; return why not all came, or ""."""
    place.mkdir(exist_ok=True)
    tree = Tree(tempfile.mkdtemp(prefix="private", dir=place.parent))
    tree.unpack(io.BytesIO(data))
    tree.move(str(place), suffix)
    return "\n".join(tree.faults)


def seen(place: Path) -> dict[str, str]:
    """Return each path below a place with its content or, after an arrow, where it leads."""
    found = {}
    for path in sorted(place.rglob("*")):
        text = f"-> {os.readlink(path)}" if path.is_symlink() else "" if path.is_dir() else path.read_bytes().decode("latin-1")
        found[str(path.relative_to(place))] = text
    return found


def test_an_archive_of_tar_comes_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "data" / "empty").mkdir(parents=True)
    (source / "data" / ("long" * 60)).write_text("long")
    (source / "data" / "run").write_bytes(bytes(range(256)) * 5000)
    (source / "data" / "run").chmod(0o4750)
    (source / "data" / "again").hardlink_to(source / "data" / "run")
    (source / "data" / "link").symlink_to("../" * 60 + "no/such")
    os.link(source / "data" / "link", source / "data" / "same link", follow_symlinks=False)
    (source / "data" / "empty").chmod(0o555)
    os.utime(source / "data", (5, 1_000_000_000))
    done = subprocess.run(["tar", "-C", source, "-c", "data", "data/link", "data/run"], capture_output=True, check=True)
    assert unpack(done.stdout, tmp_path / "to") == ""
    came = tmp_path / "to" / "data.host"
    assert seen(came) == seen(source / "data")
    assert stat.S_IMODE((came / "run").stat().st_mode) == 0o750, "no set-user-ID bit"
    assert stat.S_IMODE((came / "empty").stat().st_mode) == 0o555
    assert came.stat().st_mtime == 1_000_000_000
    assert (came / "again").samefile(came / "run")


def test_what_comes_again_joins_what_is_there(tmp_path: Path) -> None:
    place = tmp_path / "to"
    assert unpack(archive_of(entry("d/a", b"1"), entry("d/b", b"1"), entry("f", b"1")), place) == ""
    assert unpack(archive_of(entry("d/b", b"2"), entry("d/c/e", b"2"), entry("f", b"2")), place) == ""
    assert seen(place) == {
        "d.host": "", "d.host/a": "1", "d.host/b": "2", "d.host/c": "", "d.host/c/e": "2", "f.host": "2"
    }  # fmt: skip
    assert "is a directory" in unpack(archive_of(entry("d", b"file")), place)


def test_directories_without_an_entry_have_the_modes_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert unpack(archive_of(entry("a/b/c", b"1", mode=0o666)), tmp_path / "to") == ""
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in (tmp_path / "to").rglob("*")}
    assert modes == {"a.host": "0o750", "b": "0o750", "c": "0o664"}, "others may write to nothing"
    (tmp_path / "to" / "a.host").chmod(0o700)
    assert unpack(archive_of(entry("a/b/c", b"2"), entry("a/b", kind=tarfile.DIRTYPE, mode=0o707)), tmp_path / "to") == ""
    assert (tmp_path / "to" / "a.host").stat().st_mode & 0o777 == 0o700, "what is there stays as private as it is"
    assert (tmp_path / "to" / "a.host" / "b").stat().st_mode & 0o777 == 0o705


def test_what_cannot_be_moved_keeps_nothing_else_back(tmp_path: Path) -> None:
    (tmp_path / "to" / "b.host").mkdir(parents=True)
    long = "l" * 253
    reasons = unpack(archive_of(*(entry(name, b"1") for name in ("a", "b", "c/d", long))), tmp_path / "to")
    assert sorted(reasons.splitlines()) == ["b.host: is a directory", f"{long}.host: file name too long"]
    assert seen(tmp_path / "to") == {"a.host": "1", "b.host": "", "c.host": "", "c.host/d": "1"}
    assert (tmp_path / "to" / "c.host").stat().st_mode & 0o700 == 0o700


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Give a directory that any user may reach and write to, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_directory_that_nobody_may_write_to_is_joined(open_to_all: Path) -> None:
    """Done as another user: root may write everywhere."""
    tmp_path, folder = open_to_all, entry("d", kind=tarfile.DIRTYPE, mode=0o555)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            reasons = [unpack(archive_of(folder, entry("d/f", data)), tmp_path / "to") for data in (b"1", b"2")]
            (tmp_path / "reasons").write_text("".join(reasons))
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "reasons").read_text() == ""
    assert seen(tmp_path / "to") == {"d.host": "", "d.host/f": "2"}
    assert (tmp_path / "to" / "d.host").stat().st_mode & 0o777 == 0o555


def test_a_file_that_cannot_be_written_whole_replaces_nothing(tmp_path: Path) -> None:
    """At a limit on the size of files, the kernel first writes a part."""
    place = tmp_path / "to"
    assert unpack(archive_of(entry("f", b"good")), place) == ""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, before[1]))
    try:
        reason = unpack(archive_of(entry("f", b"x" * 3_000_000), entry("later", b"1")), place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "file too large" in reason
    assert seen(place) == {"f.host": "good", "later.host": "1"}


def test_an_interrupt_in_the_middle_of_a_file_removes_it(tmp_path: Path) -> None:
    class Interrupted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 1_000_000:
                raise KeyboardInterrupt
            return super().read(size)

    with pytest.raises(KeyboardInterrupt):
        Tree(str(tmp_path)).unpack(Interrupted(archive_of(entry("f", b"x" * 3_000_000))))
    assert seen(tmp_path) == {}


def test_a_conflict_in_a_joined_directory_is_the_only_loss(tmp_path: Path) -> None:
    (tmp_path / "to" / "d.host" / "f5").mkdir(parents=True)
    files = [entry(f"d/f{number}", b"1") for number in range(10)]
    assert unpack(archive_of(*files, entry("d/sub/f", b"1")), tmp_path / "to") == "d.host/f5: is a directory"
    assert len(seen(tmp_path / "to")) == 13


def test_members_that_cannot_be_made_keep_none_of_the_others_back(tmp_path: Path) -> None:
    members = [
        entry("a", b"1"), entry("l1", kind=tarfile.SYMTYPE, link="to"), entry("l2", kind=tarfile.SYMTYPE, link="x" * 5000),
        entry("l3", kind=tarfile.SYMTYPE, link="to"), entry("h", kind=tarfile.LNKTYPE, link="elsewhere"),
        entry("a/under", b"1"), entry("late", b"1"), entry("broken", b"1"), entry("broken", kind=BROKEN), entry("z", b"1"),
    ]  # fmt: skip
    members[6][0].mtime = 1 << 62
    assert unpack(archive_of(*members), tmp_path / "to").splitlines() == [
        "h: no such file or directory",
        "a/under: not a directory",
        "broken: it could not be read to its end",
        "l2: file name too long",
    ]
    assert [*seen(tmp_path / "to")] == ["a.host", "l1.host", "l3.host", "late.host", "z.host"]


def test_many_directories_take_time_by_their_number(tmp_path: Path) -> None:
    """The square of it would take minutes."""
    count = 10_000
    began = time.monotonic()
    assert unpack(archive_of(*(entry(f"{number}", kind=tarfile.DIRTYPE) for number in range(count))), tmp_path / "to") == ""
    assert time.monotonic() - began < 30 and len(os.listdir(tmp_path / "to")) == count


def test_a_joined_directory_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (tmp_path / "to" / "d.host").mkdir(parents=True)
    (tmp_path / "to" / "d.host" / "sub").symlink_to(victim)
    assert unpack(archive_of(entry("d/sub/new", b"bad")), tmp_path / "to") == "d.host/sub: not a directory"
    assert seen(victim) == {} and victim.stat().st_mode & 0o777 == 0o700


def through_a_link(outside: Path) -> bytes:
    link = entry("d/out", kind=tarfile.SYMTYPE, link=str(outside))
    return archive_of(link, entry("d/out/new", b"bad"))


def over_a_link(outside: Path) -> bytes:
    return archive_of(entry("out", kind=tarfile.SYMTYPE, link=str(outside / "file")), entry("out", b"bad"))


def hard_link_through_a_link(outside: Path) -> bytes:
    link = entry("d", kind=tarfile.SYMTYPE, link=str(outside))
    return archive_of(link, entry("file", kind=tarfile.LNKTYPE, link="d/file"), entry("file", b"bad"))


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "through a link": through_a_link,
    "over a link": over_a_link,
    "a hard link through a link": hard_link_through_a_link,
    "a hard link elsewhere": lambda outside: archive_of(entry("x", kind=tarfile.LNKTYPE, link=str(outside / "file"))),
    "a hard link upwards": lambda outside: archive_of(entry("x", kind=tarfile.LNKTYPE, link="../outside/file")),
    "upwards": lambda outside: archive_of(entry("../outside/new", b"bad")),
    "upwards in the middle": lambda outside: archive_of(entry("d/../../outside/new", b"bad")),
    "absolute": lambda outside: archive_of(entry(f"{outside}/new", b"bad")),
    "a directory over a link": lambda outside: archive_of(
        entry("d", kind=tarfile.SYMTYPE, link=str(outside)), entry("d", kind=tarfile.DIRTYPE), entry("d/new", b"bad")
    ),
    "a link to a link": lambda outside: archive_of(
        entry("d", kind=tarfile.SYMTYPE, link=str(outside)), entry("e", kind=tarfile.LNKTYPE, link="d"), entry("e/new", b"bad")
    ),
    "a device": lambda outside: archive_of(entry("null", kind=tarfile.CHRTYPE)),
    "a FIFO": lambda outside: archive_of(entry("fifo", kind=tarfile.FIFOTYPE)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_archive_reaches_beyond_its_directory(tmp_path: Path, case: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    place = tmp_path / "to"
    unpack(HOSTILE[case](outside), place)
    assert seen(outside) == {"file": "kept"}
    assert (outside / "file").stat().st_nlink == 1
    for path in place.rglob("*"):
        assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path


def test_a_link_of_another_is_replaced_and_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "to"
    place.mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "folder").mkdir()
    (place / "f.host").symlink_to(tmp_path / "precious")
    (place / "d.host").symlink_to(tmp_path / "folder")
    assert unpack(archive_of(entry("f", b"new")), place) == ""
    assert "not a directory" in unpack(archive_of(entry("d/f", b"new")), place)
    assert ((tmp_path / "precious").read_text(), (place / "f.host").read_text()) == ("kept", "new")
    assert seen(tmp_path / "folder") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own a directory as another user")
def test_a_directory_of_another_user_is_not_joined(tmp_path: Path) -> None:
    (tmp_path / "to" / "d.host").mkdir(parents=True)
    os.chown(tmp_path / "to" / "d.host", 65534, 65534)
    assert "it belongs to another user" in unpack(archive_of(entry("d/f", b"new")), tmp_path / "to")
    assert seen(tmp_path / "to") == {"d.host": ""}


WHOLE = archive_of(entry("a", b"x" * 600), entry("b", b"y" * 5000))


@pytest.mark.parametrize("length", [0, 100, 512, 1000, 1536, 2047, 2048, 5000, 7168])
def test_what_came_whole_of_a_cut_archive_is_kept(tmp_path: Path, length: int) -> None:
    assert unpack(WHOLE[:length], tmp_path / "to") != ""
    assert seen(tmp_path / "to") == ({"a.host": "x" * 600} if length >= 1112 else {}) | (
        {"b.host": "y" * 5000} if length >= 7048 else {}
    )


def sparse() -> bytes:
    info, _ = entry("holes", kind=tarfile.GNUTYPE_SPARSE)
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def of_size(number: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return the header of an entry whose size is these 12 bytes."""
    header = bytearray(entry("x", kind=kind)[0].tobuf(tarfile.GNU_FORMAT))
    header[124:136] = number
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello\n", "stdout is no tar archive"),
        (b"hello\n" * 1000, "stdout is no tar archive"),
        (WHOLE[:1536] + b"?" * 512, "the archive is damaged"),
        (archive_of(entry("\xe9" * 200, b"1"), kind=tarfile.PAX_FORMAT), "use tar --format=gnu"),
        (sparse(), "leave out tar's option --sparse"),
        (archive_of(entry("a/" * 1500 + "f", b"1")), "a path has 1501 parts: more than 100 are not taken"),
        (of_size(b"\xff" * 11 + b"\x00"), "a size that cannot be"),
        (of_size(b"\x80" + b"\0" * 3 + b"\xff" * 8), "the archive ends within it"),
        (of_size(b"00000400000\0", tarfile.GNUTYPE_LONGNAME), "a size that cannot be"),
    ],
    ids=["short text", "long text", "damaged", "pax", "sparse", "deep", "negative", "huge", "long name"],
)
def test_an_archive_that_cannot_be_read_is_refused_with_a_reason(tmp_path: Path, data: bytes, message: str) -> None:
    assert message in unpack(data, tmp_path / "to")


def test_random_damage_never_reaches_beyond_and_always_ends(tmp_path: Path) -> None:
    choose = random.Random(1)
    whole = archive_of(
        entry("d", kind=tarfile.DIRTYPE, mode=0o755), entry("d/" + "n" * 150, b"1" * 700),
        entry("d/s", kind=tarfile.SYMTYPE, link="../.."), entry("d/h", kind=tarfile.LNKTYPE, link="d/" + "n" * 150),
    )  # fmt: skip
    place = tmp_path / "in" / "to"
    place.parent.mkdir()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(choose.randrange(1, 4)):
            start = choose.randrange(len(data) // 512) * 512
            data[start + choose.randrange(512)] = choose.randrange(256)
            header = data[start : start + 512]
            header[148:156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(header)  # or else the checksum alone would refuse it
        unpack(bytes(data), place)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert {path.name[:7] for path in place.parent.iterdir()} <= {"to", "private"}


def test_data_of_entries_that_are_left_out_is_passed_over(tmp_path: Path) -> None:
    dumped, contiguous = entry("dumped", archive_of(entry("bad", b"bad"))[:1024], b"V"), entry("c", b"1", tarfile.CONTTYPE)
    assert unpack(archive_of(dumped, contiguous, entry("f", b"1")), tmp_path / "to") == ""
    assert seen(tmp_path / "to") == {"c.host": "1", "f.host": "1"}
