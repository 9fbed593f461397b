"""The daemon boots under every Python from 3.8 on, with nothing on the node but that Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.agent import PYTHON_TOO_OLD
from mpilaunch.head.nodes import bundle
from tests.support.launching import WireToDaemon, open_files
from tests.support.mpi.worlds import offer
from tests.support.pythons import OLDEST, PYTHONS, REQUIRED, each_python, found_pythons, version_of


@pytest.fixture(scope="module")
def zipped() -> bytes:
    return bundle.load()


def run_a_job(daemon: WireToDaemon) -> None:
    """Let two ranks say who they are, and see the node finished."""
    daemon.run("sh", "-c", 'echo "rank $RANK"; echo error >&2; exit $RANK', ranks=2)
    daemon.until("finished")
    ends = {message["rank"]: message["code"] for message in daemon.messages if message["type"] == "exited"}
    assert ends == {0: 0, 1: 1}
    assert daemon.output == {1: b"rank 0\n", 2: b"error\n", 5: b"rank 1\n", 6: b"error\n"}
    assert daemon.ended == {1, 2, 5, 6}
    daemon.close_wire()
    assert daemon.end() == (0, "")


def test_the_interpreters_of_this_machine() -> None:
    assert version_of("/usr/bin/python3") is not None, "a node has a /usr/bin/python3; this machine has none"
    assert [version for version in REQUIRED if version not in PYTHONS] == []


@each_python
def test_a_job_under_each_python(python: str, zipped: bytes) -> None:
    with WireToDaemon(python, zipped) as daemon:
        daemon.write(zipped)
        hello = daemon.until("hello")
        assert daemon.banner == b""
        assert tuple(map(int, hello["facts"]["python"].split(".")[:2])) == version_of(python)
        run_a_job(daemon)


@each_python
def test_the_bundle_a_byte_at_a_time_behind_a_banner_with_frames_directly_behind_it(python: str, zipped: bytes) -> None:
    banner = "printf 'Welcome to \\000 mpilaunch-wire-\\n\\033[1mnode\\n'"
    with WireToDaemon(python, zipped, banner=banner) as daemon:
        for byte in zipped[:-1]:
            daemon.write(bytes([byte]))
        daemon.session.send_ping(1.5)
        daemon.write(zipped[-1:] + daemon.session.data_to_send())
        daemon.until("hello")
        assert daemon.banner == b"Welcome to \0 mpilaunch-wire-\n\x1b[1mnode\n"
        daemon.take_until(lambda: bool(daemon.others), "a PONG")
        assert daemon.others[0][2][0] == 1.5
        run_a_job(daemon)


DEAR = {"contextlib", "dataclasses", "inspect", "logging", "subprocess", "tempfile", "termios", "threading", "typing"}
"""Modules of Python that take long to load."""
FOR_SOME_JOBS = {
    "attach",
    "callers",
    "rendezvous",
    "mpi.pmi1",
    "mpi.pmi2",
    "mpi.pmi_port",
    "mpi.segments",
    "mpi.singletons",
    "node.nvml",
    "pmix.helper",
}
"""Modules of the daemon that are loaded when a job needs them."""


@each_python
def test_a_daemon_loads_only_what_every_job_needs(python: str, zipped: bytes) -> None:
    name, *options = bundle.boot_command(python, zipped)
    command = [name, "-X", "importtime", *options]
    done = subprocess.run(command, input=zipped, capture_output=True, timeout=60, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert {"mpilaunch.daemon.loop", "mpilaunch.daemon.pmix.search"} <= loaded
    assert loaded & (DEAR | {f"mpilaunch.daemon.{name}" for name in FOR_SOME_JOBS}) == set()


@each_python
def test_prepare_may_stand_directly_behind_the_bundle(python: str, zipped: bytes) -> None:
    with WireToDaemon(python, zipped) as daemon:
        daemon.write(zipped)
        daemon.prepare("echo", "hello")
        daemon.until("ready")
        daemon.send("launch")
        daemon.until("finished")
        assert daemon.stdout_of(0) == b"hello\n"
        assert [message["type"] for message in daemon.messages] == ["hello", "ready", "started", "exited", "finished"]


def test_the_heads_own_files_without_a_bundle() -> None:
    with WireToDaemon() as daemon:
        daemon.until("hello")
        run_a_job(daemon)


def test_a_bundle_that_breaks_off(zipped: bytes) -> None:
    with WireToDaemon(sys.executable, zipped) as daemon:
        daemon.write(zipped[:1000])
        daemon.close_wire()
        assert daemon.end() == (1, "mpilaunch: the bundle broke off\n")


def test_nothing_is_written_to_the_nodes_disk(zipped: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with WireToDaemon(sys.executable, zipped) as daemon:
        daemon.write(zipped)
        daemon.until("hello")
        assert [path for path in open_files(daemon.process.pid) if path.startswith("/memfd:")] and not list(tmp_path.iterdir())
        run_a_job(daemon)
    assert not list(tmp_path.iterdir())


def test_modules_of_the_users_do_not_reach_the_daemon(zipped: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("os", "json", "selectors", "mpilaunch", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n", encoding="ascii")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for zip in (zipped, None):
        with WireToDaemon(sys.executable, zip) as daemon:
            daemon.write(zip or b"")
            daemon.until("hello")
            run_a_job(daemon)


@each_python
def test_the_modules_for_pmix_are_in_the_bundle(python: str, zipped: bytes, tmp_path: Path) -> None:
    no_library = tmp_path / "libpmix.so.2"
    no_library.write_bytes(b"")
    with WireToDaemon(python, zipped) as daemon:
        daemon.write(zipped)
        daemon.prepare("sh", "-c", ":", mpi=offer("pmix", library=str(no_library)))
        (problem,) = daemon.until("refused")["problems"]  # the helper ran, and tried
        assert problem["cause"] == "pmix-missing" and str(no_library) in problem["detail"]
        assert [message for message in daemon.messages if message["type"] == "ask"] == []
        daemon.close_wire()
        assert daemon.end() == (0, "")


def test_an_older_python_says_so() -> None:
    older = [path for version, path in found_pythons().items() if (3, 4) <= version < OLDEST]
    pretended = "import sys; sys.version_info = (3, 7, 16); sys.version = '3.7.16 (default)'; exec(sys.argv.pop(1))"
    commands = [[sys.executable, "-c", pretended, bundle.BOOT]]
    commands += [[path, "-I", "-S", "-B", "-c", bundle.BOOT] for path in older]
    for command in commands:
        done = subprocess.run([*command, "100"], input=b"x" * 100, capture_output=True, timeout=20, check=False)
        assert done.returncode == PYTHON_TOO_OLD
        assert re.fullmatch(rb"mpilaunch: python 3\.\d+\.\d+ is older than 3\.8\n", done.stderr)
