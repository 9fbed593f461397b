"""Parser for rankfiles: the host and the cores of each rank, line by line.

Pure: text in, lines out; it opens no file and does not know the nodes. The format is Open MPI's (mpirun(1), "Rankfiles"):

    line := "rank" N "=" HOST "slot" "=" list [ comment ]        HOST as in a hostfile, also +n0: the first node
    list := item { ";" item }
    item := cores | SOCKET ":" cores | SOCKET ":*"               cores := numbers and ranges, like 0-3,8

All numbers are logical: sockets and cores count from 0 in the order of the sockets, as in hwloc. Blanks are allowed around
"=", quotes around the list; comments are those of a hostfile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.host_values import unquoted
from mpilaunch.hosts.hostfile import code_lines, read_hosts
from mpilaunch.hosts.nodeset import Span, parse_numbers
from mpilaunch.placement.cpu_binding import Cores
from mpilaunch.text import is_whole_number

_LINE = re.compile(
    r"""\s*rank\s+(?P<rank>\S+?)\s*=\s*(?P<host>\S+)\s+slots?\s*=\s*(?P<list>"[^"]*"|'[^']*'|\S.*?)\s*""", re.IGNORECASE
)
_HINT = "write a line for each rank, like 'rank 0=node01 slot=0-3' or 'rank 1=+n1 slot=1:0,1'"


class RankLine(NamedTuple):
    """The line of one rank: `host` is a name or "+n0"; `origin` is "ranks.txt:3"."""

    host: str
    cores: tuple[Cores, ...]
    origin: str


def parse_rankfile(text: str, source: str) -> tuple[RankLine, ...]:
    """Return the lines in rank order, from rank 0 without gaps; raises UsageError."""
    lines: dict[int, RankLine] = {}
    for line, code in code_lines(text, source):
        match = _LINE.fullmatch(code)
        if match is None:
            raise line.strip().error("rankfile", f"'{code.strip()}' is not a line of a rankfile", _HINT)
        rank = line.part(*match.span("rank"))
        if not is_whole_number(rank.text, 7):
            raise rank.error("rankfile", f"'{rank.text}' is not a rank", _HINT)
        number = int(rank.text)
        if number in lines:
            raise rank.error("rankfile", f"rank {number} is given twice, first at {lines[number].origin}", "give it once")
        host = line.part(*match.span("host"))
        names = [fields["name"] for fields in read_hosts(host)]
        if len(names) > 1 or ":" in host.text or "@" in host.text or names[0].startswith("+e"):
            raise host.error("rankfile", f"'{host.text}' is not the name of one host", _HINT)
        cores = tuple(_read_cores(line.part(*match.span("list"))))
        lines[number] = RankLine(names[0], cores, f"{source}:{line.line.number}")
    if not lines:
        raise UsageError("rankfile", f"{source}:1:1: no ranks in this file", hint=_HINT)
    for number in range(len(lines)):
        if number not in lines:
            raise UsageError("rankfile", f"{source}: rank {number} is missing, but there is a rank {max(lines)}", hint=_HINT)
    return tuple(lines[number] for number in range(len(lines)))


def _read_cores(value: Span) -> Iterator[Cores]:
    """Return the cores of a list like `0:1;1:0-2`."""
    inner = unquoted(value)
    for item in inner.split(";"):
        item = item.strip()
        if not item.text:
            raise inner.error("rankfile", "cores are missing", _HINT)
        socket, colon, _ = item.text.partition(":")
        if not colon:
            yield Cores(None, parse_numbers(item))
            continue
        if not is_whole_number(socket, 5):
            raise item.error("rankfile", f"'{socket}' is not the number of a socket", _HINT)
        rest = item.part(len(socket) + 1).strip()
        yield Cores(int(socket), () if rest.text == "*" else parse_numbers(rest))
