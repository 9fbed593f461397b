"""The network of this node: its interfaces that are up and have an address, and what else decides which of them libraries use.

This module changes nothing. Each fact that the node does not tell is left out; nothing here raises on an unusual machine.
Sources: rtnetlink(7), since /proc does not tell the interface of an IPv4 address; sysfs-class-net and sysfs-class-infiniband of
the kernel; hosts(5).
"""

from __future__ import annotations

import os
import socket
import struct

from mpilaunch.daemon.node.network_settings import find_settings
from mpilaunch.daemon.node.topology import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Address = tuple[str, str]

MOST = 64
"""Interfaces and ports that are reported."""
MOST_ADDRESSES = 8
"""Addresses of one interface, and of the node's name, that are reported: a balancer of services may have thousands."""
LONGEST_FILE = 1 << 20
"""Bytes of /etc/hosts that are read."""

_GET_ADDRESSES, _NEW_ADDRESS, _ERROR, _DONE = 22, 20, 2, 3
_DUMP_REQUEST = 0x301
_ADDRESS, _LOCAL = 1, 2
_UNUSABLE = 0x48
"""IFA_F_TENTATIVE and IFA_F_DADFAILED: not yet this node's address, or another machine's too."""
_LINK_LOCAL = b"\xa9\xfe"
"""169.254.0.0/16; those of IPv6 have a scope of their own."""
_UP = 1
_INFINIBAND = "32"
_KINDS = {"wlan": "wireless"}
"""Kinds of interfaces that the kernel names otherwise; `bridge`, `bond`, `vlan` and `vxlan` have the same name."""


def find_network(
    root: str, environ: Mapping[str, str], buses: list[str], addresses: list[Address] | None = None
) -> dict[str, object]:
    """Return the facts as docs/wire.md lists them.

    `buses` are the PCI addresses of the node's GPUs, `addresses` replaces what the kernel says.
    """
    ports = find_ports(root)
    # Nobody asks how near a GPU is to a port where there is none.
    gpu_paths = {bus: pci_path(os.path.join(root, "sys/bus/pci/devices", bus)) for bus in (buses if ports else ())}
    return {
        "interfaces": find_interfaces(root, addresses),
        "name_at": addresses_of_name(root, os.uname()[1]),
        "settings": find_settings(root, environ),
        "ports": ports,
        "gpu_paths": gpu_paths,
    }


def find_interfaces(root: str = "/", addresses: list[Address] | None = None) -> list[list[object]]:
    """List `[name, kind, running, speed, mtu, default, addresses]` of each interface that is up and has an address.

    They stand in the kernel's order, in which libraries see them. `kind` is "loopback", "physical", "infiniband", "wireless",
    "virtual" or what the kernel calls it; `running` is False where no cable or no other end is there; `speed` is in Mb/s, 0 if
    unknown; `default` is True for the interface of the default route; `addresses` are written `10.0.0.5/24`. Loopback and
    link-local addresses are left out.
    """
    found: dict[str, list[str]] = {}
    for name, address in kernel_addresses() if addresses is None else addresses:
        of_one = found.setdefault(name, []) if len(found) < MOST or name in found else []
        if len(of_one) < MOST_ADDRESSES:
            of_one.append(address)
    default = _default_interface(root)
    rows: list[list[object]] = []
    for name, of_one in found.items():
        place = os.path.join(root, "sys/class/net", name)
        if int(_value(place, "flags") or "1", 16) & _UP:
            running = _value(place, "operstate") in ("up", "unknown", "")
            speed, mtu = (max(0, _number(_value(place, fact))) for fact in ("speed", "mtu"))
            rows.append([name, _kind(place), running, speed, mtu, name == default, of_one])
    return rows


def find_ports(root: str = "/") -> list[list[object]]:
    """List `[port, layer, active, rate, numa, path]` of the ports of InfiniBand and RoCE.

    A port is written `mlx5_0:1`, a rate is in Gb/s, and the NUMA node is -1 if unknown; `path` as in `pci_path`.
    """
    devices = os.path.join(root, "sys/class/infiniband")
    rows: list[list[object]] = []
    for device in _names(devices):
        numa = _value(os.path.join(devices, device, "device"), "numa_node")
        place = [_number(numa) if numa else -1, pci_path(os.path.join(devices, device, "device"))]
        for number in _names(os.path.join(devices, device, "ports")):
            port = os.path.join(devices, device, "ports", number)
            active = _value(port, "state").startswith("4")
            rate = _number(_value(port, "rate").partition(" ")[0])
            rows.append(["%s:%s" % (device, number), _value(port, "link_layer"), active, rate, *place])
    return rows[:MOST]


def pci_path(device: str) -> str:
    """Return the bridges from the root of PCI to a device, `pci0000:3a/0000:3a:01.0/0000:3b:00.0`; "" for other devices."""
    return os.path.realpath(device).partition("/sys/devices/")[2] if os.path.exists(device) else ""


def addresses_of_name(root: str, name: str) -> list[str]:
    """List the addresses that /etc/hosts gives a host name; none if it must be asked for elsewhere, which may take long."""
    wanted, found = name.lower().encode(), []
    for line in _lines_with(os.path.join(root, "etc/hosts"), wanted):
        words = line.partition(b"#")[0].split()
        if wanted in words[1:]:
            found.append(words[0].decode("ascii", "replace"))
    return found[:MOST_ADDRESSES]


def kernel_addresses() -> list[Address]:
    """List (interface, address/prefix) as the kernel has them: IPv4 first, in the order of the interfaces."""
    found: list[tuple[int, str]] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
            kernel.settimeout(1)  # the kernel answers at once, or does not know the request
            kernel.send(struct.pack("=IHHIIB7x", 24, _GET_ADDRESSES, _DUMP_REQUEST, 1, 0, socket.AF_UNSPEC))
            last = False
            while not last:
                more, last = parse_addresses(kernel.recv(1 << 16))
                found += more
    except OSError:
        pass  # a sandbox without rtnetlink
    names: dict[int, str] = {}
    for index in {index for index, _ in found}:
        try:
            names[index] = socket.if_indextoname(index)
        except OSError:
            continue  # it has just gone
    return [(names[index], address) for index, address in found if index in names]


def parse_addresses(data: bytes) -> tuple[list[tuple[int, str]], bool]:
    """Return (index of the interface, address/prefix) of each RTM_NEWADDR of an answer, and whether no answer follows."""
    found: list[tuple[int, str]] = []
    start, last = 0, not data
    while start + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, start)
        last = last or kind in (_DONE, _ERROR)
        if kind == _NEW_ADDRESS and start + 24 <= len(data):
            family, prefix, flags, scope, index = struct.unpack_from("=BBBBI", data, start + 16)
            values = dict(_attributes(data[start + 24 : start + length]))
            # On a line between two points, the other attribute is the other end's address.
            value = values.get(_LOCAL) or values.get(_ADDRESS, b"")
            if scope == 0 and _is_usable(family, value, flags):
                found.append((index, "%s/%d" % (socket.inet_ntop(family, value), prefix)))
        start += max(length + 3 & ~3, 16)
    return found, last


def _is_usable(family: int, value: bytes, flags: int) -> bool:
    """Return whether these bytes are an address of IPv4 or IPv6 that others may reach."""
    if family == socket.AF_INET:
        return len(value) == 4 and value[0] != 127 and value[:2] != _LINK_LOCAL
    return family == socket.AF_INET6 and len(value) == 16 and not flags & _UNUSABLE


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, start)
        yield kind, data[start + 4 : start + length]
        start += max(length + 3 & ~3, 4)


def _kind(place: str) -> str:
    """Return what kind of interface this is."""
    for line in _value(place, "uevent").splitlines():
        if line.startswith("DEVTYPE="):
            return _KINDS.get(line[8:], line[8:])
    number = _value(place, "type")
    if number == "772":
        return "loopback"
    if number == _INFINIBAND:
        return "infiniband"
    return "physical" if os.path.exists(os.path.join(place, "device")) else "virtual"


def _default_interface(root: str) -> str:
    """Return the interface of the default route of the lowest metric, of IPv6 if IPv4 has none; "" if there is none."""
    found = []
    for line in _value(root, "proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            found.append((_number(fields[6]), fields[0]))
    for line in _value(root, "proc/net/ipv6_route").splitlines() if not found else ():
        fields = line.split()
        if len(fields) > 9 and fields[1] == "00" and fields[9] != "lo":
            found.append((int(fields[5], 16), fields[9]))
    return min(found)[1] if found else ""


def _lines_with(path: str, word: bytes) -> Iterator[bytes]:
    """Yield the lines of a file that have a word somewhere, in lower case; most files have none of interest."""
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST_FILE).lower()
    except OSError:
        return
    start = data.find(word)
    while start >= 0:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield data[data.rfind(b"\n", 0, start) + 1 : end]
        start = data.find(word, end)


def _value(place: str, name: str) -> str:
    """Return the text of a file, "" if it cannot be read, as the speed of an interface that has none."""
    try:
        return read_text(os.path.join(place, name)).strip()
    except (OSError, ValueError):
        return ""


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))[:MOST]
    except OSError:
        return []
