"""Nodes whose login shells differ: every shell of the users runs the commands that the head sends, by every way to a node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpilaunch.text import shell_line
from tests.support.hosts import Hosts
from tests.support.launching import wait_until

pytestmark = pytest.mark.testbed

SHELLS = ("bash", "dash", "zsh", "fish", "tcsh", "csh")
"""Debian's csh is tcsh under another name, unless the package csh is installed."""
RSH = "from mpilaunch_agents.rsh.shell import main; main()"
TEMPLATE = "ssh -x -o BatchMode=yes {host} {command}"
WAYS = (["--agent", "ssh"], ["--agent", "openssh"], ["--agent", TEMPLATE], ["--agent", "openssh", "--call-back", "always"])


@pytest.fixture(scope="module")
def nodes() -> Iterator[Hosts]:
    """One host for each shell, whose login shell it is."""
    missing = [shell for shell in SHELLS if shutil.which(shell) is None]
    assert not missing, f"login shells missing: apt-get install {' '.join(missing)}"
    with Hosts(len(SHELLS)) as hosts:
        for name, shell in zip(hosts.names, SHELLS, strict=True):
            hosts.set_login_shell(name, str(shutil.which(shell)))
            assert hosts.run(["ssh", name, "sh -c 'cat /proc/$PPID/comm'; true"]).stdout.strip() == shell
        yield hosts


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_ranks_run_behind_every_login_shell(nodes: Hosts, way: list[str]) -> None:
    job = nodes.launch(*way, "--wdir", "/", "-H", ",".join(nodes.names), "hostname")
    assert (job.returncode, sorted(job.stdout.split()), job.stderr) == (0, nodes.names, "")


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_a_lost_connection_is_made_again_behind_every_login_shell(nodes: Hosts, agent: str) -> None:
    arguments = ["--agent", agent, "--wdir", "/", "-H", ",".join(nodes.names), "sh", "-c", f"touch {nodes.shared}/up-$RANK; "]
    arguments[-1] += f"until [ -e {nodes.shared}/go-{agent} ]; do sleep 0.05; done; hostname"
    with nodes.popen([sys.executable, "-m", "mpilaunch", *arguments]) as job:
        wait_until(lambda: all((nodes.shared / f"up-{rank}").exists() for rank in range(len(SHELLS))), "the ranks run")
        for name in nodes.names:
            nodes.on(name, ["sh", "-c", "kill -9 $(pgrep -f '^sshd: root@notty')"]).check_returncode()
        (nodes.shared / f"go-{agent}").touch()
        output, errors = job.communicate(timeout=60)
    for rank in range(len(SHELLS)):
        (nodes.shared / f"up-{rank}").unlink()
    assert (job.returncode, sorted(output.split())) == (0, nodes.names), errors
    assert errors.count("connected again after") == len(SHELLS), errors


def test_the_remote_shell_of_other_launchers_works_behind_every_login_shell(nodes: Hosts) -> None:
    for name in nodes.names:
        done = nodes.run([sys.executable, "-c", RSH, name, "echo '!a %b' ; hostname"])
        assert (done.returncode, done.stdout, done.stderr) == (0, f"!a %b\n{name}\n", ""), name


HARD = ["it's", "a!b", "!!", "\\", "\\\\n", '"', "$HOME", "`id`", "*", "a b", ""]
HARD += ["~", "{a,b}", "=ls", "#", ";", "%1", "é", "[x]", "^"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_line_is_split_into_the_same_words(shell: str, tmp_path: Path) -> None:
    show = [sys.executable, "-c", "import sys;print(ascii(sys.argv[1:]))", *HARD]
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [shell, "-c", shell_line(show)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20, check=False)
    assert (done.stdout.strip(), done.stderr) == (ascii(HARD), "")
