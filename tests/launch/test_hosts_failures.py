"""What goes wrong on real hosts: nothing runs unless everything can, every reason is reported, and no end leaves a process.

Each test has hosts of its own, so it may break them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.failures import NODES, RANKS, START, STRAYS, proves
from tests.support.hosts import Hosts
from tests.support.launching import LIMIT, MPILAUNCH, QUICK_HEARTBEAT, children, wait_until
from tests.support.processes import guard_and_daemon_on, host_is_empty, kill_daemon, parent

pytestmark = [pytest.mark.slow, pytest.mark.testbed, pytest.mark.usefixtures("shared")]

AGENTS = ("ssh", "openssh")
SLACK = 3.0
"""Seconds that an end may take beyond its deadline."""
ALL = "node[01-04]"
REAL_OLD_PYTHONS = "~/.pyenv/versions/3.7.*/bin/python3"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Give four hosts to break."""
    with Hosts(4) as made:
        yield made


# The start


def refused(hosts: Hosts, *arguments: str, program: tuple[str, ...] = ("sh", "-c", "touch ran-$RANK")) -> list[str]:
    """Launch what cannot start: no rank may run anywhere. Return the lines that are said."""
    done = hosts.launch(*arguments, *program)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert not list(Path.cwd().glob("ran-*"))
    assert {name: hosts.processes(name) for name in hosts.names if not host_is_empty(hosts, name)} == {}
    return done.stderr.splitlines()


def sh(hosts: Hosts, name: str, script: str) -> None:
    """Break something on a host."""
    done = hosts.on(name, ["sh", "-ec", script])
    assert done.returncode == 0, done.stderr


def settled_processes(hosts: Hosts, name: str) -> set[int]:
    """Return the processes of a host once no short-lived one is among them."""
    seen: list[set[int]] = [set(), set()]

    def settled() -> bool:
        time.sleep(0.2)
        seen.append({pid for pid, _ in hosts.processes(name)})
        return seen[-1] == seen[-2] == seen[-3]

    wait_until(settled, f"the processes of {name} stay the same")
    return seen[-1]


def know(hosts: Hosts, keys: dict[str, str | None]) -> None:
    """Change the head's known_hosts: other keys for some hosts, None for no key at all."""
    known = hosts.ssh / "known_hosts"
    old = {line.split(",")[0]: line.split(None, 1)[1] for line in known.read_text().splitlines()}
    known.write_text("".join(f"{name} {key}\n" for name, key in {**old, **keys}.items() if key is not None))


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "host-unknown", START, "a host name is unknown", finder="the agent",
    says="`1 of 2 nodes: no-such-host: host name unknown`", code="1", within=15,
)  # fmt: skip
def test_unknown_name(hosts: Hosts, agent: str) -> None:
    first, *_, hint = refused(hosts, "--agent", agent, "-H", "node01,no-such-host")
    assert first.startswith("error[start-host-unknown]: 1 of 2 nodes: no-such-host: host name unknown after ")
    assert hint == "hint: check the spelling, /etc/hosts and DNS on this machine"


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "sshd-stopped", START, "nothing listens on two of four hosts", finder="the agent",
    says="`2 of 4 nodes: node[02,04]: connection refused`", code="1", within=10,
)  # fmt: skip
def test_stopped_sshd(hosts: Hosts, agent: str) -> None:
    for name in ("node02", "node04"):
        hosts.stop_sshd(name)
    first, *_, hint = refused(hosts, "--agent", agent, "-H", ALL)
    assert first.startswith("error[start-connection-refused]: 2 of 4 nodes: node[02,04]: connection refused after ")
    assert hint.startswith("hint: is sshd running there?")


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "host-silent", START, "a host accepts TCP and says nothing", finder="the head, after `--start-timeout`",
    says="`1 of 4 nodes: node03: no answer in time`", code="1", within=10,
)  # fmt: skip
def test_listener_that_says_nothing(hosts: Hosts, agent: str) -> None:
    hosts.stop_sshd("node03")
    script = "import socket; s = socket.create_server(('', 22)); print('up', flush=True); open(0).read()"
    argv = hosts.inside("node03", ["python3", "-c", script])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdin and listener.stdout and listener.stdout.readline() == b"up\n"
        begun = time.monotonic()
        done = hosts.launch("--agent", agent, "-H", ALL, "--start-timeout", "3", "touch", "ran")
        seconds = time.monotonic() - begun
        listener.stdin.close()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[start-timeout]: 1 of 4 nodes: node03: no answer in time after 3.")
    assert not Path("ran").exists()
    assert seconds < 3 + SLACK


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "link-down-start", START, "a host's link is down", finder="the head, after `--start-timeout`",
    says="`1 of 4 nodes: node03: no answer in time`", code="1", within=10,
)  # fmt: skip
def test_link_that_is_down(hosts: Hosts, agent: str) -> None:
    hosts.link("node03", up=False)
    begun = time.monotonic()
    first, *_, hint = refused(hosts, "--agent", agent, "-H", ALL, "--start-timeout", "3")
    assert time.monotonic() - begun < 3 + SLACK
    assert first.startswith("error[start-timeout]: 1 of 4 nodes: node03: no answer in time after 3.")
    assert hint.startswith("hint: is the node up and not behind a firewall?")


@pytest.mark.parametrize("agent", AGENTS)
def test_address_without_a_route(hosts: Hosts, agent: str) -> None:
    first, *_ = refused(hosts, "--agent", agent, "-H", "node01,192.0.2.1")
    assert first.startswith("error[start-unreachable]: 1 of 2 nodes: 192.0.2.1: no route to the host after ")


@pytest.mark.parametrize("agent", AGENTS)
def test_host_key_that_nobody_knows(hosts: Hosts, agent: str) -> None:
    know(hosts, {"node04": None})
    first, *_, hint = refused(hosts, "--agent", agent, "-H", ALL)
    assert first.startswith("error[start-host-key-unknown]: 1 of 4 nodes: node04: host key not known after ")
    assert "known_hosts" in hint and "--insecure-host-keys" in hint


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "host-key-changed", START, "a host's key has changed", finder="the agent",
    says="`1 of 4 nodes: node04: host key changed`", code="1", within=10,
)  # fmt: skip
def test_host_key_that_has_changed(hosts: Hosts, agent: str) -> None:
    # The key that node04 is known by is another one than it has.
    know(hosts, {"node04": (hosts.ssh / "id_ed25519.pub").read_text().strip()})
    first, *_, hint = refused(hosts, "--agent", agent, "-H", ALL)
    assert first.startswith("error[start-host-key-changed]: 1 of 4 nodes: node04: host key changed after ")
    assert "ssh-keygen -R" in hint
    done = hosts.launch("--agent", agent, "-H", ALL, "--insecure-host-keys", "--quiet", "true")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: --insecure-host-keys: host keys are not checked: ")


@pytest.mark.parametrize("agent", AGENTS)
def test_key_that_is_refused(hosts: Hosts, agent: str, shared: Path) -> None:
    (shared / "my.hosts").write_text("node[01-02]\nnode03 user=nobody\n")
    first, *_, hint = refused(hosts, "--agent", agent, "-f", "my.hosts")
    assert first.startswith("error[start-key-refused]: 1 of 3 nodes: node03: login refused after ")
    assert "ssh-copy-id" in hint


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "python-missing", START, "a node has no python3", finder="the shell there",
    says="`1 of 4 nodes: node02: python3 not found`", code="1", within=15,
)  # fmt: skip
def test_python_that_is_missing_on_one_host(hosts: Hosts, agent: str) -> None:
    # Each directory of sshd's PATH that has a python3 is covered by links to all that it has but that.
    hide = r"""
        for folder in /usr/local/bin /usr/bin /bin; do
            [ -e $folder/python3 ] && [ ! -L $folder ] || continue
            mkdir -p /run/real$folder /run/bare$folder
            mount --bind $folder /run/real$folder
            cp -as /run/real$folder/. /run/bare$folder
            rm -f /run/bare$folder/python*
            mount --bind /run/bare$folder $folder
        done
        ! command -v python3
    """
    sh(hosts, "node02", hide)
    first, *words, hint = refused(hosts, "--agent", agent, "-H", ALL)
    assert first.startswith("error[start-python-missing]: 1 of 4 nodes: node02: python3 not found after ")
    assert words and "python3: command not found" in words[0]
    assert hint == "hint: install python3 there, or use --python /path/to/python3"


def test_python_that_is_nowhere(hosts: Hosts) -> None:
    first, *_ = refused(hosts, "-H", ALL, "--python", "/no/such/python3")
    assert first.startswith("error[start-python-missing]: 4 of 4 nodes: node[01-04]: python3 not found after ")


@pytest.mark.parametrize("agent", AGENTS)
def test_python_that_may_not_be_executed(hosts: Hosts, agent: str) -> None:
    sh(hosts, "node02", "touch /tmp/python3; mount --bind /tmp/python3 $(readlink -f /usr/bin/python3)")
    first, *_, hint = refused(hosts, "--agent", agent, "-H", ALL, "--python", "/usr/bin/python3")
    assert first.startswith("error[start-python-missing]: 1 of 4 nodes: node02: ")
    assert "--python" in hint


def old_python(shared: Path) -> Path:
    """Return a real Python 3.7 where this machine has one, else ours under an old version's name."""
    found = sorted(Path("/").glob(os.path.expanduser(REAL_OLD_PYTHONS).lstrip("/")))
    if found:
        return found[-1]
    stand_in = shared / "python3.7"
    # What it runs is the boot line itself; only the version that this sees is not true.
    stand_in.write_text(
        '#!/bin/sh\nwhile [ "$1" != -c ]; do shift; done\nboot=$2; shift 2\n'
        'exec python3 -I -c "import sys; sys.version_info = (3, 7, 17); sys.version = \'3.7.17 (old)\'\n$boot" "$@"\n'
    )
    stand_in.chmod(0o755)
    return stand_in


@pytest.mark.parametrize("agent", AGENTS)
def test_python_that_is_too_old_on_one_host(hosts: Hosts, agent: str, shared: Path) -> None:
    sh(hosts, "node03", f"mkdir /tmp/bin; ln -s {old_python(shared)} /tmp/bin/python3")
    for name in ("node01", "node02", "node04"):
        sh(hosts, name, "mkdir /tmp/bin; ln -s /usr/bin/python3 /tmp/bin/python3")
    first, words, *_, hint = refused(hosts, "--agent", agent, "-H", ALL, "--python", "/tmp/bin/python3")
    assert first.startswith("error[start-python-too-old]: 1 of 4 nodes: node03: python3 is older than 3.8 after ")
    assert words.startswith("    node03: mpilaunch: python 3.7.") and words.endswith(" is older than 3.8")
    assert hint == "hint: use --python /path/to/a/newer/python3"


def test_directory_that_is_missing_on_one_host(hosts: Hosts) -> None:
    for name in ("node01", "node02", "node04"):
        sh(hosts, name, "mkdir /tmp/data")
    first, *_ = refused(hosts, "-H", ALL, "--wdir", "/tmp/data")
    expected = "1 of 4 nodes: node03: working directory not usable: /tmp/data: no such directory"
    assert first == f"error[start-directory-missing]: {expected}"


def test_program_that_is_missing_on_one_host(hosts: Hosts) -> None:
    for name in ("node01", "node02", "node04"):
        sh(hosts, name, f"printf '#!/bin/sh\\ntouch {Path.cwd()}/ran-$RANK' >/tmp/train; chmod +x /tmp/train")
    first, *_ = refused(hosts, "-H", ALL, program=("/tmp/train",))
    assert first == "error[start-program-missing]: 1 of 4 nodes: node03: program not found: /tmp/train: not found"


def test_program_that_is_not_executable_on_one_host(hosts: Hosts) -> None:
    for name in hosts.names:
        sh(hosts, name, f"printf '#!/bin/sh\\ntouch {Path.cwd()}/ran-$RANK' >/tmp/train; chmod +x /tmp/train")
    sh(hosts, "node02", "chmod -x /tmp/train")
    first, *_ = refused(hosts, "-H", ALL, program=("/tmp/train",))
    expected = "1 of 4 nodes: node02: program cannot be executed: /tmp/train: not executable"
    assert first == f"error[start-program-not-executable]: {expected}"


def test_interpreter_that_is_missing_on_one_host(hosts: Hosts) -> None:
    for name in hosts.names:
        sh(hosts, name, f"printf '#!/tmp/shell\\ntouch {Path.cwd()}/ran-$RANK' >/tmp/train; chmod +x /tmp/train")
        if name != "node04":
            sh(hosts, name, "ln -s /bin/sh /tmp/shell")
    first, *_ = refused(hosts, "-H", ALL, program=("/tmp/train",))
    assert first.startswith("error[start-interpreter-missing]: 1 of 4 nodes: node04: interpreter of the script not found: ")
    assert "'/tmp/shell'" in first


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "several-causes", START, "several nodes fail for several reasons", finder="the agent, for every node",
    says="`3 of 4 nodes did not start`, one line per reason", code="1", within=10,
)  # fmt: skip
def test_several_causes_are_all_reported(hosts: Hosts, agent: str) -> None:
    hosts.stop_sshd("node01")
    hosts.stop_sshd("node04")
    know(hosts, {"node02": None})
    first, *lines, hint = refused(hosts, "--agent", agent, "-H", ALL)
    assert first == "error[start-failed]: 3 of 4 nodes did not start"
    assert lines[0].startswith("    node[01,04]: connection refused after ")
    assert lines[1].startswith("    node02: host key not known after ")
    assert "is sshd running there?" in hint and "known_hosts" in hint


@pytest.mark.parametrize("agent", AGENTS)
def test_connection_that_is_dropped_is_tried_again(agent: str) -> None:
    with Hosts(2, maxstartups="1") as few, first_login_under_way(few, "node02") as release:
        with few.popen([*MPILAUNCH, "--agent", agent, "-H", "node[01-02]", "hostname"]) as job:
            log = few.shared.parent / "sshd.log"
            wait_until(lambda: "drop connection" in log.read_text(), "sshd drops the first connection")
            release()
            output, errors = job.communicate(timeout=LIMIT)
        assert (job.returncode, sorted(output.split()), errors) == (0, ["node01", "node02"], "")
        assert all(host_is_empty(few, name) for name in few.names)


@pytest.mark.parametrize("agent", AGENTS)
def test_connection_that_is_always_dropped(agent: str) -> None:
    with Hosts(2, maxstartups="1") as few, first_login_under_way(few, "node02"):
        first, *_, hint = refused(few, "--agent", agent, "-H", "node[01-02]", "--start-timeout", "1")
        assert first.startswith("error[start-connection-closed]: 1 of 2 nodes: node02: connection closed during the start")
        assert "MaxStartups" in hint


@contextlib.contextmanager
def first_login_under_way(hosts: Hosts, name: str) -> Iterator[Callable[[], object]]:
    """Hold a connection that does not log in; give the function that ends it."""
    script = f"exec 3<>/dev/tcp/{name}/22; read -r line <&3; echo $line; read -r _"
    with hosts.popen(["bash", "-c", script], stdin=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline().startswith("SSH-2.0")
        yield holder.communicate
        holder.kill()


# The end: a job of two nodes with two ranks each, one of which has a child in a session of its own.

JOB = "touch up-$RANK; [ $RANK != 3 ] || setsid sleep 601 & exec sleep 600"


@contextlib.contextmanager
def running(hosts: Hosts, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the job and wait until all of its ranks run."""
    with hosts.popen([*MPILAUNCH, *arguments, "-H", "node01:2,node02:2", "sh", "-c", JOB]) as job:
        try:
            wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 4 or job.poll() is not None, "four ranks run")
            assert job.poll() is None, job.communicate()
            yield job
        finally:
            job.kill()


def lost(job: subprocess.Popen[str], name: str, seconds: float = 2 * SLACK) -> str:
    """Wait for the end of a job that has lost a node; return what is said."""
    output, errors = job.communicate(timeout=seconds)
    assert (job.returncode, output) == (125, ""), errors
    assert errors.startswith(f"error[node-lost]: {name}: lost: "), errors
    assert "    ranks 0-3 stopped\n" in errors
    return errors


@contextlib.contextmanager
def going_on(hosts: Hosts, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a job that loses a connection in the block, and goes on."""
    text = "seq -f $RANK:%.0f 1000; touch up-$RANK; until [ -e go ]; do sleep 0.01; done; seq -f $RANK:%.0f 1001 2000; exit 7"
    with hosts.popen([*MPILAUNCH, *arguments, "--continue-on-error", "-H", "node01:2,node02:2", "sh", "-c", text]) as job:
        try:
            wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 4, "four ranks run")
            yield job
            Path("go").touch()
            output, errors = job.communicate(timeout=LIMIT)
        finally:
            job.kill()
    assert job.returncode == 7, errors
    assert sorted(output.split()) == sorted(f"{rank}:{number}" for rank in range(4) for number in range(1, 2001))
    assert re.search(r"^note: node02: .*; connected again after [0-9.]+ s$", errors, re.MULTILINE), errors
    assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "daemon-killed", NODES, "a daemon is killed", finder="the head reads end of file; the guard kills the ranks",
    says="`error[node-lost]: node02: lost: its daemon ended with code 137`", code="125", within=10,
)  # fmt: skip
def test_daemon_is_killed(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent) as job:
        kill_daemon(hosts, "node02")
        lost(job, "node02")
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "guard-killed", NODES, "a guard is killed", finder="the daemon reads end of file, and ends its ranks",
    says="`error[node-lost]: node02: lost: ...`", code="125", within=10,
)  # fmt: skip
def test_guard_is_killed(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent) as job:
        os.kill(guard_and_daemon_on(hosts, "node02")[0], signal.SIGKILL)
        lost(job, "node02")
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "daemon-frozen", NODES, "a daemon is frozen (SIGSTOP), `--heartbeat 0.8`",
    finder="the head after `--heartbeat`; the guard, by the pulse that is missing",
    says="`error[node-lost]: node02: lost: no sign of life for 1 s`", code="125", within=10,
)  # fmt: skip
def test_daemon_is_frozen(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent, "--heartbeat", "0.8") as job:
        os.kill(guard_and_daemon_on(hosts, "node02")[1], signal.SIGSTOP)
        assert "no sign of life for " in lost(job, "node02")
        # Nobody continues it.
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "sshd-session-killed", NODES, "the process of sshd behind the connection is killed",
    finder="head and daemon read end of file; the head connects again, and the job continues",
    says="`note: node02: ...; connected again after 0.3 s`", code="the job's", within=15,
)  # fmt: skip
def test_session_of_sshd_is_killed(hosts: Hosts, agent: str) -> None:
    with going_on(hosts, "--agent", agent):
        session = parent(guard_and_daemon_on(hosts, "node02")[0])
        assert Path(f"/proc/{session}/comm").read_text().startswith("sshd")
        os.kill(session, signal.SIGKILL)


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "session-and-sshd-killed", NODES, "the same, and no connection can be made, `--reconnect-timeout 1`",
    finder="the head, and the daemon by itself, after `--reconnect-timeout`",
    says="`error[node-lost]: node02: lost: ...; not reached again within 1 s: ...`", code="125", within=15,
)  # fmt: skip
def test_session_of_sshd_is_killed_and_sshd_with_it(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent, "--reconnect-timeout", "1") as job:
        session = parent(guard_and_daemon_on(hosts, "node02")[0])
        hosts.stop_sshd("node02")
        os.kill(session, signal.SIGKILL)
        assert "; not reached again within 1 s: " in lost(job, "node02")
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "head-killed", NODES, "the head is killed (SIGKILL), `--reconnect-timeout 2`",
    finder="each daemon reads end of file, and waits for `--reconnect-timeout`", says="", code="137", within=15,
)  # fmt: skip
def test_head_is_killed(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent, "--reconnect-timeout", "2") as job:
        job.kill()
        job.wait(LIMIT)
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@proves(
    "interrupt-hosts", NODES, "Ctrl-C or SIGTERM, with ranks on two hosts", finder="the head",
    says="`error[interrupted]: SIGINT to mpilaunch`", code="128 + N", within=10,
)  # fmt: skip
def test_signal_to_the_head_ends_the_job(hosts: Hosts, agent: str, number: int, code: int) -> None:
    with running(hosts, "--agent", agent) as job:
        job.send_signal(number)
        output, errors = job.communicate(timeout=2 * SLACK)
        assert (job.returncode, output) == (code, "")
        assert "    ranks 0-3 stopped\n" in errors
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


def test_program_under_a_shell_has_its_time_to_end(hosts: Hosts) -> None:
    save = "trap 'sleep 1.2; touch saved-'$RANK'; exit' TERM; touch up-$RANK; while :; do sleep 0.01; done"
    script = f"bash -c {shlex.quote(save)} >log-$RANK 2>&1; echo the shell goes on"
    with hosts.popen([*MPILAUNCH, "-H", "node[01-02]", "sh", "-c", script]) as job:
        wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 2, "both ranks run")
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=2 * SLACK)
    assert job.returncode == 143
    assert sorted(path.name for path in Path.cwd().glob("saved-*")) == ["saved-0", "saved-1"]
    assert "left behind" not in errors


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "link-down", NODES, "a node's link goes down, `--heartbeat 0.6 --reconnect-timeout 1`",
    finder="the head after `--heartbeat`; the daemon by itself",
    says="`error[node-lost]: node02: lost: no sign of life for 1 s`", code="125", within=15,
)  # fmt: skip
def test_link_goes_down_in_the_middle(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent, *QUICK_HEARTBEAT) as job:
        hosts.link("node02", up=False)
        assert "no sign of life for " in lost(job, "node02")
        # The cable stays unplugged: the node finds out by itself.
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "host-frozen", NODES, "a whole host freezes, `--heartbeat 0.6 --reconnect-timeout 1`",
    finder="the head after `--heartbeat`",
    says="`error[node-lost]: node02: lost: no sign of life for 1 s`", code="125", within=25,
)  # fmt: skip
def test_host_freezes_in_the_middle(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent, *QUICK_HEARTBEAT) as job:
        with hosts.pause("node02"):
            assert "no sign of life for " in lost(job, "node02", seconds=4 * SLACK)
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


# What is only almost a failure


@pytest.mark.alone
@proves(
    "earlier-named", RANKS, "ranks fail on two nodes, and the later one is heard first",
    finder="the nodes' clocks, mapped to the head's", says="`rank 1 on node02 exited with code 4`",
    code="that of the earlier", within=10,
)  # fmt: skip
def test_the_earlier_of_two_failures_is_named_whoever_is_heard_first(hosts: Hosts) -> None:
    script = "touch up-$RANK; until [ -e go-$RANK ]; do sleep 0.001; done; exit $((RANK + 3))"
    with hosts.popen([*MPILAUNCH, "-H", "node01,node02,node03", "sh", "-c", script]) as job:
        wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 3, "three ranks run")
        # The head hears of both when it goes on, and reads node01 before node02.
        head = next(pid for pid in (job.pid, *descendants(job.pid)) if "mpilaunch" in argument_list(pid))
        os.kill(head, signal.SIGSTOP)
        for rank in (1, 0):
            Path(f"go-{rank}").touch()
            wait_until(functools.partial(has_ended, hosts, rank, script), f"rank {rank} has ended")
            # On a busy machine the daemon learns of it later than we, and clocks are compared to half a round trip.
            time.sleep(0.3)
        os.kill(head, signal.SIGCONT)
        _, errors = job.communicate(timeout=2 * SLACK)
    assert job.returncode == 4
    assert "error[rank-failed]: rank 1 on node02 exited with code 4 after " in errors
    assert "    rank 0 on node01 failed too: exited with code 3\n    rank 2 stopped after it\n" in errors


def has_ended(hosts: Hosts, rank: int, script: str) -> bool:
    return not any(argv[-1] == script for _, argv in hosts.processes(f"node{rank + 1:02}"))


def descendants(pid: int) -> list[int]:
    return [below for child in children(pid) for below in (child, *descendants(child))]


def argument_list(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@proves(
    "ssh-killed", NODES, "the ssh process on the head is killed",
    finder="head and daemon read end of file; the head connects again, and the job continues",
    says="`note: node02: ...; connected again after 0.3 s`", code="the job's", within=15,
)  # fmt: skip
def test_client_of_ssh_is_killed(hosts: Hosts) -> None:
    with going_on(hosts, "--agent", "openssh") as job:
        clients = {pid: argument_list(pid) for pid in descendants(job.pid)}
        (client,) = (pid for pid, argv in clients.items() if argv.startswith("ssh\0") and "node02" in argv)
        os.kill(client, signal.SIGKILL)


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "sshd-killed", NODES, "sshd itself is killed", finder="nobody: its connections continue", says="nothing", code="0",
    within=10,
)  # fmt: skip
def test_sshd_itself_is_killed_and_the_job_continues(hosts: Hosts, agent: str) -> None:
    script = "touch up-$RANK; until [ -e go ]; do sleep 0.01; done; echo went on"
    with hosts.popen([*MPILAUNCH, "--agent", agent, "-H", "node[01-02]", "sh", "-c", script]) as job:
        wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 2, "both ranks run")
        sh(hosts, "node02", "kill -KILL $(cat /run/sshd.pid)")
        Path("go").touch()
        assert job.communicate(timeout=2 * SLACK) == ("went on\nwent on\n", "")
    assert job.returncode == 0
    assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "link-back", NODES, "a link goes down and comes back within `--heartbeat`", finder="nobody", says="nothing", code="0",
    within=20,
)  # fmt: skip
def test_link_that_comes_back_in_time(hosts: Hosts, agent: str) -> None:
    script = "touch up-$RANK; until [ -e go ]; do sleep 0.01; done; echo went on"
    with hosts.popen([*MPILAUNCH, "--agent", agent, "--heartbeat", "20", "-H", "node[01-02]", "sh", "-c", script]) as job:
        wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 2, "both ranks run")
        hosts.link("node02", up=False)
        Path("go").touch()
        wait_until(lambda: has_ended(hosts, 0, script), "the rank of the other node is through", limit=5)
        hosts.link("node02", up=True)
        # TCP tries again after pauses that double.
        assert job.communicate(timeout=15) == ("went on\nwent on\n", "")
    assert job.returncode == 0


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "link-back-late", NODES, "a link goes down, and comes back later than `--heartbeat` allows, within `--reconnect-timeout`",
    finder="the head after `--heartbeat`; it connects again, and the job continues",
    says="`note: node02: no sign of life for 1 s; connected again after 3.2 s`", code="the job's", within=40,
)  # fmt: skip
def test_link_that_comes_back_late(hosts: Hosts, agent: str) -> None:
    with going_on(hosts, "--agent", agent, "--heartbeat", "0.6", "--reconnect-timeout", "30") as job:
        hosts.link("node02", up=False)
        time.sleep(2.5)  # the head gives the connection up, and so does the daemon
        assert job.poll() is None
        hosts.link("node02", up=True)


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "node-disk-full", START, "/tmp and /run of a node are full", finder="nobody: nothing is written there", says="nothing",
    code="0", within=10,
)  # fmt: skip
def test_disk_of_a_node_is_full(hosts: Hosts, agent: str) -> None:
    sh(hosts, "node02", "for d in /tmp /run; do mount -o remount,size=64k $d; ! cat /dev/zero >$d/fill; done")
    done = hosts.launch("--agent", agent, "-H", "node[01-02]", "hostname")
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["node01", "node02"], "")


NOISY = 'head -c 1000000 /dev/zero | tr "\\0" x; echo; printf "noise\\n%.0s" 1 2 3 >&2'
"""What a .bashrc says here: a megabyte on stdout, and some on stderr."""


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "noisy-shell", START, "a `.bashrc` prints a megabyte", finder="nobody", says="nothing", code="0", within=10,
)  # fmt: skip
def test_shell_that_prints_a_megabyte(hosts: Hosts, agent: str) -> None:
    sh(hosts, "node02", f"echo {shlex.quote(NOISY)} >/tmp/bashrc; mount --bind /tmp/bashrc ~/.bashrc")
    assert len(hosts.run(["ssh", "node02", "true"]).stdout) == 1_000_001
    done = hosts.launch("--agent", agent, "-H", "node[01-02]", "hostname")
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["node01", "node02"], "")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "noisy-login", START, "sshd shows a banner of 250 kB before the login, as long a one as it can send",
    finder="nobody", says="nothing", code="0", within=10,
)  # fmt: skip
def test_login_banner_that_is_as_long_as_can_be(hosts: Hosts, agent: str) -> None:
    (hosts.shared / "banner").write_text("unauthorised use is forbidden\n" * 8_300)
    with hosts.sshd_with("node02", f"Banner={hosts.shared}/banner"):
        shown = hosts.run(["ssh", "-o", "LogLevel=INFO", "node02", "true"]).stderr
        assert len(shown) > 65_000  # the ssh client shows no more
        done = hosts.launch("--agent", agent, "-H", "node[01-02]", "hostname")
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["node01", "node02"], "")


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "name-server-silent", START, "the name server does not answer", finder="the head, after `--start-timeout`",
    says="`1 of 2 nodes: slow.example.org: no answer in time`", code="1", within=10,
)  # fmt: skip
def test_name_server_that_does_not_answer(hosts: Hosts, agent: str) -> None:
    # An address of the testbed's network that nobody has.
    (hosts.shared / "resolv.conf").write_text("nameserver 10.88.7.7\noptions timeout:30 attempts:3\n")
    script = f'mount --bind {hosts.shared}/resolv.conf /etc/resolv.conf && exec "$@"'
    begun = time.monotonic()
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *MPILAUNCH, "--agent", agent, "--start-timeout", "1.5"]
    done = hosts.run([*command, "-H", "node01,slow.example.org", "true"])
    assert time.monotonic() - begun < 1.5 + SLACK
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error[start-timeout]: 1 of 2 nodes: slow.example.org: no answer in time after 1.")
    assert host_is_empty(hosts, "node01")


@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "other-job-node", STRAYS, "another job of the same user on the same node fails", finder="",
    says="nothing: this job lives on", code="that of each", within=15,
)  # fmt: skip
def test_another_job_on_the_same_node_lives_on(hosts: Hosts, agent: str) -> None:
    with running(hosts, "--agent", agent) as job:
        wait_until(lambda: ["sleep", "601"] in [argv for _, argv in hosts.processes("node02")], "its children run too")
        before = settled_processes(hosts, "node02")
        script = "setsid sleep 602 & [ $RANK = 0 ] && exit 3; sleep 603"
        done = hosts.launch("--agent", agent, "-H", "node02:2", "sh", "-c", script)
        assert done.returncode == 3
        assert {pid for pid, _ in hosts.processes("node02")} == before
        assert job.poll() is None
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=2 * SLACK)
        assert host_is_empty(hosts, "node01") and host_is_empty(hosts, "node02")


@pytest.mark.alone
@pytest.mark.parametrize("agent", AGENTS)
@proves(
    "maxstartups", START, "64 logins at once, more than sshd's MaxStartups", finder="the head: it tries again, with jitter",
    says="nothing: all 64 come up", code="0", within=60,
)  # fmt: skip
def test_sixty_four_logins_at_once_under_the_limit_that_sshd_ships_with(agent: str) -> None:
    with Hosts(1, maxstartups="10:30:60") as one:
        Path("hosts.txt").write_text("".join(f"name{number:02}\n" for number in range(64)))
        (one.ssh / "config").write_text((one.ssh / "config").read_text() + f"Host name*\n  HostName {one.address('node01')}\n")
        done = one.launch("--agent", agent, "-f", "hosts.txt", "-N", "1", "--insecure-host-keys", "hostname")
        assert (done.returncode, done.stdout.split()) == (0, ["node01"] * 64), done.stderr
        assert "drop connection" in (one.shared.parent / "sshd.log").read_text()
        assert host_is_empty(one, "node01")
