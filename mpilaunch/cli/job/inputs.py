"""All that a job is made of besides its settings, read once: the files that the user names, and this machine.

Nothing is decided here but which files there are to read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from mpilaunch.agent import is_template
from mpilaunch.cli.files import Positions, check_trusted, expand_group, load_yaml, read_text, read_trusted, text_and_status
from mpilaunch.errors import UsageError, reason_of
from mpilaunch.hosts import allocation, kubernetes, remote_names, schedulers
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile
from mpilaunch.job.settings import Layer, Section, Settings
from mpilaunch.placement.mapping import MappingPolicy
from mpilaunch_agents.child import find_program

if TYPE_CHECKING:
    from mpilaunch.placement.rankfile import RankLine


class Machine(NamedTuple):
    """This machine, and this process on it.

    Attributes:
        name: its host name.
        names: its names that are known without a name server.
        cpus: how many this process may use.
        in_pod: whether it is a pod of Kubernetes.
        directory: the current directory; of one that was removed its former path, if that is known, or a text that is none.
        python: the path of its `python3`, None if it has none.
        terminal: whether stdin is a terminal.
    """

    name: str
    names: frozenset[str]
    cpus: int
    in_pod: bool
    directory: str
    python: str | None
    terminal: bool


class OwnHosts(NamedTuple):
    """The hosts that one program names for itself: those of its host lists, and those of its hostfiles."""

    named: list[HostEntry]
    entries: list[HostEntry]


class Hosts(NamedTuple):
    """The hosts that the user, a scheduler or an operator names.

    Attributes:
        hostfiles, entries: the paths of the hostfiles that count, and their hosts.
        named, source: the hosts of the host lists that count, and the name of the lists in messages.
        own: those of each program.
        listed: the host of each rank, by a rankfile or `--map-by seq`; None without.
        found: those of a scheduler or an operator, with its name; None if there is none, or they are not needed.
        slot_map: data and positions of the slot map; None without.
    """

    hostfiles: tuple[str, ...]
    entries: list[HostEntry]
    named: list[HostEntry]
    source: str
    own: list[OwnHosts]
    listed: list[HostEntry] | None
    found: tuple[list[HostEntry], str] | None
    slot_map: tuple[Any, Positions] | None

    @property
    def need_others(self) -> bool:
        """Whether the user names no hosts, or some relative to those of a scheduler, an operator or a slot map."""
        return not (self.hostfiles or self.named) or allocation.has_relative_names([*self.entries, *self.named])


class Inputs(NamedTuple):
    """All that was read.

    Attributes:
        environ: the head's variables.
        rank_lines: the lines of the rankfile, None without.
        agent: the agent that an operator names, None without or if the user names one.
        batch: the surrounding batch job, None without one whose hosts have an agent.
        env_files: the texts of the files of --env-file, by path: those of the job, then those of each program.
        checkpoints: the absolute path of --checkpoint-prefix, and the newest complete set below it, None without.
    """

    environ: Mapping[str, str]
    machine: Machine
    hosts: Hosts
    rank_lines: Sequence[RankLine] | None
    agent: kubernetes.FoundAgent | None
    batch: schedulers.BatchJob | None
    env_files: tuple[list[tuple[str, str]], ...]
    checkpoints: tuple[str, str | None] | None


def read_inputs(
    settings: Settings, sections: Sequence[Section], mapping: MappingPolicy, environ: Mapping[str, str]
) -> Inputs:
    """Read what a job is made of; raises UsageError. `mapping` is the policy of the whole job."""
    lines = _rankfile_of(mapping)
    machine = _machine(environ)
    return Inputs(
        environ,
        machine,
        _hosts(settings, sections, mapping, lines, environ),
        lines,
        _operator_agent(settings, environ),
        schedulers.find_job(environ, _plain_text, lambda name: find_program(name, environ.get("PATH", "")) is not None),
        (
            _env_files(settings["env-file"], named=settings.layer("env-file") == Layer.COMMAND_LINE),
            *(_env_files(section.values("env-file"), named=True) for section in sections),
        ),
        _checkpoints(settings["checkpoint-prefix"]),
    )


# Hosts


def _hosts(
    settings: Settings,
    sections: Sequence[Section],
    mapping: MappingPolicy,
    lines: Sequence[RankLine] | None,
    environ: Mapping[str, str],
) -> Hosts:
    of_job, lists = _named_hosts(settings)
    hostfiles, named, source = of_job, _host_lists(lists, settings.source("host")), settings.source("host")
    on_command_line = settings.layer("hostfile") == Layer.COMMAND_LINE
    own_files = tuple(dict.fromkeys(path for section in sections for path in section.values("hostfile")))
    own = [
        OwnHosts(_host_lists(section.values("host")), _hostfiles(section.values("hostfile"), named=True))
        for section in sections
    ]
    if own_files:
        hostfiles, named, on_command_line = own_files, [], True
    elif own_lists := [entry for hosts in own for entry in hosts.named]:
        hostfiles, named, source = (), own_lists, "--host"
    entries = _hostfiles(hostfiles, named=on_command_line)
    hosts = Hosts(
        hostfiles,
        entries,
        named,
        source,
        own,
        listed=_listed(settings, mapping, lines, entries),
        found=None,
        slot_map=load_yaml(settings["slot-map"]) if settings["slot-map"] else None,
    )
    return hosts._replace(found=_discover(environ)) if hosts.need_others else hosts


def _named_hosts(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hostfiles and the host lists of the strongest layer that names hosts.

    So `--host` filters a `--hostfile` on the command line, and replaces one from a config file or MPILAUNCH_HOSTFILE.
    """
    by_file, by_list = settings.layer("hostfile"), settings.layer("host")
    return settings["hostfile"] if by_file >= by_list else (), settings["host"] if by_list >= by_file else ()


def _listed(
    settings: Settings, mapping: MappingPolicy, lines: Sequence[RankLine] | None, entries: list[HostEntry]
) -> list[HostEntry] | None:
    """Return the host of each rank, by the lines of a rankfile or by `--map-by seq`; None for neither."""
    if lines is not None:
        return [HostEntry(line.host, origin=line.origin) for line in lines]
    if mapping.map_by != "seq":
        return None
    if mapping.file is not None:
        return _hostfiles((mapping.file,), named=settings.layer("map-by") == Layer.COMMAND_LINE)
    hostfiles, lists = _named_hosts(settings)
    return _hostfiles(hostfiles, named=settings.layer("hostfile") == Layer.COMMAND_LINE) or _host_lists(lists)


def _hostfiles(paths: Sequence[str], *, named: bool) -> list[HostEntry]:
    """Return the entries of hostfiles; `named` as for `check_trusted`."""
    result = []
    for path in paths:
        text, status = text_and_status(path, "hostfile")
        entries = parse_hostfile(text, path, expand_group)
        _check_agents(entries, status, named=named)
        result += entries
    return result


def _host_lists(texts: Sequence[str], source: str = "--host") -> list[HostEntry]:
    return [entry for text in texts for entry in parse_host_list(text, source, expand_group)]


def _check_agents(entries: Sequence[HostEntry], status: os.stat_result, *, named: bool) -> None:
    """Raise UsageError if entries contain commands and another user may have written their file."""
    for entry in entries:
        if is_template(entry.agent or ""):
            check_trusted(f"{entry.origin}: agent", status, named=named)


def _discover(environ: Mapping[str, str]) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of the scheduler or operator that the environment describes, and its name."""
    statuses: list[os.stat_result] = []

    def read_file(path: str) -> str:
        with open(path, encoding="utf-8") as file:
            statuses.append(os.fstat(file.fileno()))
            return file.read()

    result = schedulers.discover(environ, read_file) or kubernetes.find_hosts(environ, read_file, os.listdir)
    for status in statuses:
        _check_agents(result[0] if result else (), status, named=False)
    return result


# This machine


def _machine(environ: Mapping[str, str]) -> Machine:
    name, in_pod = os.uname().nodename, kubernetes.in_pod(environ)
    names = frozenset({"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]})
    if in_pod:
        with suppress(OSError):
            names |= remote_names.own_names(name, _plain_text("/etc/hosts"))
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        directory = environ.get("PWD") or "the current directory"
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    python = next((path for folder in folders if os.access(path := os.path.join(folder, "python3"), os.X_OK)), None)
    return Machine(name, names, len(os.sched_getaffinity(0)), in_pod, directory, python, os.isatty(0))


def _operator_agent(settings: Settings, environ: Mapping[str, str]) -> kubernetes.FoundAgent | None:
    """Return the agent that an operator's variables name; None without an operator, or if the user names an agent."""

    def is_program(word: str) -> bool:
        import shutil  # takes 3 ms

        return shutil.which(word) is not None

    return None if settings["agent"] else kubernetes.find_agent(environ, _plain_text, is_program)


def _plain_text(path: str) -> str:
    """Return the text of a file; raises OSError, UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return file.read()


# Other files


def _rankfile_of(mapping: MappingPolicy) -> Sequence[RankLine] | None:
    """Return the lines of the policy's rankfile, None if it has none; raises UsageError."""
    if mapping.map_by != "rankfile" or mapping.file is None:
        return None
    from mpilaunch.placement.rankfile import parse_rankfile  # few jobs need it

    return parse_rankfile(read_text(mapping.file, "rankfile"), mapping.file)


def _env_files(paths: Sequence[str], *, named: bool) -> list[tuple[str, str]]:
    return [(path, read_trusted(path, "env file", named=named)) for path in paths]


def _checkpoints(prefix: str | None) -> tuple[str, str | None] | None:
    """Return `Inputs.checkpoints`; raises UsageError."""
    if prefix is None:
        return None
    from mpilaunch.head import safe_files  # few launches have checkpoints, and this one imports the event loop
    from mpilaunch.head.checkpoints import find_newest_set

    prefix = os.path.abspath(prefix)
    try:
        return prefix, find_newest_set(prefix)
    except OSError as error:
        message = f"--checkpoint-prefix {prefix}: {reason_of(error)}"
        raise UsageError("checkpoint-prefix", message, hint=safe_files.hint_of(error)) from error
