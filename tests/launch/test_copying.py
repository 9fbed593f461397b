"""Files copied to real hosts, as clush and pdcp do it: whole, at once, and with an error for each host that has none."""

from __future__ import annotations

import os
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


def test_files_come_where_they_are_here_as_new_ones(hosts: Hosts, links: Path, source: Path) -> None:
    hosts.run(["sh", "-c", f"umask 0; rm -rf /tmp/in; mkdir /tmp/in; echo 1 >/tmp/in/.a; cp -p '{source}/run me' /tmp/in/b"])
    on(hosts, "node01", "sh", "-c", "echo old >/tmp/in/b; chmod 600 /tmp/in/b")
    assert hosts.run([links / "clush", "-w", OF_NODES, "--copy", "/tmp/in/.a", "/tmp/in/b"]).returncode == 0
    for name in NAMES:
        assert on(hosts, name, "sh", "-c", "umask; cd /tmp/in; cat .a; ./b; stat -c %a .a b") == "0022\n1\nran\n644\n750\n"
        assert int(on(hosts, name, "stat", "-c", "%Y", "/tmp/in/b")) > MTIME


def test_a_host_that_cannot_take_a_file_keeps_what_it_has(hosts: Hosts, links: Path, source: Path) -> None:
    on(hosts, "node02", "sh", "-c", "mkdir /tmp/to; mount -t tmpfs -o size=1m none /tmp/to; echo old >/tmp/to/data")
    try:
        copy = ("-c", str(source / "sub" / ".hidden"), "--dest", "/tmp/to/data")
        done = hosts.run([links / "clush", "-S", "-w", f"{OF_NODES},node09", *copy])
        assert on(hosts, "node02", "sh", "-c", "cat /tmp/to/data; ls -A /tmp/to") == "old\ndata\n"
    finally:
        on(hosts, "node02", "umount", "/tmp/to")
    assert done.returncode == 255 and done.stdout == ""
    for name, reason in (("node01", "/tmp/to"), ("node02", "tar: .hidden: "), ("node09", "")):
        assert f"clush: {name}: exited with exit code " in done.stderr and reason in done.stderr, done.stderr


def test_several_files_need_a_directory(hosts: Hosts, links: Path, source: Path) -> None:
    words = [str(source / "run me"), str(source / "sub"), "in/no"]
    done = hosts.run([links / "pdcp", "-r", "-w", "node01,node02", *words])
    assert done.stderr.count("./in/no: not a directory") == 2 and "pdsh@" in done.stderr
    on(hosts, "node01", "mkdir", "-p", "/root/in-home")
    assert hosts.run([links / "pdcp", "-r", "-w", "node01", *words[:2], "in-home"]).returncode == 0
    assert on(hosts, "node01", "sh", "-c", "cd /root/in-home; ls -A; rm -r /root/in-home") == "run me\nsub\n"
