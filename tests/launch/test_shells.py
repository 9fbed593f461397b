"""Command lines of pdsh, dshbak and clush, under their names: hosts run and print what the real commands make of them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mpilaunch.hosts.nodeset import Span, combine, expand
from tests.support.hosts import Hosts
from tests.support.launching import LIMIT, environment, wait_gone, wait_until
from tests.support.second_user import USER, shared_directory

W = "node[01-02]"
PDSH = {"PDSH_RCMD_TYPE": "ssh"}


def both(
    hosts: Hosts, links: Path, line: str, input: str | None = None, variables: Mapping[str, str] | None = None
) -> list[tuple[int, list[str], str]]:
    """Return exit code, sorted lines and stderr of the real command and of ours; the first word is its name."""
    name, *words = shlex.split(line)
    ends = []
    for program in (f"/usr/bin/{name}", str(links / name)):
        done = hosts.run([program, *words], env={**PDSH, **(variables or {})}, input=input)
        ends.append((done.returncode, sorted(done.stdout.splitlines()), done.stderr))
    return ends


LINES = (
    f"pdsh -w {W} hostname",
    f"pdsh -Nw {W} hostname",
    f"pdsh -w {W} echo %n %h %u %% %x 100%",
    f"pdsh -w {W} echo \"'a   b'\" 'c;' 'pwd;' 'echo $HOME'",
    f"pdsh -w {W} 'exit %n'",
    "pdsh '-f 2' '-w node[01-02], node03' '-u 9' hostname",
    "pdsh -w node01,root@node02 echo %u",
    f"pdsh -S -w {W} 'exit %n'",
    f"pdsh -S -w {W} 'exit $((7 - %n))'",
    f"pdsh -S -w {W} nosuchcommand",
    "pdsh -w node0[1-3],-node01 hostname",
    "pdsh -w node0[1-3],/[23]/ hostname",
    "pdsh -w node0[1-3] -x /2/ hostname",
    "pdsh -w node03,node01 -w root@node02 'echo %n %h'",
    "pdsh -w node01,ssh:node02 -x node01 hostname",
    "pdsh -w node02,node01,node02 -l root echo %n",
    "pdsh -w node01,node09,node02 'hostname; exit %n'",
    "pdsh -S -w node01,node09,node02 'hostname; exit %n'",
    f"pdsh -S -u1 -w {W} sleep 5",
    f"pdsh -S -f 1024 -w {W} 'export A=b; cd /var; echo $A $PWD --node_rank=%n'",
    f"pdsh -w {W} 'echo -n x; sleep 0.2; echo y; echo ${{RANK-no}} ${{OMPI_COMM_WORLD_SIZE-no}} ${{MASTER_ADDR-no}}'",
    f"pdsh -w {W} 'pwd; env | sed s/=.*// | sort | xargs'",
    f"clush -w {W} 'pwd; env | sed s/=.*// | sort | xargs'",
    f"pdsh -R exec -w {W} echo '%n %h %u %%' 'a b;' x",
    f"pdsh -S -R exec -w {W} false",
    "pdsh -R exec -w b,a,c[1-2] -x a -l joe echo %n %u",
    "pdsh -S -R exec -w u1@a,u2@b,c echo %u@%h",
    f"clush -w {W} echo %n %h %%",
    f"clush -S -w {W} 'exit 3'",
    f"clush -w {W} 'exit 3'",
    f"clush -N -w {W} hostname",
    "clush -w node02,node01 -w node02 -x node01 hostname",
    f"clush -R exec -w {W} 'echo %n %h %host %rank %%;' hostname",
    f"clush -w {W} -q -S -t 5 'exit 4'",
    "clush -S -w node01,node09 hostname",
    f"clush -S -u 1 -w {W} sleep 5",
    f"clush -w {W} -o '-p 22 -oStrictHostKeyChecking=yes -q' pwd",
)


@pytest.mark.testbed
@pytest.mark.parametrize("line", LINES)
def test_hosts_run_what_the_real_command_runs(hosts: Hosts, links: Path, line: str) -> None:
    """And both tell the failures of hosts in the same lines."""
    real, ours = both(hosts, links, line)
    assert (*ours[:2], told(ours[2])) == (*real[:2], told(real[2])), (real, ours)


def told(errors: str) -> list[str]:
    """Return the lines of stderr in which pdsh or clush itself tells failures of hosts, sorted."""
    return sorted(line for line in errors.splitlines() if re.match("(pdsh@|clush: ).*: (.*exited with|command timeout)", line))


@pytest.mark.testbed
@pytest.mark.parametrize(
    "line",
    [
        f"clush -b -w {W} 'echo hi; echo err >&2'",
        f"clush -B -w {W} 'echo hi; echo err >&2'",
        f"clush -b -w {W} 'hostname; echo -n end'",
        "clush -b -w node0[1-3] 'hostname | tr 12 44'",
        f"clush -bN -w {W} 'echo same'",
        f"clush -b -w {W} 'sleep 2.5; echo late'",
        f"clush -L -w {W} 'echo a; hostname'",
        "clush --diff -w node0[1-4] 'echo same; test $(hostname) != node03 || echo more; seq 9; echo ---'",
        "clush --diff -w node0[1-3] 'test $(hostname) = node02 || seq 3'",
        f"clush -B --diff -w {W} 'echo same >&2'",
    ],
)
def test_gathered_output_is_that_of_clush_byte_for_byte(hosts: Hosts, links: Path, line: str) -> None:
    name, *words = shlex.split(line)
    real, ours = (hosts.run([program, *words]) for program in ("/usr/bin/clush", links / name))
    assert (ours.returncode, ours.stdout) == (real.returncode, real.stdout)
    # After two seconds the real command draws its progress there.
    said = [line for line in real.stderr.splitlines() if re.fullmatch(r"clush: +\d/\d| +", line) is None]
    assert sorted(ours.stderr.splitlines()) == sorted(said)


@pytest.mark.parametrize(
    "line",
    [
        "-q -w n[3,1-2],m,n[08-11]x,a1,n12 echo  a 'b  c'",
        "-Q -w n[1-2]-[0-1],m -x m",
        "-qSNd -R exec -l joe -f 1 -u 7 -w b3,b1,b2,b1,root@b09,b10,b011 x",
        "-q -R ssh -b -w ^{}/list,x -x n2",
        "-Q -w - -w n9",
    ],
)
def test_settings_and_hosts_are_listed_as_by_pdsh(links: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "list").write_text("n1\n#include list2\n")
    (tmp_path / "list2").write_text("n[2-3]\n#include x y\n")
    variables = {**environment(), b"PDSH_RCMD_TYPE": b"ssh", b"DSHPATH": b"/opt/x:/bin", b"FANOUT": b"7"}
    texts = []
    for program in ("/usr/bin/pdsh", links / "pdsh"):
        words = [str(program), *shlex.split(line.format(tmp_path))]
        done = subprocess.run(words, input="n5\nn[6-7]\n", capture_output=True, text=True, env=variables, timeout=60)
        texts.append([text for text in done.stdout.splitlines() if "program path" not in text])
        assert ("warning" in done.stderr) == ("list" in line), done.stderr
    assert texts[1] == texts[0]


GENDERS = """\
n[1-4] compute,cpus=8,all
n3 pdsh_all_skip
n[1-2] altname=%n-eth0
n4 pdsh_rcmd_type=joe@
login1 login,altname=gw
"""


@pytest.mark.parametrize(
    "line",
    [
        *("-a", "-A", "-A -i", "-g compute", "-g 'compute&&~pdsh_all_skip'", "-g login,cpus=8", "-g login -x gw"),
        *("-A -X login", "-A -X login -i", "-A -x n2", "-A -x n2-eth0", "-a -w n[1-4]", "-w n[1-9] -g compute"),
        *("-w n2,n9 -g compute", "-w n1,n2 -i", "-w n1-eth0 -i", "-w gw,n9 -X login"),
        *("-w n[1-4] -g login,all -X pdsh_all_skip", "-A -M genders", "-g nosuch", "-a -g all"),
        *("-a -A", "-A -a", "-w n2,n1,n2 -g compute"),
        *("-w n[1-4] -X cpus=8", "-g '('", "-F /no/such -a", "", "-w n1 -x n1", "-w n[5-9] -g compute", "-w -n1"),
        *("-A -w -n3", "-A -w /n.*[24]$/", "-A -w -/n/", "-g login,compute -w -/1/", "-a -w n1 -g all", "-A -g all"),
    ],
)
def test_hosts_of_genders_are_those_of_pdsh(links: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "genders").write_text(GENDERS)
    variables = {**environment(), b"PDSH_RCMD_TYPE": b"ssh", b"PDSH_GENDERS_DIR": bytes(tmp_path)}
    ends = []
    for program in ("/usr/bin/pdsh", links / "pdsh"):
        done = subprocess.run([str(program), *shlex.split(line), "-q"], capture_output=True, env=variables, timeout=60)
        ends.append((done.returncode, done.stdout.splitlines()[-1:], done.stderr.splitlines()[-1:]))
    (*real, said), (*ours, our_words) = ends
    assert ours == real
    assert not any(b"specif" in text for text in said) or our_words == said, "words for which scripts look"


def test_the_first_failure_ends_all_with_k(links: Path, tmp_path: Path) -> None:
    """Debian's pdsh has no -k: these are the lines of the source of pdsh 2.35."""
    text = "if [ %h = a ]; then until [ -e up ]; do sleep 0.02; done; exit 3; else touch up; sleep 300; true; fi"
    words = [str(links / "pdsh"), "-k", "-f2", "-R", "exec", "-w", "a,b,c", "sh", "-c", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment())
    name = f"pdsh@{socket.gethostname().partition('.')[0]}"
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr == f"{name}: a: sh exited with exit code 3\n{name}: terminating all processes\n"


def test_the_first_interrupt_tells_which_hosts_are_at_work_as_pdsh_does(links: Path) -> None:
    """And a second one within a second ends them, with pdsh's exit code."""
    ends = []
    for program in ("/usr/bin/pdsh", str(links / "pdsh")):
        words = [program, "-R", "exec", "-w", "a,b,c", "sh", "-c", "echo $$; test %h = a || exec sleep 300"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as job:
            assert job.stdout and job.stderr
            pids = dict(job.stdout.readline().split(": ") for _ in range(3))
            wait_gone(int(pids["a"]))
            time.sleep(0.2)  # until that is known
            job.send_signal(signal.SIGINT)
            told: list[str] = []
            while len(told) < 3:
                told += [line for line in [job.stderr.readline()] if "^Z" not in line]
            job.send_signal(signal.SIGINT)
            _, rest = job.communicate(timeout=LIMIT)
            ends.append((job.returncode, sorted(told), rest.splitlines()[-1]))
        for pid in (pids["b"], pids["c"]):
            with contextlib.suppress(ProcessLookupError):  # the real one leaves them
                os.kill(int(pid), signal.SIGKILL)
    assert ends[1] == ends[0]
    assert [line.partition(": ")[2] for line in ends[0][1][:2]] == ["b: command in progress\n", "c: command in progress\n"]


@pytest.mark.parametrize("seed", range(12))
def test_sets_of_hosts_are_combined_as_by_clustershell(seed: int) -> None:
    draw = random.Random(seed)
    sets = [f"n[{first}-{first + draw.randint(0, 9)}]" for first in draw.choices(range(20), k=6)] + ["n[1-3, 7]", "n5", "m"]
    text = draw.choice(sets)
    for _ in range(draw.randint(1, 7)):
        text += draw.choice([",", "!", "&", "^", " ! ", " & ", ", "]) + draw.choice(sets)
    real = subprocess.run(["/usr/bin/nodeset", "-S", "\n", "-e", text], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(combine(Span.of(text, "-w"), expand)) == sorted(real.stdout.split())


@pytest.mark.testbed
def test_hosts_of_files_stdin_and_wcoll_are_those_of_pdsh(hosts: Hosts, links: Path, shared: Path) -> None:
    (shared / "list").write_text("# all\nnode01 # first\n\nnode0[2-3]\n", encoding="utf-8")
    for line, variables in ((f"pdsh -w ^{shared}/list echo %n", {}), ("pdsh hostname", {"WCOLL": f"{shared}/list"})):
        real, ours = both(hosts, links, line, variables=variables)
        assert ours == real and len(real[1]) == 3
    real, ours = both(hosts, links, "pdsh -w - hostname", "node01\nnode02\n")
    assert ours == real and len(real[1]) == 2
    real, ours = both(
        hosts, links, f"pdsh -w {W} 'echo $PATH'", variables={"DSHPATH": "/opt/x:/bin", "PDSH_SSH_ARGS_APPEND": "-q"}
    )
    assert ours == real and "node01: /opt/x:/bin" in real[1]


@pytest.mark.testbed
@pytest.mark.parametrize("start", ["nohup", "setsid"])
@pytest.mark.parametrize("name", ["pdsh", "clush"])
def test_what_a_command_leaves_running_stays_as_under_ssh(hosts: Hosts, links: Path, name: str, start: str) -> None:
    line = f"{start} sleep 300 > /dev/null 2>&1 < /dev/null & echo $!"
    done = hosts.run([str(links / name), "-w", W, line], env=PDSH)
    left = dict(line.split(": ") for line in done.stdout.splitlines())
    try:
        assert done.returncode == 0 and sorted(left) == ["node01", "node02"], done
        for host, pid in left.items():
            assert hosts.on(host, ["ps", "-o", "args=", "-p", pid]).stdout == "sleep 300\n"
    finally:
        for host, pid in left.items():
            hosts.on(host, ["kill", "-9", pid])


@pytest.mark.testbed
@pytest.mark.parametrize("name", ["pdsh", "clush"])
def test_a_command_runs_to_its_end_when_its_head_is_killed(hosts: Hosts, links: Path, shared: Path, name: str) -> None:
    text = f"touch {shared}/up-$(hostname); sleep 1; seq 300000 && seq 300000 >&2 && touch {shared}/done-$(hostname)"
    with hosts.popen([str(links / name), "-w", W, text], env={**PDSH, "MPILAUNCH_RECONNECT_TIMEOUT": "1"}) as job:
        wait_until(lambda: len(list(shared.glob("up-*"))) == 2, "both commands run")
        job.kill()
        job.communicate(timeout=LIMIT)
    wait_until(lambda: len(list(shared.glob("done-*"))) == 2, "both commands are done, and got no signal")
    wait_until(lambda: not any(map(hosts.processes, ("node01", "node02"))), "nothing of mpilaunch is left")


@pytest.mark.testbed
def test_stdin_reaches_all_hosts_of_clush_and_none_with_n(hosts: Hosts, links: Path) -> None:
    for line in (f"clush -w {W} cat", f"clush -n -w {W} cat"):
        real, ours = both(hosts, links, line, "hello\n")
        assert ours == real


@pytest.mark.testbed
def test_a_host_that_is_not_reached_is_named_and_the_others_run(hosts: Hosts, links: Path) -> None:
    hosts.stop_sshd("node02")
    try:
        real, ours = both(hosts, links, "pdsh -S -w node0[1-3] 'echo %n; exit 5'")
    finally:
        hosts.start_sshd("node02")
    assert ours[:2] == real[:2] == (255, ["node01: 0", "node03: 2"])
    assert told(ours[2]) == told(real[2])
    assert ours[2].count("node02: connection refused") == 1


@pytest.mark.testbed
def test_deepspeeds_line_runs_as_it_is(hosts: Hosts, links: Path, shared: Path) -> None:
    package = shared / "deepspeed" / "launcher"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "launch.py").write_text(
        "import os, sys\nprint(os.environ['A'], os.getcwd(), sys.argv[1:])\nsys.exit(3)\n", encoding="utf-8"
    )
    words = ["-S", "-f", "1024", "-w", "node01,node02", "export A=b; ", f" cd {shared}; ", "/usr/bin/python3", "-u", "-m"]
    words += ["deepspeed.launcher.launch", "--world_info=e30=", "--node_rank=%n", "--master_addr=10.0.0.1", "train.py"]
    real, ours = both(hosts, links, shlex.join(["pdsh", *words]))
    assert ours[:2] == real[:2]
    expected = f"b {shared} ['--world_info=e30=', '--node_rank=%d', '--master_addr=10.0.0.1', 'train.py']"
    assert ours[:2] == (3, [f"node0{number + 1}: {expected % number}" for number in range(2)])


# dshbak


def bak(
    links: Path, words: list[str], data: bytes
) -> tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes]]:
    real, ours = (
        subprocess.run([program, *words], input=data, capture_output=True, env=environment(), timeout=60, check=False)
        for program in ("/usr/bin/dshbak", links / "dshbak")
    )
    return real, ours


@pytest.mark.parametrize("seed", range(6))
def test_dshbak_prints_what_the_real_one_prints(links: Path, seed: int) -> None:
    draw = random.Random(seed)
    pool = [
        "n1",
        "n2",
        "n3",
        "n09",
        "n10",
        "n011",
        "n012",
        "node013",
        "node14",
        "m15",
        "m16",
        "z099",
        "z100",
        "z0101",
        "20",
        "21",
    ]
    pool += ["rack2-n22", "rack2-n23"]  # no two with one number: the real one prints these in any order
    names = draw.sample(pool, draw.randint(3, 12))
    lines = [f"{name}:{draw.choice(['', ' ', '  '])}{draw.choice('ab')}\n" for name in names for _ in range(draw.randint(1, 3))]
    draw.shuffle(lines)
    data = "".join([*lines, "no host\n", " pad1000 : x: y\n"]).encode() + b"n5000: \xff\x00\r\x1b" + b"x" * 3_000_000 + b"\n"
    for words in ([], ["-c"]):
        real, ours = bak(links, words, data)
        assert (ours.returncode, ours.stdout) == (0, real.stdout)


def test_dshbak_writes_files_and_never_outside_of_their_directory(links: Path, tmp_path: Path) -> None:
    data = b"a: 1\nb: 2\na: 3\n"
    for number in (1, 2):
        real, ours = bak(links, ["-f", "-d", f"{tmp_path}/new{number}/out"], data)
        assert (real.returncode, ours.returncode) == (0, 0)
    assert {path.name: path.read_bytes() for path in (tmp_path / "new1" / "out").iterdir()} == {"a": b"1\n3\n", "b": b"2\n"}
    _, ours = bak(links, ["-d", str(tmp_path)], b"../x: 1\n")
    assert ours.returncode == 2 and b"is not the name of a host" in ours.stderr
    (tmp_path / "link").symlink_to(tmp_path / "aim")
    line: list[str | Path] = [links / "dshbak", "-d", tmp_path]
    done = subprocess.run(line, input=b"link: 1\n", capture_output=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 2 and not (tmp_path / "aim").exists()


@pytest.mark.testbed
def test_dshbak_writes_nothing_where_another_user_could_decide_what(links: Path, tmp_path: Path) -> None:
    def write(folder: Path) -> str:
        line: list[str | Path] = [links / "dshbak", "-f", "-d", folder]
        done = subprocess.run(line, input=b"n1: 1\n", capture_output=True, env=environment(), timeout=60, check=False)
        assert done.returncode in (0, 2) and not done.stdout
        return done.stderr.decode()

    for mode in (0o1777, 0o777):
        with shared_directory(mode) as shared:
            (shared / "link").symlink_to(tmp_path)
            os.lchown(shared / "link", USER, USER)
            assert "'link' is a link that belongs to" in write(shared / "link" / "new")
            assert mode == 0o1777 or "no sticky bit" in write(shared)
    with shared_directory(0o1777) as shared:
        (shared / "n1").write_text("theirs")
        os.chown(shared / "n1", USER, USER)
        (shared / "n1").chmod(0o666)
        assert f"the file belongs to nobody (uid {USER})\nhint: " in write(shared)
        assert (shared / "n1").read_text() == "theirs"
        (shared / "n1").unlink()
        os.mkfifo(shared / "n1")
        assert "it is not a regular file" in write(shared)
    assert not list(tmp_path.iterdir())
    old = os.umask(0)
    try:
        assert write(tmp_path / "out") == ""
    finally:
        os.umask(old)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out", tmp_path / "out" / "n1")] == [0o775, 0o644]


@pytest.mark.parametrize("words", [["-c", "-d", "/x"], ["-d", "/no/such"], ["-f"], ["-z"], ["/no/such"], ["-d"]])
def test_dshbak_refuses_bad_words(links: Path, words: list[str]) -> None:
    real, ours = bak(links, words, b"a: 1\n")
    assert ours.returncode == 2 and ours.stderr.startswith(b"error[") and not ours.stdout
    assert real.returncode or words in (["-z"], ["/no/such"], ["-d"])


def test_dshbak_ends_quietly_when_nobody_reads(links: Path) -> None:
    line = f"yes 'a: {'x' * 200}' | head -n 100000 | {links}/dshbak | head -n 1; exit ${{PIPESTATUS[2]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, env=environment(), timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, b"-" * 16 + b"\n", b"")
