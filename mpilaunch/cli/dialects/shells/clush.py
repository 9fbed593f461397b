"""Options of clush (ClusterShell 1.9).

Its hosts are a set, in the order of their names. The words of the command are joined for the login shell, as ssh does.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from functools import partial

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
    whole,
)
from mpilaunch.cli.dialects.shells import remote
from mpilaunch.hosts.nodeset import Span, combine
from mpilaunch.text import escape_braces

_DEFAULTS = {"f": "64", "t": "15"}
_SETTINGS = {"fanout": "f", "connect_timeout": "t", "command_timeout": "u", "ssh_user": "l", "ssh_options": "o", "maxrc": "S"}
"""Setting of clush.conf, for -O, to the option that sets the same."""
_WITHOUT_EFFECT = ("color", "fd_max", "history_size", "node_count")


def setting(text: str) -> Translation:
    """-O KEY=VALUE: a setting of clush.conf."""
    key, _, value = text.partition("=")
    if key in _WITHOUT_EFFECT:
        return Translation(notes=((f"-O {key} has no effect here", 0),))
    if key == "maxrc" and value.lower() in ("no", "false", "off", "0"):
        return Translation()
    if key not in _SETTINGS or not value:
        raise InvalidArgument(f"setting '{text}' is not supported", "the settings are " + ", ".join(_SETTINGS))
    return keep(_SETTINGS[key], value)


def output_files(flag: str, directory: str) -> Translation:
    """--outdir DIR, --errdir DIR: a file for each host, named as the host is."""
    return Translation((flag, f"{escape_braces(directory.rstrip('/'))}/{{host}}", "--copy"))


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the hosts and how they are reached, the form of the output, and the program that runs the words on each host."""
    copies = next((flag for flag in ("c", "rcopy") if flag in parts), "")
    if not copies and ("dest" in parts or "p" in parts):
        raise InvalidArgument("--dest and -p need -c or --rcopy", _USAGE_OF_COPY)
    if not words and not copies:
        raise InvalidArgument("clush without a command is not supported", "add the command; run clush once for each command")
    worker = parts.get("R", "ssh")
    if worker not in ("ssh", "exec"):
        raise InvalidArgument(f"worker '{worker}' is not supported", "use -R ssh or -R exec")
    hosts = _hosts(parts, around)
    local = worker == "exec"
    shown = {**_DEFAULTS, **parts, **({"local": "yes"} if local else {})}
    options = remote.job(hosts, None if local else parts.get("l"), shown)
    options += weak("--host-failures", "clush")
    options += remote.ssh_options("-o", "" if local else parts.get("o", ""))
    if copies != "rcopy":  # of which there is no text to gather
        options += _gathering(parts)
    if copies:
        if local:
            raise InvalidArgument("-c and --rcopy with -R exec are not supported", "files are copied over ssh")
        copying, command = _copying(words, parts, fetched=copies == "rcopy")
        return options + copying, command
    options += weak("--stdin", "none" if "n" in parts or os.isatty(0) else "all")
    fields = {"%%": "=%", "%hosts": "host", "%host": "host", "%h": "host", "%rank": "number", "%n": "number"} if local else {}
    filled, command = remote.program(words, fields, "shell" if local else "login")
    return options + filled, command


def _gathering(parts: Mapping[str, str]) -> Translation:
    """Return how the output of several hosts is printed together."""
    gathered = [flag for flag in ("b", "B", "diff") if flag in parts]
    if gathered and "L" in parts:
        hint = "leave one out: -L prints the lines in the order of the hosts"
        raise InvalidArgument(f"{'--diff' if 'diff' in parts else '-b'} with -L is not supported", hint)
    if gathered:
        style = "--fold-style=diff" if "diff" in parts else "--fold-style=blocks"
        return Translation(("--fold", style, *(("--merge-stderr-to-stdout",) if "B" in parts else ())))
    return Translation(("--fold", "--fold-style=hosts") if "L" in parts else ())


def _copying(words: Sequence[str], parts: Mapping[str, str], *, fetched: bool) -> tuple[Translation, list[str]]:
    """Return how the files of -c and --rcopy are copied; as with clush, --dest and -p may also follow them."""
    paths, rest = [], list(words)
    target, preserve = parts.get("dest", ""), "p" in parts
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag == "--dest" and (equals or rest):
            target = value if equals else rest.pop(0)
        elif word == "-p":
            preserve = True
        elif word.startswith("-") and word != "-":
            raise InvalidArgument(f"{word} after the files is not supported", "write it before -c and --rcopy")
        else:
            paths.append(word)
    if not paths:
        raise InvalidArgument("-c and --rcopy need files", _USAGE_OF_COPY)
    beside = os.path.dirname(os.path.abspath(paths[0]))
    if fetched:
        return remote.fetch(paths, target or beside, recursive=True, preserve=preserve)
    return remote.copy(paths, target or os.path.join(beside, ""), preserve=preserve)


def _hosts(parts: Mapping[str, str], around: Surroundings) -> list[str]:
    """Return the hosts of -w, -g, -a and --hostfile without those of -x and -X, in the order of their names."""
    if around.names_hosts:
        raise InvalidArgument("--host is not an option of clush", "name the hosts with -w HOSTS or --hostfile=FILE")
    source = parts.get("s", "")
    named = [("-w", parts.get("w,", "")), ("-g", _groups(source, parts.get("g,", "")))]
    named += [("-a", f"@{source}:*" if source else "@*")] if "a" in parts else []
    for path in filter(None, parts.get("hostfile,", "").split(",")):
        named += [(path, line.partition("#")[0]) for line in around.read_file(path, "hostfile").splitlines()]
    left_out = [("-x", parts.get("x,", "")), ("-X", _groups(source, parts.get("X,", "")))]
    if not any(text for _, text in named):
        raise InvalidArgument("no hosts", "name them with -w HOSTS, -g GROUP or --hostfile=FILE")
    hosts = list(_expand(named) - _expand(left_out))
    if "pick" in parts:
        hosts = random.sample(hosts, min(whole(parts["pick"], "--pick"), len(hosts)))
    return sorted(hosts, key=_order)


def _order(name: str) -> list[tuple[bool, int, int, str]]:
    """Return the key by which names are sorted: the numbers in them by their values, padded ones after the others."""
    return [_order_of_piece(piece) for piece in re.findall(r"[0-9]+|[^0-9]+", name)]


def _order_of_piece(piece: str) -> tuple[bool, int, int, str]:
    if not piece.isdigit():
        return False, 0, 0, piece
    digits = piece.lstrip("0")
    return True, len(piece) if piece[0] == "0" and len(piece) > 1 else 0, len(digits), digits


def _groups(source: str, names: str) -> str:
    """Return names of groups as a host list."""
    prefix = f"@{source}:" if source else "@"
    return ",".join(name if name.startswith("@") else prefix + name for name in names.split(",") if name)


def _expand(texts: Sequence[tuple[str, str]]) -> set[str]:
    """Return the hosts of several texts, each with its source; without an operator, blanks separate hosts too."""
    hosts: set[str] = set()
    for source, text in texts:
        text = re.sub(r"\[[^][]*]", lambda match: match[0].replace(" ", ""), text)
        for word in [text] if re.search("[&!^]", text) else text.split():
            hosts.update(combine(Span.of(word, source), remote.expand_host))
    return hosts


_USAGE_OF_COPY = "clush -w HOSTS -c|--rcopy FILE... --dest PATH"
_CONFIGURATION = "mpilaunch does not read clush.conf: use -O KEY=VALUE; CLUSTERSHELL_CFGDIR names the directory of groups.conf"

DIALECT = Dialect(
    name="clush",
    title="clush",
    owner="clush's",
    rows=(
        # Hosts
        part("w", "HOSTS", "one rank on each: ranges and @GROUP, combined by `,`, `!`, `&` and `^` from left to right", "w,"),
        part("x", "HOSTS", "leave these out", "x,"),
        part("g group", "GROUP", "the hosts of a group", "g,"),
        part("X", "GROUP", "leave the hosts of a group out", "X,"),
        part("a all", "", "all hosts of the default source of groups"),
        part("s groupsource", "SOURCE", "the source of groups for -g, -X and -a"),
        part("hostfile machinefile", "FILE", "the hosts in a file", "hostfile,"),
        part("pick", "N", "choose N of them at random"),
        refused("groupsconf conf topology", "FILE", _CONFIGURATION),
        refused("m mode", "MODE", _CONFIGURATION),
        acts("O option", "KEY=VALUE", setting, "fanout, connect_timeout, command_timeout, ssh_user, ssh_options and maxrc"),
        # Reaching them
        part("R worker", "NAME", "ssh, or exec: the command runs here, once for each host"),
        part("l user", "USER", "the login on the hosts"),
        part("o options", "OPTIONS", "`--ssh-option` for each option of ssh"),
        part("f fanout", "N", "`--fanout N`, 64 without it: on so many hosts at a time, the next begins when one is done"),
        part("t connect_timeout", "SECONDS", "`--ssh-option ConnectTimeout=SECONDS`, 15 without it"),
        part("u command_timeout", "SECONDS", "`--timeout SECONDS`, for each host"),
        refused("remote", "YES", "mpilaunch connects to each host directly"),
        refused("sudo", "", "add sudo -n to the command"),
        part("n nostdin", "", "`--stdin none`; without it `--stdin all`, unless stdin is a terminal"),
        # Output and end
        part("b dshbak", "", "`--fold --fold-style blocks`"),
        part("B", "", "`--fold --fold-style blocks --merge-stderr-to-stdout`"),
        part("L", "", "`--fold --fold-style hosts`"),
        part("N", "", "no `--tag`; without it `--tag '{host}: '`"),
        part("S maxrc", "", "`--exit-code largest`; without it `--exit-code zero`"),
        part("diff", "", "`--fold --fold-style diff`"),
        refused("r regroup", "", "-b names the hosts by ranges"),
        acts("outdir", "DIR", partial(output_files, "--output-file"), "`--output-file DIR/{host} --copy`"),
        acts("errdir", "DIR", partial(output_files, "--error-file"), "`--error-file DIR/{host} --copy`"),
        acts("q quiet", "", "--quiet"),
        acts("v verbose", "", "-v"),
        acts("d debug", "", "-vv"),
        needless("P progress", "", "mpilaunch shows the progress of a slow start"),
        needless("G groupbase", "", "hosts are printed by name, not by group"),
        needless("color", "WHEN", "lines of hosts are never coloured"),
        # Files
        part("c copy", "", "copy FILE... to each host: `--stdin all --stdin-archive FILE`, and a program there"),
        part("rcopy", "", "copy FILE... of each host to here: `--stdout-archive DIR`, and a program there"),
        part("dest", "PATH", "where the files of -c and --rcopy come; without it where they are from"),
        part("p", "", "the files of -c and --rcopy keep their modes and times"),
    ),
    getopt=True,
    usage="clush [OPTIONS] -w HOSTS COMMAND...",
    finish=finish,
)
