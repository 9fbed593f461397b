"""Command lines of pdsh and clush: any words are read or refused, never with a traceback, and the program keeps every byte."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpilaunch.cli.dialects.rows import InvalidArgument
from mpilaunch.cli.dialects.shells import dshbak, remote
from mpilaunch.cli.dialects.shells.dshbak import compressed
from mpilaunch.cli.files import read_named
from mpilaunch.cli.parser import read_command
from mpilaunch.errors import ExitCode, UsageError
from mpilaunch.hosts.hostfile import parse_host_list
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import Verdict, exit_code_of
from tests.support.command_line import request
from tests.support.cpu_time import cpu_seconds

FIELDS = {"%%": "=%", "%h": "host", "%n": "number", "%u": "=joe"}


def hosts_of(name: str, *words: str, **environ: str) -> list[str]:
    made = request([*words, "prog"], {"HOME": "/nowhere", **environ}, name)
    return [entry.name for text in made.settings["host"] for entry in parse_host_list(text)]


def refused(name: str, words: str, **environ: str) -> str:
    with pytest.raises(UsageError) as raised:
        request(shlex.split(words), {"HOME": "/nowhere", **environ}, name)
    assert raised.value.hint
    return raised.value.message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-w b,a,b", ["b", "a", "b"]),
        ("-w n[08-11] -x n09,n[10]", ["n08", "n11"]),
        ("-w n[1-3] -w m -x /n/", ["m"]),
        ("-w root@n[1-2],-n1", ["n2"]),
        ("-w ssh:root@n1,n2", ["n1", "n2"]),
        ("'-w n1, n2' '-f 4'", ["n1", "n2"]),
    ],
)
def test_targets_of_pdsh_are_in_the_order_of_the_line(words: str, expected: list[str]) -> None:
    assert hosts_of("pdsh", *shlex.split(words)) == expected


def test_files_may_include_others_that_lie_beside_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "all").write_text("n1\n#include sub/more\n# a comment\nn4 # the last\n")
    (tmp_path / "sub" / "more").write_text("#included all\nn2\n#include last\n#include\n#include a b\n")
    (tmp_path / "sub" / "last").write_text("n[2-3]")
    assert hosts_of("pdsh", "-w", f"^{tmp_path}/all") == ["n1", "n2", "n2", "n3", "n4"]
    notes = read_command(["-w", f"^{tmp_path}/all", "prog"], "pdsh", read_named).notes
    assert [note.partition("more:")[2][:10] for note, _ in notes] == ["1: warning", "4: warning", "5: warning"], notes


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("n1\n#include b\n")
    (tmp_path / "b").write_text("n2\n#include a\n")
    assert f"{tmp_path}/b: #include of {tmp_path}/a, which includes it" in refused("pdsh", f"-w ^{tmp_path}/a prog")
    (tmp_path / "c").write_text("#include ./././c\n")
    assert "which includes it" in refused("pdsh", f"-w ^{tmp_path}/c prog")


def test_groups_of_pdsh_are_files_of_dsh_where_there_is_no_genders(tmp_path: Path) -> None:
    own, other = tmp_path / "home" / ".dsh" / "group", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir(parents=True)
    (own / "web").write_text("w[1-2]\n#include more\n")
    (own / "more").write_text("w9\n")
    (other / "web").write_text("hidden\n")
    (other / "db").write_text("d1\nw2\n")
    around = {"HOME": f"{tmp_path}/home", "DSHGROUP_PATH": f"/no/such:{other}", "PDSH_GENDERS_DIR": str(tmp_path)}
    assert hosts_of("pdsh", "-g", "web,db", **around) == ["d1", "w1", "w2", "w9"]
    assert hosts_of("pdsh", "-w", "w[1-4]", "-X", "db", **around) == ["w1", "w3", "w4"]
    assert f"group 'nosuch' is unknown: there is neither a file of genders nor {own}/nosuch or " in refused(
        "pdsh", "-g nosuch prog", **around
    )


def test_genders_tells_how_a_node_is_reached(tmp_path: Path) -> None:
    (tmp_path / "genders").write_text("n[1-3] all\nn1 pdsh_rcmd_type=joe@ssh\nn2 pdsh_rcmd_type=exec\nn3 pdsh_rcmd_type=ann@\n")
    around = {"PDSH_GENDERS_DIR": str(tmp_path)}
    made = request(["-w", "n1,eve@n3,n4", "prog"], {"HOME": "/nowhere", **around}, "pdsh")
    users = [(entry.name, entry.user) for text in made.settings["host"] for entry in parse_host_list(text)]
    assert users == [("n1", "joe"), ("n3", "eve"), ("n4", None)]
    assert hosts_of("pdsh", "-w", "n2", **around) == ["n2"]
    assert "ssh and exec in one command" in refused("pdsh", "-w n[1-2] prog", **around)


def test_a_list_that_only_leaves_out_chooses_from_the_nodes_of_genders(tmp_path: Path) -> None:
    (tmp_path / "genders").write_text("n[0-5] all\nn[0-2] web\n")
    around = {"PDSH_GENDERS_DIR": str(tmp_path)}
    assert hosts_of("pdsh", "-A", "-w", "-n5", **around) == ["n0", "n1", "n2", "n3", "n4"]
    assert hosts_of("pdsh", "-g", "web", "-w", "/[02]$/", **around) == ["n0", "n2"]
    assert hosts_of("pdsh", "-A", "-w", "-/[1-4]$/", **around) == ["n0", "n5"]
    assert hosts_of("pdsh", "-w", "n[1-9]", "-g", "web", **around) == ["n1", "n2"]
    assert "no remote hosts specified" in refused("pdsh", "-w n[3-9] -g web prog", **around)
    assert "Do not specify -A or -a with -g" in refused("pdsh", "-a -w n1 -g web prog", **around)
    assert hosts_of("pdsh", "-w", "n2,n1,n2", "-g", "web", **around) == ["n1", "n2"]
    for words in ("-g web", "-a"):
        message = f"Do not specify both -w and {words[:2]}"
        assert message in refused("pdsh", f"-M dshgroup -w n1 {words} prog", **around)
    assert "no remote hosts specified" in refused("pdsh", "-w -n1 prog", **around)


def test_a_broken_file_of_genders_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "genders").write_text("n1 all\nn1 all\n")
    around = {"PDSH_GENDERS_DIR": str(tmp_path)}
    assert hosts_of("pdsh", "-w", "n1", **around) == ["n1"]
    for words in ("-w n1 -X all prog", "-g all prog", "-a prog", "-w n1 -i prog"):
        assert f"{tmp_path}/genders" in refused("pdsh", words, **around)


def test_hosts_of_clush_are_a_set_in_the_order_of_their_names() -> None:
    assert hosts_of("clush", "-w", "n10,n9,n1,n9", "-w", "m", "-x", "n1") == ["m", "n9", "n10"]
    assert hosts_of("clush", "-w", "n001,n[1, 10-11] n2", "-x", "n[1-99] ! n[11-20]") == ["n11", "n001"]


def test_clush_picks_hosts_at_random() -> None:
    picked = [hosts_of("clush", "-w", "n[1-99]", "--pick", "4") for _ in range(3)]
    assert all(len(set(names)) == 4 and names == sorted(names, key=lambda name: int(name[1:])) for names in picked)
    assert len({tuple(names) for names in picked}) > 1
    assert hosts_of("clush", "-w", "n[1-2]", "--pick", "4") == ["n1", "n2"]


@pytest.mark.parametrize(
    ("name", "words", "paths", "target", "member", "kept"),
    [
        ("clush", "-w a -c /etc/hosts", ["/etc/hosts"], "/etc/", "", ""),
        ("clush", "-w a -c f /g --dest x", ["f", "/g"], "x", "", ""),
        ("clush", "-w a -c ../f -p --dest=/x", ["../f"], "/x", "f", "p"),
        ("clush", "-w a -c f --dest /x/", ["f"], "/x/", "", ""),
        ("pdcp", "-pw a /etc/hosts -x", ["/etc/hosts"], "-x", "hosts", "p"),
        ("pdcp", "-w a /etc/hosts /etc/passwd /x", ["/etc/hosts", "/etc/passwd"], "/x", "", ""),
    ],
)
def test_files_are_copied_by_an_archive(
    name: str, words: str, paths: list[str], target: str, member: str, kept: str
) -> None:
    made = request(shlex.split(words), {"HOME": "/nowhere"}, name)
    assert list(made.settings["stdin-archive"]) == paths and made.settings["stdin"] == "all"
    python, *_, code, packed, told_target, told_member, told_kept = made.sections[0].program
    assert python == "python3" and code.startswith("import ") and packed.isprintable()
    assert (told_target, told_member, told_kept) == (target, member, kept)


@pytest.mark.parametrize(
    ("name", "words", "directory", "recursive", "mask", "paths"),
    [
        ("clush", "-w a --rcopy /etc/hosts", "/etc", "r", "27", ["/etc/hosts"]),
        ("clush", "-w a --rcopy f g -p --dest .", ".", "r", "", ["f", "g"]),
        ("rpdcp", "-w a f ~/g /", "/", "", "27", ["f", "~/g"]),
        ("rpdcp", "-rpw a /f /", "/", "r", "", ["/f"]),
    ],
)
def test_files_are_fetched_by_an_archive(
    name: str, words: str, directory: str, recursive: str, mask: str, paths: list[str]
) -> None:
    before = os.umask(0o027)
    try:
        made = request(shlex.split(words), {"HOME": "/nowhere"}, name)
    finally:
        os.umask(before)
    assert made.settings["stdout-archive"] == directory and made.settings["stdin"] == "none"
    *_, code, packed, told_recursive, told_mask = made.sections[0].program[: -len(paths)]
    assert code.startswith("import ") and packed.isprintable() and made.sections[0].program[-len(paths) :] == paths
    assert (told_recursive, told_mask) == (recursive, mask)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("pdsh", "prog", "no remote hosts specified"),
        ("pdsh", "-w a", "pdsh without a command is not supported"),
        ("pdsh", "-w a -x a prog", "no remote hosts specified"),
        ("pdsh", "-w a -f 0 prog", "-f: '0' is not a whole number from 1"),
        ("pdsh", "-w a -t x prog", "-t: 'x' is not a number of seconds"),
        ("pdsh", "-w a -R rsh prog", "module 'rsh' of pdsh is not supported"),
        ("pdsh", "-w rsh:a prog", "module 'rsh' of pdsh is not supported"),
        ("pdsh", "-w exec:a,ssh:b prog", "ssh and exec in one command are not supported"),
        ("pdsh", "-w a:22 prog", "'a:22' is not a host"),
        ("pdsh", "-w a,/[/ prog", "'/[/' is not a regular expression"),
        ("pdsh", "-w ^/no/such/list prog", "cannot read list of hosts: /no/such/list: No such file or directory"),
        ("pdsh", "-H a prog", "--host and --hostfile are not options of pdsh"),
        ("pdsh", "-g all prog", "group 'all' is unknown"),
        ("pdsh", "-w a -X all prog", "group 'all' is unknown"),
        ("pdsh", "-a prog", "-a: there is neither a file of genders nor /etc/machines"),
        ("pdsh", "-A prog", "nodeattr: /etc/genders: error opening genders file"),
        ("pdsh", "-g x -a prog", "Do not specify -A or -a with -g"),
        ("pdsh", "-w a -M slurm prog", "module 'slurm' of pdsh is not supported"),
        ("clush", "-w a", "clush without a command is not supported"),
        ("clush", "prog", "no hosts"),
        ("clush", "-w a -R rsh prog", "worker 'rsh' is not supported"),
        ("clush", "-w a -bL prog", "-b with -L is not supported"),
        ("clush", "-w a -c", "-c and --rcopy need files"),
        ("clush", "-w a -c file -b", "-b after the files is not supported"),
        ("clush", "-w a --dest /x prog", "--dest and -p need -c or --rcopy"),
        ("clush", "-w a -R exec -c file", "-c and --rcopy with -R exec are not supported"),
        ("clush", "-w a --rcopy /", "'/' has no name"),
        ("rpdcp", "-w a /a/log /b/log /", "two files are named log"),
        ("clush", "-w a --rcopy f --dest /no/such", "reverse copy dest must be a directory"),
        ("rpdcp", "-w a file", "pcp requires source and dest filenames"),
        ("rpdcp", "-w a file /etc/hosts", "reverse copy dest must be a directory"),
        ("rpdcp", "-w a -R exec /etc/hosts /", "rpdcp with -R exec is not supported"),
        ("pdcp", "-w a file", "pcp requires source and dest filenames"),
        ("pdcp", "-w a /etc /x", "use -r to copy directories: /etc"),
        ("pdcp", "-w a /no/such /x", "can't stat /no/such"),
        ("pdcp", "-w a -R exec /etc/hosts /x", "pdcp with -R exec is not supported"),
        ("pdcp", "-rw a / /x", "/ has no name"),
        ("clush", "-w a -O what=1 prog", "setting 'what=1' is not supported"),
        ("clush", "-w a -o '-D 1' prog", "-o: option '-D' of ssh is not supported"),
        ("clush", "-w a -o '-p' prog", "-o: -p needs a value"),
        ("clush", "-w 'a&' prog", "a set is missing beside an operator"),
        ("clush", "-w '!a' prog", "a set is missing beside an operator"),
        ("clush", "-w 'a!a' prog", "no host is left to run on"),
        ("clush", "-w 'n[1-9]' --pick 0 prog", "--pick: '0' is not a whole number from 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_hint(name: str, words: str, message: str) -> None:
    assert message in refused(name, words)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FANOUT", "x", "-f: 'x' is not a whole number from 1"),
        ("PDSH_RCMD_TYPE", "mrsh", "module 'mrsh' of pdsh is not supported"),
        ("PDSH_SSH_ARGS", "-L 1:a:1", "PDSH_SSH_ARGS: option '-L' of ssh is not supported"),
        ("PDSH_SSH_ARGS_APPEND", "'", "PDSH_SSH_ARGS_APPEND: No closing quotation"),
        ("PDSH_CONNECT_TIMEOUT", "soon", "-t: 'soon' is not a number of seconds"),
    ],
)
def test_variables_of_pdsh_act_or_are_refused(variable: str, value: str, message: str) -> None:
    assert message in refused("pdsh", "-w a,b prog", **{variable: value})
    assert request(["-np", "1", "prog"], {"HOME": "/nowhere", variable: value}).settings["fanout"] == 64  # only pdsh's


def test_options_of_ssh_become_settings() -> None:
    text = "-2 -qx -p 22 -p2222 -l joe -i '/a b/key' -oA=1 -o 'B yes' -J gate"
    settings = ["ForwardX11=no", "Port=22", "Port=2222", "User=joe", "IdentityFile=/a b/key", "A=1", "B=yes", "ProxyJump=gate"]
    assert list(remote.ssh_options("-o", text).words[1::2]) == settings
    forwarded = remote.ssh_options("-o", "-AKe none -S /a/cm")
    assert list(forwarded.words[1::2]) == [
        *("ForwardAgent=yes", "GSSAPIAuthentication=yes", "EscapeChar=none", "ControlPath=/a/cm"),
    ]
    assert "your ssh agent" in forwarded.notes[0][0]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT | st.sampled_from(["%n", "%h", "%%", "%", "'", '"', "$1", "`", "\\", "%u%n"]), min_size=1, max_size=5))
def test_a_program_of_words_gets_them_byte_for_byte(words: list[str]) -> None:
    """Run by a real sh, as the third of several hosts."""
    expected = [_filled(word) for word in words]
    program = _program(["printf", "%%s\\0", *words], "words", rank=2, host="c.d")
    done = subprocess.run(program, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True, timeout=20)
    assert done.stdout.decode().split("\0")[:-1] == expected


def _filled(word: str) -> str:
    marked = word.replace("%%", "\0").replace("%h", "c.d").replace("%n", "2").replace("%u", "joe")
    return marked.replace("\0", "%")


def _program(words: list[str], form: str, **fields: int | str) -> list[str]:
    """Return the program of one host, with its fields filled in as the head does it."""
    options, (program, *arguments) = remote.program(words, FIELDS, form)
    return [program, *((word.format(**fields) for word in arguments) if options.words else arguments)]


def test_a_line_runs_by_the_login_shell() -> None:
    for words in (["pwd;", "echo", "$0", "'a  b'"], ["pwd;", "echo", "$0", "'a  b'", "%n", "%h"]):
        program = _program(words, "login", rank=1, host="b")
        environ = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/bash"}
        done = subprocess.run(program, env=environ, cwd="/usr", capture_output=True, text=True, check=True, timeout=20)
        assert done.stdout == "/usr\n/bin/bash a  b" + (" 1 b" if len(words) > 4 else "") + "\n"


FLAGS = "-w -x -f -l -t -u -R -S -N -q -b -o -O -g -a -B -L -X -s -n --hostfile --outdir -w=a -f1 -Nw - -- : ="
VALUES = "a,b n[1-3] n[ @x ^/no /a/ 8 0 ssh exec rsh %n %h prog fanout=2 -p"
WORDS = st.sampled_from([*FLAGS.split(), *VALUES.split()])


@given(st.sampled_from(["pdsh", "clush"]), st.lists(WORDS, max_size=8))
def test_any_words_are_read_or_a_usage_error(name: str, words: list[str]) -> None:
    if "-" not in words:  # it reads stdin
        with contextlib.suppress(UsageError, InvalidArgument):
            request(words, name=name)


# Exit codes


@pytest.mark.parametrize(
    ("verdict", "first", "largest", "zero"),
    [
        (Verdict(0, "ok"), 0, 0, 0),
        (Verdict(3, "rank-failed", RankEnd(0, 3), failed_after=(RankEnd(1, 7),)), 3, 7, 0),
        (Verdict(137, "rank-failed", RankEnd(0, signal=9)), 137, 137, 0),
        (Verdict(125, "node-lost", failed_after=(RankEnd(1, 7),)), 125, 255, 0),
        (Verdict(124, "timeout"), 124, 255, 0),
        (Verdict(130, "interrupted"), 130, 130, 130),
        (Verdict(74, "output-lost"), 74, 74, 74),
    ],
)
def test_the_exit_code_is_chosen(verdict: Verdict, first: int, largest: int, zero: int) -> None:
    assert [exit_code_of(verdict, policy) for policy in ("first", "largest", "zero")] == [first, largest, zero]


def test_hosts_in_headers_are_folded_as_dshbak_does() -> None:
    names = [b"n1", b"n2", b"n09", b"n10", b"x-1-ib", b"x-2-ib", b"login", b"9" * 5000]
    assert compressed(names[:4]) == b"n[1-2,09-10]"
    assert compressed(names[4:6]) == b"x-[1-2]-ib"
    assert compressed([names[6]]) == b"login"
    assert compressed([names[7]]) == names[7]


WORST_HOSTS: dict[str, Callable[[int], bytes]] = {
    "digits, a letter, digits": lambda size: b"1" * (size // 2) + b"a" + b"1" * (size // 2) + b": x\n",
    "digits, letters": lambda size: b"1" * (size // 2) + b"a" * (size // 2) + b": x\n",
    "digits": lambda size: b"1" * size + b": x\n",
    "blanks": lambda size: b" " * size + b"\n",
    "blanks before no colon": lambda size: b"a" + b" " * size + b"x\n",
    "blanks on both sides": lambda size: b" " * (size // 2) + b"a" + b" " * (size // 2) + b"\n",
    "no colon": lambda size: b"a" * size + b"\n",
    "colons": lambda size: b":" * size + b"\n",
    "many hosts": lambda size: b"".join(b"%dn%d: x\n" % (number, number) for number in range(size // 16)),
    "one number": lambda size: b"".join(b"n%dn1: x\n" % number for number in range(size // 12)),
}


@pytest.mark.parametrize("options", [[], ["-c"]], ids=["plain", "together"])
@pytest.mark.parametrize("name", WORST_HOSTS)
def test_dshbak_takes_time_in_proportion_to_its_input(
    name: str, options: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def seconds(size: int) -> float:
        path = tmp_path / str(size)
        path.write_bytes(WORST_HOSTS[name](size))
        def print_it() -> None:
            assert dshbak.main([*options, str(path)]) == 0

        times = []
        for _ in range(3):
            times.append(cpu_seconds(print_it))
            capfdbinary.readouterr()
        return min(times)

    assert seconds(1 << 20) <= 64 * max(seconds(1 << 16), 0.001)  # 16 times the input


@pytest.mark.parametrize("options", [[], ["-c"], ["-h"]])
def test_dshbak_reports_that_stdout_cannot_be_written(options: list[str]) -> None:
    code = f"import sys; sys.argv = {['dshbak', *options]!r}; from mpilaunch.__main__ import entry; entry()"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", code], input=b"a: b\n", stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == ExitCode.OUTPUT_LOST
    assert done.stderr.startswith(b"error[output-lost]")


def test_clush_sorts_by_numbers_of_any_length() -> None:
    names = ["n1", "n2", "n10", "n" + "9" * 5000, "n002", "n0001"]
    assert hosts_of("clush", "-w", ",".join(reversed(names))) == names
