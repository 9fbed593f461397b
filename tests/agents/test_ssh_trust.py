"""What the agent `ssh` trusts, side by side with OpenSSH's client: in each case both must accept, or both refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents.ssh import AGENTS, ask
from tests.support.hosts import Hosts

pytestmark = pytest.mark.testbed

NOBODY = 65534
PORT = 2022
WITH_CERTIFICATE, WITH_OTHER_NAME = 2023, 2024


class Bed:
    """The head's files: `key` is the host key of all hosts, `other` another, `authority` signs host keys."""

    def __init__(self, hosts: Hosts, path: Path) -> None:
        self.hosts, self.path = hosts, path
        fields = (hosts.ssh / "known_hosts").read_text().split()
        self.names = {
            "key": " ".join(fields[1:3]),
            "other": " ".join((hosts.ssh / "id_ed25519.pub").read_text().split()[:2]),
            "address": hosts.address("node01"),
        }

    def agree(self, expected: bool, *options: str, node: str = "node01", port: int = 22, user: str = "root", **env: str) -> str:
        """Hold ssh and the agent to the same decision; return the agent's message."""
        settings = [word for option in options for word in ("-o", option)]
        argv = ["ssh", "-T", "-o", "BatchMode=yes", *settings, "-p", str(port), "-l", user, "--", node, "true"]
        done = self.hosts.run(argv, env=env)
        assert (done.returncode == 0) is expected, f"ssh itself: {done.stderr}"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            ((cause, message, code),) = ask(
                self.hosts, "ssh", {"name": node, "port": port, "user": user}, ["true"], ssh_options=options
            )
        assert (code == 0) is expected, f"{cause}: {message}"
        return f"{cause}: {message}"


@pytest.fixture(scope="module")
def listening(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Let node01 listen at more ports; return the key of the authority that has signed its host key."""
    folder = hosts.shared / "authority"
    folder.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "ca"], check=True)
    public = hosts.shared.parent / "host_key.pub"
    for port, name in ((WITH_CERTIFICATE, "node01"), (WITH_OTHER_NAME, "elsewhere")):
        shutil.copy(public, folder / f"{name}.pub")
        sign = ["ssh-keygen", "-q", "-h", "-s", f"{folder}/ca", "-I", "host", "-n", name, f"{folder}/{name}.pub"]
        subprocess.run(sign, check=True, capture_output=True)
        hosts.listen("node01", port, f"HostCertificate={folder}/{name}-cert.pub")
    hosts.listen("node01", PORT)
    return {"authority": " ".join((folder / "ca.pub").read_text().split()[:2])}


@pytest.fixture
def bed(hosts: Hosts, listening: dict[str, str], tmp_path: Path) -> Bed:
    """Give the files of the head."""
    made = Bed(hosts, tmp_path)
    made.names.update(listening)
    return made


ALIAS = ("HostKeyAlias=cluster",)
STRICT = ("StrictHostKeyChecking=yes",)
KNOWN: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "nothing is known": ("", False, {}),
    "the name": ("node01 {key}", True, {}),
    "the name with another key": ("node01 {other}", False, {}),
    "one of two keys": ("node01 {other}\nnode01 {key}", True, {}),
    "behind a broken line": ("no such line\nnode01 {key}", True, {}),
    "the name in capitals": ("NODE01 {key}", True, {}),
    "the address only": ("{address} {key}", False, {}),
    "the address, while the name has another key": ("node01 {other}\n{address} {key}", False, {}),
    "the name, while the address has another key": ("node01 {key}\n{address} {other}", True, {}),
    "an address that was asked for": ("{address} {key}", True, {"node": "{address}"}),
    "a network": ("10.88.0.0/16 {key}", False, {"node": "{address}"}),
    "a pattern": ("node* {key}", True, {}),
    "a pattern without this name": ("!node01,node* {key}", False, {}),
    "a pattern that an address matches": ("10.* {key}", False, {}),
    "the alias": ("cluster {key}", True, {"options": ALIAS}),
    "the alias, while the name is unknown or another": ("cluster {key}\nnode01 {other}", True, {"options": ALIAS}),
    "the name without its alias": ("node01 {key}", False, {"options": ALIAS}),
    "the address without the alias": ("{address} {key}", False, {"options": ALIAS}),
    "the name, while its alias has another key": ("cluster {other}\nnode01 {key}", False, {"options": ALIAS}),
    "the port": ("[node01]:2022 {key}", True, {"port": PORT}),
    "the name, at another port": ("node01 {key}", True, {"port": PORT}),
    "the name, while the port has another key": ("[node01]:2022 {other}\nnode01 {key}", False, {"port": PORT}),
    "another port": ("[node01]:2021 {key}", False, {"port": PORT}),
    "a port that is not asked for": ("[node01]:2022 {key}", False, {}),
    "the address with its port": ("[{address}]:2022 {key}", False, {"port": PORT}),
    "the alias, at another port": ("cluster {key}", True, {"port": PORT, "options": ALIAS}),
    "the alias with a port": ("[cluster]:2022 {key}", False, {"port": PORT, "options": ALIAS}),
    "a revoked key": ("@revoked node01 {key}\nnode01 {key}", False, {}),
    "a key that is revoked for all": ("node01 {key}\n@revoked * {key}", False, {}),
    "a key that is revoked for another": ("node01 {key}\n@revoked node02 {key}", True, {}),
    "a key that is revoked for the port": ("@revoked [node01]:2022 {key}\nnode01 {key}", False, {"port": PORT}),
    "a key that is revoked for the name": ("@revoked node01 {key}\n[node01]:2022 {key}", True, {"port": PORT}),
    "another name": ("node02 {key}", False, {}),
    "an authority": ("@cert-authority node01 {authority}", True, {"port": WITH_CERTIFICATE}),
    "an authority for all": ("@cert-authority * {authority}", True, {"port": WITH_CERTIFICATE}),
    "an authority of others": ("@cert-authority node02 {authority}", False, {"port": WITH_CERTIFICATE}),
    "an authority that is no authority": ("node01 {authority}", False, {"port": WITH_CERTIFICATE}),
    "an authority for the address": ("@cert-authority {address} {authority}", False, {"port": WITH_CERTIFICATE}),
    "a certificate for another name": ("@cert-authority * {authority}", False, {"port": WITH_OTHER_NAME}),
    "a revoked authority": (
        "@cert-authority * {authority}\n@revoked * {authority}", False, {"port": WITH_CERTIFICATE}
    ),
    "a key of a host with a certificate": ("node01 {key}", True, {"port": WITH_CERTIFICATE}),
    "nothing, and new keys are accepted": ("", True, {"checking": "accept-new"}),
    "another key, and new ones are accepted": ("node01 {other}", False, {"checking": "accept-new"}),
    "a revoked key, and new ones are accepted": ("@revoked * {key}", False, {"checking": "accept-new"}),
    "the address only, and new keys are accepted": ("{address} {other}", True, {"checking": "accept-new"}),
    "another key, and all are accepted": ("node01 {other}", True, {"checking": "no"}),
}  # fmt: skip


HASHED = [case for case, (text, _, _) in KNOWN.items() if text and "no such" not in text and not set(text) & set("@*/")]
"""Cases in which ssh-keygen can hash the names."""


@pytest.mark.parametrize(("case", "hashed"), [*((case, False) for case in KNOWN), *((case, True) for case in HASHED)])
def test_host_keys(bed: Bed, case: str, hashed: bool) -> None:
    text, expected, more = KNOWN[case]
    known = bed.path / "known_hosts"
    known.write_text(text.format(**bed.names) + "\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
        assert "node01" not in known.read_text().lower()
    checking = more.get("checking", "yes")
    files = (f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=/dev/null", f"StrictHostKeyChecking={checking}")
    node = more.get("node", "node01").format(**bed.names)
    bed.agree(expected, *files, *more.get("options", ()), node=node, port=more.get("port", 22))


@pytest.mark.parametrize(("revoked", "expected"), [("{key}", False), ("{other}", True), ("# none\n\n", True), (None, False)])
def test_list_of_revoked_keys(bed: Bed, revoked: str | None, expected: bool) -> None:
    file = bed.path / "revoked"
    if revoked is not None:
        file.write_text(revoked.format(**bed.names) + "\n")
    with configured(bed.hosts, f"RevokedHostKeys {file}"):
        bed.agree(expected)


def test_binary_list_of_revoked_keys_is_refused(bed: Bed) -> None:
    file = bed.path / "revoked"
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", file, bed.hosts.ssh / "id_ed25519.pub"], check=True)
    with configured(bed.hosts, f"RevokedHostKeys {file}"):
        ((cause, message, _),) = ask(bed.hosts, "ssh", "node01")
    assert cause == "agent-failed" and "--agent openssh" in message


class configured:
    """Replace the head's ~/.ssh/config for a while: some lines, and by itself neither keys nor what is known."""

    def __init__(self, hosts: Hosts, lines: str, mode: int = 0o600, owner: int = 0, group: int = 0) -> None:
        self._file = hosts.ssh / "config"
        self._text = f"UserKnownHostsFile {hosts.ssh}/known_hosts\n{lines}\n"
        self._mode, self._owner, self._group = mode, owner, group

    def __enter__(self) -> None:
        self._plain = self._file.read_text()
        self._file.write_text(self._text)
        self._file.chmod(self._mode)
        os.chown(self._file, self._owner, self._group)

    def __exit__(self, *_: object) -> None:
        self._file.write_text(self._plain)
        self._file.chmod(0o644)
        os.chown(self._file, 0, 0)


@pytest.mark.parametrize(
    ("mode", "owner", "expected"),
    [(0o600, 0, True), (0o400, 0, True), (0o640, 0, False), (0o604, 0, False), (0o620, 0, False), (0o644, NOBODY, True)],
)
def test_private_keys_that_others_may_read(bed: Bed, mode: int, owner: int, expected: bool) -> None:
    key = bed.hosts.shared / "identity"
    shutil.copy(bed.hosts.ssh / "id_ed25519", key)
    key.chmod(mode)
    os.chown(key, owner, 0)
    with configured(bed.hosts, f"IdentityFile {key}"):
        message = bed.agree(expected)
    key.unlink()
    assert ("unprotected private key" in message and str(key) in message) is not expected


def test_private_keys_with_a_passphrase(bed: Bed) -> None:
    key = bed.hosts.shared / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    with configured(bed.hosts, f"IdentityFile {key}"):
        message = bed.agree(False)
    key.unlink()
    assert message.endswith(f"private key with a passphrase, used only through an ssh agent: ssh-add {key}")


@pytest.mark.parametrize(
    ("mode", "owner", "group", "expected"),
    [
        (0o600, 0, 0, True),
        (0o644, 0, NOBODY, True),
        (0o664, 0, NOBODY, False),  # Debian's ssh lets a group write whose only member is the owner
        (0o646, 0, 0, False),
        (0o600, NOBODY, 0, False),
    ],
)
@pytest.mark.parametrize("included", [False, True], ids=["itself", "included"])
def test_configuration_that_others_may_write(
    bed: Bed, mode: int, owner: int, group: int, expected: bool, included: bool
) -> None:
    more = bed.hosts.ssh / "more"
    more.write_text("ServerAliveInterval 20\n")
    more.chmod(mode)
    os.chown(more, owner, group)
    with configured(bed.hosts, "Include more", *(() if included else (mode, owner, group))):
        if not included:
            more.chmod(0o600)
            os.chown(more, 0, 0)
        message = bed.agree(expected)
    more.unlink()
    assert ("Bad owner or permissions" in message) is not expected


def test_home_directory_of_another_user_is_not_read(bed: Bed) -> None:
    home = bed.path / "home"
    (home / ".ssh").mkdir(parents=True)
    marker = bed.path / "marker"
    (home / ".ssh" / "config").write_text(f"Host *\n  ProxyCommand touch {marker}\n  IdentityFile /no/such/key\n")
    (home / ".ssh" / "more").write_text(f"Match exec 'touch {marker}'\n")
    (home / ".ssh" / "known_hosts").write_text(f"node01 {bed.names['other']}\n")
    for path in (home, home / ".ssh", *(home / ".ssh").iterdir()):
        os.chown(path, NOBODY, NOBODY)
    with configured(bed.hosts, ""):
        bed.agree(True, HOME=str(home))
        remote_shell = [sys.executable, "-c", "from mpilaunch_agents.rsh.shell import main; main()", "node01", "hostname"]
        launches = [[sys.executable, "-m", "mpilaunch", "--agent", agent, "-H", "node01", "hostname"] for agent in AGENTS[:2]]
        for argv in (remote_shell, *launches):
            done = bed.hosts.run(argv, env={"HOME": str(home)})
            assert (done.returncode, done.stdout) == (0, "node01\n"), done.stderr
    # ssh looks for these below $HOME, and does not trust what it finds there.
    for include in ("Include more", "Include ~/.ssh/more"):
        with configured(bed.hosts, include):
            assert "Bad owner or permissions" in bed.agree(False, HOME=str(home))
    assert not marker.exists()


@pytest.mark.parametrize(
    "user", ["a;touch {marker}", "$(touch {marker})", "`touch {marker}`", "a|touch {marker}", "-oPort=1", "a'b"]
)
@pytest.mark.parametrize("agent", ["ssh", "openssh", "ssh -l {{user}} {{host}} {{command}}"])
def test_login_names_do_not_reach_a_shell(bed: Bed, agent: str, user: str) -> None:
    marker = bed.path / "marker"
    user, agent = user.format(marker=marker), agent.replace("{{", "{").replace("}}", "}")
    with configured(bed.hosts, f"ProxyCommand echo %r >{bed.path}/ran; false"):
        bed.agree(False, user=user)
        ((cause, message, _),) = ask(bed.hosts, agent, {"name": "node01", "user": user}, ["true"])
    assert (cause, "invalid characters" in message) == ("agent-failed", True)
    assert not marker.exists() and not (bed.path / "ran").exists()


@pytest.mark.parametrize("host", ["-oProxyCommand=touch", "a;b", "$(a)", "a|b", "a\\b", "a`b", ""])
@pytest.mark.parametrize("agent", ["ssh", "openssh", "ssh {host} {command}"])
def test_host_names_do_not_reach_a_shell(bed: Bed, agent: str, host: str) -> None:
    with configured(bed.hosts, f"ProxyCommand echo %h %n >{bed.path}/ran; false"):
        if host:
            bed.agree(False, node=host)
        ((cause, message, _),) = ask(bed.hosts, agent, {"name": host}, ["true"])
    assert (cause, "invalid characters" in message) == ("agent-failed", True)
    assert not (bed.path / "ran").exists()


RELAY = """
import os, socket, sys, threading

def send():
    while data := os.read(0, 65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)

connection = socket.create_connection(sys.argv[1:3])
threading.Thread(target=send, daemon=True).start()
while data := connection.recv(65536):
    os.write(1, data)
"""


def test_proxy_command_is_run_by_a_shell_with_its_tokens_replaced(bed: Bed) -> None:
    script = bed.path / "relay.py"
    script.write_text(RELAY)
    with configured(bed.hosts, f"ProxyCommand sh -c 'echo %%%n-%r >>{bed.path}/ran; exec {sys.executable} {script} %h %p'"):
        for agent in AGENTS[:2]:
            done = bed.hosts.launch("--agent", agent, "-H", "node01", "hostname")
            assert (done.returncode, done.stdout) == (0, "node01\n"), done.stderr
    assert (bed.path / "ran").read_text() == "%node01-root\n" * 2


def test_settings_that_asyncssh_is_given(bed: Bed) -> None:
    ciphers = "Ciphers aes256-gcm@openssh.com\n"
    with configured(bed.hosts, f"{ciphers}Compression yes\nServerAliveInterval 5\nRekeyLimit 1G 1h\nSetEnv A='b c'"):
        bed.agree(True)
    with configured(bed.hosts, "Ciphers aes256-cbc"):  # sshd does not offer it
        bed.agree(False)


@pytest.fixture(autouse=True)
def _no_ssh_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield
