"""Key files of the agent `ssh`: finds the known host keys and the private keys; `connection` checks the host key.

The rules are those of OpenSSH's client: a host key is looked up by host name, never by address, and a private key that others
may read is not used. Nothing here asks for a passphrase.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import asyncssh

from mpilaunch.agent import AgentFailure
from mpilaunch_agents.ssh.settings import SSH_PORT, HostSettings

MARKERS = ("@revoked", "@cert-authority")
REVOCATION_LIST = b"SSHKRL\n"
"""The first bytes of a key revocation list in OpenSSH's binary format."""


class KnownKeys(NamedTuple):
    """The known keys of one host."""

    trusted: list[asyncssh.SSHKey]
    authorities: list[asyncssh.SSHKey]
    revoked: list[asyncssh.SSHKey]

    @property
    def any(self) -> bool:
        """Whether the host has a known key."""
        return bool(self.trusted or self.authorities)


class Identities(NamedTuple):
    """Private keys for the login.

    Attributes:
        pairs: keys that need no passphrase.
        unprotected: paths of keys that are not used because others may read or write them.
        locked: paths of keys that need a passphrase; only an ssh agent can use them.
    """

    pairs: list[asyncssh.SSHKeyPair]
    unprotected: list[str]
    locked: list[str]


class KeyFiles:
    """Reads key files, each list of files once."""

    def __init__(self) -> None:
        self._known_hosts = lru_cache(None)(_read_known_hosts)
        self._identities = lru_cache(None)(_read_identities)

    def known_keys(self, settings: HostSettings) -> KnownKeys:
        """Return the known keys of a host, by HostKeyAlias or else by name; raises AgentFailure."""
        # `ssh -G` prints these paths expanded.
        files = tuple(path for name in ("userknownhostsfile", "globalknownhostsfile") for path in settings.get(name).split())
        known_hosts, alias = self._known_hosts(files), settings.get("hostkeyalias")
        name = alias or settings.host
        if alias or settings.port == SSH_PORT:
            keys = _match(known_hosts, name)
        else:
            keys = _match(known_hosts, f"[{name}]:{settings.port}")
            if not keys.any:
                plain = _match(known_hosts, name)
                keys = KnownKeys(plain.trusted, plain.authorities, keys.revoked + plain.revoked)
        if settings.get("revokedhostkeys"):
            keys.revoked.extend(_read_revoked(settings.path(settings.get("revokedhostkeys"))))
        return keys

    def identities(self, settings: HostSettings) -> Identities:
        """Return the private keys for a host; raises AgentFailure."""
        files, certificates = (tuple(map(settings.path, settings.all(name))) for name in ("identityfile", "certificatefile"))
        return self._identities(files, certificates)


def read_public_keys(settings: HostSettings) -> list[bytes]:
    """Return the public keys of a host's identity files, which select keys of the ssh agent; raises AgentFailure."""
    keys = []
    for name in map(settings.path, settings.all("identityfile")):
        for candidate in (name, name + ".pub"):
            with suppress(OSError, ValueError):
                keys.append(asyncssh.read_public_key(candidate).public_data)
    return keys


def _match(known_hosts: asyncssh.SSHKnownHosts, name: str) -> KnownKeys:
    trusted, authorities, revoked, *_ = asyncssh.match_known_hosts(known_hosts, name, "", None)
    return KnownKeys(list(trusted), list(authorities), list(revoked))


def _read_known_hosts(files: tuple[str, ...]) -> asyncssh.SSHKnownHosts:
    known_hosts = asyncssh.import_known_hosts("")
    for name in files:
        with suppress(OSError):
            for line in Path(name).read_text(errors="replace").splitlines():
                # Invalid lines are skipped, as by OpenSSH.
                with suppress(ValueError):
                    known_hosts.load(_plain_names(line))
    return known_hosts


def _plain_names(line: str) -> str:
    """Return a line of known hosts that asyncssh matches as OpenSSH would."""
    words = line.split(None, 2)
    index = 1 if words and words[0] in MARKERS else 0
    if len(words) < 3 or words[index].startswith(("#", "|")):
        return line
    # OpenSSH matches names in lower case, and does not know networks such as 10.0.0.0/8.
    words[index] = ",".join(name for name in words[index].lower().split(",") if "/" not in name)
    return " ".join(words) if words[index] else ""


def _read_revoked(path: str) -> list[asyncssh.SSHKey]:
    """Return the keys of RevokedHostKeys; raises AgentFailure, because no key may be accepted without the list."""
    try:
        data = Path(path).read_bytes()
        if data.startswith(REVOCATION_LIST):
            raise AgentFailure("agent-failed", f"RevokedHostKeys {path}: a binary list; only --agent openssh can read it")
        lines = [line for line in data.splitlines() if line.strip() and not line.startswith(b"#")]
        return [asyncssh.import_public_key(line) for line in lines]
    except (OSError, ValueError) as error:
        raise AgentFailure("agent-failed", f"RevokedHostKeys {path}: {error}") from error


def _read_identities(files: tuple[str, ...], certificates: tuple[str, ...]) -> Identities:
    """Return the private keys that need no passphrase, also as certificates where they have one."""
    loaded = []
    for name in certificates:
        with suppress(OSError, ValueError):
            loaded.append(asyncssh.read_certificate(name))
    identities = Identities([], [], [])
    for name in files:
        with suppress(OSError, ValueError):
            status = os.stat(name)
            # OpenSSH's rule: it checks the mode only of the user's own keys.
            if status.st_uid == os.getuid() and status.st_mode & 0o077:
                identities.unprotected.append(name)
            else:
                pairs = asyncssh.load_keypairs(name, None, loaded, ignore_encrypted=True)
                identities.pairs.extend(pairs)
                if not pairs:
                    identities.locked.append(name)
    return identities
