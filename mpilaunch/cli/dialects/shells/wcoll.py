"""The hosts of a command line of pdsh, its working collective: those of -w or WCOLL without those of -x."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from mpilaunch.cli.dialects.rows import InvalidArgument, Surroundings, Translation
from mpilaunch.cli.dialects.shells import remote
from mpilaunch.hosts.nodeset import Span

_RCMD = "ssh exec rsh mrsh krb4 xcpu qsh mqsh"
"""The modules of pdsh by which it reaches hosts; the first two exist here."""
_MOST_FILES = 100
"""How deep files may include each other."""
_LONGEST_NUMBER = 18
"""Digits of a host's number that count."""


class Collective:
    """Hosts in the order in which they are named, each with its user if it has one.

    Attributes:
        hosts: their names; one that is named twice is there twice.
        modules: the modules of pdsh that the lists name.
        notes: what is hardly meant, for the user.
    """

    def __init__(self, parts: Mapping[str, str], around: Surroundings) -> None:
        """Read the lists of `w,` and `x,`, or WCOLL; raises InvalidArgument and UsageError."""
        self.modules: set[str] = set()
        self.notes = Translation()
        self._around = around
        text = parts.get("w,") or (f"^{around.environ['WCOLL']}" if around.environ.get("WCOLL") else "")
        if not text:
            raise InvalidArgument("no hosts", "name them with -w HOSTS, -w ^FILE or the variable WCOLL")
        hosts: list[str] = []
        excluded: set[str] = set()
        patterns: list[tuple[bool, str]] = []
        items = [(False, item.strip()) for item in Span.of(text, "-w").split()]
        items += [(True, item.strip()) for item in Span.of(parts.get("x,", ""), "-x").split()]
        for without, item in items:
            if item.text.startswith("-") and item.text != "-":
                without, item = True, item.part(1)
            if item.text.startswith("/"):
                patterns.append((without, item.text[1:].removesuffix("/")))
            elif without:
                excluded.update(self._names(item))
            else:
                hosts += self._names(item)
        hosts = [name for name in hosts if name not in excluded and name.rpartition("@")[2] not in excluded]
        for without, pattern in patterns:
            try:
                hosts = [name for name in hosts if bool(re.search(pattern, name.rpartition("@")[2])) != without]
            except re.error as error:
                raise InvalidArgument(f"'/{pattern}/' is not a regular expression: {error}", "like /node0[1-4]/") from None
        self.hosts = hosts

    def _names(self, item: Span) -> list[str]:
        """Return the names of an item: of a file, or of a list after the name of a module."""
        if item.text.startswith("^") or item.text == "-":
            return list(self._of_file(item.text[1:] if item.text != "-" else "/dev/stdin", ()))
        module = item.text.partition(":")[0]
        if module in _RCMD.split() and module != item.text:
            self.modules.add(module)
            item = item.part(len(module) + 1)
        return _expand(item)

    def _of_file(self, path: str, within: tuple[str, ...]) -> Iterator[str]:
        """Yield the hosts of a file: lists in its lines, and the files that it includes, which are looked for beside it."""
        if path in within or len(within) == _MOST_FILES:
            raise InvalidArgument(f"{within[-1]}: #include of {path}, which includes it", "leave one of the two out")
        for number, line in enumerate(self._around.read_file(path, "list of hosts").splitlines(), start=1):
            if line.startswith("#include"):
                match line.split():
                    case ["#include", name]:
                        yield from self._of_file(os.path.join(os.path.dirname(path), name), (*within, path))
                    case _:
                        note = f"{path}:{number}: warning: '{line.strip()}' includes no file: write #include FILE"
                        self.notes += Translation(notes=((note, 0),))
            for word in line.partition("#")[0].split():
                for item in Span.of(word, path, number).split():
                    yield from _expand(item)


def _expand(item: Span) -> list[str]:
    """Return the names of an item, each with its user if it has one."""
    at = 0 if item.text.startswith("@") else item.text.rfind("@") + 1
    return [item.text[:at] + name for name in remote.expand_host(item.part(at))] if item.text[at:] else []


def ranged(names: list[str]) -> str:
    """Return names as pdsh prints them, in their order: neighbours that differ in their last number share brackets."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for name in names:
        digits = name[len(name.rstrip("0123456789")) :][-_LONGEST_NUMBER:]
        prefix = name[: len(name) - len(digits)]
        if not groups or groups[-1][0] != prefix or not digits:
            groups.append((prefix, [(digits, digits)]))
            continue
        ranges = groups[-1][1]
        first, last = ranges[-1]
        if last and int(digits) == int(last) + 1 and len(digits) == len(str(int(last) + 1).zfill(len(first))):
            ranges[-1] = first, digits
        else:
            ranges.append((digits, digits))
    items = []
    for prefix, ranges in groups:
        texts = [first if first == last else f"{first}-{last}" for first, last in ranges]
        items.append(f"{prefix}[{','.join(texts)}]" if len(texts) > 1 or "-" in texts[0] else prefix + texts[0])
    return ",".join(items)
