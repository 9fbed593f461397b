"""Files copied to real hosts and from them, as clush, pdcp and rpdcp do it: whole, at once, each failure by its host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Hosts

pytestmark = pytest.mark.testbed

NAMES = ("node01", "node02", "node03")
OF_NODES = "node[01-03]"
MTIME = 1_000_000_000


@pytest.fixture
def source(hosts: Hosts, shared: Path) -> Iterator[Path]:
    """Give a directory with a program, a link, a large file, a name that is no text, and a FIFO."""
    folder = shared / "data"
    (folder / "sub").mkdir(parents=True)
    program = folder / "run me"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o750)
    os.utime(program, (MTIME, MTIME))
    (folder / "sub" / ".hidden").write_bytes(bytes(range(256)) * 20_000)
    (folder / "sub" / "link").symlink_to("../run me")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("odd\n")
    os.mkfifo(folder / "fifo")
    yield folder
    for name in NAMES:
        hosts.on(name, ["sh", "-c", "rm -rf /tmp/to /tmp/in; mkdir /tmp/in"]).check_returncode()


def on(hosts: Hosts, name: str, *argv: str) -> str:
    """Run a command on a host, and return its stdout."""
    done = hosts.on(name, list(argv))
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["clush", "-w", OF_NODES, "-p", "-c", "{}", "--dest", "/tmp/to"],
        ["pdcp", "-f1", "-rpw", OF_NODES, "{}", "/tmp/to"],
    ],
    ids=["clush", "pdcp"],
)
def test_a_directory_comes_whole_under_another_name(hosts: Hosts, links: Path, source: Path, words: list[str]) -> None:
    done = hosts.run([links / words[0], *(word.format(source) for word in words[1:])])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in NAMES:
        assert on(hosts, name, "stat", "-c", "%a %Y %U", "/tmp/to/run me") == f"750 {MTIME} root\n"
        assert on(hosts, name, "/tmp/to/sub/link") == "ran\n"
        assert on(hosts, name, "sh", "-c", "LC_ALL=C ls -Ab /tmp/to") == "run\\ me\nsub\n\\377\n", "and no FIFO"
        assert on(hosts, name, "cmp", "/tmp/to/sub/.hidden", str(source / "sub" / ".hidden")) == ""
        assert "to." not in on(hosts, name, "ls", "/tmp"), "nothing else is left"


def test_existing_files_are_written_over_and_keep_what_they_are(hosts: Hosts, links: Path, source: Path) -> None:
    hosts.run(["sh", "-c", f"rm -rf /tmp/in; mkdir /tmp/in; echo 1 >/tmp/in/.a; cp -p '{source}/run me' /tmp/in/b"])
    on(hosts, "node01", "sh", "-c", "cd /tmp/in; echo an older one >real; chown nobody real; chmod 600 real; ln -s real b")
    assert hosts.run([links / "clush", "-w", OF_NODES, "--copy", "/tmp/in/.a", "/tmp/in/b"]).returncode == 0
    for name in NAMES:
        assert on(hosts, name, "sh", "-c", "cd /tmp/in; cat .a b; stat -c %a .a") == "1\n#!/bin/sh\necho ran\n644\n"
        assert int(on(hosts, name, "stat", "-L", "-c", "%Y", "/tmp/in/b")) > MTIME
    assert on(hosts, "node01", "stat", "-c", "%F %U %a", "/tmp/in/b", "/tmp/in/real").splitlines() == [
        "symbolic link root 777",
        "regular file nobody 600",
    ]
    assert on(hosts, "node02", "stat", "-c", "%a", "/tmp/in/b") == "750\n", "a new one has its mode here"


def test_a_host_that_cannot_take_a_file_is_named(hosts: Hosts, links: Path, source: Path) -> None:
    on(hosts, "node02", "sh", "-c", "mkdir /tmp/to; mount -t tmpfs -o size=1m none /tmp/to")
    try:
        copy = ("-c", str(source / "sub" / ".hidden"), "--dest", "/tmp/to/data")
        done = hosts.run([links / "clush", "-S", "-w", f"{OF_NODES},node09", *copy])
    finally:
        on(hosts, "node02", "umount", "/tmp/to")
    assert done.returncode == 255 and done.stdout == ""
    reasons = {"node01": "No such file or directory", "node02": "No space left on device"}
    for name, reason in reasons.items():
        assert f"{name}: /tmp/to/data: {reason}\n" in done.stderr, done.stderr
        assert f"clush: {name}: exited with exit code 1\n" in done.stderr
    assert "clush: node09: exited with exit code 255\n" in done.stderr


def test_several_files_need_a_directory(hosts: Hosts, links: Path, source: Path) -> None:
    words = [str(source / "run me"), str(source / "sub")]
    done = hosts.run([links / "pdcp", "-r", "-w", "node01,node02", *words, "in/no"])
    assert done.stderr.count("in/no: not a directory\n") == 2, done.stderr
    assert re.search("^pdcp@[^ ]+: node01: ssh exited with exit code 1$", done.stderr, re.M)
    on(hosts, "node01", "mkdir", "-p", "/root/in-home")
    assert hosts.run([links / "pdcp", "-r", "-w", "node01", *words, "~/in-home"]).returncode == 0
    assert on(hosts, "node01", "sh", "-c", "cd /root/in-home; ls -A; rm -r /root/in-home") == "run me\nsub\n"


def fill(hosts: Hosts, name: str) -> None:
    """Give a host a directory with a program, a large file, a link and a directory that nobody may write to."""
    script = """
        mkdir -p /tmp/to/sub; cd /tmp/to; hostname >name; echo of a host >'run me'; chmod 750 'run me'
        ln -s '../run me' sub/link; head -c 3000000 /dev/zero >sub/.large; mkfifo fifo; ln name again
        chmod 555 sub; touch -d @1000000000 'run me' sub
    """
    on(hosts, name, "sh", "-c", script)


@pytest.mark.parametrize(
    "words",
    [
        ["clush", "-w", OF_NODES, "-p", "--rcopy", "/tmp/to", "--dest", "{}"],
        ["clush", "-w", OF_NODES, "--rcopy", "/tmp/to", "--dest={}", "-p"],
        ["rpdcp", "-f2", "-rpw", OF_NODES, "/tmp/to", "{}"],
    ],
    ids=["clush", "clush --dest last", "rpdcp"],
)
def test_a_directory_of_each_host_comes_with_the_hosts_name(
    hosts: Hosts, links: Path, source: Path, tmp_path: Path, words: list[str]
) -> None:
    for name in NAMES:
        fill(hosts, name)
    done = hosts.run([links / words[0], *(word.format(tmp_path) for word in words[1:])])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"to.{name}" for name in NAMES]
    for name in NAMES:
        came = tmp_path / f"to.{name}"
        assert sorted(os.listdir(came)) == ["again", "name", "run me", "sub"], "and no FIFO"
        assert (came / "name").read_text() == (came / "again").read_text() == f"{name}\n"
        assert (came / "run me").stat().st_mode & 0o777 == 0o750 and (came / "run me").stat().st_mtime == MTIME
        assert (came / "sub").stat().st_mode & 0o777 == 0o555 and (came / "sub").stat().st_mtime == MTIME
        assert os.readlink(came / "sub" / "link") == "../run me"
        assert (came / "sub" / ".large").stat().st_size == 3_000_000


def test_files_of_hosts_come_although_one_host_lacks_one(hosts: Hosts, links: Path, source: Path, tmp_path: Path) -> None:
    for name in NAMES[:2]:
        fill(hosts, name)
    done = hosts.run([links / "rpdcp", "-w", f"{OF_NODES},node09", "/tmp/to/name", "/tmp/to/run me", "/tmp/to/sub", tmp_path])
    assert done.returncode == 0, "as with pdcp without -S"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["name.node01", "name.node02", "run me.node01", "run me.node02"]
    assert (tmp_path / "run me.node01").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "run me.node01").stat().st_mtime > MTIME, "without -p the time of the copy"
    for name in NAMES[:2]:
        assert f"{name}: /tmp/to/sub: is a directory, which needs -r\n" in done.stderr
    assert "node03: /tmp/to/name: No such file or directory\n" in done.stderr
    assert re.search("^rpdcp@[^ ]+: node03: ssh exited with exit code 1$", done.stderr, re.M)
    assert re.search("^rpdcp@[^ ]+: node09: ssh exited with exit code 255$", done.stderr, re.M)
    assert "whole" not in done.stderr


def test_files_come_to_where_they_are_from(hosts: Hosts, links: Path, source: Path) -> None:
    fill(hosts, "node01")
    hosts.run(["rm", "-rf", "/tmp/to"])
    done = hosts.run([links / "clush", "-w", "node01", "--rcopy", "/tmp/to/name"])
    assert done.returncode == 2 and "reverse copy dest must be a directory" in done.stderr and "/tmp/to" in done.stderr
    on(hosts, "node01", "cp", "/tmp/to/name", "/tmp/in")
    hosts.run(["sh", "-c", "rm -rf /tmp/in; mkdir /tmp/in"])
    assert hosts.run([links / "clush", "-w", "node01", "--rcopy", "/tmp/in/name"]).returncode == 0
    assert hosts.run(["cat", "/tmp/in/name.node01"]).stdout == "node01\n"


def test_the_output_of_any_program_may_be_an_archive(hosts: Hosts, source: Path, tmp_path: Path) -> None:
    for name in NAMES:
        fill(hosts, name)
    command = ("tar", "-C", "/tmp", "--exclude", "sub", "-c", "to")
    done = hosts.launch("--independent", "-H", OF_NODES, "--stdout-archive", str(tmp_path), *command)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"to.{name}" for name in NAMES]
    noisy = ("sh", "-c", "echo welcome; tar -C /tmp -c to")
    done = hosts.launch("--independent", "-H", OF_NODES, "--stdout-archive", str(tmp_path), *noisy)
    assert done.returncode == 1
    for name in NAMES:
        assert f"warning: {name}: the files have not come whole: stdout is no tar archive\n" in done.stderr
