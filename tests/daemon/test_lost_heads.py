"""A head that vanishes, or is silent over an open connection, in every phase of a job: nothing on the node stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpilaunch.head.nodes import bundle
from mpilaunch.wire.frames import GO, KEEP, MARKER, STANDBY
from tests.support.launching import WireToDaemon, children, daemon_with, living, wait_for_files, wait_until
from tests.support.mpi.worlds import offer

SILENCE = 1.0
BOUND = SILENCE * 1.25 + 2.0 + 5.0
"""Seconds: the last step of the silence, SIGTERM to SIGKILL of ranks that are deaf, and a few."""
DEAF = ("sh", "-c", "trap '' TERM; echo $$ >{}/up; while :; do sleep 0.05; done")


def fresh(daemon: WireToDaemon, folder: Path) -> None:
    """Between hello and `prepare`."""


def refused(daemon: WireToDaemon, folder: Path) -> None:
    """After a `prepare` that could not be done."""
    daemon.prepare("no-such-program", silence=SILENCE)
    daemon.until("refused")


def prepared(daemon: WireToDaemon, folder: Path) -> None:
    """Between `prepare` and `launch`, where the head could come back later on."""
    daemon.prepare("true", silence=SILENCE, attach={"secret": "0f" * 32, "seconds": 600.0})
    daemon.until("ready")


def prepared_with_pmix(daemon: WireToDaemon, folder: Path) -> None:
    """Between `prepare` and `launch`, with the helper that serves PMIx."""
    daemon.prepare("sh", "-c", ":", silence=SILENCE, mpi=offer("pmix", library="libpmix.so.2"))
    daemon.until("ready")
    assert len(descendants(daemon.process.pid)) == 2, "the daemon and its helper"


def running(daemon: WireToDaemon, folder: Path) -> None:
    """While ranks run."""
    daemon.run(*(word.format(folder) for word in DEAF), silence=SILENCE)
    wait_for_files(folder / "up")


def reconnecting(daemon: WireToDaemon, folder: Path) -> None:
    """While ranks run, where the head may come back for a while."""
    attach = {"secret": "0f" * 32, "seconds": 1.0}
    daemon.run(*(word.format(folder) for word in DEAF), silence=SILENCE, attach=attach)
    wait_for_files(folder / "up")


def stopping(daemon: WireToDaemon, folder: Path) -> None:
    """While ranks have their grace time."""
    running(daemon, folder)
    daemon.send("stop", steps=[[15, 600.0]])


def releasing(daemon: WireToDaemon, folder: Path) -> None:
    """After `release`, which ranks were not expected to outlive."""
    running(daemon, folder)
    daemon.send("release")


def finished(daemon: WireToDaemon, folder: Path) -> None:
    """When all ranks have ended, before `release`."""
    daemon.run("true", silence=SILENCE, attach={"secret": "0f" * 32, "seconds": 1.0})
    daemon.until("finished")


WITH_PMIX = pytest.param(prepared_with_pmix, marks=pytest.mark.needs("libpmix.so.2"))
PHASES = (fresh, refused, prepared, WITH_PMIX, running, reconnecting, stopping, releasing, finished)


@pytest.mark.parametrize("how", ["vanishes", "is silent"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_a_lost_head_leaves_nothing(
    tmp_path: Path, phase: Callable[[WireToDaemon, Path], None], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zip = bundle.load()
    with WireToDaemon(sys.executable, zip) as daemon:
        daemon.write(zip)
        daemon.until("hello")
        daemon.send("limits", silence=SILENCE, pulse=60.0)
        phase(daemon, tmp_path)
        below = descendants(daemon.process.pid)
        began = time.monotonic()
        if how == "vanishes":
            daemon.close_wire()
        daemon.process.wait(BOUND + (1.0 if phase is reconnecting or phase is finished else 0.0))
        assert time.monotonic() - began > (SILENCE * 0.7 if how == "is silent" and phase is not releasing else -1.0)
        wait_until(lambda: not any(map(living, below)), "nothing is left", 2)


def descendants(pid: int) -> list[int]:
    found = children(pid)
    for one in found:
        found += children(one)
    return found


def start(settings: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a daemon from the files of the checkout, with limits as short as a test's."""
    pipe = subprocess.PIPE
    return subprocess.Popen([*daemon_with(settings), *words], stdin=pipe, stdout=pipe, bufsize=0)


def test_a_head_that_says_nothing_at_all_is_lost() -> None:
    with start("from mpilaunch.daemon import lifeline;lifeline.START_SILENCE=1.0") as process:
        assert process.stdin and process.stdout
        assert process.stdout.read(1)
        process.wait(BOUND)
        process.stdin.close()


def shorten_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node wait one second for more of the bundle."""
    limit = f"alarm({bundle.BUNDLE_SILENCE})"
    assert limit in bundle.BOOT
    monkeypatch.setattr(bundle, "BOOT", bundle.BOOT.replace(limit, "alarm(1)"))


@pytest.mark.parametrize("sent", [0, 1000])
def test_a_bundle_that_never_comes_is_not_awaited_for_ever(sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bundle.load()
    shorten_silence(monkeypatch)
    command = bundle.boot_command(sys.executable, payload)
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        process.stdin.write(payload[:sent])
        assert process.wait(5) != 0
        process.stdin.close()


def test_a_bundle_that_comes_slowly_is_awaited_and_the_daemon_then_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bundle.load()
    shorten_silence(monkeypatch)
    command = bundle.boot_command(sys.executable, payload)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin and process.stdout
        for start in range(4):
            process.stdin.write(payload[start * 1000 : (start + 1) * 1000])
            time.sleep(0.5)
        process.stdin.write(payload[4000:])
        assert process.stdout.read(1)
        time.sleep(1.3)
        assert process.poll() is None
        process.stdin.close()


def test_a_daemon_that_stands_by_goes_when_its_keeper_is_silent() -> None:
    with start("from mpilaunch.daemon import start;start.STANDBY_SILENCE=1.0", STANDBY) as process:
        assert process.stdin and process.stdout
        assert process.stdout.read(len(MARKER)) == MARKER
        for _ in range(5):
            time.sleep(0.4)
            process.stdin.write(KEEP)
        assert process.poll() is None, "it heard of its keeper"
        process.stdin.write(GO)
        assert b'"hello"' in os.read(process.stdout.fileno(), 65536)
        process.stdin.close()
        process.wait(20)
    with start("from mpilaunch.daemon import start;start.STANDBY_SILENCE=1.0", STANDBY) as process:
        assert process.stdin and process.stdout
        assert process.stdout.read(len(MARKER)) == MARKER
        below = descendants(process.pid)
        process.wait(BOUND)
        assert not any(map(living, below))
        process.stdin.close()
