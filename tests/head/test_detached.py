"""What is kept of a detached job: records, files that are limited, and the directory."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.head.detached import place, segments
from mpilaunch.head.detached.logout import is_ended
from mpilaunch.head.detached.records import HEAD, NO_RANK, BrokenRecord, Decoder, Record, encode, whole

RECORDS = [Record(1, 0, b"a\n"), Record(2, NO_RANK, b""), Record(1, 4_000_000, b"x" * 70_000), Record(2, 3, bytes(range(256)))]


def encoded(records: list[Record]) -> bytes:
    return b"".join(encode(*record) for record in records)


def test_records_come_in_pieces_of_any_size() -> None:
    data, chance = encoded(RECORDS * 3), random.Random(1)
    decoder, found, begin = Decoder(), list[Record](), 0
    while begin < len(data):
        size = chance.choice([1, 5, 9, 1000, 100_000])
        found += decoder.feed(data[begin : begin + size])
        begin += size
    assert found == RECORDS * 3
    assert whole(data) == len(data) and whole(data[:-1]) == len(data) - len(encode(*RECORDS[-1])) and whole(b"\1") == 0


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(BrokenRecord):
        Decoder().feed(encode(1, 0, b"x") + HEAD.pack(7, 0, 0))


@contextmanager
def directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def texts(kept: Iterator[list[Record]]) -> list[bytes]:
    return [record.text for records in kept for record in records]


def test_the_oldest_output_is_dropped_with_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LARGEST", 1000)
    with directory(tmp_path) as opened:
        writer = segments.SegmentWriter(opened)
        lines = [b"line %04d\n" % number for number in range(2000)]
        dropped = list[bool]()
        for index, line in enumerate(lines):
            data = encode(1, 0, line)
            writer.write_pieces(data[:7])
            writer.write_pieces(data[7:])
            if index == 50:
                assert texts(segments.read(opened, None, lambda: dropped.append(True))) == lines[:51] and not dropped
        kept = texts(segments.read(opened, None, lambda: dropped.append(True)))
        assert dropped == [True] and kept == lines[-len(kept) :] and len(kept) > 400
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1000 * segments.MOST
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.iterdir())
        assert texts(segments.read(opened, None, lambda: None, new=True))[-1] == lines[-1]


def test_new_output_is_followed_through_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LARGEST", 100)
    monkeypatch.setattr(segments, "LOOK", 0.0)
    with directory(tmp_path) as opened:
        writer, left = segments.SegmentWriter(opened), [b"%d" % number * 20 for number in range(9)]
        expected = list(left)

        def ended() -> bool:
            if left:
                writer.write(encode(1, 0, left.pop(0)))
            return not left

        assert texts(segments.read(opened, ended, lambda: None)) == expected


def test_output_continues_whole_once_a_full_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LARGEST", 300)
    lines = [encode(1, 0, b"line %d %s" % (number, b"x" * 80)) for number in range(9)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with directory(tmp_path) as opened:
        writer = segments.SegmentWriter(opened)
        writer.write(lines[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
        try:
            for _ in range(3):
                with pytest.raises(OSError, match="File too large"):
                    writer.write(lines[1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.write(lines[2])
        writer.write(lines[3])
        with monkeypatch.context() as full:
            full.setattr(os, "open", Mock(side_effect=OSError(errno.ENOSPC, "full")))
            for _ in range(3):
                with pytest.raises(OSError, match="full"):
                    writer.write(lines[4])
        for line in lines[5:]:
            writer.write(line)
        kept = texts(segments.read(opened, None, lambda: pytest.fail("none was dropped")))
    assert [text.split()[1] for text in kept] == [b"0", b"2", b"3", b"5", b"6", b"7", b"8"]


def test_words_of_mpilaunch_come_between_records_and_not_into_them(tmp_path: Path) -> None:
    with directory(tmp_path) as opened:
        writer, record = segments.SegmentWriter(opened), encode(1, 0, b"of a rank\n")
        writer.write_pieces(record + record[:12])
        writer.write(encode(2, NO_RANK, b"note\n"))
        writer.write_pieces(record[12:] + record[:5])  # and then it is killed
        assert texts(segments.read(opened, None, lambda: None)) == [b"of a rank\n", b"note\n", b"of a rank\n"]


ABOUT: dict[str, Any] = {"id": "1a2b3c4d5e6f7081", "name": "n", "program": ["p"], "ranks": 1, "nodes": ["a"], "began": 1.0}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def keep(run_id: str, name: str = "", ended: float | None = None, **end: Any) -> Path:
    about = {**ABOUT, "id": run_id, "name": name, "began": (ended or time.time()) - 60}
    with place.new(about) as (folder, opened):
        if ended is not None:
            place.write(opened, place.END, {"exit_code": 3, "signal": None, "ended": ended, "lost": "", **end})
    return Path(folder)


def test_a_job_is_found_by_its_name_or_id_and_the_last_one_counts(state: Path) -> None:
    now = time.time()
    keep("1a00000000000000", "night", now - 30)
    keep("1b00000000000000", "night", now - 10)
    keep("1b10000000000000", "", now - 20, signal=9)
    found = [job and job.run_id[:3] for job in map(place.find, ("night", "1a", "1b1", "1b", "x", ""))]
    assert found == ["1b0", "1a0", "1b1", None, None, None]
    assert [(job.how, job.seconds) for job in place.all_kept()][1:] == [("killed by signal 9", 60.0), ("exit code 3", 60.0)]


def test_a_job_is_removed_a_day_after_its_end_and_not_while_it_runs(state: Path) -> None:
    long_ago = time.time() - place.KEPT_SECONDS - 100
    old, lost, recent, running = (keep(f"{number}" * 16) for number in range(4))
    for folder, end in ((old, long_ago), (recent, time.time() - 5)):
        (folder / place.END).write_text(json.dumps({"exit_code": 0, "signal": None, "ended": end, "lost": ""}))
        (folder / place.END).chmod(0o600)
    for folder in (lost, running):
        (folder / place.JOB).write_text(json.dumps({**ABOUT, "id": folder.name, "began": long_ago}))
    with directory(running) as opened:
        lock = place.hold(opened)
        assert [(job.run_id[0], job.runs) for job in place.all_kept()] == [("3", True), ("2", False)]
        os.close(lock)
    assert [folder.exists() for folder in (old, lost, recent, running)] == [False, False, True, True]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id": 1}', "[" * 100_000, json.dumps({**ABOUT, "nodes": [1]})])
def test_what_is_no_job_is_passed_over(state: Path, text: str) -> None:
    folder = keep("1a00000000000000")
    (folder / place.JOB).write_text(text)
    assert place.read(str(folder)) is None and place.all_kept() == []


def test_a_job_that_does_not_start_leaves_no_place(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpilaunch.head.detached import keeper

    monkeypatch.setattr(keeper, "outline", lambda job: {**ABOUT, "id": "a" * 16})
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no")))
    with pytest.raises(LaunchError) as raised:
        keeper.detach(None, lambda: False)  # type: ignore[arg-type]
    assert raised.value.reference == "start-process-limit" and place.all_kept() == []
    signal.pthread_sigmask(signal.SIG_UNBLOCK, keeper.RELAYED)


def test_a_place_that_others_may_enter_is_refused(state: Path) -> None:
    folder = keep("1a00000000000000")
    folder.chmod(0o750)
    assert place.read(str(folder)) is None
    with pytest.raises(UsageError) as raised:
        keep("1a00000000000000")
    assert raised.value.reference == "detach-place"


def test_a_user_without_a_home_has_no_such_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id that nobody knows
    assert place.all_kept() == [] and place.find("night") is None
    with pytest.raises(UsageError, match="this user has no home directory"):
        keep("1a00000000000000")


SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"


@pytest.mark.parametrize(
    ("cgroup", "configs", "ends"),
    [
        (SESSION, ["[Login]\n#KillUserProcesses=yes\n"], False),
        (SESSION, ["[Login]\nKillUserProcesses=no\n", "[Login]\n KillUserProcesses = yes\n"], True),
        (SESSION, ["KillUserProcesses=yes\n", "KillUserProcesses=no\n"], False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n", ["KillUserProcesses=yes\n"], False),
        ("", ["KillUserProcesses=yes"], False),
    ],
)
def test_what_systemd_ends_at_logout(cgroup: str, configs: list[str], ends: bool) -> None:
    assert is_ended(cgroup, configs) is ends
