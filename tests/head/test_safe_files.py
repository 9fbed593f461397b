"""Files in directories shared with other users: no link or file of theirs is followed, written, awaited or adopted."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from mpilaunch.head import safe_files
from mpilaunch.head.checkpoints import find_newest_set, number_set
from tests.support.launching import Launched, launch, sh
from tests.support.second_user import OTHER, USER, as_user, shared_directory
from tests.support.system_calls import SystemCalls

STICKY, OPEN = 0o1777, 0o777


@pytest.fixture
def sticky() -> Iterator[Path]:
    with shared_directory(STICKY) as path:
        yield path


def foreign(path: Path, text: str = "theirs", mode: int = 0o666) -> Path:
    """Make a file of the second user."""
    path.write_text(text)
    os.chown(path, USER, USER)
    path.chmod(mode)
    return path


def refused(done: Launched, reference: str, *words: str) -> None:
    """Check that a launch ended before any rank ran."""
    assert (done.code, done.out) == (2, b""), done.words
    assert done.words.startswith(f"error[{reference}]: "), done.words
    for word in words:
        assert word in done.words


# The report


@pytest.mark.testbed
@pytest.mark.parametrize("mode", [STICKY, OPEN])
def test_a_report_takes_over_no_file_of_another_user(mode: int) -> None:
    with shared_directory(mode) as shared:
        trap = foreign(shared / "report.json", mode=0o4777)
        before = trap.stat()
        refused(launch("-np", "1", "--report", trap, "echo", "ran"), "report-file", f"--report {trap}: ", f"(uid {USER})")
        after = trap.stat()
        assert (after.st_ino, after.st_uid, after.st_mode, trap.read_text()) == (
            before.st_ino, USER, before.st_mode, "theirs",
        )  # fmt: skip
        assert [path.name for path in shared.iterdir()] == ["report.json"]


@pytest.mark.testbed
@pytest.mark.parametrize("mode", [STICKY, OPEN])
def test_a_report_follows_no_link_of_another_user(mode: int, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("ours")
    with shared_directory(mode) as shared:
        (shared / "report.json").symlink_to(precious)
        (shared / "logs").symlink_to(tmp_path)
        for name in ("report.json", "logs"):
            os.lchown(shared / name, USER, USER)
        for path in (shared / "report.json", shared / "logs" / "new.json"):
            refused(launch("-np", "1", "--report", path, "echo", "ran"), "report-file", "is a link that belongs to")
    assert precious.read_text() == "ours" and list(tmp_path.iterdir()) == [precious]


def test_a_report_in_a_directory_where_everybody_may_exchange_files_is_refused(tmp_path: Path) -> None:
    with shared_directory(OPEN) as shared:
        done = launch("-np", "1", "--report", shared / "report.json", "echo", "ran")
        refused(done, "report-file", "no sticky bit", "make a directory of your own")
        assert not list(shared.iterdir())
        (shared / "mine").mkdir(0o755)
        assert launch("-np", "1", "--report", shared / "mine" / "report.json", "true").code == 0


def test_a_report_in_a_sticky_directory_is_ours_and_of_plain_mode(sticky: Path) -> None:
    path = sticky / "report.json"
    for _ in range(2):
        assert launch("-np", "1", "--report", path, "true").code == 0
        status = path.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o644)
        assert json.loads(path.read_text())["verdict"]["cause"] == "ok"
        path.chmod(0o4777)  # not even of our own file is more than reading and writing kept
        path.chmod(0o644)
    path.chmod(0o4755)
    safe_files.write_file(str(path), b"{}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.testbed
def test_a_link_that_appears_while_the_job_runs_is_not_followed(sticky: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("ours")
    # The rank gives what it makes to the second user, as if he had put it there meanwhile.
    program = sh(f"ln -s {precious} {sticky}/report.json && chown -h {USER} {sticky}/report.json")
    done = launch("-np", "1", "--report", sticky / "report.json", *program)
    assert (done.code, precious.read_text()) == (1, "ours")
    assert "error[report-file]" in done.words and "is a link that belongs to" in done.words


def test_a_hard_link_to_a_file_of_ours_is_not_written(sticky: Path, tmp_path: Path) -> None:
    # Where the kernel lets him, another user makes a hard link to a file of ours.
    (sticky / "precious").write_text("ours")
    (sticky / "report.json").hardlink_to(sticky / "precious")
    refused(launch("-np", "1", "--report", sticky / "report.json", "true"), "report-file", "has 2 names (hard links)")
    refused(launch("-np", "1", "--output-file", sticky / "report.json", "true"), "output-directory", "has 2 names")
    assert (sticky / "precious").read_text() == "ours"


def test_a_report_goes_to_a_descriptor_of_ours() -> None:
    read, write = os.pipe()
    try:
        safe_files.check_file(f"/dev/fd/{write}")
        safe_files.write_file(f"/dev/fd/{write}", b"report")
        assert os.read(read, 100) == b"report"
        safe_files.write_file("/dev/null", b"report")
        one, other = socket.socketpair()  # the kernel opens no path of a socket
        with one, other:
            safe_files.write_file(f"/proc/self/fd/{one.fileno()}", b"report")
            assert other.recv(100) == b"report"
    finally:
        os.close(read)
        os.close(write)


def test_a_reader_who_stops_reading_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_files, "PATIENCE", 0.2)
    read, write = os.pipe()  # blocking, as what a shell makes
    try:
        with pytest.raises(TimeoutError, match="nobody has read it"):
            safe_files.write_file(f"/dev/fd/{write}", bytes(1 << 20))
    finally:
        os.close(read)
        os.close(write)


# The ranks' output


@pytest.mark.testbed
@pytest.mark.parametrize("mode", [STICKY, OPEN])
@pytest.mark.parametrize("option", ["--output-filename", "--output-file", "--error-file"])
@pytest.mark.parametrize("kind", ["file", "link", "pipe", "own pipe", "socket", "directory"])
def test_output_goes_into_nothing_that_stands_in_its_way(mode: int, option: str, kind: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("ours")
    with shared_directory(mode) as shared, contextlib.ExitStack() as stack:
        path = shared / "rank-0000.out"
        if kind == "file":
            foreign(path)
        elif kind == "link":
            path.symlink_to(precious)
        elif kind.endswith("pipe"):
            os.mkfifo(path)
        elif kind == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        else:
            path.mkdir()
        if not kind.startswith("own"):
            os.lchown(path, USER, USER)
        name = "" if option == "--output-filename" else "rank-000{rank}.out"
        done = launch("-np", "1", option, f"{shared}/{name}", "echo", "ran")
        refused(done, "output-directory", "rank-0000.out" if mode == STICKY else "")
        assert precious.read_text() == "ours"
        assert kind != "file" or path.read_text() == "theirs"


@pytest.mark.parametrize("option", ["--output-file", "--error-file"])
def test_no_host_name_leads_out_of_the_directory(option: str, tmp_path: Path) -> None:
    (tmp_path / "d" / "a").mkdir(parents=True)
    words = ("-np", "1", "-H", "a/../../x", "--agent", "{command}", option, f"{tmp_path}/d/{{host}}")
    refused(launch(*words, "echo", "ran"), "output-directory", "its name is no part of a file's name", "{node_rank}")
    assert not (tmp_path / "x").exists()


def test_output_in_shared_memory_is_output_in_a_directory() -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(f"/dev/shm/mpilaunch-test-{os.getpid()}")
        folder.mkdir()
        stack.callback(lambda: os.system(f"rm -rf {folder}"))
        (folder / "x.0").write_text("old and much longer\n")
        words = ("-np", "1", "--output-file", f"{folder}/x.{{rank}}", "--error-file", f"{folder}/new/e.{{rank}}")
        assert launch(*words, "--report", folder / "report.json", *sh("echo out; echo err >&2")).code == 0
        assert ((folder / "x.0").read_text(), (folder / "new" / "e.0").read_text()) == ("out\n", "err\n")
        assert json.loads((folder / "report.json").read_text())["verdict"]["cause"] == "ok"
        assert launch("-np", "1", "--output-filename", folder / "logs", "echo", "out").code == 0
        assert (folder / "logs" / "rank-0000.out").read_text() == "out\n"
        assert launch("-np", "2", "--output-file", folder / "all", "echo", "out").code == 0
        assert (folder / "all").read_text() == "out\nout\n"


def test_a_device_or_pipe_that_is_named_outright_is_written(tmp_path: Path) -> None:
    done = launch("-np", "2", "--output-file", "/dev/null", "--error-file", "/dev/stdout", *sh("echo out; echo err >&2"))
    assert (done.code, done.out) == (0, b"err\nerr\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused(launch("-np", "1", "--output-file", pipe, "echo", "out"), "output-directory", "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    keeper = os.open(pipe, os.O_RDWR)
    reader.start()
    try:
        assert launch("-np", "1", "--output-file", pipe, "echo", "out").code == 0
    finally:
        os.close(keeper)
        reader.join(20)
    assert got == [b"out\n"]
    mine = tmp_path / "mine"
    (tmp_path / "link").symlink_to(mine)
    assert launch("-np", "1", "--output-file", tmp_path / "link", "echo", "out").code == 0
    assert mine.read_text() == "out\n"


def write_output(path: str) -> None:
    """Open a rank's output file."""
    os.close(safe_files.open_output(path, append=False, named=False))


def write_report(path: str) -> None:
    """Write a report."""
    safe_files.write_file(path, b"{}")


def check_then_write(path: str) -> None:
    """Write a file as this project must not: the check and the use each follow the path."""
    if Path(path).parent.is_symlink():
        raise PermissionError(path)
    Path(path).write_text("")


def results_of_exchanges(write: Callable[[str], None], sticky: Path) -> tuple[set[str], list[str]]:
    """Exchange a directory for a link and back at each pair of system calls that `write` makes.

    Returns:
        The results of the calls, and the names of the files that reached the link's target.
    """
    victim = sticky / "victim"
    victim.mkdir()

    def owned(path: Path) -> None:
        os.chown(path, USER, USER, follow_symlinks=False)

    def run(state: int, steps: Collection[int]) -> tuple[str, int]:
        """Write while a directory passes from one state to the next at some system calls; return the result, their number."""
        theirs = Path(tempfile.mkdtemp(dir=sticky))
        logs, aside = theirs / "logs", theirs / "aside"

        def exchange() -> None:
            steps = (lambda: logs.rename(aside), lambda: logs.symlink_to(victim), logs.unlink, lambda: aside.rename(logs))
            if logs.is_dir() and aside.exists() and not logs.is_symlink():
                logs.rename(theirs / "made")  # by `write`, while there was none
            steps[state % 4]()
            if logs.is_symlink():
                owned(logs)

        def next_state() -> None:
            nonlocal state
            exchange()
            state += 1

        logs.mkdir()
        owned(theirs)
        owned(logs)
        first, state = state, 0
        for _ in range(first):
            next_state()
        result = "written"
        calls = SystemCalls(dict.fromkeys(steps, next_state))
        try:
            with calls:
                write(f"{logs}/rank-0000.out")
        except OSError as error:
            result = type(error).__name__
        return result, calls.count

    results = set()
    for state in range(4):
        most = run(state, ())[1]
        for pair in combinations_with_replacement(range(1, most + 1), 2):
            results.add(run(state, pair)[0])
    return results, sorted(path.name for path in victim.iterdir())


@pytest.mark.testbed
@pytest.mark.parametrize("write", [write_output, write_report])
def test_a_directory_exchanged_for_a_link_at_any_system_call_leads_nowhere(
    sticky: Path, write: Callable[[str], None]
) -> None:
    results, reached = results_of_exchanges(write, sticky)
    assert {"written", "UnsafePath"} <= results and not reached


@pytest.mark.testbed
def test_a_check_apart_from_its_use_is_caught_by_the_exchange(sticky: Path) -> None:
    results, reached = results_of_exchanges(check_then_write, sticky)
    assert "PermissionError" in results and reached == ["rank-0000.out"]


@pytest.mark.testbed
def test_another_user_than_root_is_protected_alike(sticky: Path) -> None:
    def attempt() -> str:
        results = []
        for name in ("theirs", "link", "roots", "roots-open", "mine"):
            try:
                safe_files.write_file(str(sticky / name), b"new")
                results.append("written")
            except OSError as error:
                results.append(str(error.strerror))
        return "\n".join(results)

    (sticky / "theirs").write_text("x")
    (sticky / "theirs").chmod(0o666)
    os.chown(sticky / "theirs", OTHER, OTHER)
    (sticky / "link").symlink_to(sticky / "mine")
    os.lchown(sticky / "link", OTHER, OTHER)
    (sticky / "roots").write_text("x")
    (sticky / "roots-open").write_text("longer than what is new")
    (sticky / "roots-open").chmod(0o666)
    theirs, link, roots, roots_open, mine = as_user(USER, attempt).splitlines()
    assert theirs == f"the file belongs to uid {OTHER}" and "is a link that belongs to" in link
    assert roots == "Permission denied"
    # Root is trusted; with fs.protected_regular=2 the kernel forbids O_CREAT only, and nothing is created here.
    assert (roots_open, (sticky / "roots-open").read_text()) == ("written", "new")
    assert mine == "written" and (sticky / "mine").stat().st_uid == USER


@pytest.mark.testbed
def test_a_user_namespace_without_root_has_its_stdout_still() -> None:
    # As in a rootless container: what is root's seems to be the overflow user's, /dev/stdout among it.
    read, write = os.pipe()

    def attempt() -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, without which /proc/self is root's
        if libc.unshare(0x10000000):  # CLONE_NEWUSER
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/uid_map").write_text(f"{OTHER} {OTHER} 1")
        os.dup2(write, 1)
        owners = (os.lstat("/dev/stdout").st_uid, os.geteuid())
        safe_files.check_file("/dev/stdout")
        safe_files.write_file("/dev/stdout", b"report")
        safe_files.write_file("/dev/null", b"report")
        return repr(owners)

    try:
        assert as_user(OTHER, attempt) == repr((65534, OTHER))
        assert os.read(read, 100) == b"report"
    finally:
        os.close(read)
        os.close(write)


# Checkpoints


@pytest.mark.testbed
def test_checkpoints_in_a_directory_of_everybody_are_refused(tmp_path: Path) -> None:
    with shared_directory(OPEN) as shared:
        refused(launch("-np", "1", "--checkpoint-prefix", shared, "echo", "ran"), "checkpoint-prefix", "no sticky bit")
        assert not list(shared.iterdir())
        (shared / "sets").symlink_to(tmp_path)
        os.lchown(shared / "sets", USER, USER)
        done = launch("-np", "1", "--checkpoint-prefix", shared / "sets", "echo", "ran")
        refused(done, "checkpoint-prefix", "is a link that belongs to")
    assert not list(tmp_path.iterdir())


def checkpoint_set(prefix: Path, name: str = "000001") -> Path:
    """Make a set, which has a mark."""
    (prefix / name).mkdir(parents=True)
    (prefix / name / "rank-0.saved").touch()
    return prefix / name


@pytest.mark.testbed
def test_ranks_are_given_no_set_of_another_user(sticky: Path) -> None:
    checkpoint_set(sticky)
    assert find_newest_set(str(sticky)) == f"{sticky}/000001"
    (sticky / "20240131").mkdir()  # no set, whose ever it is
    os.chown(sticky / "20240131", USER, USER)
    assert find_newest_set(str(sticky)) == f"{sticky}/000001"
    planted(sticky, "000002")
    done = launch("-np", "1", "--checkpoint-prefix", sticky, "echo", "ran")
    refused(done, "checkpoint-prefix", f"the set 000002 belongs to nobody (uid {USER})")


def planted(prefix: Path, name: str = "000001") -> Path:
    """Make a set of the second user, as closed as one of ours."""
    checkpoint_set(prefix, name).chmod(0o755)
    os.chown(prefix / name, USER, USER)
    return prefix


@pytest.mark.testbed
def test_a_planted_set_is_refused_however_it_came_there(sticky: Path, tmp_path: Path) -> None:
    below = planted(sticky / "below")
    os.chown(below, USER, USER)
    group = planted(tmp_path / "group")  # so does one look where an access control list admits the second user
    group.chmod(0o775)
    for prefix in (below, group):
        done = launch("-np", "1", "--checkpoint-prefix", prefix, "echo", "ran")
        refused(done, "checkpoint-prefix", f"the set 000001 belongs to nobody (uid {USER})", "hint: remove it if")


def test_a_set_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    checkpoint_set(tmp_path).chmod(STICKY)
    with pytest.raises(safe_files.UnsafePath, match="every user may write into the set 000001"):
        find_newest_set(str(tmp_path))


@pytest.mark.testbed
def test_no_link_of_another_user_and_no_open_parent_leads_to_a_set(sticky: Path, tmp_path: Path) -> None:
    checkpoint_set(tmp_path / "sets")
    (sticky / "sets").symlink_to(tmp_path / "sets")
    assert find_newest_set(str(sticky / "sets")) == f"{sticky}/sets/000001"
    os.lchown(sticky / "sets", USER, USER)
    with pytest.raises(safe_files.UnsafePath, match="is a link that belongs to"):
        find_newest_set(str(sticky / "sets"))
    (tmp_path / "sets" / "000002").symlink_to(tmp_path / "sets" / "000001")
    os.lchown(tmp_path / "sets" / "000002", USER, USER)
    with pytest.raises(safe_files.UnsafePath, match="'000002' is a link that belongs to"):
        find_newest_set(str(tmp_path / "sets"))
    with shared_directory(OPEN) as shared:
        checkpoint_set(shared / "sets")
        with pytest.raises(safe_files.UnsafePath, match="no sticky bit"):
            find_newest_set(str(shared / "sets"))


@pytest.mark.testbed
def test_sets_below_the_directory_of_another_user_or_group_are_used(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    checkpoint_set(scratch / "sets")
    for path in (scratch, scratch / "sets"):
        os.chown(path, USER, OTHER)
        path.chmod(0o2775)
    assert find_newest_set(str(scratch / "sets")) == f"{scratch}/sets/000001"
    assert find_newest_set(str(scratch / "none")) is None


@pytest.mark.testbed
def test_marks_are_removed_and_sets_are_numbered_through_no_link(sticky: Path, tmp_path: Path) -> None:
    theirs = sticky / "theirs"
    (theirs / "unfinished-1").mkdir(parents=True)
    prefix = sticky / "prefix"
    prefix.symlink_to(theirs)
    os.lchown(prefix, USER, USER)
    with pytest.raises(safe_files.UnsafePath):
        number_set(str(prefix), str(prefix / "unfinished-1"))
    assert [path.name for path in theirs.iterdir()] == ["unfinished-1"]


def test_a_umask_of_0_makes_no_public_directory(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        words = ("-np", "1", "--output-filename", tmp_path / "a" / "b", "--checkpoint-prefix", tmp_path / "c")
        assert launch(*words, "true").code == 0
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "c")] == [0o775] * 3
    assert stat.S_IMODE((tmp_path / "a" / "b" / "rank-0000.out").stat().st_mode) == 0o644


def test_an_interrupt_behind_the_close_of_a_directory_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close, calls = os.close, []

    def interrupted(descriptor: int) -> None:
        close(descriptor)
        calls.append(descriptor)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt), safe_files.directory(str(tmp_path)):
        pass
    assert len(set(calls)) == len(calls) == 2
