"""The private directory of a job: made for this user alone, removed by descriptor, and never anything else with it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpilaunch.daemon import private_directory
from mpilaunch.daemon.private_directory import DIGITS, YOUNGEST_SWEPT, PrivateDirectory
from tests.support.cpu_time import cpu_seconds
from tests.support.paths import ROOT

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give the directory that others have their files in."""
    place = tmp_path / "place"
    place.mkdir()
    return place


def made(place: Path) -> PrivateDirectory:
    """Return a directory that has been made, with something in it."""
    directory = PrivateDirectory(str(place))
    directory.make()
    (Path(directory.path) / "inner" / "deeper").mkdir(parents=True)
    (Path(directory.path) / "inner" / "file").write_text("x")
    return directory


def abandoned(place: Path, age: float = 2 * YOUNGEST_SWEPT) -> Path:
    """Return a directory whose processes have died."""
    program = (
        "import sys, os\nfrom mpilaunch.daemon.private_directory import PrivateDirectory\n"
        "d = PrivateDirectory(sys.argv[1])\nd.make()\nopen(d.path + '/file', 'w').close()\nprint(d.path)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, place], cwd=ROOT, capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_it_is_this_users_alone_and_its_name_is_new(place: Path) -> None:
    directory = made(place)
    path = Path(directory.path)
    assert path.parent == place and len(path.name) == len("mpilaunch-") + DIGITS
    assert stat.S_IMODE(path.stat().st_mode) == 0o700 and path.stat().st_uid == os.geteuid()
    assert PrivateDirectory(str(place)).path != directory.path
    directory.make()  # a second time changes nothing
    directory.remove()
    directory.remove()
    assert list(place.iterdir()) == []


def test_it_is_made_again_for_another_helper(place: Path) -> None:
    directory = made(place)
    directory.remove()
    directory.make()
    assert Path(directory.path).is_dir()
    directory.remove()
    assert list(place.iterdir()) == []


def test_a_name_that_is_taken_is_not_used(place: Path) -> None:
    target = place / "target"
    target.mkdir()
    directory = PrivateDirectory(str(place))
    os.symlink(target, directory.path)
    with pytest.raises(FileExistsError):
        directory.make()
    directory.remove()
    directory.remove_abandoned()
    assert target.is_dir() and os.path.islink(directory.path)


# Whoever takes the name

TAKEN: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "directory": lambda path, victim: os.rename(victim, path),
    "empty": lambda path, victim: path.mkdir(),
}


@pytest.mark.parametrize("what", TAKEN)
@pytest.mark.parametrize("by", ["maker", "guard"])
def test_a_name_that_somebody_else_has_taken_is_left_alone(place: Path, what: str, by: str) -> None:
    directory = made(place)
    path = Path(directory.path)
    path.rename(place / "aside")
    victim = place / "victim"
    victim.mkdir(mode=0o755)
    (victim / "precious").write_text("x")
    TAKEN[what](path, victim)
    getattr(directory, "remove" if by == "maker" else "remove_abandoned")()
    assert os.path.lexists(path)
    assert [file for file in place.rglob("precious") if file.read_text() == "x"]
    # What was ours has been emptied by the one who holds it, wherever it is now.
    assert by == "guard" or list((place / "aside").iterdir()) == []


@pytest.mark.testbed
def test_what_belongs_to_another_user_is_left_alone(place: Path) -> None:
    directory = PrivateDirectory(str(place))
    path = Path(directory.path)
    path.mkdir(mode=0o700)
    (path / "file").write_text("x")
    os.chown(path, NOBODY, NOBODY)
    directory.remove_abandoned()
    assert (path / "file").exists()


def test_links_inside_are_removed_and_not_followed(place: Path) -> None:
    victim = place / "victim"
    victim.mkdir()
    (victim / "precious").write_text("x")
    directory = made(place)
    (Path(directory.path) / "inner" / "link").symlink_to(victim)
    (Path(directory.path) / "link").symlink_to(victim)
    (Path(directory.path) / "dangling").symlink_to("/nowhere")
    os.mkfifo(Path(directory.path) / "inner" / "fifo")
    directory.remove()
    assert list(place.iterdir()) == [victim] and (victim / "precious").exists()


def test_a_tree_of_any_depth_is_removed(place: Path) -> None:
    directory = made(place)
    folder = os.open(directory.path, os.O_RDONLY)
    for _ in range(3000):  # a path of 6000 bytes, and more levels than descriptors
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    directory.remove()
    assert list(place.iterdir()) == []


def test_a_removal_ends_though_somebody_keeps_writing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_directory, "REMOVE_SECONDS", 0.5)
    directory = made(place)
    writer = "import os, sys\nos.chdir(sys.argv[1])\nn = 0\nwhile True:\n n += 1\n open(str(n), 'w').close()\n"
    with subprocess.Popen([sys.executable, "-c", writer, directory.path], stderr=subprocess.DEVNULL) as process:
        began = time.monotonic()
        directory.remove()
        assert time.monotonic() - began < 10
        process.kill()


def test_it_goes_with_its_last_entry(place: Path) -> None:
    directory = PrivateDirectory(str(place))
    for name in ("first", "second"):
        path = Path(directory.reserve(name))
        assert path == Path(directory.path, name) and not path.exists()
    (path / "inner").mkdir(mode=0o700, parents=True)
    path.chmod(0o700)
    Path(directory.path, "first").write_text("x")
    directory.release("first")
    assert list(Path(directory.path).iterdir()) == [path]
    directory.release("second")
    assert list(place.iterdir()) == []
    directory.release("second")


def test_an_entry_that_was_exchanged_is_removed_and_not_followed(place: Path) -> None:
    victim = place / "victim"
    victim.mkdir()
    (victim / "precious").write_text("x")
    directory = PrivateDirectory(str(place))
    Path(directory.reserve("entry")).symlink_to(victim)
    directory.release("entry")
    assert list(place.iterdir()) == [victim] and (victim / "precious").exists()


# The sweep


def test_what_dead_jobs_left_is_swept(place: Path) -> None:
    dead = abandoned(place)
    directory = PrivateDirectory(str(place))
    directory.sweep()
    assert not dead.exists()
    directory.sweep()


def test_a_directory_whose_removal_was_broken_off_is_swept(place: Path) -> None:
    dead = abandoned(place)
    for moved in ("moved-1-1", f"moved-{os.getpid()}-1", f"moved-{os.getpid()}-2"):  # the sweeper may have the same process id
        (dead / moved / "inner" / "deeper").mkdir(parents=True)
        (dead / moved / "file").write_text("x")
    os.utime(dead, (time.time() - 2 * YOUNGEST_SWEPT,) * 2)
    PrivateDirectory(str(place)).sweep()
    assert not dead.exists()


@pytest.mark.testbed
def test_a_sweep_leaves_what_is_in_use_and_what_is_not_ours(place: Path) -> None:
    living = made(place)
    old = time.time() - 2 * YOUNGEST_SWEPT
    left = [Path(living.path), abandoned(place, age=0)]
    for name, mode, owner in (
        ("mpilaunch-" + "0" * DIGITS, 0o700, NOBODY),
        ("mpilaunch-" + "1" * DIGITS, 0o755, 0),
        ("mpilaunch-" + "2" * 16, 0o700, 0),  # a release that took no lock
        ("mpilaunch-" + "g" * DIGITS, 0o700, 0),
        ("other-" + "3" * DIGITS, 0o700, 0),
    ):
        left.append(place / name)
        left[-1].mkdir(mode=mode)
        left[-1].chmod(mode)
        os.chown(left[-1], owner, owner)
    victim = place / "victim"
    victim.mkdir(mode=0o700)
    link = place / ("mpilaunch-" + "4" * DIGITS)
    link.symlink_to(victim)
    file = place / ("mpilaunch-" + "5" * DIGITS)
    file.write_text("x")
    left += [victim, link, file]
    for path in left:
        if path != left[1]:
            os.utime(path, (old, old), follow_symlinks=False)
    PrivateDirectory(str(place)).sweep()
    assert sorted(place.iterdir()) == sorted(left)
    living.remove()


def test_a_directory_lives_as_long_as_one_process_that_was_forked_off(place: Path) -> None:
    directory = made(place)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.close(directory.descriptor)  # as when the daemon is killed, and its helper is not yet
    os.utime(directory.path, (time.time() - 2 * YOUNGEST_SWEPT,) * 2)
    PrivateDirectory(str(place)).sweep()
    assert Path(directory.path).is_dir()
    os.close(writing)
    os.waitpid(child, 0)
    PrivateDirectory(str(place)).sweep()
    assert list(place.iterdir()) == []


def test_a_sweep_leaves_a_directory_that_its_maker_may_be_about_to_lock(place: Path) -> None:
    young = abandoned(place, age=YOUNGEST_SWEPT / 2)
    PrivateDirectory(str(place)).sweep()
    assert young.is_dir()


def test_a_sweep_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_directory, "MOST_SWEPT", 2)
    for _ in range(3):
        abandoned(place)
    PrivateDirectory(str(place)).sweep()
    assert len(list(place.iterdir())) == 1


@pytest.mark.testbed
def test_directories_of_others_cost_a_sweep_little(place: Path) -> None:
    old = time.time() - 2 * YOUNGEST_SWEPT
    for number in range(19_000):
        path = place / f"mpilaunch-{number:0{DIGITS}}"
        path.mkdir(mode=0o700)
        os.chown(path, NOBODY, NOBODY)
        os.utime(path, (old, old))
    assert min(cpu_seconds(lambda: PrivateDirectory(str(place)).sweep()) for _ in range(3)) < 0.1


def test_each_directory_has_its_turn_in_a_sweep(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_directory, "MOST_EXAMINED", 10)
    for number in range(20):
        (place / f"mpilaunch-{number:0{DIGITS}}").mkdir(mode=0o755)
    dead = abandoned(place)
    for _ in range(100):  # one in two finds it
        PrivateDirectory(str(place)).sweep()
    assert not dead.exists() and len(list(place.iterdir())) == 20


def test_without_locks_nothing_is_swept_and_the_guard_still_removes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int) -> None:
        raise OSError(37, "No locks available")

    dead = abandoned(place)
    monkeypatch.setattr(private_directory, "_lock", no_locks)
    directory = made(place)
    directory.sweep()
    assert dead.exists()
    directory.remove_abandoned()
    assert list(place.iterdir()) == [dead]


# Where it stands


@pytest.mark.testbed
def test_it_stands_in_a_private_runtime_directory_else_where_temporary_files_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, temporary = Path(f"/tmp/r{os.getpid()}"), tmp_path / "temporary"
    runtime.mkdir(mode=0o700)
    temporary.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", str(temporary))

    def parent() -> Path:
        return Path(PrivateDirectory().path).parent

    try:
        assert parent() == runtime
        runtime.chmod(0o755)
        assert parent() == temporary
        runtime.chmod(0o700)
        os.chown(runtime, NOBODY, NOBODY)
        assert parent() == temporary
    finally:
        runtime.rmdir()
    longer = tmp_path / ("long" * 10)
    longer.mkdir(mode=0o700)
    for elsewhere in ("", "relative", "/missing", str(longer)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", elsewhere)
        assert parent() == temporary
    temporary.chmod(0o777)  # others could rename what is in it
    assert parent() == Path("/tmp")
    temporary.chmod(0o1777)
    assert parent() == temporary
    os.chown(temporary, NOBODY, NOBODY)
    assert parent() == Path("/tmp")
    for elsewhere in ("", "relative", "/missing"):
        monkeypatch.setenv("TMPDIR", elsewhere)
        assert parent() == Path("/tmp")


def test_where_nothing_can_be_made_it_is_an_error_of_the_one_who_needs_it() -> None:
    directory = PrivateDirectory("/missing")
    with pytest.raises(FileNotFoundError):
        directory.make()
    directory.remove()
    directory.remove_abandoned()
    directory.sweep()
    directory.close()
    directory.close()
