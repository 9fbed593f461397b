from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpilaunch.daemon.node import probe as probe_module
from mpilaunch.daemon.node.probe import PORTS, find_free_port, probe, probe_hardware
from mpilaunch.hosts.node_facts import Cpu, Gpu, NodeFacts
from tests.support import trees


def test_the_facts_are_exactly_the_heads_facts_and_survive_json() -> None:
    message = json.loads(json.dumps(probe()))
    # The caches become part of the CPUs.
    assert set(message) == {*NodeFacts._fields} | {"caches"}
    facts = NodeFacts.from_message(message)
    assert facts.hostname == socket.gethostname()
    assert facts.python == sys.version.split()[0]
    assert facts.executable == sys.executable
    assert {cpu.number for cpu in facts.cpus} == os.sched_getaffinity(0)


def test_a_fake_node_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.cpus(tmp_path, sockets=1, cores=2, threads=1)
    trees.nvidia_node(tmp_path, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    environ = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22", "CUDA_VISIBLE_DEVICES": "1,5"}
    message = probe(str(tmp_path), environ, addresses=[("eth0", "10.0.0.2/24")])
    facts = NodeFacts.from_message(message)
    assert facts.cpus == (Cpu(1, 1, 0, 0),)
    assert facts.gpus == (Gpu("nvidia", 1, trees.nvidia_uuid(0), "0000:2b:00.0", "NVIDIA H200", 1),)
    assert facts.ssh_connection == ("10.0.0.1", "50000", "10.0.0.2", "22")
    assert facts.network.addresses == ("10.0.0.2",)
    assert message["notes"] == ["CUDA_VISIBLE_DEVICES=1,5: '5' names no GPU here, the list ends before it"]


def test_known_hardware_is_asked_again_only_when_other_cpus_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.cpus(tmp_path / "then", sockets=1, cores=2, threads=1)
    trees.cpus(tmp_path / "now", sockets=2, cores=1, threads=1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    known = probe_hardware(str(tmp_path / "then"))

    def sockets() -> list[int]:
        return [cpu.socket for cpu in NodeFacts.from_message(probe(str(tmp_path / "now"), {}, known)).cpus]

    assert sockets() == [0, 0]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    assert sockets() == [1]


@pytest.mark.parametrize("value", ["", "10.0.0.1 50000", "a b c d e"])
def test_no_ssh_connection(tmp_path: Path, value: str) -> None:
    assert probe(str(tmp_path), {"SSH_CONNECTION": value})["ssh_connection"] is None


# The free port.


@pytest.fixture
def binds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that were tried; none is really bound. The first is taken, and so is the last of the second series."""
    tried: list[int] = []

    def try_port(port: int) -> bool:
        tried.append(port)
        return len(tried) not in (1, 1 + PORTS)

    monkeypatch.setattr(probe_module, "_binds", try_port)
    return tried


@pytest.mark.parametrize(
    ("kernel", "first", "last"),
    [
        ("32768\t60999\n", 20000, 32767),
        ("25000\t60999\n", 20000, 24999),
        ("49152\t65535\n", 20000, 32767),
        ("1024\t60999\n", 61000, 65535),
        ("20005\t60999\n", 61000, 65535),
        ("1024\t65535\n", 20000, 32767),
        ("nonsense", 20000, 32767),
        (None, 20000, 32767),
    ],
)
def test_ports_lie_outside_the_kernels_range(
    tmp_path: Path, binds: list[int], kernel: str | None, first: int, last: int
) -> None:
    if kernel is not None:
        trees.write(tmp_path / "proc/sys/net/ipv4/ip_local_port_range", kernel)
    drawn: Iterator[Callable[[int], int]] = iter([lambda count: 0, lambda count: count - 1, lambda count: 7])
    assert find_free_port(str(tmp_path), lambda count: next(drawn)(count)) == first + 7
    assert binds == [first, *range(last - PORTS + 1, last + 1), *range(first + 7, first + 7 + PORTS)]


def test_no_free_port_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "_binds", lambda port: False)
    assert find_free_port() == 0


def listen(family: socket.AddressFamily, address: str, only_ipv6: int = 0) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
    listener.bind((address, 0))
    listener.listen(1)
    return listener


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")],
)
def test_a_port_that_one_address_uses_is_not_free(family: socket.AddressFamily, address: str) -> None:
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    assert any(is_free_once_closed(family, address) for _ in range(10))


def is_free_once_closed(family: socket.AddressFamily, address: str) -> bool:
    """Check that a port in use is not free; return whether it is free afterwards, unless another process has taken it."""
    with listen(family, address, only_ipv6=1) as listener:
        used = listener.getsockname()[1]
        assert not probe_module._binds(used)
    return probe_module._binds(used)


def test_without_ipv6_the_ipv4_port_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def no_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", no_ipv6)
    assert any(is_free_once_closed(socket.AF_INET, "127.0.0.1") for _ in range(10))
