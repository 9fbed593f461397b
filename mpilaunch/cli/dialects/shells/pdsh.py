"""Options of pdsh (pdsh 2.34, with its modules ssh and exec).

The words of the command are joined for the login shell of each host, as ssh does. Never reads stdin, but for `-w -`.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    ignored,
    needless,
    part,
    refused,
    weak,
)
from mpilaunch.cli.dialects.shells import remote
from mpilaunch.hosts.nodeset import Span

_DEFAULTS = {"f": "32", "t": "10"}
_RCMD = "ssh exec rsh mrsh krb4 xcpu qsh mqsh"
"""The modules of pdsh by which it reaches hosts; the first two exist here."""
_VARIABLES = {"f": "FANOUT", "t": "PDSH_CONNECT_TIMEOUT", "u": "PDSH_COMMAND_TIMEOUT", "R": "PDSH_RCMD_TYPE"}


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the hosts and how they are reached, and the program that runs the words on each."""
    if around.names_hosts:
        raise InvalidArgument("--host and --hostfile are not options of pdsh", "name the hosts with -w HOSTS or -w ^FILE")
    parts = {**{key: around.environ[name] for key, name in _VARIABLES.items() if around.environ.get(name)}, **parts}
    hosts, modules = _hosts(parts, around)
    for module in modules or {parts.get("R", "ssh")}:
        if module not in ("ssh", "exec") or len(modules) > 1:
            hint = "use -R ssh, or -R exec with the command that reaches a host"
            raise InvalidArgument(f"module '{module}' of pdsh is not supported", hint)
    local = (modules or {parts.get("R", "ssh")}) == {"exec"}
    if not words and "q" not in parts:
        raise InvalidArgument("pdsh without a command is not supported", "add the command; run pdsh once for each command")
    user = parts.get("l")
    fields = {"%%": "=%", "%h": "host", "%n": "number"}
    if any("%u" in word for word in words):
        own = user or pwd.getpwuid(os.getuid()).pw_name
        users = {name.rpartition("@")[0] or own for name in hosts}
        if len(users) > 1:
            raise InvalidArgument("%u needs one user on all hosts", "use -l USER")
        fields["%u"] = f"={users.pop()}" if users else "="
    shown = {**_DEFAULTS, **parts, **({"local": "yes"} if local else {})}
    options = remote.job(hosts, None if local else user, shown) + weak("--stdin", "none")
    options += weak("--host-failures", "pdsh:" + (os.path.basename(words[0]) if local and words else "ssh"))
    if not local:
        for name in ("PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND"):
            options += remote.ssh_options(name, re.sub("-l ?%u|%[hu]", "", around.environ.get(name, "")))
        if path := around.environ.get("DSHPATH"):
            words = [f"PATH={shlex.quote(path)};", *words]
    filled, command = remote.program(words or ["true"], fields, "words" if local else "login")
    return options + filled, command


def _hosts(parts: Mapping[str, str], around: Surroundings) -> tuple[list[str], set[str]]:
    """Return the hosts of -w, or of WCOLL, without those of -x; and the modules of pdsh that the list names."""
    text = parts.get("w,") or (f"^{around.environ['WCOLL']}" if around.environ.get("WCOLL") else "")
    if not text:
        raise InvalidArgument("no hosts", "name them with -w HOSTS, -w ^FILE or the variable WCOLL")
    hosts: list[str] = []
    excluded: set[str] = set()
    patterns: list[tuple[bool, str]] = []
    modules: set[str] = set()
    items = [(False, item) for item in Span.of(text, "-w").split()]
    items += [(True, item) for item in Span.of(parts.get("x,", ""), "-x").split()]
    for without, item in items:
        if item.text.startswith("-") and item.text != "-":
            without, item = True, item.part(1)
        if item.text.startswith("/"):
            patterns.append((without, item.text[1:].removesuffix("/")))
            continue
        if item.text.startswith("^") or item.text == "-":
            names = _of_file(item.text[1:] if item.text != "-" else "/dev/stdin", around)
        else:
            if (module := item.text.partition(":")[0]) in _RCMD.split() and module != item.text:
                modules.add(module)
                item = item.part(len(module) + 1)
            names = _expand(item)
        if without:
            excluded.update(names)
        else:
            hosts += names
    hosts = [name for name in hosts if name not in excluded and name.rpartition("@")[2] not in excluded]
    for without, pattern in patterns:
        try:
            hosts = [name for name in hosts if bool(re.search(pattern, name.rpartition("@")[2])) != without]
        except re.error as error:
            raise InvalidArgument(f"'/{pattern}/' is not a regular expression: {error}", "like /node0[1-4]/") from None
    return hosts, modules


def _expand(item: Span) -> list[str]:
    """Return the names of an item, each with its user if it has one."""
    at = 0 if item.text.startswith("@") else item.text.rfind("@") + 1
    return [item.text[:at] + name for name in remote.expand_host(item.part(at))] if item.text[at:] else []


def _of_file(path: str, around: Surroundings) -> list[str]:
    """Return the hosts of a file: lists in its lines."""
    names = []
    for number, line in enumerate(around.read_file(path, "list of hosts").splitlines(), start=1):
        if line.startswith("#include"):
            raise InvalidArgument(f"{path}:{number}: #include is not supported", "name each file: -w ^FILE1,^FILE2")
        for word in line.partition("#")[0].split():
            names += [name for item in Span.of(word, path, number).split() for name in _expand(item)]
    return names


_GROUPS = "-w @GROUP names a group of ClusterShell's files, -w ^FILE a file of hosts"

DIALECT = Dialect(
    name="pdsh",
    title="pdsh",
    owner="pdsh's",
    rows=(
        # Hosts
        part("w", "HOSTS", "one rank on each: ranges, ^FILE, -HOST, /REGEX/, user@HOST, ssh:HOST, @GROUP, - for stdin", "w,"),
        part("x", "HOSTS", "leave these out", "x,"),
        refused("g X", "QUERY", _GROUPS),
        refused("a A i", "", _GROUPS),
        refused("F", "FILE", _GROUPS),
        refused("j P", "LIST", "run mpilaunch itself inside the job: it uses the nodes of Slurm and PBS"),
        # Reaching them
        part("R", "NAME", "ssh, or exec: the command runs here, once for each host"),
        part("l", "USER", "the login on the hosts"),
        part("f", "N", "`--fanout N`, 32 without it: on so many hosts at a time, the next begins when one is done"),
        part("t", "SECONDS", "`--ssh-option ConnectTimeout=SECONDS`, 10 without it"),
        part("u", "SECONDS", "`--timeout SECONDS`, for each host"),
        refused("M", "NAMES", "mpilaunch has no modules of pdsh"),
        refused("L", "", "mpilaunch has no modules of pdsh; --version prints its version"),
        # Output and end
        part("S", "", "`--exit-code largest`; without it `--exit-code zero`"),
        part("N", "", "no `--tag`; without it `--tag '{host}: '`"),
        acts("q", "", lambda: Translation(("--dry-run",), parts={"q": "yes"}), "`--dry-run`"),
        needless("b", "", "the first interrupt ends the commands"),
        needless("K", "", "a host's name is never shortened"),
        needless("s", "", "stdout and stderr are always separate"),
        ignored("d", "", "--report FILE has the times of each host, -v the steps of the start"),
    ),
    getopt=True,
    finish=finish,
)
