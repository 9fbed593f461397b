"""Names that may reach a shell's command line: refused, never changed."""

from __future__ import annotations

import pytest

from mpilaunch.hosts.remote_names import HOST_CHARACTERS, SHELL_CHARACTERS, is_login_name, name_problem


@pytest.mark.parametrize("host", ["node01", "10.0.0.1", "fe80::1%eth0", "pod/a", "h\u00f6st", "_x", "a:b", "[::1]"])
def test_hosts_that_are_allowed(host: str) -> None:
    assert name_problem(host, None) == ""


@pytest.mark.parametrize(
    "host", ["", "-oProxyCommand=x", "a b", "a\nb", "a\x1bb", "\u202ea", *(f"a{one}b" for one in sorted(HOST_CHARACTERS))]
)
def test_hosts_that_are_refused(host: str) -> None:
    assert "the host name is empty, begins with '-', or contains invalid characters" in name_problem(host, None)


def test_logins() -> None:
    assert is_login_name("me") and is_login_name("DOMAIN\\me") and is_login_name("me@realm")
    refused = ["", "-l", "me\\", "a b", "a\0b", *(f"a{character}b" for character in SHELL_CHARACTERS)]
    assert not any(map(is_login_name, refused))
    assert name_problem("node01", "me") == ""
    assert name_problem("node01", "$(x)").startswith("'$(x)': the login name")
