"""The archives of several hosts: each by itself, and nothing is left of how they came."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from mpilaunch.cli.archives.stdout import Archives
from mpilaunch.errors import UsageError
from tests.support.jobs import job_of_slots

JOB = job_of_slots(1, 1, 1, ranks=3)


def archive_of(**files: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return file.getvalue()


def came(archives: Archives, *data: bytes) -> None:
    """Let these be the stdout of the ranks; nothing for one that did not start."""
    template = archives.kept(JOB).output.stdout_file
    assert template is not None
    for rank, text in enumerate(data):
        Path(template.format(rank=rank)).write_bytes(text)


def test_what_one_host_sends_does_not_concern_the_others(tmp_path: Path) -> None:
    with Archives(str(tmp_path)) as archives:
        came(archives, b"hello\n" * 100, archive_of(a="1", b="2"), b"")
        assert [*archives.unpack(JOB)] == ["n0: the files have not come whole: stdout is no tar archive"]
    assert sorted(os.listdir(tmp_path)) == ["a.n1", "b.n1"]


def test_what_cannot_be_put_into_its_place_is_named_by_that_place(tmp_path: Path) -> None:
    (tmp_path / "a.n0").mkdir()
    with Archives(str(tmp_path)) as archives:
        came(archives, archive_of(a="1", b="2"), archive_of(a="3"), b"")
        assert [*archives.unpack(JOB)] == ["n0: a.n0: is a directory"]
    assert sorted(os.listdir(tmp_path)) == ["a.n0", "a.n1", "b.n0"]


def test_archives_that_somebody_has_removed_are_missed(tmp_path: Path) -> None:
    with Archives(str(tmp_path)) as archives:
        came(archives, archive_of(a="1"))
        (private,) = tmp_path.iterdir()
        shutil.rmtree(private)
        lost = "the files have not come: no such file or directory"
        assert [*archives.unpack(JOB)] == [f"{name}: {lost}" for name in ("n0", "n1", "n2")]


def test_a_signal_in_the_middle_leaves_no_private_directory(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, Archives(str(tmp_path)) as archives:
        came(archives, archive_of(a="1"), b"no archive", archive_of(a="1"))
        for _ in archives.unpack(JOB):
            os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert os.listdir(tmp_path) == ["a.n0"]


def test_two_commands_of_one_host_would_overwrite_each_other(tmp_path: Path) -> None:
    with Archives(str(tmp_path)) as archives, pytest.raises(UsageError, match="n0 has more than one command"):
        archives.kept(job_of_slots(2, ranks=2))
    assert os.listdir(tmp_path) == []


def test_a_job_that_did_not_start_has_sent_nothing(tmp_path: Path) -> None:
    with Archives(str(tmp_path)) as archives:
        archives.kept(JOB)
        assert [*archives.unpack(JOB)] == []


def test_faults_of_one_host_are_counted_beyond_ten(tmp_path: Path) -> None:
    for number in range(15):
        (tmp_path / f"f{number}.n0").mkdir()
    with Archives(str(tmp_path)) as archives:
        came(archives, archive_of(**{f"f{number}": "1" for number in range(15)}), b"", b"")
        said = [*archives.unpack(JOB)]
    assert len(said) == 11 and said[-1] == "n0: and 5 more"


@pytest.mark.parametrize("name", ["open", "of two\nlines"])
def test_a_directory_that_others_may_change_or_no_message_can_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name).chmod(0o777 if name == "open" else 0o755)
    with pytest.raises(UsageError) as caught:
        Archives(str(tmp_path / name))
    assert caught.value.reference == "stdout-archive" and os.listdir(tmp_path / name) == []


def test_nohup_is_respected(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Archives(str(tmp_path)) as archives:
            came(archives, archive_of(a="1"), b"no archive", archive_of(a="1"))
            for _ in archives.unpack(JOB):
                os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert sorted(os.listdir(tmp_path)) == ["a.n0", "a.n2"]
