"""Reader of ClusterShell's groups of hosts: `@gpu`, `@rack:a` (a group of another source), `@*` (all hosts of a source).

Pure: the caller passes the functions that read files. Runs no command: a source of groups.conf that runs one is an error, but
for Debian's `local`, whose commands read a file that this module reads itself.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from typing import Any, NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import MAX_ITEMS, Span, combine, expand
from mpilaunch.text import closest

_FILE, _MAIN, _ALL = "groups.conf", "Main", "all"
_SYSTEM = "/etc/clustershell"
_AUTODIR = f"{_SYSTEM}/groups.d $CFGDIR/groups.d"
_CONFDIR = f"{_SYSTEM}/groups.conf.d $CFGDIR/groups.conf.d"
_NO_HOST_HINT = "name a group that has hosts"
_DEEPEST = 20
"""Limit on groups within groups, which may form a circle."""


class Files(NamedTuple):
    """The functions that read files: a text, None for a missing file; the sorted paths in a directory; the data of YAML."""

    read: Callable[[str], str | None]
    paths: Callable[[str], list[str]]
    load_yaml: Callable[[str, str], Any]


class Groups(NamedTuple):
    """The groups of each source, those of the default source under its name; and the sources that run commands."""

    sources: Mapping[str, Mapping[str, str]]
    default: str
    commands: frozenset[str]


def config_files(environ: Mapping[str, str]) -> list[str]:
    """Return the places of groups.conf, the strongest last."""
    home = environ.get("HOME", "")
    folders = [_SYSTEM, f"{home}/.local/etc/clustershell" if home else ""]
    folders.append(f"{environ['XDG_CONFIG_HOME']}/clustershell" if environ.get("XDG_CONFIG_HOME") else "")
    folders[-1] = folders[-1] or (f"{home}/.config/clustershell" if home else "")
    folders.append(environ.get("CLUSTERSHELL_CFGDIR", ""))
    return [f"{folder}/{_FILE}" for folder in folders if folder]


def read_groups(environ: Mapping[str, str], files: Files) -> Groups:
    """Return all groups of ClusterShell's files; raises UsageError."""
    config, folder = ConfigParser(interpolation=None), _SYSTEM
    sections: set[str] = set()
    for path in config_files(environ):
        if (text := files.read(path)) is not None:
            _parse(config, text, path)
            folder = os.path.dirname(path)
    for path in _listed(config.get(_MAIN, "confdir", fallback=_CONFDIR), folder, ".conf", files):
        other = ConfigParser(interpolation=None)
        _parse(other, files.read(path) or "", path)
        sections.update(other.sections())
    sections.update(config.sections())
    sources: dict[str, dict[str, str]] = {}
    for path in _listed(config.get(_MAIN, "autodir", fallback=_AUTODIR), folder, ".yaml", files):
        for source, groups in _of_yaml(files.load_yaml(path, files.read(path) or ""), path):
            sources.setdefault(source, {}).update(groups)
    for path in (f"{folder}/groups", f"{folder}/groups.d/local.cfg"):
        if "local" not in sources and (text := files.read(path)) is not None:
            sources["local"] = dict(re.findall(r"^([^\s:#]+):[ \t]*(.*)$", text, re.MULTILINE))
    named = {name.strip() for section in sections for name in section.split(",")}
    default = config.get(_MAIN, "default", fallback="") or "local"
    return Groups(sources, default, frozenset(named - {_MAIN} - set(sources)))


def expand_item(item: Span, groups: Groups) -> list[str]:
    """Return the hosts of one item of a host list, in order, each once; raises UsageError."""
    hosts = _expand(item, groups, 0, {})
    if not hosts:
        raise item.error("group-unknown", f"'{item.text}' names no host", _NO_HOST_HINT)
    return hosts


def _expand(item: Span, groups: Groups, depth: int, done: dict[tuple[str, str], list[str]]) -> list[str]:
    """Return the hosts of an item; `done` keeps those of each group, so that none is expanded twice."""
    return combine(item, lambda one: _expand_set(one, groups, depth, done))


def _expand_set(item: Span, groups: Groups, depth: int, done: dict[tuple[str, str], list[str]]) -> list[str]:
    """Return the hosts of one set between operators; an operator inside brackets is part of it."""
    if not item.text.startswith("@"):
        return expand(item)
    source, colon, name = item.text[1:].rpartition(":")
    source = source if colon else groups.default
    if (source, name) in done:
        return done[source, name]
    if source in groups.commands:
        hint = "install the Python library ClusterShell, which runs the commands of groups.conf"
        raise item.error("group-unknown", f"the groups of source '{source}' come from a command", hint)
    if (known := groups.sources.get(source)) is None:
        guess = closest(source, groups.sources)
        hint = f"did you mean @{guess}:{name}?" if guess else "the sources are " + ", ".join(sorted(groups.sources))
        hint = hint if groups.sources else "define groups in /etc/clustershell/groups.d/NAME.yaml; see docs/hostfile.md"
        raise item.error("group-unknown", f"there is no source '{source}' of groups", hint)
    everything = name == "*" and _ALL not in known
    texts: Iterable[str | None] = known.values() if everything else [known.get(_ALL if name == "*" else name)]
    hosts: dict[str, None] = {}
    for nodes in texts:
        if nodes is None:
            guess = closest(name, known)
            others = "the groups are " + ", ".join(sorted(known)[:10])
            hint = f"did you mean @{source + ':' if colon else ''}{guess}?" if guess else others
            raise item.error("group-unknown", f"there is no group '{name}' in source '{source}'", hint)
        if depth == _DEEPEST:
            raise item.error("group-unknown", f"group '{name}' is nested too deeply", "a group cannot contain itself")
        for word in nodes.split():
            for piece in Span.of(word, f"@{source}:{name}").split():
                hosts.update(dict.fromkeys(_expand(piece, groups, depth + 1, done) if piece.text else ()))
        if len(hosts) > MAX_ITEMS:
            raise item.error("nodeset-size", f"group '{name}' has more than {MAX_ITEMS:,} hosts")
    if not hosts:
        raise item.error("group-unknown", f"'{item.text}' names no host", _NO_HOST_HINT)
    return done.setdefault((source, name), list(hosts))


def _parse(config: ConfigParser, text: str, path: str) -> None:
    try:
        config.read_string(text, path)
    except ConfigError as error:
        raise UsageError("group-files", f"cannot read {path}: {str(error).splitlines()[0]}") from None


def _listed(folders: str, configured: str, ending: str, files: Files) -> list[str]:
    """Return the files with this ending in the directories of a setting."""
    try:
        words = shlex.split(folders)
    except ValueError as error:
        raise UsageError("group-files", f"cannot read {configured}/{_FILE}: '{folders}': {error}") from None
    names = dict.fromkeys(os.path.normpath(word.replace("$CFGDIR", configured)) for word in words)
    return [path for name in names for path in files.paths(name) if path.endswith(ending)]


def _of_yaml(data: Any, path: str) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield each source in a file with its groups, as texts."""
    if not isinstance(data, dict) or not all(isinstance(groups, dict) for groups in data.values()):
        hint = "write 'SOURCE:' and below it lines like 'gpu: node[01-04]'"
        raise UsageError("group-files", f"{path}: this is not a file of groups", hint=hint)
    for source, groups in data.items():
        texts = {
            name: " ".join(map(str, nodes)) if isinstance(nodes, list) else str(nodes or "") for name, nodes in groups.items()
        }
        yield str(source), {str(name): text for name, text in texts.items()}
