"""Options of pdsh and pdcp (pdsh 2.34, with its modules ssh and exec).

The words of the command are joined for the login shell of each host, as ssh does. Never reads stdin, but for `-w -`.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpilaunch import __version__
from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    keep,
    needless,
    part,
    refused,
    weak,
)
from mpilaunch.cli.dialects.shells import remote
from mpilaunch.cli.dialects.shells.wcoll import Collective, ranged

_DEFAULTS = {"f": "32", "t": "10"}
_VARIABLES = {"f": "FANOUT", "t": "PDSH_CONNECT_TIMEOUT", "u": "PDSH_COMMAND_TIMEOUT", "R": "PDSH_RCMD_TYPE"}


class Reached(NamedTuple):
    """How the hosts of a command line are reached.

    Attributes:
        parts: with those that variables give.
        hosts: their names.
        local: by -R exec.
    """

    parts: Mapping[str, str]
    hosts: list[str]
    local: bool
    notes: Translation


def reached(parts: Mapping[str, str], around: Surroundings) -> Reached:
    """Return the hosts and how they are reached; raises InvalidArgument and UsageError."""
    if around.names_hosts:
        raise InvalidArgument("--host and --hostfile are not options of pdsh", "name the hosts with -w HOSTS or -w ^FILE")
    parts = {**{key: around.environ[name] for key, name in _VARIABLES.items() if around.environ.get(name)}, **parts}
    parts = {key: value.strip() for key, value in parts.items()}  # ClusterShell passes "-f 64" as one word
    collective = Collective(parts, around)
    hosts, modules = collective.hosts, collective.modules
    for module in modules or {parts.get("R", "ssh")}:
        if module not in ("ssh", "exec"):
            hint = "use -R ssh, or -R exec with the command that reaches a host"
            raise InvalidArgument(f"module '{module}' of pdsh is not supported", hint)
    if len(modules) > 1:
        raise InvalidArgument("ssh and exec in one command are not supported", "run pdsh once for the hosts of each")
    return Reached(parts, hosts, (modules or {parts.get("R", "ssh")}) == {"exec"}, collective.notes)


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the hosts and how they are reached, and the program that runs the words on each."""
    parts, hosts, local, notes = reached(parts, around)
    if "q" in parts:
        path = around.environ.get("DSHPATH")
        about = f"""\
-- DSH-specific options --
Separate stderr/stdout	Yes
Path prepended to cmd	{f"PATH={path};" if path else "none"}
Appended to cmd         none
Command:		{" ".join(words) or "none"}"""
        return notes + Translation(text=listing(about, parts, hosts, "exec" if local else "ssh")), [*words]
    if not words:
        raise InvalidArgument("pdsh without a command is not supported", "add the command; run pdsh once for each command")
    user = parts.get("l")
    fields = {"%%": "=%", "%h": "host", "%n": "number"}
    if any("%u" in word for word in words):
        own = user or pwd.getpwuid(os.getuid()).pw_name
        users = {name.rpartition("@")[0] or own for name in hosts}
        fields["%u"] = "user" if len(users) > 1 else f"={users.pop()}" if users else "="
        if len(users) > 1:
            user, hosts = None, [name if "@" in name else f"{own}@{name}" for name in hosts]
    options = job(hosts, user, parts, os.path.basename(words[0]) if local else "") + weak("--stdin", "none")
    options += Translation(("--no-continue-on-error",)) + weak("--exit-code", "first") if "k" in parts else Translation()
    if not local:
        options += ssh_options(around.environ)
        if path := around.environ.get("DSHPATH"):
            words = [f"PATH={shlex.quote(path)};", *words]
    filled, command = remote.program(words, fields, "words" if local else "login")
    return notes + options + filled, command


def job(hosts: Sequence[str], user: str | None, parts: Mapping[str, str], program: str = "", name: str = "pdsh") -> Translation:
    """Return the options of a job of the command `name`; with -R exec, `program` is what runs for each host."""
    shown = {**_DEFAULTS, **parts, **({"local": "yes"} if program else {})}
    options = remote.job(hosts, None if program else user, shown) + weak("--host-failures", f"{name}:{program or 'ssh'}")
    return options + weak("--first-interrupt", "end" if "b" in parts else "status")


def ssh_options(environ: Mapping[str, str]) -> Translation:
    """Return our options for the variables that give ssh arguments."""
    names = ("PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND")
    texts = (remote.ssh_options(name, re.sub("-l ?%u|%[hu]", "", environ.get(name, ""))) for name in names)
    return sum(texts, Translation())


def listing(about: str, parts: Mapping[str, str], hosts: Sequence[str], way: str, remote_program: str = "") -> str:
    """Return what -q and -Q print: the settings, and on the last line the hosts, for -Q each by itself.

    Args:
        about: the first lines.
        way: the module by which hosts are reached.
    """
    names = [name.rpartition("@")[2] for name in hosts]
    user, program = pwd.getpwuid(os.getuid()).pw_name, os.path.abspath(shutil.which(sys.argv[0]) or sys.argv[0])
    given = {**_DEFAULTS, **parts}
    yes = {key: "Yes" if key in parts else "No" for key in "bd"}
    return f"""\
{about}
Full program pathname	{program}
Remote program path	{remote_program or program}

-- Generic options --
Local username		{user}
Local uid     		{os.getuid()}
Remote username		{given.get("l", user)}
Rcmd type		{way}
one ^C will kill pdsh   {yes["b"]}
Connect timeout (secs)	{given["t"]}
Command timeout (secs)	{given.get("u", "0")}
Fanout			{given["f"]}
Display hostname labels	{"No" if "N" in parts else "Yes"}
Debugging       	{yes["d"]}

-- Target nodes --
{",".join(names) if parts["q"] == "Q" else ranged(names)}"""


_MODULES = {
    "rcmd": {
        "ssh": "ssh based rcmd connect method, without the program ssh",
        "exec": "arbitrary command rcmd connect method",
    },
    "misc": {
        "genders": "target nodes using the program nodeattr of genders",
        "dshgroup": "target nodes of files in /etc/dsh/group",
        "machines": "target the nodes in /etc/machines",
    },
}


def describe_version() -> str:
    """Return what -V prints."""
    names = {kind: ",".join(modules) for kind, modules in _MODULES.items()}
    return f"pdsh-2.34 (mpilaunch {__version__})\nrcmd modules: {names['rcmd']} (default: ssh)\nmisc modules: {names['misc']}"


def describe_modules() -> str:
    """Return what -L prints."""
    found = [(f"{kind}/{name}", about) for kind, named in _MODULES.items() for name, about in named.items()]
    paragraphs = [f"Module: {name}\nAuthor: mpilaunch\nDescr:  {about}\nActive: yes\n" for name, about in found]
    return "\n".join([f"{len(found)} modules loaded:\n", *paragraphs])


ROWS = (
    # Hosts
    part("w", "HOSTS", "one rank on each: ranges, ^FILE, -HOST, /REGEX/, user@HOST, ssh:HOST, @GROUP, - for stdin", "w,"),
    part("x", "HOSTS", "leave these out", "x,"),
    part("g", "QUERY", "the hosts of a query of genders, or of a file in /etc/dsh/group; of those of -w only these", "g,"),
    part("X", "QUERY", "leave the hosts of a query or a group out", "X,"),
    acts("a", "", lambda: keep("a,", "a"), "all nodes of genders but those with pdsh_all_skip, or those in /etc/machines"),
    acts("A", "", lambda: keep("a,", "A"), "all nodes of genders"),
    part("F", "FILE", "this file of genders"),
    part("i", "", "the other names of hosts in genders: altname, or the node of one"),
    refused("j P", "LIST", "run mpilaunch itself inside the job: it uses the nodes of Slurm and PBS"),
    # Reaching them
    part("R", "NAME", "ssh, or exec: the command runs here, once for each host"),
    part("l", "USER", "the login on the hosts"),
    part("f", "N", "`--fanout N`, 32 without it: on so many hosts at a time, the next begins when one is done"),
    part("t", "SECONDS", "`--ssh-option ConnectTimeout=SECONDS`, 10 without it"),
    part("u", "SECONDS", "`--timeout SECONDS`, for each host"),
    part("M", "NAMES", "where groups are: genders, dshgroup, machines"),
    acts("L", "", lambda: Translation(text=describe_modules()), "print the modules"),
    acts("V", "", lambda: Translation(text=describe_version()), "print the version"),
    # Output and end
    part("N", "", "no `--tag`; without it `--tag '{host}: '`"),
    acts("q", "", lambda: keep("q", "q"), "print the settings and the hosts as pdsh does; see also `--dry-run`"),
    acts("Q", "", lambda: keep("q", "Q"), "the same, with each host by itself"),
    part("b", "", "`--first-interrupt end`; without it `--first-interrupt status`"),
    needless("K", "", "a host's name is never shortened"),
    part("d", "", "only for -q: --report FILE has the times of each host, -v the steps of the start"),
)
"""Those of pdcp too."""

DIALECT = Dialect(
    name="pdsh",
    title="pdsh",
    owner="pdsh's",
    rows=(
        *ROWS,
        part("k", "", "`--no-continue-on-error`: the first failure ends the commands of all hosts"),
        part("S", "", "`--exit-code largest`; without it `--exit-code zero`"),
        needless("s", "", "stdout and stderr are always separate"),
    ),
    getopt=True,
    usage="pdsh [OPTIONS] -w HOSTS COMMAND...",
    finish=finish,
)
