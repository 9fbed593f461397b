"""Groups of hosts: our reader and the library ClusterShell give the same hosts, in host lists, hostfiles and lines of clush."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.cli import files
from mpilaunch.errors import UsageError
from mpilaunch.hosts import groups
from mpilaunch.hosts.hostfile import parse_host_list, parse_hostfile
from mpilaunch.hosts.nodeset import Span
from tests.support.paths import ROOT

LIBRARY = Path("/usr/lib/python3/dist-packages/ClusterShell")
CONF = "[Main]\ndefault: {default}\nautodir: $CFGDIR/groups.d\nconfdir: $CFGDIR/groups.conf.d\n"
YAML = """
roles:
  gpu: node[01-04]
  login: 'login1,login2'
  both: '@gpu,@login'
  list: [a1, 'b[1-2]', '@rack:left']
  far: '@rack:*'
rack:
  left: node[01-02]
  right: node[03-04],node01
  all: node[01-09]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "groups.d").mkdir()
    (tmp_path / "groups.conf.d").mkdir()
    (tmp_path / "groups.conf").write_text(CONF.format(default="roles"), encoding="utf-8")
    (tmp_path / "groups.d" / "cluster.yaml").write_text(YAML, encoding="utf-8")
    return tmp_path


def read(folder: Path | str) -> groups.Groups:
    ours = groups.Files(files._text_or_none, files._paths, lambda path, text: files.parse_yaml(path, text)[0])
    return groups.read_groups({"CLUSTERSHELL_CFGDIR": str(folder), "HOME": "/nowhere"}, ours)


def expanded(text: str, known: groups.Groups) -> list[str]:
    return groups.expand_item(Span.of(text, "--host"), known)


def run(folder: Path, *words: str, library: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run mpilaunch with these groups; `library` is a directory with ClusterShell in it."""
    paths = [str(ROOT), str(ROOT / "agents"), *([str(library)] if library else [])]
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nowhere",
        "CLUSTERSHELL_CFGDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    line = [sys.executable, "-m", "mpilaunch", *words]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=60, check=False)


def names_of(plan: str) -> list[str]:
    rows = plan.partition("node ")[2].splitlines()[1:]
    return [row.split()[1] for row in rows if row[:1].isdigit()]


@pytest.mark.needs("nodeset")
@pytest.mark.parametrize(
    "text", ["@gpu", "@login", "@both", "@list", "@far", "@roles:gpu", "@rack:left", "@rack:right", "@rack:*", "@*"]
)
def test_the_reader_gives_what_nodeset_gives(folder: Path, text: str) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "CLUSTERSHELL_CFGDIR": str(folder)}
    real = subprocess.run(["/usr/bin/nodeset", "-e", text], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(expanded(text, read(folder))) == sorted(real.stdout.split()) != []


@pytest.mark.parametrize("name", ["groups", "groups.d/local.cfg"])
def test_a_flat_file_is_the_source_local(tmp_path: Path, name: str) -> None:
    (tmp_path / "groups.d").mkdir()
    (tmp_path / "groups.conf").write_text(
        CONF.format(default="local") + "[local]\nmap: sed x $CFGDIR/groups\n", encoding="utf-8"
    )
    (tmp_path / name).write_text("# mine\nadm: example0\noss: example4 example5\nall: @adm,@oss\n", encoding="utf-8")
    known = read(tmp_path)
    assert expanded("@oss", known) == ["example4", "example5"]
    assert expanded("@*", known) == ["example0", "example4", "example5"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("@gpuu", "there is no group 'gpuu' in source 'roles'", "did you mean @gpu?"),
        ("@rack:lef", "there is no group 'lef' in source 'rack'", "did you mean @rack:left?"),
        ("@rck:left", "there is no source 'rck' of groups", "did you mean @rack:left?"),
        ("@gpu&@nobody", "there is no group 'nobody'", "the groups are"),
        ("@gpu!", "a set is missing beside an operator", "write sets like"),
        ("@circle", "nested too deeply", "cannot contain itself"),
        ("@empty", "names no host", "name a group that has hosts"),
        ("@slurm:debug", "the groups of source 'slurm' come from a command", "install the Python library ClusterShell"),
        ("@", "there is no group ''", "the groups are"),
        ("@gpu[1!2]", "there is no group 'gpu[1!2]'", "the groups are"),
        ("@gpu!@gpu", "'@gpu!@gpu' names no host", "name a group that has hosts"),
        ("@gpu&n7", "'@gpu&n7' names no host", "name a group that has hosts"),
        ("@rack:left,n[1&2]", "'1&2' is not a number or a range", "write numbers and ranges"),
        ("@bad", "'[' is never closed", "write numbers and ranges"),
    ],
)
def test_a_bad_group_is_an_error_with_a_hint(folder: Path, text: str, message: str, hint: str) -> None:
    more = "roles:\n  circle: '@loop'\n  loop: '@circle'\n  empty: ''\n  bad: 'n[1-'\n"
    (folder / "groups.d" / "more.yaml").write_text(more, encoding="utf-8")
    (folder / "groups.conf.d" / "slurm.conf").write_text("[slurm,sinfo]\nmap: touch ran; sinfo $GROUP\n", encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        expanded(text, read(folder))
    assert message in raised.value.message and hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("groups.d/x.yaml", "- a\n- b\n", "this is not a file of groups"),
        ("groups.d/x.yaml", "a: [\n", "x.yaml"),
        ("groups.conf", "default: x\n", "groups.conf"),
        ("groups.conf", "[Main]\nautodir: 'x\n", "No closing quotation"),
        ("groups.conf.d/x.conf", "[a]\n[a]\n", "x.conf"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read(folder)


@given(st.text(max_size=80), st.text(max_size=40) | st.text("@[]!&^,:-/*0a ", max_size=20))
def test_any_text_is_read_or_a_usage_error(text: str, item: str) -> None:
    given_files = groups.Files(lambda path: text, lambda path: [f"{path}/a.conf"], lambda path, text: {})
    with contextlib.suppress(UsageError):
        expanded("@" + item, groups.read_groups({"HOME": "/h"}, given_files))


def test_host_lists_and_hostfiles_name_groups() -> None:
    def expand(item: Span) -> list[str]:
        assert item.text == "@gpu"
        return ["a", "b"]

    assert [entry.name for entry in parse_host_list("x,@gpu", expand_group=expand)] == ["x", "a", "b"]
    entries = parse_hostfile("@gpu slots=4\nme@c\n", "h", expand)
    assert [(entry.name, entry.slots, entry.user) for entry in entries] == [("a", 4, None), ("b", 4, None), ("c", None, "me")]
    with pytest.raises(UsageError, match="groups of hosts are not known here"):
        parse_host_list("@gpu")


@pytest.mark.parametrize("name", ["+nfoo", "+n0", "a:4", "-oProxyCommand=x", "", "a b", "n[1-2]"])
def test_a_group_has_names_of_hosts_only(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_host_list("x,@gpu", expand_group=lambda item: ["a", name])
    assert raised.value.reference == "hostfile-name"
    entries = parse_host_list("@gpu", expand_group=lambda item: ["a.b-c", "fe80::1"])
    assert [entry.name for entry in entries] == ["a.b-c", "fe80::1"]


def test_the_command_takes_groups_with_the_library_and_without(folder: Path, tmp_path: Path) -> None:
    assert LIBRARY.is_dir(), "apt-get install clustershell"
    own = tmp_path / "library"
    own.mkdir()
    (own / "ClusterShell").symlink_to(LIBRARY)
    cases: dict[str, Any] = {
        "@login,x": ["login1", "login2", "x"],
        "@rack:left": ["node01", "node02"],
    }
    for library in (None, own):
        for text, names in cases.items():
            done = run(folder, "--dry-run", "-H", text, "prog", library=library)
            assert names_of(done.stdout) == names, done.stderr
        line = ["--dry-run", "--dialect", "clush", "-g", "gpu", "-x", "@rack:left", "prog"]
        assert names_of(run(folder, *line, library=library).stdout) == ["node03", "node04"]
        done = run(folder, "--dry-run", "-H", "@nope", "prog", library=library)
        assert (done.returncode, done.stdout) == (2, "") and "error[group-unknown]" in done.stderr
    done = run(folder, "--dry-run", "-H", "@gpu!@rack:left", "prog", library=own)
    assert names_of(done.stdout) == ["node03", "node04"]


def test_commands_of_another_users_file_are_not_run(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "library"
    own.mkdir()
    (own / "ClusterShell").symlink_to(LIBRARY)
    ran = tmp_path / "ran"
    (folder / "groups.conf").write_text(f"[Main]\ndefault: x\n[x]\nmap: touch {ran}; echo node01\n", encoding="utf-8")
    os.chmod(folder / "groups.conf", 0o666)
    done = run(folder, "--dry-run", "-H", "@a", "prog", library=own)
    assert done.returncode == 2 and "error[file-untrusted]" in done.stderr and not ran.exists()
    os.chmod(folder / "groups.conf", 0o600)
    assert names_of(run(folder, "--dry-run", "-H", "@a", "prog", library=own).stdout) == ["node01"] and ran.exists()


def test_a_group_that_many_groups_name_is_expanded_once() -> None:
    nested = {f"g{depth}": " ".join(f"@{group}{depth + 1}" for group in "gh") for depth in range(15)}
    nested |= {f"h{depth}": words for depth, words in enumerate(nested.values())} | {"g15": "n1", "h15": "n2"}
    assert expanded("@g0", groups.Groups({"local": nested}, "local", frozenset())) == ["n1", "n2"]
