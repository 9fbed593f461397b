"""Where the other ranks reach rank 0."""

from __future__ import annotations

import pytest

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment.master_address import choose_master_address


def facts(
    *addresses: str, hostname: str = "", seen_from: str | None = None, seen_at: str | None = None
) -> NodeFacts:
    connection = (seen_from or "10.0.0.9", "50000", seen_at or "10.0.0.1", "22") if seen_from or seen_at else None
    return NodeFacts(
        hostname=hostname or "-".join(addresses) or "bare",
        python="3.11.7",
        executable="/usr/bin/python3",
        cpus=(),
        gpus=(),
        addresses=addresses,
        ssh_connection=connection,
        free_port=31000,
    )


OTHER = facts("10.0.0.2", seen_from="10.0.0.9")
MASTER_ADDRESSES = {
    "one node": (facts("10.0.0.1", seen_at="10.0.0.1"), [], False, "127.0.0.1"),
    "several nodes on the head": (facts("10.0.0.9"), [facts("10.0.0.9")], True, "127.0.0.1"),
    "several nodes on a head without a network": (facts(), [facts()], True, "127.0.0.1"),
    "several nodes on a head that the user came to by ssh": (
        facts("10.0.0.9", seen_from="192.0.2.7", seen_at="10.0.0.9"),
        [facts("10.0.0.9", seen_from="192.0.2.7", seen_at="10.0.0.9")],
        True,
        "127.0.0.1",
    ),
    "where ssh reached rank 0": (facts("172.16.0.1", "10.0.0.1", seen_at="10.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by IPv6": (facts("10.0.0.1", "2001:db8::1", seen_at="2001:db8::1"), [OTHER], False, "2001:db8::1"),
    "a mapped address is IPv4": (facts("172.16.0.1", seen_at="::ffff:10.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by loopback": (facts("10.0.0.1", seen_at="127.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by mapped loopback": (facts("10.0.0.1", seen_at="::ffff:127.0.0.1"), [OTHER], False, "10.0.0.1"),
    "reached by a link-local address": (facts("10.0.0.1", seen_at="fe80::1%eth0"), [OTHER], False, "10.0.0.1"),
    "a zone is stripped": (facts("10.0.0.1", seen_at="fd00::1%eth0"), [OTHER], False, "fd00::1"),
    "reached without ssh": (facts("10.0.0.1", "10.1.0.1"), [OTHER], False, "10.0.0.1"),
    "nothing known but the name": (facts(), [OTHER], False, "node-as-written"),
    "the head, where the others saw it": (facts("172.16.0.9", "10.0.0.9"), [OTHER], True, "10.0.0.9"),
    "the head, where the others saw it, without addresses": (facts(), [OTHER], True, "10.0.0.9"),
    "the head, behind a jump host": (facts("172.16.0.9"), [OTHER], True, "172.16.0.9"),
    "the head, its own ssh session does not count": (
        facts("172.16.0.9", "10.0.0.9", seen_from="192.0.2.7", seen_at="172.16.0.9"),
        [OTHER],
        True,
        "10.0.0.9",
    ),
    "the head, the first other is local too": (
        facts("172.16.0.9", "10.0.0.9", hostname="head"),
        [facts("172.16.0.9", "10.0.0.9", hostname="head"), OTHER],
        True,
        "10.0.0.9",
    ),
    "the head, nothing known": (facts(hostname="head"), [facts("10.0.0.2")], True, "head"),
}


@pytest.mark.parametrize("case", MASTER_ADDRESSES)
def test_master_address(case: str) -> None:
    rank0, others, rank0_is_head, expected = MASTER_ADDRESSES[case]
    assert choose_master_address(rank0, others, rank0_is_head, "node-as-written") == expected
