"""What pdsh and clush share: the hosts and the options of ssh, and the program that runs a command line as sshd does.

Pure, but for groups of hosts: those are looked up in ClusterShell's files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.rows import InvalidArgument, Translation, weak, whole
from mpilaunch.cli.files import expand_group
from mpilaunch.defaults import START_TIMEOUT
from mpilaunch.hosts.nodeset import Span, expand

_IN_HOME = "cd; "
_SHELL = 'exec "${SHELL:-/bin/sh}" -c '
"""The command line of a user runs in the home directory and by the login shell, as with ssh."""


def expand_host(item: Span) -> list[str]:
    """Return the names of one item of a host list: a name, a range, or a group."""
    if item.text.startswith("@"):
        return expand_group(item)
    if re.fullmatch(r"[^:]*:[^:]*", item.text):
        raise InvalidArgument(f"'{item.text}' is not a host", "a port is set with --ssh-option Port=2222")
    return expand(item)


def job(hosts: Sequence[str], user: str | None, parts: Mapping[str, str]) -> Translation:
    """Return the options of a job that runs one command on each host, in this order; `parts` has local, S, N, t, u and f."""
    if not hosts:
        raise InvalidArgument("no host is left to run on", "check -w and -x")
    if (fanout := parts.get("f")) and whole(fanout, "-f") < len(hosts):
        hint = f"leave -f out, or name at most {fanout} hosts at a time with -w"
        raise InvalidArgument(f"-f {fanout}, but {len(hosts)} hosts: mpilaunch runs on all hosts at the same time", hint)
    names = ",".join(name if user is None or "@" in name else f"{user}@{name}" for name in hosts)
    words = ["--host", names, "--map-by", "seq", "--bare", "--leave-running", "--continue-on-error", "--skip-unreachable"]
    words += ["--fanout", fanout] if fanout else []
    connect, limit = whole(parts["t"], "-t", 0), whole(parts.get("u", "0"), "-u", 0)
    words += ["--agent", "local"] if "local" in parts else ["--ssh-option", f"ConnectTimeout={connect}"]
    words += ["--timeout", str(limit)] if limit else []
    result = Translation(tuple(words)) + weak("--forward", "none") + weak("--exit-code", "largest" if "S" in parts else "zero")
    if connect > START_TIMEOUT:
        result += weak("--start-timeout", f"{connect + START_TIMEOUT:g}")
    return result + (Translation() if "N" in parts else weak("--tag", "{host}: "))


def program(words: Sequence[str], hosts: Sequence[str], fields: Mapping[str, str], form: str) -> list[str]:
    """Return the program that runs the words on each host, with the fields of its host and number filled in.

    Args:
        fields: a field, such as "%h", to "host", "number" or "=TEXT"; a sign without a field stays as it is.
        form: "login": the words are a line for the login shell; "shell": for sh here; "words": they are the program.
    """
    lines = list(words) if form == "words" else [" ".join(words)]
    used = {fields[field] for line in lines for field in _pieces(line, fields) if field in fields}
    quoted = [_quoted(line, fields) for line in lines]
    if form == "words":
        if not used & {"host", "number"}:
            return [shlex.split(word)[0] for word in quoted]
        script = "exec " + " ".join(quoted)
    else:
        shell = _IN_HOME + _SHELL if form == "login" else "exec /bin/sh -c "
        if not used & {"host", "number"}:
            return ["sh", "-c", f'{shell}"$0"', shlex.split(quoted[0])[0]]
        script = shell + quoted[0]
    if "host" in used:
        names = " ".join(shlex.quote(name.rpartition("@")[2]) for name in hosts)
        script = f'set -- {names}; shift "$MPILAUNCH_RANK"; {script}'
    return ["sh", "-c", script]


def _pieces(line: str, fields: Mapping[str, str]) -> list[str]:
    return re.split("(" + "|".join(map(re.escape, fields)) + ")", line) if fields else [line]


def _quoted(line: str, fields: Mapping[str, str]) -> str:
    """Return a word for sh that stands for the line: its text in quotes, its fields as variables."""
    values = {"host": '"$1"', "number": '"$MPILAUNCH_RANK"'}
    result, text = "", ""
    for piece in _pieces(line, fields):
        value = fields.get(piece, "=" + piece)
        if value.startswith("="):
            text += value[1:]
        else:
            result += (shlex.quote(text) if text else "") + values[value]
            text = ""
    return result + (shlex.quote(text) if text or not result else "")


_ARGUMENT = {"-p": "Port", "-l": "User", "-i": "IdentityFile", "-J": "ProxyJump", "-o": "", "-c": "Ciphers", "-m": "MACs"}
"""Option of ssh with an argument to the name of its setting."""
_ALONE = {"-4": "AddressFamily=inet", "-6": "AddressFamily=inet6", "-C": "Compression=yes", "-a": "ForwardAgent=no"}
_ALONE |= {"-x": "ForwardX11=no", "-T": "RequestTTY=no", "-q": "", "-2": "", "-n": ""}
"""Option of ssh without an argument to its setting, "" for none."""


def ssh_options(source: str, text: str) -> Translation:
    """Return our options for arguments of ssh, in one text; raises InvalidArgument."""
    hint = "use -o NAME=VALUE, or --ssh-option NAME=VALUE, with the settings of ssh_config(5)"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{source}: {error}", "quote words as for a shell") from None
    settings: list[str] = []
    while words:
        word = words.pop(0)
        flag, value = word[:2], word[2:]
        if flag not in _ARGUMENT | _ALONE:
            raise InvalidArgument(f"{source}: option '{word}' of ssh is not supported", hint)
        if flag in _ALONE:
            settings += filter(None, (_ALONE[flag],))
            words[:0] = [f"-{value}"] if value else []
            continue
        if not (value := value or (words.pop(0) if words else "")):
            raise InvalidArgument(f"{source}: {flag} needs a value", hint)
        settings.append(re.sub(r"^(\w+)\s*=?\s*", r"\1=", value) if flag == "-o" else f"{_ARGUMENT[flag]}={value}")
    return Translation(tuple(word for setting in settings for word in ("--ssh-option", setting)))
