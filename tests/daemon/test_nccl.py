"""NCCL's report is asked of ranks that listen, once, in bounded time; the servers here speak as src/ras/client.cc expects."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpilaunch.daemon.observe import nccl
from tests.support.nccl import SERVER


@contextmanager
def server(kind: str) -> Iterator[tuple[int, int]]:
    """Run a server; yield its process and its port."""
    command = [sys.executable, "-c", SERVER, kind, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def ask(pid: int, port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(nccl, "PORT", port)
    return nccl.report([pid])


def test_the_report_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with server("good") as (pid, port):
        told = ask(pid, port, monkeypatch)
        assert told == "Job summary: 2 nodes\n\ufffd CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n"
        with subprocess.Popen(["sleep", "60"]) as stranger:
            assert ask(stranger.pid, port, monkeypatch) == "", "it is no server of this rank"
            stranger.kill()


@pytest.mark.parametrize(("kind", "size"), [("silent", 0), ("other", 0), ("endless", nccl.LARGEST)])
def test_a_server_that_is_none_or_means_harm_is_left_in_time(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "SECONDS", 1.0)
    with server(kind) as (pid, port):
        began = time.monotonic()
        assert len(ask(pid, port, monkeypatch)) == size and time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("environ", "port"),
    [
        (b"", nccl.PORT),
        (b"A=b\0NCCL_RAS_ADDR=localhost:12345\0", 12345),
        (b"NCCL_RAS_ADDR=[::1]:77\0", 77),
        (b"NCCL_RAS_ADDR=none\0", 0),
        (b"NCCL_RAS_ADDR=a:1234567\0", 0),
        (b"NCCL_RAS_ENABLE=0\0NCCL_RAS_ADDR=localhost:12345", 0),
    ],
)
def test_where_it_listens(environ: bytes, port: int) -> None:
    assert nccl.port_of(environ) == port


def test_a_rank_that_has_gone_is_not_asked() -> None:
    assert nccl.report([1 << 22]) == ""
