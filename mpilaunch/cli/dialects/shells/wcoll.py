"""The hosts of a command line of pdsh, its working collective: those of -w, of groups or of WCOLL without those of -x and -X.

Groups are queries of genders where that is installed, else the files of dsh.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from mpilaunch.cli.dialects.rows import InvalidArgument, Surroundings, Translation
from mpilaunch.cli.dialects.shells import remote
from mpilaunch.cli.dialects.shells.genders import Genders
from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import Span

CLUSTERSHELL_GROUPS = "-w @GROUP names a group of ClusterShell's files, -w ^FILE a file of hosts"
_RCMD = "ssh exec rsh mrsh krb4 xcpu qsh mqsh"
"""The modules of pdsh by which it reaches hosts; the first two exist here."""
_MOST_FILES = 100
"""How deep files may include each other."""
_DSH_GROUPS = "/etc/dsh/group"
"""Folder of the groups of dsh, beside that in the home directory; DSHGROUP_PATH has others, separated by colons."""
_MACHINES = "/etc/machines"
"""The file of all hosts, for -a without genders."""
_MISC = ("genders", "dshgroup", "machines")
"""The modules of pdsh for groups that exist here."""
_NO_HOSTS = "no remote hosts specified"
"""pdsh's own words, for which scripts look."""
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
        """Read the lists of `w,` and `x,`, the groups, or WCOLL; raises InvalidArgument and UsageError.

        Args:
            parts: also `a,` ("a" and "A": all nodes), `g,` and `X,` (groups), `i`, `F` and `M`; see `genders`.
        """
        self.modules: set[str] = set()
        self.notes = Translation()
        self._around = around
        genders = _genders(parts, around.environ)
        self.hosts: list[str] = []
        self._is_list = False  # of names; one that leaves names out only says which of those of groups count
        self._excluded: set[str] = set()
        self._patterns: list[tuple[bool, str]] = []
        self._expand_list(parts.get("w,", ""), parts.get("x,", ""))
        if parts.get("g,") and parts.get("a,"):
            raise InvalidArgument("Do not specify -A or -a with -g", "leave one out")
        if not self._is_list:
            self._take_groups(parts, genders)
        elif genders is None and (parts.get("g,") or parts.get("a,")):
            raise InvalidArgument(f"Do not specify both -w and -{parts.get('a,', 'g')[0]}", "leave one out")
        self._filter()
        if genders is not None:
            self._apply_genders(parts, genders)
        elif out := parts.get("X,"):
            left_out = set(self._of_dsh(out))
            self.hosts = [name for name in self.hosts if name not in left_out]
        if not self.hosts:
            raise InvalidArgument(_NO_HOSTS, "check the options that name hosts and those that leave some out")

    def _expand_list(self, named: str, without: str) -> None:
        """Read the lists of -w and -x."""
        items = [(False, item.strip()) for item in Span.of(named, "-w").split()]
        items += [(True, item.strip()) for item in Span.of(without, "-x").split()]
        for is_out, item in items:
            if item.text.startswith("-") and item.text != "-":
                is_out, item = True, item.part(1)
            if item.text.startswith("/"):
                self._patterns.append((is_out, item.text[1:].removesuffix("/")))
            elif is_out:
                self._excluded.update(self._names(item))
            elif item.text:
                self._is_list = True
                self.hosts += self._names(item)

    def _take_groups(self, parts: Mapping[str, str], genders: Genders | None) -> None:
        """Take the hosts of -a, -A or -g, or those of WCOLL."""
        groups, all_nodes = parts.get("g,"), parts.get("a,")
        if genders is not None and all_nodes:
            self.hosts = _in_order(genders.all())
        elif genders is not None and groups:
            self.hosts = _in_order(genders.query(groups))
        elif groups:
            self.hosts = _in_order(self._of_dsh(groups))
        elif all_nodes:
            if not os.path.isfile(_MACHINES):
                message = f"-a: there is neither a file of genders nor {_MACHINES}"
                raise InvalidArgument(message, f"install genders and describe the hosts in its file; {CLUSTERSHELL_GROUPS}")
            self.hosts = list(self._of_file(_MACHINES, ()))
        elif path := self._around.environ.get("WCOLL"):
            self.hosts = list(self._of_file(path, ()))
        else:
            raise InvalidArgument(_NO_HOSTS, "name them with -w HOSTS, -w ^FILE or the variable WCOLL")

    def _filter(self) -> None:
        """Leave out the hosts of -x, and those that regular expressions leave out."""
        out = self._excluded
        hosts = [name for name in self.hosts if name not in out and name.rpartition("@")[2] not in out]
        for is_out, pattern in self._patterns:
            try:
                hosts = [name for name in hosts if bool(re.search(pattern, name.rpartition("@")[2])) != is_out]
            except re.error as error:
                raise InvalidArgument(f"'/{pattern}/' is not a regular expression: {error}", "like /node0[1-4]/") from None
        self.hosts = hosts

    def _apply_genders(self, parts: Mapping[str, str], genders: Genders) -> None:
        """Apply -g to the hosts of a list, -X, the other names of nodes, and how nodes are reached."""
        listed = self._is_list or not (parts.get("g,") or parts.get("a,"))
        if listed and (queries := parts.get("g,")):
            kept = genders.with_other_names(genders.query(queries))
            self.hosts = _in_order(name for name in self.hosts if name.rpartition("@")[2] in kept)
        queries = ",".join(filter(None, (parts.get("X,"), "pdsh_all_skip" if "a" in parts.get("a,", "") else "")))
        if queries:
            out = genders.with_other_names(genders.query(queries))
            self.hosts = [name for name in self.hosts if name.rpartition("@")[2] not in out]
        if listed == ("i" in parts):
            self.hosts = [genders.other_name(name) for name in self.hosts]
        ways = [(name, *genders.reached_by(name)) for name in self.hosts]
        self.hosts = [f"{user}@{name}" if user and "@" not in name else name for name, user, _ in ways]
        if any(module for *_, module in ways):
            self.modules.update(module or parts.get("R", "ssh") for *_, module in ways)

    def _of_dsh(self, groups: str) -> Iterator[str]:
        """Yield the hosts of groups of dsh, which are files."""
        environ = self._around.environ
        folders = [os.path.join(environ["HOME"], ".dsh", "group")] if environ.get("HOME") else []
        folders += (environ.get("DSHGROUP_PATH") or _DSH_GROUPS).split(":")
        for group in groups.split(","):
            paths = [os.path.join(folder, group) for folder in folders]
            path = next(filter(os.path.isfile, paths), None)
            if path is None:
                message = f"group '{group}' is unknown: there is neither a file of genders nor {' or '.join(paths)}"
                raise InvalidArgument(message, f"write one host to a line of such a file; {CLUSTERSHELL_GROUPS}")
            yield from self._of_file(path, ())

    def _read(self, path: str) -> str:
        """Return the text of a list of hosts; the error has the words of pdsh, for which scripts look."""
        try:
            return self._around.read_file(path, "list of hosts")
        except UsageError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            message = f"cannot read list of hosts: {path}: {error.__cause__.strerror}"
            raise UsageError(error.reference, message, hint=error.hint) from None

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
        for number, line in enumerate(self._read(path).splitlines(), start=1):
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


def _genders(parts: Mapping[str, str], environ: Mapping[str, str]) -> Genders | None:
    """Return what genders knows, None where its file is not there or -M has chosen other modules; raises InvalidArgument.

    A file that cannot be read is an error only where an option asks for genders, as with pdsh.
    """
    genders = Genders(parts.get("F"), environ)
    chosen = [name for name in (parts.get("M") or environ.get("PDSH_MISC_MODULES", "")).split(",") if name]
    for name in chosen:
        if name not in _MISC:
            raise InvalidArgument(f"module '{name}' of pdsh is not supported", f"the modules are {', '.join(_MISC)}")
    if "genders" in chosen or any(key in parts for key in ("F", "i")) or "A" in parts.get("a,", ""):
        return genders
    if chosen or not genders.is_there():
        return None
    if not any(key in parts for key in ("a,", "g,", "X,")):
        try:
            genders.all()
        except InvalidArgument:
            return None
    return genders


def _expand(item: Span) -> list[str]:
    """Return the names of an item, each with its user if it has one."""
    at = 0 if item.text.startswith("@") else item.text.rfind("@") + 1
    return [item.text[:at] + name for name in remote.expand_host(item.part(at))] if item.text[at:] else []


def _in_order(names: Iterable[str]) -> list[str]:
    """Return each name once, in the order of the words before their last numbers, and of these, as pdsh sorts groups."""
    return sorted(set(names), key=_key)


def _key(name: str) -> tuple[str, int, int, str]:
    prefix, digits = _split(name)
    padded = digits.startswith("0") and len(digits) > 1
    return prefix, len(digits) * padded, int(digits or -1), name


def _split(name: str) -> tuple[str, str]:
    """Return a name without the digits at its end, and these."""
    digits = name[len(name.rstrip("0123456789")) :][-_LONGEST_NUMBER:]
    return name[: len(name) - len(digits)], digits


def ranged(names: list[str]) -> str:
    """Return names as pdsh prints them, in their order: neighbours that differ in their last number share brackets."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for name in names:
        prefix, digits = _split(name)
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
