"""A job on real hosts: ranks, environment, output and exit codes over OpenSSH's sshd, with nothing installed on the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT, LISTENS, Hosts
from tests.support.launching import LIMIT, MPILAUNCH, wait_until
from tests.support.processes import everything

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("shared")]

AGENTS = ("ssh", "openssh", "ssh -x -o BatchMode=yes -p {port} -l {user} {host} {command}")

MEET = """
import json, os, socket, sys
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
me = {**{name: os.environ[name] for name in names}, "host": socket.gethostname()}
if rank == 0:
    with socket.create_server(("", place[1])) as door:
        door.settimeout(20)
        guests = [door.accept()[0].makefile("r").readline() for _ in range(size - 1)]
    for place in [me, *map(json.loads, guests)]:
        print(json.dumps(place))
else:
    for patience in range(2000):
        try:
            with socket.create_connection(place, 20) as door:
                door.sendall(json.dumps(me).encode() + b"\\n")
            sys.exit()
        except ConnectionRefusedError:
            __import__("time").sleep(0.01)
    sys.exit("nobody listens at %s:%d" % place)
"""
"""Each rank tells rank 0 over a connection from host to host who it is; rank 0 prints them all."""

NOISE = "echo noise on stdout; echo noise on stderr >&2; printf '\\0mpilaunch'"


def ran(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of a job that went well and about which there was nothing to say."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def meet(hosts: Hosts, *arguments: str) -> list[dict[str, str]]:
    """Let all ranks meet at MASTER_ADDR and MASTER_PORT; return what they say of themselves, in rank order."""
    lines = ran(hosts.launch(*arguments, "python3", "-c", MEET))
    return sorted(map(json.loads, lines), key=lambda place: int(place["RANK"]))


def in_new_mounts(hosts: Hosts, host: str, setup: str) -> None:
    """Replace a host's sshd by one in a mount namespace in which `setup` has run; it is gone with the host."""
    hosts.stop_sshd(host)
    sshd = f"/usr/sbin/sshd -f {hosts.shared.parent}/sshd_config -o PidFile=none -E /dev/null"
    done = hosts.on(host, ["unshare", "--mount", "bash", "-ec", f"{setup}\n{sshd}\n{LISTENS % 22}"])
    assert done.returncode == 0, done.stderr


# Ranks and their environment


@pytest.mark.parametrize("agent", AGENTS)
def test_ranks_know_their_places_and_meet_on_the_first_node(hosts: Hosts, agent: str) -> None:
    places = meet(hosts, "--agent", agent, "-H", "node01:2,node02:2")
    assert [[place[name] for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "host")] for place in places] == [
        ["0", "0", "0", "node01"],
        ["1", "1", "0", "node01"],
        ["2", "0", "1", "node02"],
        ["3", "1", "1", "node02"],
    ]
    assert {(place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"]) for place in places} == {("4", "2")}
    assert {place["MASTER_ADDR"] for place in places} == {hosts.address("node01")}


@pytest.mark.parametrize(
    ("allocation", "names"), [("local:1,node01:1", ["head", "node01"]), ("node01,local", ["node01", "head"])]
)
def test_this_machine_and_a_host_meet(hosts: Hosts, allocation: str, names: list[str]) -> None:
    places = meet(hosts, "-H", allocation)
    assert [place["host"] for place in places] == names
    assert places[0]["MASTER_ADDR"] not in ("localhost", "127.0.0.1")


def test_first_rank_need_not_be_on_the_first_host_of_the_command_line(hosts: Hosts) -> None:
    places = meet(hosts, "-H", "node[04,02]", "-N", "1")
    assert [place["host"] for place in places] == ["node04", "node02"]
    assert places[0]["MASTER_ADDR"] == hosts.address("node04")


def test_ranges_of_names(hosts: Hosts) -> None:
    assert sorted(ran(hosts.launch("-H", "node[01-04]", "hostname"))) == hosts.names
    assert sorted(ran(hosts.launch("-H", "node[01-02,04]:2", "hostname"))) == ["node01"] * 2 + ["node02"] * 2 + ["node04"] * 2


def test_tag_host_names_the_host_of_each_line(hosts: Hosts) -> None:
    lines = ran(hosts.launch("-N", "1", "-H", "node[01-04]", "--tag", "host", "hostname"))
    assert sorted(lines) == [f"{name}: {name}" for name in hosts.names]


def test_fold_prints_equal_output_once(hosts: Hosts) -> None:
    assert ran(hosts.launch("-N", "1", "-H", "node[01-04]", "--fold", "echo", "the same")) == ["node[01-04]: the same"]
    script = 'if [ "$(hostname)" = node03 ]; then echo other; else echo same; fi'
    lines = ran(hosts.launch("-N", "1", "-H", "node[01-04]", "--fold", "sh", "-c", script))
    assert sorted(lines) == ["node03: other", "node[01-02,04]: same"]


def test_thirty_two_hosts() -> None:
    with Hosts(32) as many:
        lines = ran(many.launch("-H", "node[01-32]", "--tag", "host", "hostname"))
        assert sorted(lines) == [f"{name}: {name}" for name in many.names]
        assert ran(many.launch("-H", "node[01-32]", "-N", "1", "--fold", "uname", "-s")) == ["node[01-32]: Linux"]
        assert [argv for name in many.names for _, argv in many.processes(name)] == []


def test_hostfile_gives_each_node_its_user_port_and_agent(hosts: Hosts, shared: Path) -> None:
    hosts.listen("node02", 2202)
    hosts.listen("node03", 2203)
    key = (hosts.ssh / "known_hosts").read_text().split(None, 1)[1].splitlines()[0]
    (shared / "known_hosts").write_text("".join(f"{name} {key}\n" for name in ("node01", "[node02]:2202", "[node03]:2203")))
    # An ssh before the real one, which notes how it is called.
    noting = shared / "bin" / "ssh"
    noting.parent.mkdir()
    noting.write_text(f'#!/bin/sh\necho "$@" | head -1 >>{shared}/calls\nPATH=${{PATH#*:}} exec ssh "$@"\n')
    noting.chmod(0o755)
    (shared / "my.hosts").write_text("node01\nnode02 user=root port=2202\nnode03 slots=2 user=root port=2203 agent=openssh\n")
    known = f"UserKnownHostsFile={shared}/known_hosts"
    path = {"PATH": f"{noting.parent}:{os.environ['PATH']}"}
    script = "set -- $SSH_CONNECTION; echo $(hostname) $4 $USER"
    done = hosts.launch("-f", "my.hosts", "--ssh-option", known, "sh", "-c", script, env=path)
    assert sorted(ran(done)) == ["node01 22 root", "node02 2202 root", "node03 2203 root", "node03 2203 root"]
    # The agent ssh asks it for its settings, by -G.
    (call,) = (line for line in (shared / "calls").read_text().splitlines() if " -G " not in line)
    assert "-p 2203 -l root -- node03 " in call


# Exit codes


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    ("end", "code", "how"),
    [("exit 3", 3, "exited with code 3"), ("kill -SEGV $$", 139, "killed by SIGSEGV (signal 11)")],
)
def test_first_failure_is_named_and_ends_the_others(hosts: Hosts, agent: str, end: str, code: int, how: str) -> None:
    # Rank 2 fails only when the others have come to where they would sleep for ever.
    script = f"""
        if [ $RANK != 2 ]; then touch up-$RANK; exec sleep 600; fi
        until [ -e up-0 ] && [ -e up-1 ] && [ -e up-3 ]; do sleep 0.01; done
        echo it went wrong >&2
        {end}
    """
    done = hosts.launch("--agent", agent, "-H", "node01:2,node02:2", "sh", "-c", script)
    assert done.returncode == code, done.stderr
    assert f"error[rank-failed]: rank 2 on node02 {how} after " in done.stderr
    assert "    | it went wrong\n" in done.stderr
    assert "    ranks 0-1,3 stopped after it\n" in done.stderr


def test_verdict_is_the_same_each_time(hosts: Hosts) -> None:
    # The shells have children, which die with them and so were not left behind.
    script = "if [ $RANK = 2 ]; then exit 3; else sleep 600; fi"
    ends = [hosts.launch("-H", "local:1,node[01-04]:1", "sh", "-c", script) for _ in range(8)]
    said = [re.sub(r"after \d+\.\d s", "after N s", end.stderr) for end in ends]
    assert [end.returncode for end in ends] == [3] * 8, said
    message = "error[rank-failed]: rank 2 on node02 exited with code 3 after N s\n    ranks 0-1,3-4 stopped after it\n"
    assert said == [message] * 8


# Nothing is left on the nodes, and nothing is needed there


READ_ONLY = r"""
    while read -r _ at kind options _; do
        case $kind:$options in proc:*|sysfs:*|cgroup*|devpts:*|mqueue:*|*:ro,*) continue;; esac
        # What another mount covers cannot be reached anyway.
        mount -o remount,bind,ro "$at" || [ ! -e "$at" ]
    done </proc/self/mounts
"""


def test_nodes_have_nothing_of_ours_and_need_not_be_written_on() -> None:
    program = "for place in $HOME /tmp /var/tmp /run /dev/shm; do (: >$place/written) 2>/dev/null && echo $place; done; "
    program += "python3 -c 'import mpilaunch' 2>&1 | tail -1"
    with Hosts(2) as own:
        for name in own.names:
            in_new_mounts(own, name, READ_ONLY)
        for agent in AGENTS:
            done = own.launch("--agent", agent, "--wdir", "/", "-H", "node[01-02]:1", "sh", "-c", program)
            assert ran(done) == ["ModuleNotFoundError: No module named 'mpilaunch'"] * 2


@pytest.mark.parametrize("agent", AGENTS)
def test_a_head_that_can_write_nowhere(hosts: Hosts, agent: str) -> None:
    script = READ_ONLY + "if (: >/tmp/written); then exit 99; fi 2>/dev/null\nexec \"$@\""
    command = [*MPILAUNCH, "--agent", agent, "-H", "node[01-02]", "hostname"]
    done = hosts.run(["unshare", "-m", "sh", "-ec", script, "sh", *command])
    if agent == "ssh":  # asyncssh looks for a library by the C compiler
        assert done.returncode != 0 and "asyncssh, of the agent ssh, cannot be loaded: " in done.stderr
        assert "choose another --agent" in done.stderr
    else:
        assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["node01", "node02"], "")


@pytest.mark.parametrize("agent", AGENTS)
def test_environment_is_in_no_argument_list(hosts: Hosts, shared: Path, agent: str) -> None:
    secret = "c0rrect-horse"
    script = 'touch up-$RANK; until [ -e seen ]; do :; done; echo "$TOKEN"'  # a child of it would be counted too
    arguments = ["--agent", agent, "-H", "node[01-02]", "-x", "TOKEN", "sh", "-c", script]
    with hosts.popen([*MPILAUNCH, *arguments], env={"TOKEN": secret}) as job:
        wait_until(lambda: (shared / "up-0").exists() and (shared / "up-1").exists(), "both ranks run")
        in_arguments = holders(secret, "cmdline")
        ranks = {pid for name in ("node01", "node02") for pid, argv in hosts.processes(name) if argv[-1] == script}
        in_environments = holders(secret, "environ")
        (shared / "seen").touch()
        output, errors = job.communicate(timeout=LIMIT)
    assert (job.returncode, output, errors) == (0, f"{secret}\n" * 2, "")
    assert in_arguments == set()
    assert len(ranks) == 2 and ranks <= in_environments


def holders(text: str, file: str) -> set[int]:
    """Return the processes of this machine, the hosts' among them, that have a text in a file of theirs under /proc."""
    found = set()
    for pid in everything():
        with contextlib.suppress(OSError):
            if text.encode() in Path(f"/proc/{pid}/{file}").read_bytes():
                found.add(pid)
    return found


@pytest.mark.parametrize("agent", AGENTS)
def test_banner_and_noisy_shell_do_not_disturb(agent: str) -> None:
    with Hosts(2) as own:
        home = f"mount -t tmpfs tmpfs ~\nprintf %s {shlex.quote(NOISE)} >~/.bashrc\necho banner >/run/banner"
        in_new_mounts(own, "node02", home)
        heard = own.run(["ssh", "node02", "true"])
        assert (heard.stdout, heard.stderr) == ("noise on stdout\n\0mpilaunch", "noise on stderr\n")
        assert sorted(ran(own.launch("--agent", agent, "--wdir", "/", "-H", "node01,node02:2", "hostname"))) == [
            "node01",
            "node02",
            "node02",
        ]


@pytest.mark.parametrize("agent", AGENTS)
def test_login_banner_is_no_output(agent: str) -> None:
    with Hosts(1) as own:
        (own.shared / "banner").write_text("no trespassing\n")
        with (own.shared.parent / "sshd_config").open("a") as config:
            config.write(f"Banner {own.shared}/banner\n")
        own.stop_sshd("node01")
        own.start_sshd("node01")
        assert own.run(["ssh", "node01", "true"]).stderr == "no trespassing\n"
        assert ran(own.launch("--agent", agent, "-H", "node01:2", "--wdir", "/", "hostname")) == ["node01"] * 2


# Output

LINES = 200_000
FLOOD = f"""
import os, sys
fill = "x" * 90
with open("written-" + os.environ["RANK"], "w", 1) as note:
    for number in range({LINES}):
        sys.stdout.write("%08d %s\\n" % (number, fill))
        if number % 1000 == 0:
            note.write("%d\\n" % number)
"""
"""20 MB in lines that have numbers."""


def check_flood(text: str, ranks: Sequence[int]) -> None:
    """Check that every line is there, whole, once and in its rank's order."""
    fill = "x" * 90
    expected = dict.fromkeys(ranks, 0)
    for line in text.splitlines():
        rank = int(line[1 : line.index("]")])
        assert line == f"[{rank}] {expected[rank]:08d} {fill}"
        expected[rank] += 1
    assert expected == dict.fromkeys(ranks, LINES)


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_twenty_megabytes_from_each_of_two_hosts(hosts: Hosts, agent: str) -> None:
    done = hosts.launch("--agent", agent, "-H", "node[01-02]", "--tag", "rank", "python3", "-c", FLOOD)
    assert (done.returncode, done.stderr) == (0, "")
    check_flood(done.stdout, [0, 1])


def test_slow_reader_slows_the_ranks_and_loses_nothing(hosts: Hosts, shared: Path) -> None:
    with hosts.popen([*MPILAUNCH, "-H", "node[01-02]", "--tag", "rank", "python3", "-c", FLOOD]) as job:
        assert job.stdout is not None
        notes = [shared / "written-0", shared / "written-1"]
        wait_until(lambda: all(note.exists() and note.read_text() for note in notes), "both ranks have written")
        # Whoever does not feel that nobody reads has long written all of it by then.
        time.sleep(1.0)
        written = [int(note.read_text().splitlines()[-1]) for note in notes]
        memory = int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{job.pid}/status").read_text())[0])
        output, errors = job.communicate(timeout=LIMIT)
    assert max(written) < LINES * 0.6, "the ranks did not wait"
    assert memory < 150_000
    assert (job.returncode, errors) == (0, "")
    check_flood(output, [0, 1])


def test_hosts_do_not_see_the_checkout(hosts: Hosts) -> None:
    """What the tests above stand on."""
    done = hosts.launch("-H", "node[01-02]", "--wdir", "/", "sh", "-c", f"ls -A {CHECKOUT} 2>/dev/null | wc -l")
    assert ran(done) == ["0", "0"]
