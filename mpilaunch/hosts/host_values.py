"""Readers of hostfile values: numbers of slots, ports, users, agents, GPUs, CPUs.

Pure: a span of text in, a value out; every error names its source, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mpilaunch.hosts.nodeset import MAX_ITEMS, Span, parse_numbers
from mpilaunch.hosts.remote_names import is_login_name
from mpilaunch.text import is_whole_number

_GPU = r"(?:GPU|MIG)-[\w./-]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


def read_text(value: Span) -> str:
    """Return a value without its quotes; a doubled quote inside quotes is one quote."""
    text = value.text
    if text[:1] in ('"', "'"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


def read_count(value: Span) -> int:
    """Return a number of slots, 0 or more."""
    text = read_text(value)
    if not is_whole_number(text, 9):
        message = f"'{text}' is not a number of slots" if text else "the number of slots is missing"
        raise value.visible().error("hostfile-slots", message, "write a whole number, 0 or more, like slots=4 or node01:4")
    if int(text) > MAX_ITEMS:
        raise value.error("hostfile-slots", f"{text} slots are more than the {MAX_ITEMS:,} allowed on one host")
    return int(text)


def read_limit(value: Span) -> int:
    """Return a hard limit on slots, 1 or more."""
    if (limit := read_count(value)) < 1:
        raise value.error("hostfile-slots", "max_slots is 0", "a host that runs no rank has slots=0")
    return limit


def read_port(value: Span) -> int:
    """Return a port, 1..65535."""
    text = read_text(value)
    if not is_whole_number(text, 9) or not 1 <= int(text) <= 65535:
        raise value.error("hostfile-port", f"'{text}' is not a port", "a port is a number from 1 to 65535")
    return int(text)


def read_user(value: Span) -> str:
    text = read_text(value)
    if not is_login_name(text):
        raise value.visible().error("hostfile-user", f"'{text}' is not a login name", "write user@host or user=name")
    return text


def read_agent(value: Span) -> str:
    """Return the name of an agent or a command template, unchecked: `mpilaunch_agents.registry` knows the agents."""
    text = read_text(value)
    if not text.strip():
        raise value.error("hostfile-key", "agent= is empty", "write agent=ssh or agent=\"tsh ssh {host} {command}\"")
    return text


def read_label(value: Span) -> str:
    """Return the name of a namespace or container: a DNS label."""
    text = read_text(value)
    if not re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise value.visible().error("hostfile-key", f"'{text}' is not a Kubernetes name", "like training or worker-1")
    return text


def read_gpus(value: Span) -> tuple[str, ...]:
    """Return GPU indices and UUIDs in the order written, empty for `none`."""
    inner = unquoted(value)
    if inner.text == "none":
        return ()
    gpus: list[str] = []
    for item in inner.split():
        if re.fullmatch(_GPU, item.text):
            gpus.append(item.text)
        elif item.text[:1].isdigit():
            gpus += map(str, parse_numbers(item))
        else:
            hint = "write indices like 0-3 or 0,2, UUIDs like GPU-8a1b..., or none"
            raise item.visible().error("hostfile-gpus", f"'{item.text}' is not a GPU", hint)
    _refuse_repeats(inner, gpus, "GPU")
    return tuple(gpus)


def read_cpus(value: Span) -> tuple[int, ...]:
    """Return CPU numbers in the order written."""
    inner = unquoted(value)
    numbers = parse_numbers(inner)
    _refuse_repeats(inner, numbers, "CPU")
    return numbers


def unquoted(value: Span) -> Span:
    """Return the span of a value without its quotes."""
    quoted = value.text[:1] in ('"', "'")
    return value.part(1, len(value.text) - 1) if quoted else value


def _refuse_repeats(value: Span, items: Sequence[str] | Sequence[int], kind: str) -> None:
    seen: set[str | int] = set()
    for item in items:
        if item in seen:
            raise value.error(f"hostfile-{kind.lower()}s", f"{kind} {item} is named twice", "name each one once")
        seen.add(item)
