"""What a node tells of its network."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.daemon.node.interfaces import (
    MOST,
    MOST_ADDRESSES,
    addresses_of_name,
    find_interfaces,
    find_network,
    find_ports,
    kernel_addresses,
    parse_addresses,
)
from tests.support import trees

DEFAULT = ("0.0.0.0", "0.0.0.0")
LOCAL, ADDRESS, LABEL = 2, 1, 3
DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def message(
    address: str, prefix: int, index: int = 2, flags: int = 0x80, scope: int = 0, attribute: int = ADDRESS, **more: str
) -> bytes:
    """An RTM_NEWADDR of the kernel, with a label as IPv4's have; `local` is this end of a line between two points."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    pairs = [(LABEL, b"eth0\0"), (attribute, socket.inet_pton(family, address))]
    pairs += [(LOCAL, socket.inet_pton(family, local)) for local in more.values()]
    attributes = b"".join(struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4) for kind, value in pairs)
    body = struct.pack("=BBBBI", family, prefix, flags, scope, index) + attributes
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


def test_addresses_of_the_kernels_answer() -> None:
    answer = [
        message("127.0.0.1", 8, index=1, scope=254),
        message("127.0.1.1", 8, index=1),
        message("10.0.0.5", 24),
        message("169.254.0.7", 16, index=3),
        message("10.1.0.2", 32, index=4, local="10.1.0.1"),
        message("fd00::2", 64),
        message("fd00::9", 64, flags=0x40),  # tentative
        message("fd00::a", 64, flags=0x08),  # another machine has it
        message("fe80::1", 64, scope=253),
    ]
    expected = [(2, "10.0.0.5/24"), (4, "10.1.0.1/32"), (2, "fd00::2/64")]
    assert parse_addresses(b"".join(answer)) == (expected, False)
    # The end of a dump comes by itself, or behind what is left.
    assert parse_addresses(b"".join([*answer, DONE])) == (expected, True)
    assert parse_addresses(DONE) == parse_addresses(b"") == ([], True)


def test_what_is_no_answer_is_passed_over() -> None:
    whole = message("10.0.0.5", 24)
    for size in range(len(whole)):
        assert len(parse_addresses(whole[:size])[0]) <= 1
    assert parse_addresses(struct.pack("=IHHII", 0, 20, 0, 0, 0) * 9) == ([], False)
    error = struct.pack("=IHHII", 20, 2, 0, 0, 0) + bytes(4)
    assert parse_addresses(error + whole) == ([(2, "10.0.0.5/24")], True)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed(data: bytes) -> None:
    parse_addresses(data)
    parse_addresses(message("10.0.0.5", 24)[:24] + data)


def test_the_interfaces_of_this_machine_have_its_own_addresses() -> None:
    for name, address in kernel_addresses():
        assert name in [known for _, known in socket.if_nameindex()]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((address.partition("/")[0], 0))
    assert {row[0] for row in find_interfaces()} == {name for name, _ in kernel_addresses()}


def test_interfaces_of_every_kind(tmp_path: Path) -> None:
    trees.interface(tmp_path, "eno1", device=True, speed="1000")
    trees.interface(tmp_path, "ib0", device=True, type="32", speed="200000", mtu="4092")
    trees.interface(tmp_path, "bond0", speed="20000", uevent="DEVTYPE=bond\nINTERFACE=bond0")
    trees.interface(tmp_path, "bond0.7", uevent="DEVTYPE=vlan")
    trees.interface(tmp_path, "wlan0", device=True, uevent="DEVTYPE=wlan")
    trees.interface(tmp_path, "docker0", uevent="DEVTYPE=bridge", operstate="down", speed="-1")
    trees.interface(tmp_path, "tailscale0", type="65534", operstate="unknown")
    trees.interface(tmp_path, "kube-ipvs0", flags="0x82", operstate="down")  # not up
    trees.interface(tmp_path, "lo", type="772", operstate="unknown", mtu="65536")
    names = ("lo", "eno1", "ib0", "bond0", "bond0.7", "wlan0", "docker0", "tailscale0", "kube-ipvs0")
    addresses = [(name, f"10.{number}.0.1/16") for number, name in enumerate(names)]
    trees.routes(tmp_path, ("wlan0", *DEFAULT, 600), ("bond0", *DEFAULT, 50), ("ib0", "10.2.0.0", "255.255.0.0", 0))
    assert [row[:6] for row in find_interfaces(str(tmp_path), addresses)] == [
        ["lo", "loopback", True, 0, 65536, False],
        ["eno1", "physical", True, 1000, 1500, False],
        ["ib0", "infiniband", True, 200000, 4092, False],
        ["bond0", "bond", True, 20000, 1500, True],
        ["bond0.7", "vlan", True, 0, 1500, False],
        ["wlan0", "wireless", True, 0, 1500, False],
        ["docker0", "bridge", False, 0, 1500, False],
        ["tailscale0", "virtual", True, 0, 1500, False],
    ]


def test_addresses_stand_by_their_interface_and_many_are_cut(tmp_path: Path) -> None:
    addresses = [("eth0", "10.0.0.5/24"), ("eth1", "10.1.0.5/24"), ("eth0", "fd00::5/64")]
    assert [(row[0], row[6]) for row in find_interfaces(str(tmp_path), addresses)] == [
        ("eth0", ["10.0.0.5/24", "fd00::5/64"]),
        ("eth1", ["10.1.0.5/24"]),
    ]
    many = [(f"eth{number % 100}", f"10.0.{number // 250}.{number % 250}/32") for number in range(10_000)]
    rows = find_interfaces(str(tmp_path), many)
    assert len(rows) == MOST and {len(row[6]) for row in rows} == {MOST_ADDRESSES}  # type: ignore[arg-type]


def test_a_broken_route_is_passed_over_and_ipv6_counts_where_ipv4_has_none(tmp_path: Path) -> None:
    addresses = [("eth0", "10.0.0.5/24"), ("eth1", "fd00::5/64")]

    def default() -> list[object]:
        return [row[0] for row in find_interfaces(str(tmp_path), addresses) if row[5]]

    trees.write(tmp_path / "proc/net/route", "Iface\neth0\tnothing\n\neth1\tXYZ\t0\t0\t0\t0\t0\t0\n")
    assert default() == []
    zero, hop = "0" * 32, "fd" + "0" * 29 + "1"
    rows = [
        f"{zero} 00 {zero} 00 {hop} 00000400 00000001 00000000 00000003 eth1",
        f"{zero} 00 {zero} 00 {zero} ffffffff 1 0 0 lo",
    ]
    trees.write(tmp_path / "proc/net/ipv6_route", "\n".join(["broken", *rows]) + "\n")
    assert default() == ["eth1"]
    trees.routes(tmp_path, ("eth0", *DEFAULT, 0))
    assert default() == ["eth0"]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("127.0.0.1 localhost\n127.0.1.1 node01.lan node01\n", ["127.0.1.1"]),
        ("127.0.1.1\tNODE01 # the installer's\n10.0.0.5 x node01", ["127.0.1.1", "10.0.0.5"]),
        ("10.0.0.5 node011 mynode01 node01.lan\n10.0.0.6 other # node01\n#10.0.0.7 node01\n", []),
        ("fd00::5 node01\n", ["fd00::5"]),
        ("node01\n\xff\xfe node01 node01\n", ["\ufffd\ufffd\ufffd\ufffd"]),
        ("10.0.0.5 node01\n" * 20, ["10.0.0.5"] * MOST_ADDRESSES),
        (None, []),
    ],
)
def test_the_addresses_of_a_name(tmp_path: Path, file: str | None, expected: list[str]) -> None:
    if file is not None:
        trees.write(tmp_path / "etc/hosts", file)
    assert addresses_of_name(str(tmp_path), "node01") == expected


def test_ports_of_infiniband_and_roce(tmp_path: Path) -> None:
    path = "pci0000:3a/0000:3a:01.0/0000:3b:00.0"
    trees.infiniband(tmp_path, "mlx5_0", path, numa=1, rate="200 Gb/sec (4X HDR)")
    trees.infiniband(tmp_path, "mlx5_1", state="1: DOWN", layer="Ethernet", rate="nothing")
    first, second = ["mlx5_0:1", "InfiniBand", True, 200, 1, path], ["mlx5_1:1", "Ethernet", False, 0, -1, ""]
    assert find_ports(str(tmp_path)) == [first, second]
    assert find_ports(str(tmp_path / "none")) == []


def test_the_paths_of_gpus_are_shown_where_there_are_ports(tmp_path: Path) -> None:
    path = "pci0000:3a/0000:3a:02.0/0000:3c:00.0"
    trees.pci_device(tmp_path, path)
    buses = ["0000:3c:00.0", "0000:ff:00.0"]
    assert find_network(str(tmp_path), {}, buses, [])["gpu_paths"] == {}
    trees.infiniband(tmp_path, "mlx5_0")
    assert find_network(str(tmp_path), {}, buses, [])["gpu_paths"] == {"0000:3c:00.0": path, "0000:ff:00.0": ""}
