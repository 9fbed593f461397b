"""The host and login names that may reach a remote shell's command line; never changes a name, only refuses one.

The rules are those of OpenSSH's client since 9.6 (CVE-2023-51385): a name may stand in a ProxyCommand, in `Match exec`, or in
the script of a user's own agent, where a shell reads it. A name that begins with `-` could be taken for an option.
"""

from __future__ import annotations

SHELL_CHARACTERS = frozenset("'\"`;&<>|(){}$")
HOST_CHARACTERS = SHELL_CHARACTERS | {"\\"}
"""Names of hosts hold no backslash; login names may, as in DOMAIN\\user."""


def name_problem(host: str, user: str | None) -> str:
    """Return why a host or login name is refused, "" when both are fine."""
    if not host or host.startswith("-") or _unfit(host, HOST_CHARACTERS):
        return f"{host!a}: the host name is empty, begins with '-', or contains invalid characters"
    if user is not None and not is_login_name(user):
        return f"{user!a}: the login name is empty, begins with '-', or contains invalid characters"
    return ""


def is_login_name(user: str) -> bool:
    """Say whether a login name may be used."""
    return bool(user) and not user.startswith("-") and not user.endswith("\\") and not _unfit(user, SHELL_CHARACTERS)


def _unfit(name: str, refused: frozenset[str]) -> bool:
    return any(character in refused or character.isspace() or not character.isprintable() for character in name)
