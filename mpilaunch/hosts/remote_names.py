"""Rules for host and login names that may reach a shell's command line, and the names of this pod. Names are refused, never
changed.

The rules are those of OpenSSH's client since 9.6 (CVE-2023-51385): a shell may read a name in a ProxyCommand, in `Match exec`,
or in the script of a user's own agent. A name that begins with `-` could be taken for an option.
"""

from __future__ import annotations

SHELL_CHARACTERS = frozenset("'\"`;&<>|(){}$")
HOST_CHARACTERS = SHELL_CHARACTERS | {"\\"}
"""Host names contain no backslash; login names may, as in DOMAIN\\user."""


def name_problem(host: str, user: str | None) -> str:
    """Return why a host or login name is refused, "" if neither is."""
    if not host or host.startswith("-") or _has_any(host, HOST_CHARACTERS):
        return f"{host!a}: the host name is empty, begins with '-', or contains invalid characters"
    if user is not None and not is_login_name(user):
        return f"{user!a}: the login name is empty, begins with '-', or contains invalid characters"
    return ""


def is_login_name(user: str) -> bool:
    """Return whether a login name is allowed."""
    return bool(user) and not user.startswith("-") and not user.endswith("\\") and not _has_any(user, SHELL_CHARACTERS)


def own_names(hostname: str, etc_hosts: str) -> frozenset[str]:
    """Return the names by which other pods know this pod, from its /etc/hosts: `pod`, `pod.service`, and so on."""
    names = set()
    for line in etc_hosts.splitlines():
        for name in line.partition("#")[0].split()[1:]:
            labels = name.split(".")
            if labels[0] == hostname:
                names |= {".".join(labels[:count]) for count in range(1, len(labels) + 1)}
    return frozenset(names)


def _has_any(name: str, refused: frozenset[str]) -> bool:
    return any(character in refused or character.isspace() or not character.isprintable() for character in name)
