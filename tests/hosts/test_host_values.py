"""Values of hostfiles: what each reader makes of a text, and its errors with their columns. Whole lines: test_hostfile.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.hosts.host_values import (
    read_agent,
    read_count,
    read_cpus,
    read_gpus,
    read_label,
    read_limit,
    read_port,
    read_text,
    read_user,
    unquoted,
)
from mpilaunch.hosts.nodeset import MAX_ITEMS, Span

UUID = "GPU-8a1b2c3d-0000-1111-2222-333344445555"


def span(text: str) -> Span:
    return Span.of(text, "hosts", 3, 10)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (read_text, '"a""b"', 'a"b'),
        (read_text, "'it''s'", "it's"),
        (read_text, "plain", "plain"),
        (read_count, "0", 0),
        (read_count, '"8"', 8),
        (read_count, str(MAX_ITEMS), MAX_ITEMS),
        (read_limit, "1", 1),
        (read_port, "65535", 65535),
        (read_user, "DOMAIN\\\\me", "DOMAIN\\\\me"),
        (read_agent, "'tsh ssh {host} {command}'", "tsh ssh {host} {command}"),
        (read_label, "worker-1", "worker-1"),
        (read_gpus, "none", ()),
        (read_gpus, f"'3,{UUID},0-1'", ("3", UUID, "0", "1")),
        (read_cpus, "4-6,0", (4, 5, 6, 0)),
    ],
)
def test_values(read: Callable[[Span], Any], text: str, value: object) -> None:
    assert read(span(text)) == value


@pytest.mark.parametrize(
    ("read", "text", "reference", "column"),
    [
        (read_count, "", "hostfile-slots", 10),
        (read_count, "-1", "hostfile-slots", 10),
        (read_count, "9" * 10, "hostfile-slots", 10),
        (read_count, str(MAX_ITEMS + 1), "hostfile-slots", 10),
        (read_limit, "0", "hostfile-slots", 10),
        (read_port, "0", "hostfile-port", 10),
        (read_port, "65536", "hostfile-port", 10),
        (read_user, "-l", "hostfile-user", 10),
        (read_agent, "' '", "hostfile-key", 10),
        (read_label, "Worker", "hostfile-key", 10),
        (read_label, "a" * 64, "hostfile-key", 10),
        (read_gpus, "'0,x'", "hostfile-gpus", 13),
        (read_gpus, "0,x", "hostfile-gpus", 12),
        (read_gpus, "0,0", "hostfile-gpus", 10),
        (read_cpus, "1,1-2", "hostfile-cpus", 10),
    ],
)
def test_errors_name_the_place(read: Callable[[Span], Any], text: str, reference: str, column: int) -> None:
    with pytest.raises(UsageError) as caught:
        read(span(text))
    assert caught.value.reference == reference
    assert caught.value.message.startswith(f"hosts:3:{column}: ")


def test_the_span_of_a_value_without_its_quotes() -> None:
    assert [unquoted(span(text)).text for text in ('"a b"', "'c'", "d")] == ["a b", "c", "d"]
