"""Files copied to real hosts, as clush and pdcp do it: whole, at once, and with an error for each host that has none."""

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
