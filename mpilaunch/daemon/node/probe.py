"""The facts about this node in the daemon's `hello`, found in milliseconds, mostly without a child process or a packet.

This module changes nothing. Each fact has a value for "unknown"; nothing here raises on an unusual machine.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from mpilaunch.daemon.node.gpus import find_gpus
from mpilaunch.daemon.node.interfaces import find_network
from mpilaunch.daemon.node.topology import read_text, shared_caches, usable_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from mpilaunch.daemon.node.interfaces import Address

PORT_TRIES = 64
PORTS = 11
"""Ports in a row that are free: MASTER_PORT, those of JAX's coordinator, of eight ranks, and of Horovod's rendezvous store."""
LOWEST_PORT = 20000  # services of a cluster live below
DEFAULT_LOCAL_PORTS = (32768, 60999)  # the kernel's own default


def probe(
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    hardware: dict[str, Any] | None = None,
    addresses: list[Address] | None = None,
) -> dict[str, object]:
    """Return the facts as docs/wire.md lists them, and `notes`, a line for each omission or surprise.

    `hardware`, an earlier result of `probe_hardware`, is not used if the usable CPUs have changed; `addresses` as in
    `find_network`.
    """
    environ = os.environ if environ is None else environ
    notes: list[str] = []
    ssh = environ.get("SSH_CONNECTION", "").split()
    if hardware is None or {cpu[0] for cpu in hardware["cpus"]} != os.sched_getaffinity(0):
        hardware = probe_hardware(root)
    gpus = find_gpus(root, environ, notes)
    return {
        "hostname": os.uname()[1],
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        **hardware,
        "gpus": gpus,
        "network": find_network(root, environ, [str(gpu["bus_id"]) for gpu in gpus], addresses),
        "ssh_connection": ssh if len(ssh) == 4 else None,
        "free_port": find_free_port(root),
        "notes": notes,
    }


def probe_hardware(root: str = "/") -> dict[str, Any]:
    """Return `cpus` and `caches`, which take longest, and change only with the usable CPUs."""
    cpus = usable_cpus(root)
    return {"cpus": cpus, "caches": shared_caches(cpus, root)}


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
