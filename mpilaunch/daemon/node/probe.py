"""The facts about this node in the daemon's `hello`, found in milliseconds, mostly without a child process or a packet.

This module changes nothing. Each fact has a value for "unknown"; nothing here raises on an unusual machine.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from mpilaunch.daemon.node.gpus import find_gpus
from mpilaunch.daemon.node.topology import read_text, shared_caches, usable_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

PORT_TRIES = 64
PORTS = 11
"""Ports in a row that are free: MASTER_PORT, those of JAX's coordinator, of eight ranks, and of Horovod's rendezvous store."""
LOWEST_PORT = 20000  # services of a cluster live below
DEFAULT_LOCAL_PORTS = (32768, 60999)  # the kernel's own default


def probe(
    root: str = "/", environ: Mapping[str, str] | None = None, hardware: dict[str, Any] | None = None
) -> dict[str, object]:
    """Return the facts as docs/wire.md lists them, and `notes`, a line for each omission or surprise.

    `hardware`, an earlier result of `probe_hardware`, is not used if the usable CPUs have changed.
    """
    environ = os.environ if environ is None else environ
    notes: list[str] = []
    ssh = environ.get("SSH_CONNECTION", "").split()
    if hardware is None or {cpu[0] for cpu in hardware["cpus"]} != os.sched_getaffinity(0):
        hardware = probe_hardware(root)
    return {
        "hostname": os.uname()[1],
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        **hardware,
        "gpus": find_gpus(root, environ, notes),
        "addresses": find_addresses(root),
        "ssh_connection": ssh if len(ssh) == 4 else None,
        "free_port": find_free_port(root),
        "notes": notes,
    }


def probe_hardware(root: str = "/") -> dict[str, Any]:
    """Return `cpus` and `caches`, which take longest, and change only with the usable CPUs."""
    cpus = usable_cpus(root)
    return {"cpus": cpus, "caches": shared_caches(cpus, root)}


def find_addresses(root: str = "/") -> list[str]:
    """List the node's own addresses, IPv4 first, those on the default route's interface first; no loopback or link-local."""
    routes = _ipv4_routes(root)
    defaults = [(metric, name) for name, _, mask, metric in routes if mask == 0]
    default = min(defaults)[1] if defaults else ""

    def distance(address: int) -> int:
        # fib_trie does not name interfaces: an address belongs to the interface whose network contains it. An address in
        # no network (/32 addresses of clouds) is more likely reachable than one on a bridge for containers.
        names = {name for name, network, mask, _ in routes if mask and address & mask == network}
        return 0 if default in names else 2 if names else 1

    ipv4 = sorted(_ipv4_addresses(root), key=distance)
    ipv6 = sorted(_ipv6_addresses(root), key=lambda pair: pair[1] != default)
    return [socket.inet_ntoa(address.to_bytes(4, "big")) for address in ipv4] + [address for address, _ in ipv6]


def find_free_port(root: str = "/", draw: Callable[[int], int] | None = None) -> int:
    """Return the first of `PORTS` TCP ports that are free on all addresses, or 0 if there are none.

    They are outside the kernel's range for outgoing connections, so that none takes them before the job listens, and random, so
    that two jobs on one node rarely choose the same. `draw` returns a random number below its argument.
    """
    draw = draw or (lambda count: int.from_bytes(os.urandom(4), "big") % count)
    ports = _ports_to_try(root)
    for _ in range(PORT_TRIES):
        port = ports[draw(len(ports) - PORTS + 1)]
        if all(_binds(port + number) for number in range(PORTS)):
            return port
    return 0


def _ports_to_try(root: str) -> range:
    try:
        low, high = (int(part) for part in read_text(os.path.join(root, "proc/sys/net/ipv4/ip_local_port_range")).split())
    except (OSError, ValueError):
        low, high = DEFAULT_LOCAL_PORTS
    below = range(LOWEST_PORT, min(low, DEFAULT_LOCAL_PORTS[0]))
    above = range(high + 1, 65536)
    # If the kernel uses every port for outgoing connections, the usual range is still the best choice.
    usual = range(LOWEST_PORT, DEFAULT_LOCAL_PORTS[0])
    return next((ports for ports in (below, above) if len(ports) >= PORT_TRIES), usual)


def _binds(port: int) -> bool:
    """Return whether a port is free on all IPv6 and IPv4 addresses, or on IPv4 alone without IPv6."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                trial.bind((address, port))
                return True
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return False


def _ipv4_routes(root: str) -> list[tuple[str, int, int, int]]:
    """List (interface, network, mask, metric) of /proc/net/route; the default route has mask 0."""
    routes = []
    for line in _lines(root, "proc/net/route")[1:]:
        fields = line.split()
        try:
            routes.append((fields[0], _kernel_hex(fields[1]), _kernel_hex(fields[7]), int(fields[6])))
        except (ValueError, IndexError):
            continue
    return routes


def _kernel_hex(text: str) -> int:
    """Parse an IPv4 address of /proc/net/route, whose bytes are a native integer."""
    return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")


def _ipv4_addresses(root: str) -> list[int]:
    """List the local addresses of /proc/net/fib_trie, each on the line before its "/32 host LOCAL"."""
    addresses: list[int] = []
    named = ""
    for line in _lines(root, "proc/net/fib_trie"):
        line = line.strip()
        if line.startswith("|-- "):
            named = line[4:]
        elif line == "/32 host LOCAL":
            address = int.from_bytes(socket.inet_aton(named), "big")
            loopback_or_link_local = address >> 24 == 127 or address >> 16 == 0xA9FE
            if not loopback_or_link_local and address not in addresses:
                addresses.append(address)
    return addresses


def _ipv6_addresses(root: str) -> list[tuple[str, str]]:
    """List (address, interface) of the global, unique addresses in /proc/net/if_inet6."""
    addresses = []
    for line in _lines(root, "proc/net/if_inet6"):
        try:
            digits, _, _, scope, flags, name = line.split()
            tentative_or_duplicate = int(flags, 16) & 0x48
            if int(scope, 16) == 0 and not tentative_or_duplicate:
                addresses.append((socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), name))
        except ValueError:
            continue
    return addresses


def _lines(root: str, path: str) -> list[str]:
    try:
        return read_text(os.path.join(root, path)).splitlines()
    except OSError:
        return []
