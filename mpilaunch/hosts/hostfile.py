"""Parser for the hostfiles and host lists of every dialect; `_KEYS` has the keys.

Pure: text in, entries out. `allocation` decides which hosts a job uses. Every error names its source, line and column.

    line  := [ hosts { key "=" value } ] [ comment ]         blanks around "=" are allowed, values may be quoted
    hosts := host { "," host }                               bracket ranges as in nodeset: node[01-16]
    host  := "@" [ source ":" ] group                         a group of ClusterShell's files
           | [ user "@" ] name [ ":" ( slots | "*" ) ]       "*": a slot for each core; in brackets an IPv6 address: [fe80::1]:4
           | "+n" place [ ":" slots ] | "+e" [ ":" count ]   the n-th node of the allocation, or its unnamed nodes

Comments are `# ...`, `// ...` and `/* ... */`. A host list (`--host`) is `hosts` alone. `host:22` is 22 slots (Hydra,
Horovod, Open MPI's --host), never port 22 (pssh): write `port=22`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts import host_values
from mpilaunch.hosts.nodeset import Span, expand
from mpilaunch.text import closest

MOST_MISTAKES = 10
"""Limit on the mistakes of a hostfile that its error shows."""


class HostEntry(NamedTuple):
    """One mention of a host in a hostfile or in `--host`; None means that the mention gives no value.

    Attributes:
        name: host name, IPv4 address, IPv6 address without brackets, or `local`, never shortened; or a relative name: "+n0"
            (the first node), "+e" (all nodes that no other entry names), "+e:2" (two of those).
        slots, max_slots: how many ranks may run there, 0 or more; the hard limit, also with `--oversubscribe`.
        agent: name of an agent, or a command template; it uses user, port, and namespace and container of a pod.
        gpus, cpus: indices ("0") or UUIDs ("GPU-...") in slot order, and CPU numbers; empty for no GPU at all.
        origin: source of the mention: "hosts.txt:3" or "--host".
        by_cores: it has a slot for each of its cores ("node01:*").
    """

    name: str
    slots: int | None = None
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    agent: str | None = None
    gpus: tuple[str, ...] | None = None
    cpus: tuple[int, ...] | None = None
    origin: str = ""
    namespace: str | None = None
    container: str | None = None
    by_cores: bool = False


Expand = Callable[[Span], list[str]]
"""Returns the hosts of a group such as @gpu; raises UsageError."""


def _no_groups(item: Span) -> list[str]:
    raise item.error("hostfile-name", f"'{item.text}': groups of hosts are not known here", "name the hosts")


def parse_hostfile(text: str, source: str, expand_group: Expand = _no_groups) -> list[HostEntry]:
    """Return the entries of a hostfile in order, one per mention of a host; raises UsageError."""
    entries: list[HostEntry] = []
    mistakes: list[UsageError] = []
    for line, code in code_lines(text, source):
        try:
            entries += _read_line(line, code, expand_group)
        except UsageError as mistake:
            mistakes.append(mistake)
            if len(mistakes) == MOST_MISTAKES:
                break
    if mistakes:
        first, *others = mistakes
        last = [f"only the first {MOST_MISTAKES} lines with a mistake are shown"] if len(mistakes) == MOST_MISTAKES else []
        context = [*first.context, *(other.message for other in others), *last]
        raise UsageError(first.reference, first.message, context=context, hint=first.hint)
    if not entries:
        hint = "write one host per line, like 'node01 slots=4'"
        raise UsageError("hostfile-empty", f"{source}:1:1: no hosts in this file", hint=hint)
    return entries


def parse_host_list(text: str, source: str = "--host", expand_group: Expand = _no_groups) -> list[HostEntry]:
    """Return the entries of a comma list like `a:2,b,node[01-16]:4` in order; raises UsageError."""
    return [HostEntry(origin=source, **fields) for fields in read_hosts(Span.of(text, source), expand_group)]


# Lines


_COMMENT = r"""(?P<quoted>"(?:[^"\r\n]|"")*"|'(?:[^'\r\n]|'')*')|(?:\#|//)[^\r\n]*|/\*(?s:.*?)\*/|(?P<open>/\*)"""
_LINE_END = r"\r\n|\n|\r"
_PAIR = r"""\s*(?P<key>[^\s=]+)\s*(?:(?P<equals>=)\s*(?P<value>"(?:[^"]|"")*"|'(?:[^']|'')*'|[^\s"']\S*)?)?\s*"""


def code_lines(text: str, source: str) -> Iterator[tuple[Span, str]]:
    """Yield each line that is not empty, and the same line with comments replaced by blanks, so that columns do not move."""
    text = text.removeprefix("\ufeff")
    lines = re.split(_LINE_END, text)

    def without_comment(match: re.Match[str]) -> str:
        if match["open"]:
            *before, indent = re.split(_LINE_END, text[: match.start()])
            opening = Span.of(lines[len(before)], source, len(before) + 1).part(len(indent), len(indent) + 2)
            raise opening.error("hostfile-syntax", "the comment '/*' is never closed", "end it with '*/'")
        return match["quoted"] or re.sub(r"[^\r\n]", " ", match[0])

    codes = re.split(_LINE_END, re.sub(_COMMENT, without_comment, text))
    for number, (line, code) in enumerate(zip(lines, codes, strict=True), start=1):
        if code.strip():
            yield Span.of(line, source, number), code


def _read_line(line: Span, code: str, expand_group: Expand) -> Iterator[HostEntry]:
    """Return the entries of one line; `code` is the line with comments replaced by blanks."""
    start = len(code) - len(code.lstrip())
    hosts = line.part(start, start + len(code[start:].split(None, 1)[0]))
    if "=" in hosts.text:
        raise hosts.error("hostfile-syntax", f"'{hosts.text}' stands where a host name belongs", _LINE_HINT)
    values: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    offset = start + len(hosts.text)
    while code[offset:].strip():
        pair = re.compile(_PAIR).match(code, offset)
        if pair is None:
            stray = line.part(len(code) - len(code[offset:].lstrip()), len(code.rstrip()))
            raise stray.error("hostfile-syntax", f"'{stray.text}' has no key before its '='", _LINE_HINT)
        key = line.part(*pair.span("key"))
        if not pair["equals"]:
            raise key.error("hostfile-syntax", f"'{key.text}' is not 'key=value'", _LINE_HINT)
        if not pair["value"]:
            rest = line.part(pair.end(), pair.end() + 1)
            message = "this quote is never closed" if rest.text else f"'{key.text}=' has no value"
            raise (rest if rest.text else key).error("hostfile-syntax", message, "write key=value, or key=\"two words\"")
        field, read = _find_key(key)
        value = line.part(*pair.span("value"))
        if field and field in spans:
            raise _twice(key, field, "")
        spans[field] = value
        values[field] = read(value)
        offset = pair.end()
    values.pop("", None)
    for fields in read_hosts(hosts, expand_group):
        for field in ("slots", "user"):
            if field in fields and field in values:
                raise _twice(spans[field], field, f": '{hosts.text}' gives it too")
        entry = HostEntry(origin=f"{line.line.source}:{line.line.number}", **fields, **values)
        if entry.max_slots is not None and (entry.slots or 0) > entry.max_slots:
            message = f"max_slots={entry.max_slots} is less than slots={entry.slots}"
            raise spans["max_slots"].error("hostfile-slots", message, "max_slots is the most that --oversubscribe may reach")
        yield entry


def _twice(span: Span, field: str, where: str) -> UsageError:
    reference = "hostfile-slots" if field == "slots" else "hostfile-key"
    return span.error(reference, f"{field} is given twice{where}", "give it once")


_LINE_HINT = "write one host per line, like 'node01 slots=4' or 'node01:4'"


# Hosts


_NAME = r"\w[\w./-]*"


def read_hosts(hosts: Span, expand_group: Expand = _no_groups) -> Iterator[dict[str, Any]]:
    """Return the HostEntry fields of each host in a comma list: name, and slots and user if given."""
    for item in hosts.split():
        host = item.strip()
        fields: dict[str, Any] = {}
        if host.text.startswith("+"):
            yield _read_relative(host)
            continue
        if host.text.startswith("@"):
            yield from ({"name": _name_in_group(name, host)} for name in expand_group(host))
            continue
        if host.text.startswith("^"):  # Open MPI's syntax: must not be read as a name
            hint = "leave the host out, or choose the hosts you want with --host"
            raise host.error("hostfile-exclude", f"'{host.text}' excludes a host, which is not supported", hint)
        at = host.text.rfind("@")
        if at >= 0:
            fields["user"] = host_values.read_user(host.part(0, at))
            host = host.part(at + 1)
        names, colon = _read_names(host)
        if colon is not None and host.text[colon + 1 :] == "*":
            fields["by_cores"] = True
        elif colon is not None:
            fields["slots"] = host_values.read_count(host.part(colon + 1))
        yield from ({"name": name, **fields} for name in names)


def _name_in_group(name: str, group: Span) -> str:
    """Return a name that a group has; raises UsageError for what is none."""
    if _read_names(Span.of(name, group.text)) != ([name], None):
        raise group.error("hostfile-name", f"'{name}' is not a host name", "correct the file of groups")
    return name


_RELATIVE = re.compile(r"(?P<name>\+n[0-9]{1,6}|\+e:[1-9][0-9]{0,5}|\+e)(?::(?P<slots>.*))?", re.IGNORECASE)


def _read_relative(host: Span) -> dict[str, Any]:
    """Return the fields of a relative name: `+n0` the first node, `+e` all nodes that are not named."""
    match = _RELATIVE.fullmatch(host.text)
    if match is None:
        hint = "write +n0 for the first node, +e for all nodes that are not named, +e:2 for two of them"
        raise host.error("host-relative", f"'{host.text}' names no node by its place", hint)
    slots = {} if match["slots"] is None else {"slots": host_values.read_count(host.part(*match.span("slots")))}
    return {"name": match["name"].lower(), **slots}


def _read_names(host: Span) -> tuple[list[str], int | None]:
    """Return the names of one host item, and the offset of the colon before its slots, None without slots."""
    text = host.text
    closing = text.find("]")
    if text.startswith("[") and ":" in text[:closing]:
        _check_address(host.part(1, closing))
        if text[closing + 1 :] and text[closing + 1] != ":":
            raise host.part(closing + 1).error("hostfile-name", f"'{text[closing + 1 :]}' behind an address", _ADDRESS_HINT)
        return [text[1:closing]], closing + 1 if text[closing + 1 :] else None
    if text.count(":") > 1:
        _check_address(host)
        return [text], None
    colon = text.find(":")
    name = host if colon < 0 else host.part(0, colon)
    if not name.text:
        raise name.visible().error("hostfile-name", "a host name is missing")
    names = expand(name)
    if not re.fullmatch(_NAME, names[0]):
        hint = "a name starts with a letter or digit and holds letters, digits, '.', '-', '_' and '/'"
        raise name.error("hostfile-name", f"'{name.text}' is not a host name", hint)
    return names, None if colon < 0 else colon


def _check_address(address: Span) -> None:
    import ipaddress  # takes 3 ms; few hosts are IPv6 addresses

    try:
        ipaddress.IPv6Address(address.text)
    except ValueError:
        raise address.error("hostfile-name", f"'{address.text}' is not an IPv6 address", _ADDRESS_HINT) from None


_ADDRESS_HINT = "write fe80::1, or [fe80::1]:4 for 4 slots; a host name takes one colon, like node01:4"


# Keys: one row per field, with the spellings of all dialects.


_KEYS: tuple[tuple[str, Callable[[Span], object], str], ...] = (
    # field of HostEntry, reader of the value, spellings ("-" counts as "_")
    ("slots", host_values.read_count, "slots cpu count"),
    ("max_slots", host_values.read_limit, "max_slots slots_max maxslots max_cpu cpu_max maxcpu max_count count_max maxcount"),
    ("user", host_values.read_user, "user username user_name"),
    ("port", host_values.read_port, "port"),
    ("agent", host_values.read_agent, "agent"),
    ("gpus", host_values.read_gpus, "gpus"),
    ("cpus", host_values.read_cpus, "cpus"),
    ("namespace", host_values.read_label, "namespace"),
    ("container", host_values.read_label, "container"),
    # Accepted and ignored: the daemon reports the topology (Open MPI), --bind-to chooses the binding (Hydra).
    ("", host_values.read_text, "boards sockets sockets_per_board cores cores_per_socket binding"),
)
_BY_SPELLING = {spelling: (field, read) for field, read, spellings in _KEYS for spelling in spellings.split()}


def _find_key(key: Span) -> tuple[str, Callable[[Span], object]]:
    row = _BY_SPELLING.get(key.text.replace("-", "_"))
    if row is None:
        guess = closest(key.text.lower().replace("-", "_"), _BY_SPELLING)
        hint = f"did you mean {guess}=?" if guess else "the keys are " + ", ".join(field for field, _, _ in _KEYS if field)
        raise key.error("hostfile-key", f"unknown key '{key.text}'", hint)
    return row
