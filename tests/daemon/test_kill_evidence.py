"""What the node knows of a death: control groups of both versions, as the host and as a container sees them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mpilaunch.daemon.ranks.kill_evidence import Evidence
from tests.support.trees import write

VERSION_1 = "9:name=systemd:/\n4:memory:/jobs/7\n0::/\n"
VERSION_2 = "0::/jobs/7\n"


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        (VERSION_1, "memory/jobs/7/memory.oom_control"),
        (VERSION_1, "memory/memory.oom_control"),
        (VERSION_2, "jobs/7/memory.events"),
        (VERSION_2, "memory.events"),
    ],
    ids=["version 1", "version 1 in a container", "version 2", "version 2 in a container"],
)
def test_kills_since_the_start_are_counted(tmp_path: Path, groups: str, counter: str) -> None:
    write(tmp_path / "proc/self/cgroup", groups)
    path = tmp_path / "sys/fs/cgroup" / counter
    write(path, "low 0\noom 7\noom_kill 3\n")
    evidence = Evidence(str(tmp_path))
    assert evidence.of(1, None, signal.SIGKILL) == {"out_of_memory": "", "memory_kills": 0}
    write(path, "low 0\noom 9\noom_kill 5\n")
    assert evidence.of(1, None, signal.SIGKILL)["memory_kills"] == 2
    assert evidence.of(1, 128 + signal.SIGKILL, None)["memory_kills"] == 2, "a shell tells of its child"


@pytest.mark.parametrize("content", ["", "oom_kill many\n", "one two three\n", "\xff\n"])
def test_a_strange_machine_tells_nothing(tmp_path: Path, content: str) -> None:
    write(tmp_path / "proc/self/cgroup", VERSION_2)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.events").write_bytes(content.encode("latin-1"))
    assert Evidence(str(tmp_path)).of(1, None, signal.SIGKILL) == {"out_of_memory": "", "memory_kills": 0}
    assert Evidence(str(tmp_path / "nowhere")).of(1, None, signal.SIGBUS) == {}


def test_a_bus_error_tells_what_is_free_of_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    found = Evidence(str(tmp_path)).of(1, None, signal.SIGBUS)
    size = os.statvfs(tmp_path)
    assert found["shm_size"] == size.f_blocks * size.f_frsize
    assert 0 <= found["shm_free"] <= found["shm_size"]  # type: ignore[operator]


@pytest.mark.parametrize(("code", "number"), [(0, None), (1, None), (None, signal.SIGTERM), (None, signal.SIGSEGV)])
def test_other_ends_cost_nothing(tmp_path: Path, code: int | None, number: int | None) -> None:
    assert Evidence(str(tmp_path)).of(1, code, number) == {}


def test_the_log_is_read_for_each_process_however_many_were_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        b"6,1,1,-;systemd[1]: started\n",
        b"3,2,2,-;Memory cgroup out of memory: Killed process 11 (one) total-vm:1kB, anon-rss:1kB\n SUBSYSTEM=x\n",
        b"3,3,3,-;Out of memory: Killed process 12 (two (x)) total-vm:1kB\n",
        b"no record at all",
    ]
    evidence = Evidence(str(tmp_path))
    evidence._log = 99

    def read(descriptor: int, size: int) -> bytes:
        if not records:
            raise BlockingIOError
        return records.pop(0)

    monkeypatch.setattr(os, "read", read)
    assert evidence.of(12, None, signal.SIGKILL)["out_of_memory"] == "Out of memory: Killed process 12 (two (x)) total-vm:1kB"
    said = str(evidence.of(11, None, signal.SIGKILL)["out_of_memory"])
    assert said.startswith("Memory cgroup out of memory: Killed process 11 (one)")
    assert evidence.of(1, None, signal.SIGKILL)["out_of_memory"] == ""
