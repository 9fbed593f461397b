"""Hosts with several networks: those on which libraries choose the wrong one.

Each host has, beside eth0, `fast0` of a second network, and a bridge docker0 in use, of the same address on all, as container
engines make it. The file /etc/hosts of a host can name the host itself as distributions do.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from tests.support.hosts import Hosts

FAST = "10.99.0"
DOCKER = "172.17.0.1"
LOOPBACK = "127.0.1.1"
"""Where Debian and Ubuntu put the name of a machine without a fixed address."""

# What /sys shows of networks is of the namespace of who mounted it.
INSIDE = r"""
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --move /run/cgroup /sys/fs/cgroup
ip link add docker0 type bridge
ip addr add DOCKER/16 dev docker0
ip link set docker0 up
ip link add container0 type veth peer name container1
ip link set container0 master docker0 up
ip link set container1 up
""".replace("DOCKER", DOCKER)

NAMED = r"""
grep -v " $1$" /etc/hosts >/run/hosts.$1 || true
[ -z "$2" ] || echo "$2 $1" >>/run/hosts.$1
mount --bind /run/hosts.$1 /etc/hosts
"""


class NetworkedHosts(Hosts):
    """Hosts as above; the arguments are those of Hosts."""

    def __enter__(self) -> NetworkedHosts:
        super().__enter__()
        try:
            for number, name in enumerate(self.names, start=1):
                self._sh(name, INSIDE)
                self._connect(number, name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def fast_address(self, host: str) -> str:
        """Return the host's address on the second network."""
        return f"{FAST}.{self.names.index(host) + 1}"

    @contextlib.contextmanager
    def named(self, address: str | None) -> Iterator[None]:
        """Let each host know its own name at an address, or not at all; the other names stay."""
        for name in self.names:
            self._sh(name, NAMED, name, address or "")
        try:
            yield
        finally:
            for name in self.names:
                self._sh(name, "umount /etc/hosts")

    @contextlib.contextmanager
    def without(self, host: str, interface: str) -> Iterator[None]:
        """Let a host lack an interface."""
        self._sh(host, f"ip link set {interface} down")
        try:
            yield
        finally:
            self._sh(host, f"ip link set {interface} up")

    @contextlib.contextmanager
    def bridge_preferred(self) -> Iterator[None]:
        """Let libraries that prefer what carries most take the bridge: smaller frames on the networks that are shared."""
        frames = "for name in eth0 fast0; do ip link set $name mtu {}; done"
        for name in self.names:
            self._sh(name, frames.format(600))
        try:
            yield
        finally:
            for name in self.names:
                self._sh(name, frames.format(1500))

    @contextlib.contextmanager
    def cable(self, one: str, other: str, *addresses: str) -> Iterator[None]:
        """Connect two hosts by a cable: cable0 on each, with these addresses."""
        end = f"name cable0 netns {self._first[other].pid}"
        self.ip_on_head([f"link add cable0 netns {self._first[one].pid} type veth peer {end}"])
        for host, address in zip((one, other), addresses, strict=True):
            self._sh(host, f"ip addr add {address} dev cable0; ip link set cable0 up")
        for host in (one, other):  # the kernel tells a moment later that there is a connection
            self._sh(host, "until grep -q up /sys/class/net/cable0/operstate; do sleep 0.01; done")
        try:
            yield
        finally:
            self._sh(one, "ip link delete cable0")

    def _connect(self, number: int, name: str) -> None:
        """Give a host its fast0, whose other end is on a bridge of the head."""
        bridge = ["link add br1 type bridge", "link set br1 up"] if number == 1 else []
        self.ip_on_head([*bridge, f"link add fast{number} type veth peer name fast0 netns {self._first[name].pid}"])
        self.ip_on_head([f"link set fast{number} master br1 up"])
        self._sh(name, f"ip addr add {self.fast_address(name)}/24 dev fast0; ip link set fast0 up")

    def _sh(self, host: str, script: str, *words: str) -> None:
        done = self.on(host, ["sh", "-ec", script, "sh", *words])
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, script, done.stdout, done.stderr)
