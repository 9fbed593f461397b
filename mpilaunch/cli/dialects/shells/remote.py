"""What pdsh, pdcp and clush share: the hosts, the options of ssh, and the programs that run a line or copy files there.

Pure, but for groups of hosts, which are looked up in ClusterShell's files, the texts of `receiver` and `sender`, and the umask.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpilaunch.agent import CHECK_PYTHON, python_command
from mpilaunch.cli.archives import stdin as archive
from mpilaunch.cli.dialects.rows import InvalidArgument, Translation, weak, whole
from mpilaunch.cli.files import current_umask, expand_group
from mpilaunch.defaults import START_TIMEOUT
from mpilaunch.hosts.nodeset import Span, expand
from mpilaunch.text import escape_braces

_SHELLS = {"login": 'exec "${SHELL:-/bin/sh}" -c "$0"', "shell": 'exec /bin/sh -c "$0"'}
"""Form of the words to the script of sh that runs them as a line: by the login shell, as with ssh, or by sh."""


_SHORTEST = 0.1
"""The shortest --timeout, in seconds."""


def expand_host(item: Span) -> list[str]:
    """Return the names of one item of a host list: a name, a range, or a group."""
    if item.text.startswith("@"):
        return expand_group(item)
    if re.fullmatch(r"[^:]*:[^:]*", item.text):
        raise InvalidArgument(f"'{item.text}' is not a host", "a port is set with --ssh-option Port=2222")
    return expand(item)


def job(hosts: Sequence[str], user: str | None, parts: Mapping[str, str]) -> Translation:
    """Return the options of a job that runs one command on each host, in this order; `parts` has local, S, N, t, u and f.

    Raises InvalidArgument.
    """
    if not hosts:
        raise InvalidArgument("no host is left to run on", "check the options that name hosts and those that leave some out")
    names = ",".join(name if user is None or "@" in name else f"{user}@{name}" for name in hosts)
    words = ["--host", names, "--map-by", "seq", "--independent", "--fanout", str(whole(parts["f"], "-f"))]
    connect, limit = _seconds(parts["t"], "-t"), _seconds(parts.get("u", "0"), "-u")
    ssh = ["--ssh-option", f"ConnectTimeout={math.ceil(connect)}"]
    words += ["--agent", "local", "--wdir", "."] if "local" in parts else ssh
    words += ["--timeout", _plain(max(limit, _SHORTEST))] if limit else []
    result = Translation(tuple(words)) + weak("--forward", "none") + weak("--drain", "0")
    result += weak("--exit-code", "largest" if "S" in parts else "zero")
    if connect > START_TIMEOUT:
        result += weak("--start-timeout", _plain(connect + START_TIMEOUT))
    return result + (Translation() if "N" in parts else weak("--tag", "{host}: "))


def _plain(seconds: float) -> str:
    """Return seconds as a time limit, without an exponent."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _seconds(text: str, flag: str) -> float:
    """Return a time limit, 0 for none; raises InvalidArgument."""
    if not re.fullmatch("[0-9]{1,7}([.][0-9]{0,6})?", text):
        raise InvalidArgument(f"{flag}: '{text}' is not a number of seconds", f"write {flag} 10, or {flag} 2.5")
    return float(text)


def program(words: Sequence[str], fields: Mapping[str, str], form: str) -> tuple[Translation, list[str]]:
    """Return the program that runs the words on each host, and the option that fills in the fields of each.

    Args:
        fields: a field, such as "%h", to "host", "number", "user" or "=TEXT"; a sign without a field stays as it is.
        form: "login": the words are a line for the login shell; "shell": for sh here; "words": they are the program.
    """
    lines = list(words) if form == "words" else [" ".join(words)]
    of_host = any(fields.get(piece) in _TEMPLATES for line in lines for piece in _pieces(line, fields))
    lines = [_filled(line, fields, of_host) for line in lines]
    if form in _SHELLS:
        script = _SHELLS[form]
    elif of_host:  # the program itself is no template
        script, lines = 'exec "$@"', ["sh", *lines]
    else:
        return Translation(), lines
    options = Translation(("--template",) if of_host else ())
    return options, ["sh", "-c", escape_braces(script) if of_host else script, *lines]


_TEMPLATES = {"host": "{host}", "number": "{rank}", "user": "{user}"}
"""What a field becomes, to its template. No name of a host has a character of the shell (`hosts.remote_names`)."""


def _pieces(line: str, fields: Mapping[str, str]) -> list[str]:
    return re.split("(" + "|".join(map(re.escape, fields)) + ")", line) if fields else [line]


def _filled(line: str, fields: Mapping[str, str], template: bool) -> str:
    """Return the line with its fields as text, or, if it is a `template`, as fields of one."""
    result = ""
    for piece in _pieces(line, fields):
        value = fields.get(piece, "=" + piece)
        if value.startswith("="):
            result += escape_braces(value[1:]) if template else value[1:]
        else:
            result += _TEMPLATES[value]
    return result


def copy(paths: Sequence[str], target: str, *, preserve: bool) -> tuple[Translation, list[str]]:
    """Return how files of this machine are put into a directory of each host, or, if it is one, under another name.

    Args:
        target: the path on the hosts; with a slash at its end, or for several files, a directory.
        preserve: keep modes and times.
    """
    name = archive.name_of(paths[0]) if len(paths) == 1 and not target.endswith("/") else ""
    options = Translation(("--stdin", "all", *(word for path in paths for word in ("--stdin-archive", path))))
    return options, _there("receiver", target, name, "p" if preserve else "")


def fetch(paths: Sequence[str], directory: str, *, recursive: bool, preserve: bool) -> tuple[Translation, list[str]]:
    """Return how files of each host come into a directory of this machine, with the host's name after their own.

    Args:
        preserve: keep modes and times.
    """
    names = [os.path.basename(os.path.normpath(path)) if path else "" for path in paths]
    for path, name in zip(paths, names, strict=True):
        if not name:
            raise InvalidArgument(f"'{path}' has no name", "name a directory in it")
        if names.count(name) > 1:
            raise InvalidArgument(f"two files are named {name}", "copy them one by one, each to a directory of its own")
    if not os.path.isdir(directory):
        raise InvalidArgument("reverse copy dest must be a directory", f"{directory} is no directory of this machine")
    options = Translation(("--stdin", "none", "--stdout-archive", directory))
    return options, _there("sender", "r" if recursive else "", "" if preserve else f"{current_umask():o}", *paths)


def _there(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this folder on a host."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return python_command("python3", "mpilaunch copy", f"{CHECK_PYTHON}\n{text}", *arguments)


_ARGUMENT = {"-p": "Port", "-l": "User", "-i": "IdentityFile", "-J": "ProxyJump", "-o": "", "-c": "Ciphers", "-m": "MACs"}
_ARGUMENT |= {"-b": "BindAddress", "-S": "ControlPath", "-I": "PKCS11Provider", "-e": "EscapeChar"}
"""Option of ssh with an argument to the name of its setting."""
_ALONE = {"-4": "AddressFamily=inet", "-6": "AddressFamily=inet6", "-C": "Compression=yes", "-a": "ForwardAgent=no"}
_ALONE |= {"-x": "ForwardX11=no", "-T": "RequestTTY=no", "-q": "", "-2": "", "-n": "", "-A": "ForwardAgent=yes"}
_ALONE |= {"-K": "GSSAPIAuthentication=yes", "-k": "GSSAPIDelegateCredentials=no"}
"""Option of ssh without an argument to its setting, "" for none."""


def ssh_options(source: str, text: str) -> Translation:
    """Return our options for arguments of ssh, in one text; raises InvalidArgument."""
    hint = "use -o NAME=VALUE, or --ssh-option NAME=VALUE, with the settings of ssh_config(5)"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{source}: {error}", "quote words as for a shell") from None
    settings: list[str] = []
    notes: tuple[tuple[str, int], ...] = ()
    while words:
        word = words.pop(0)
        flag, value = word[:2], word[2:]
        if flag not in _ARGUMENT | _ALONE:
            raise InvalidArgument(f"{source}: option '{word}' of ssh is not supported", hint)
        if flag == "-A":
            notes += ((f"{source}: -A lets root on each host use your ssh agent while its command runs", 0),)
        if flag in _ALONE:
            settings += filter(None, (_ALONE[flag],))
            words[:0] = [f"-{value}"] if value else []
            continue
        if not (value := value or (words.pop(0) if words else "")):
            raise InvalidArgument(f"{source}: {flag} needs a value", hint)
        settings.append(re.sub(r"^(\w+)\s*=?\s*", r"\1=", value) if flag == "-o" else f"{_ARGUMENT[flag]}={value}")
    return Translation(tuple(word for setting in settings for word in ("--ssh-option", setting)), notes)
