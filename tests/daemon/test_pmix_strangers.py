"""What another user of the node can do to a job that is served by PMIx: connect to its port, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.daemon.pmix.search import LIBPMIX
from tests.support.launching import LIMIT, children, guard_and_daemon, launch, launching, living, open_files, wait_until
from tests.support.paths import PROGRAMS, ROOT

pytestmark = [pytest.mark.testbed, pytest.mark.needs("gcc", "libpmix.so.2")]

STRANGER = PROGRAMS / "pmix_stranger.py"
PRETEND = """
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
static int claim(long number) { const char *text = getenv("CLAIM"); return text ? atoi(text) : syscall(number); }
uid_t getuid(void) { return claim(SYS_getuid); }
uid_t geteuid(void) { return claim(SYS_geteuid); }
gid_t getgid(void) { return claim(SYS_getgid); }
gid_t getegid(void) { return claim(SYS_getegid); }
"""


class Job:
    """A running Open MPI job of two ranks, with what its owner knows of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        wait_until(lambda: len(self.ranks()) == 2, "two ranks run")
        self.job_id, self.namespace, uri = (
            variables(self.ranks()[0])[name] for name in ("MPILAUNCH_JOB_ID", "PMIX_NAMESPACE", "PMIX_SERVER_URI2")
        )
        self.server, _, address = uri.partition(".0;tcp4://127.0.0.1:")
        self.port = int(address)
        wait_until(lambda: connections(self.port) >= 2, "both ranks have called MPI_Init")
        (self.helper,) = set(children(guard_and_daemon(process.pid)[1])) - set(self.ranks())

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks that live."""
        _, daemon = guard_and_daemon(self.process.pid)
        return [pid for pid in children(daemon) if "PMIX_RANK" in variables(pid)]

    def attack(self, tmp_path: Path, *namespaces: str) -> dict[str, Any]:
        """Let another user try to be a rank or a tool, by these namespaces; return what he has seen and reached."""
        pretend = tmp_path / "pretend.so"
        subprocess.run(["gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", pretend], input=PRETEND.encode(), check=True)
        wish = {
            "library": LIBPMIX,
            "port": self.port,
            "folders": [os.environ["TMPDIR"], "/dev/shm"],
            "namespaces": namespaces,
            "mark": str(tmp_path / "mark"),
        }
        done = subprocess.run(
            [sys.executable, STRANGER, json.dumps(wish)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(pretend)},
            capture_output=True,
            check=True,
            timeout=120,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def is_well(self) -> bool:
        """Tell whether both ranks and the helper live."""
        return len(self.ranks()) == 2 and living(self.helper)


def variables(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {name.decode(): value.decode() for name, _, value in (line.partition(b"=") for line in lines)}


def connections(port: int) -> int:
    """Return how many connections to a local port there are."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


@pytest.fixture
def job(files: Path, programs: Path) -> Iterator[Job]:
    """Give a running job, which lives in spite of all that is done to it, and leaves nothing."""
    for folder in list(files.parents)[:3]:
        folder.chmod(0o755)  # so that its files are as much in sight as in /tmp
    with launching("-n", "2", str(programs / "ends"), "idle") as process:
        job = Job(process)
        yield job
        assert job.is_well()
        process.terminate()
        process.communicate(timeout=LIMIT)
    assert list(files.iterdir()) == []


def test_another_user_is_no_rank_and_no_tool(job: Job, tmp_path: Path) -> None:
    known = [job.job_id, f"{job.job_id}.0", f"{job.job_id}.1", f"mpilaunch-{job.helper}", f"server-{job.helper}", "server", ""]
    result = job.attack(tmp_path, *known)
    assert job.namespace not in result["seen"] and job.server not in result["seen"]
    assert f":{job.port:04X}" in result["seen"]  # he does look
    assert [attempt for attempt in result["attempts"].values() if not attempt.startswith(("refused: ", "no answer"))] == []
    assert not (tmp_path / "mark").exists()


def test_it_is_the_secret_that_keeps_others_out(job: Job, tmp_path: Path) -> None:
    # The attempts of the test above come from a client that can do it: with the secret, it is a rank.
    attempts = job.attack(tmp_path, job.namespace)["attempts"]
    assert attempts[f"rank of {job.namespace!r}"].startswith("a rank; ")


def test_the_names_of_worlds_are_secrets_and_new_in_each_job(job: Job) -> None:
    assert re.fullmatch("[0-9a-f]{32}", job.namespace) and job.namespace not in job.server
    assert job.job_id not in job.namespace and job.job_id not in job.server


def test_a_silent_connection_does_not_hold_up_the_ranks(job: Job) -> None:
    with contextlib.ExitStack() as silent:
        sockets = [silent.enter_context(socket.create_connection(("127.0.0.1", job.port))) for _ in range(2)]
        sockets[1].send(b"x")
        for connection in sockets:
            connection.settimeout(LIMIT)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""  # it has been shut down


def test_the_helper_listens_on_this_machine_only(job: Job) -> None:
    sockets = open_files(job.helper)
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1])
    assert listening == [f"0100007F:{job.port:04X}"]


def test_a_libpmix_that_other_machines_could_reach_is_not_used(
    files: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMIX_MCA_ptl_base_if_include", "eth0")
    done = launch("--mpi", "pmix", "-n", "1", str(programs / "ring"), "1")
    assert done.code != 0
    assert "it listens on " in done.words and ", where other machines can connect" in done.words
    assert list(files.iterdir()) == []
