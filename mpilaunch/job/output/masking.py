"""Masking of likely secrets in variables, command lines and texts that mpilaunch prints or writes to a report.

Pure. A heuristic: tables of names, of programs with their options, and of forms such as tokens. It must never change what is
run, and it does not recognise every secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MASKED = "<masked>"
SHORTEST_SECRET = 8
"""Fewest characters of a secret where its name may also name a count, as in `--max-tokens 512`."""

_ANYWHERE = re.compile(r"\w*(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?")
"""A name with such a word anywhere is secret: HF_TOKEN, SECRET_FILE, PGPASSWORD."""
_KEY = re.compile(r"(API|ACCESS|AUTH|PRIVATE|SECRET|APP|SSH|SIGNING|ENCRYPTION|MASTER|LICENSE)?KEYS?")
"""The same for keys, but not for words such as MONKEY, KEYBOARD and HOTKEY."""
_LAST = re.compile(
    r"(PG|DB|MY|SSH|FTP|LDAP|SMTP|REDIS|MYSQL|USER|ROOT|ADMIN)?(PASS|PW)|AUTH|AUTHORIZATION|COOKIES?|BEARER|JWT|CREDS?"
)
"""A name with such a last word is secret: REGISTRY_AUTH, but neither AUTH_METHOD nor SSH_AUTH_SOCK."""
_NEVER_A_COUNT = re.compile(r"\w*(SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?")
_NUMBER_OR_SWITCH = re.compile(r"\d{1,4}|true|false|yes|no|on|off|none|basic|digest|oauth2?", re.IGNORECASE)
"""Values of `--auth`, `--pass` and the like that are not secret: a number, a switch, a method."""
_METHOD = ("AUTHENTICATION", "PROMPTS")
"""Last words of names that choose a method: PasswordAuthentication of ssh."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_FORMS = re.compile(
    r"(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://[^/@:\s]{0,256}:[^/@\s]{1,512}@[^\s\"']*"
    r"|\b(?:hf_[A-Za-z0-9]{16,}|gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|(?:sk|glpat|nvapi)-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
"""URLs with a password, tokens with a known prefix (Hugging Face, GitHub, OpenAI, Slack, AWS), private keys."""
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,60}(?:token|key|auth|secret))(\s{0,9}:\s{0,9})[^\"'\r\n]+",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s{1,9})(?=\S{0,512}?[\d+/=_.-]|\S{16,})[^\s\"']{6,}", re.IGNORECASE)
"""`Bearer X` and `Basic X`, unless X looks like a word of a sentence."""
_MEMBER = re.compile(
    r"""(\\?["'])([\w.-]{1,80})\1(\s{0,99}:\s{0,99})(?:(\\?["'])(.{0,8192}?)(?<!\\)\4|(-?[\w.]+))""", re.DOTALL
)
"""A member of a JSON object, a Python dict or YAML in braces, with its name in quotes; the quotes may be escaped."""
_NAME = re.compile(r"(?<![\w.-])-{0,2}([A-Za-z_][\w.-]{0,80})=")
_VALUE = re.compile(r"""\"[^"]*"|'[^']*'|[^\s&;,"')]+""")
"""`NAME=VALUE` anywhere in a text."""
_QUOTED = re.compile("(?<=')[^\n]*(?=')")
"""What a message quotes; a command line in it may have quotes of its own."""
_PIECES = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+|\s+|["']\S*""")


class _Client(NamedTuple):
    """The options by which a program takes a password.

    Attributes:
        apart: options followed by the secret, in the next word (`-p X`) or the same one (`-pX`).
        joined: options followed by the secret in the same word only (`-pX`).
        wraps: its first operand is another program, with options of its own.
    """

    apart: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    wraps: bool = False


_LOGIN = _Client(apart=("-p",))
_CLIENTS = {
    "sshpass": _Client(apart=("-p",), wraps=True),
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "mariadb-admin"), _Client(joined=("-p",))),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore"), _Client(apart=("-p",))),
    **dict.fromkeys(("redis-cli", "valkey-cli"), _Client(apart=("-a",))),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd", "ldapwhoami"), _Client(apart=("-w",))),
    "curl": _Client(apart=("-u", "-U", "--user", "--proxy-user")),
    **dict.fromkeys(("7z", "7za"), _Client(joined=("-p",))),
}
"""Programs with short options for a password. For any other program `-p` may be a port, a path or a switch, and is shown."""
_LOGINS = {("docker", "login"), ("podman", "login"), ("oc", "login"), ("az", "login")}
"""Programs and their subcommand whose `-p` is a password; `docker run -p` publishes ports."""
_CLIENT_WORD = re.compile(rf"(?<![\w.-])(?:{'|'.join([*map(re.escape, _CLIENTS), *map(' +'.join, sorted(_LOGINS))])})\s")


def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable, an option or a member with this name is likely secret."""
    words = [word.upper() for word in _WORDS.findall(name)]
    if words and words[-1] in _METHOD:
        return False
    if any(_ANYWHERE.fullmatch(word) or _KEY.fullmatch(word) for word in words):
        return True
    # PWD is a directory, but MYSQL_PWD a password.
    return bool(words) and (_LAST.fullmatch(words[-1]) is not None or (len(words) > 1 and words[-1] == "PWD"))


def mask_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: MASKED if is_secret_name(name) else mask_text(value) for name, value in variables.items()}


def mask_pair(text: str) -> str:
    """Return a `NAME=VALUE`, or any other text, with secrets masked."""
    name, equals, value = text.partition("=")
    return f"{name}={MASKED if is_secret_name(name) else mask_text(value)}" if equals else mask_text(text)


def mask_text(text: str) -> str:
    """Return a text with secrets masked: URLs with a password, tokens, headers, members of JSON, `NAME=X`, command lines."""
    line = text.strip("\"'")
    if _CLIENT_WORD.search(line) and not _PIECES.fullmatch(line):
        text = text.replace(line, mask_command(line))
    text = _FORMS.sub(MASKED, text)
    for pattern in (_HEADER, _SCHEME):
        text = pattern.sub(rf"\1\2{MASKED}", text)
    return _mask_assignments(_MEMBER.sub(_mask_member, text))


def mask_argv(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with secrets masked."""
    shown: list[str] = []
    client: _Client | None = None
    before = ""
    for word in words:
        option, before = before, word
        if client is not None and option in client.apart:
            shown.append(word if word.strip("'") == MASKED else MASKED)
            before = ""
            continue
        flags = (flag for flag in (*client.joined, *client.apart) if len(flag) == 2 < len(word)) if client else ()
        joined = next((flag for flag in flags if word.startswith(flag)), None)
        if joined:
            shown.append(joined + MASKED)
            continue
        if not word.startswith("-"):
            if client is not None and client.wraps:
                client = None
            client = _CLIENTS.get(word.rpartition("/")[2], client)
            if (option.rpartition("/")[2], word) in _LOGINS:
                client = _LOGIN
        follows = option.startswith("-") and "=" not in option and not word.startswith("-")
        scheme = option.lower() in ("bearer", "basic") and len(word) >= SHORTEST_SECRET
        if (scheme or (follows and _is_secret(option, word))) and word.strip("'") != MASKED:
            shown.append(MASKED)
        else:
            shown.append(mask_text(word))
    return shown


def mask_command(text: str) -> str:
    """Return a command line given as one text, such as an agent's template, with secrets masked."""
    pieces = _PIECES.findall(text)
    places = [place for place, piece in enumerate(pieces) if not piece.isspace()]
    for place, shown in zip(places, mask_argv([pieces[place] for place in places]), strict=True):
        pieces[place] = shown
    return "".join(pieces)


def mask_message(text: str) -> str:
    """Return a message of mpilaunch with secrets masked, also those of a command line that it quotes."""
    return mask_text(_QUOTED.sub(lambda match: mask_command(match[0]), text))


def _is_secret(name: str, value: str) -> bool:
    """Return whether the value of an option or member is a secret, and not a count, a switch or a method."""
    if not value or not is_secret_name(name):
        return False
    words = [word.upper() for word in _WORDS.findall(name)]
    if words and words[-1] in _METHOD:
        return False
    if any(_NEVER_A_COUNT.fullmatch(word) for word in words):
        return True
    if any(_ANYWHERE.fullmatch(word) or _KEY.fullmatch(word) for word in words):
        return len(value) >= SHORTEST_SECRET
    return not _NUMBER_OR_SWITCH.fullmatch(value)


def _mask_member(match: re.Match[str]) -> str:
    quote, name, colon, value_quote, text, number = match.groups()
    if not _is_secret(name, text if number is None else number):
        return match[0]
    return f"{quote}{name}{quote}{colon}{value_quote or ''}{MASKED}{value_quote or ''}"


def _mask_assignments(text: str) -> str:
    parts, at = [], 0
    for name in _NAME.finditer(text):
        value = _VALUE.match(text, name.end()) if name.start() >= at and is_secret_name(name[1]) else None
        if value is not None and _is_secret(name[1], value[0].strip("\"'")):
            parts += [text[at : name.end()], MASKED]
            at = value.end()
    return "".join(parts) + text[at:]
