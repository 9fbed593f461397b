"""pdsh on 32 hosts of which several are bad, each in its own way: none holds the others, and each is told with its reason."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents.ssh import control_path, master
from tests.support.hosts import Hosts
from tests.support.launching import LIMIT

pytestmark = [pytest.mark.testbed, pytest.mark.slow, pytest.mark.timeout(240)]

HANGS = "#!/bin/sh\nsleep 300\n"
ASKS = '#!/bin/sh\nread -r answer\nexec /bin/sh "$@"\n'
ALL = "node[01-32]"
LIMITS = ("-t", "4", "-u", "12")


@pytest.fixture(scope="module")
def many() -> Iterator[Hosts]:
    """Give 32 hosts."""
    with Hosts(32) as made:
        yield made


@contextlib.contextmanager
def unplugged(hosts: Hosts, host: str) -> Iterator[None]:
    hosts.link(host, up=False)
    try:
        yield
    finally:
        hosts.link(host, up=True)


def test_bad_hosts_delay_no_other_and_are_reported_with_their_reasons(many: Hosts, links: Path) -> None:
    other_key = many.shared / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other_key], check=True)
    other_key.chmod(0o600)
    path = many.shared / "cm"
    config = many.ssh / "config"
    config.write_text(f"Host node06\n  {control_path(path).replace('=', ' ', 1)}\nHost *\n" + config.read_text())
    bad = {"node01", "node02", "node03", "node04", "node05", "node07"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(many.login_script("node01", HANGS))
        stack.enter_context(many.login_script("node02", ASKS))
        stack.enter_context(unplugged(many, "node03"))
        stack.enter_context(many.pause("node04"))
        stack.enter_context(many.sshd_with("node05", f"HostKey={other_key}"))
        stack.enter_context(master(many, "node06", path))
        stack.enter_context(many.sshd_with("node06", "PubkeyAuthentication=no"))
        stack.enter_context(many.sshd_with("node07", "PubkeyAuthentication=no"))
        argv = [str(links / "pdsh"), "-S", *LIMITS, "-w", ALL, "hostname"]
        with many.popen(argv, env={"PDSH_RCMD_TYPE": "ssh"}, stdin=subprocess.DEVNULL) as job:
            assert job.stdout is not None
            good = sorted(job.stdout.readline() for _ in range(32 - len(bad)))
            assert good == [f"{name}: {name}\n" for name in many.names if name not in bad]
            assert job.poll() is None, "the hosts that hang were not waited for"
            rest, errors = job.communicate(timeout=LIMIT)
    assert (job.returncode, rest) == (255, "")
    of = {name: [line for line in errors.splitlines() if name in line] for name in many.names}
    assert {name for name, lines in of.items() if lines} == bad, errors
    assert any(line.endswith(": node01: command timeout") for line in of["node01"]), of["node01"]
    assert any("node02: a script of the login shell has read from its stdin" in line for line in of["node02"]), of["node02"]
    assert any("node03: no answer in time" in line or "node03: no route" in line for line in of["node03"]), of["node03"]
    assert any("node04: no answer in time" in line for line in of["node04"]), of["node04"]
    assert any("node05: host key" in line for line in of["node05"]), of["node05"]
    assert any("node07: login refused" in line for line in of["node07"]), of["node07"]
    for name in bad:
        assert any(line.endswith(f"{name}: ssh exited with exit code 255") for line in of[name]), of[name]


def test_a_service_that_is_restarted_through_us_continues(many: Hosts, links: Path) -> None:
    """As the init script of sshd does it; sshd itself serves the connection by which that runs."""
    stop = "kill $(cat /run/sshd.pid); while [ -e /run/sshd.pid ]; do sleep 0.01; done"
    started = f"{many.sshd()}; until [ -e /run/sshd.pid ]; do sleep 0.01; done; hostname"
    argv = [str(links / "pdsh"), "-S", "-w", ALL]
    for command in (f"{stop}; {started}", "hostname"):
        done = many.run([*argv, command], env={"PDSH_RCMD_TYPE": "ssh"})
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == [f"{name}: {name}" for name in many.names]
