"""Jobs of several programs: the map of their ranks, and real launches; what a node does to variables; files for output."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import launch, script, sh
from tests.support.paths import PROGRAMS

# Real launches


def test_two_programs_are_one_job(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    tell = 'echo "$0 $RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK ${ONE-} ${TWO-} ${ALL-} $(basename $PWD)"'
    done = launch(
        *("-H", "local:3,local:3", "-genv", "ALL", "x", "-np", "2", "-x", "ONE=1", "sh", "-c", tell, "a"),
        *(":", "-np", "3", "-x", "TWO=2", "-wdir", "d", "sh", "-c", tell, "b"),
        cwd=tmp_path,
    )
    assert done.code == 0, done.words
    here = tmp_path.name
    assert done.lines == [
        f"a 0 5 0 0 1  x {here}",
        f"a 1 5 1 0 1  x {here}",
        "b 2 5 2 0  2 x d",
        "b 3 5 0 1  2 x d",
        "b 4 5 1 1  2 x d",
    ]


def test_the_programs_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "apps").write_text(
        "# two programs\n-x SHARED='a b' \\\n  -np 1 sh -c 'echo \"first $RANK $SHARED\"'\n\n"
        "-x OWN=1\n-np 2 sh -c 'echo \"second $RANK $OWN\"' : -np 1 echo third\n",
        encoding="utf-8",
    )
    done = launch("--app", "apps", cwd=tmp_path)
    assert done.code == 0, done.words
    assert done.lines == ["first 0 a b", "second 1 1", "second 2 1", "third"]


def test_the_second_program_that_fails_ends_the_first(tmp_path: Path) -> None:
    done = launch("-np", "1", "sleep", "600", ":", "-np", "1", *sh("exit 5"))
    assert done.code == 5 and "rank 1" in done.words


def test_a_program_that_is_missing_lets_none_start(tmp_path: Path) -> None:
    done = launch("-np", "1", "touch", tmp_path / "ran", ":", "-np", "1", "/no/such/program")
    assert done.code == 1 and "start-program-missing" in done.words
    assert not (tmp_path / "ran").exists()


@pytest.mark.testbed
def test_each_program_on_its_own_hosts(hosts: Hosts) -> None:
    done = hosts.launch(
        *("-host", "node01", "-np", "1", "sh", "-c", "echo master $RANK on $(hostname)"),
        *(":", "-host", "node02:2,node03", "-np", "3", "sh", "-c", "echo worker $RANK on $(hostname)"),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "master 0 on node01",
        "worker 1 on node02",
        "worker 2 on node02",
        "worker 3 on node03",
    ]


def test_variables_are_edited_on_the_node(tmp_path: Path) -> None:
    bin = tmp_path / "opt" / "bin"
    bin.mkdir(parents=True)
    script(bin / "tool", "#!/bin/sh\necho tool $LD_LIBRARY_PATH\n")
    done = launch(
        *("-np", "1", "--prefix", tmp_path / "opt", "--prepend-env", "LIST[;]", "a", "--append-env", "LIST[;]", "z"),
        *("--append-env", "NEW", "only", "--unset-env", "GONE_*", "--unset-env", "GONE"),
        *sh("tool; echo $LIST $NEW; env | grep -c ^GONE; echo ${PATH%%:*}"),
        env={"LIST": "m", "GONE": "1", "GONE_1": "1", "GONE_2": "1", "LD_LIBRARY_PATH": "/lib/old"},
    )
    assert done.out.decode().splitlines() == [f"tool {tmp_path}/opt/lib:/lib/old", "a;m;z only", "0", str(bin)], done.words


def test_a_program_is_found_where_path_says(tmp_path: Path) -> None:
    script(tmp_path / "my-tool", "#!/bin/sh\necho found\n")
    assert launch("-np", "1", "-path", tmp_path, "my-tool").out == b"found\n"
    assert launch("-np", "1", "my-tool").code == 1


def test_which_variables_go_unsaid() -> None:
    # A rank on this machine has its whole environment anyway: what is asked is what was sent.
    words = ("--dry-run", "-H", "a", "prog")
    env = {"NCCL_DEBUG": "INFO", "MINE": "m", "SSH_TTY": "/dev/pts/0"}
    said = ((), ("--forward", "all"), ("-envnone",), ("-genvall",))
    forwarded = [launch(*more, *words, env=env).out.decode() for more in said]
    named = [set(re.findall(r"[A-Za-z_]\w*", text.partition("forwarded: ")[2])) for text in forwarded]
    assert "NCCL_DEBUG" in named[0] and "MINE" not in named[0]
    assert {"NCCL_DEBUG", "MINE", "PATH"} <= named[1] == named[3]
    assert not named[1] & {"HOME", "SSH_TTY", "PWD", "USER"}
    assert named[2] == set()


# Files


def test_output_goes_to_files_of_a_pattern(tmp_path: Path) -> None:
    words = ("-n", "2", "-outfile-pattern", "out/%r-of-%h", "-errfile-pattern", "err.%r")
    done = launch(*words, *sh("echo out $RANK; echo err $RANK >&2"), cwd=tmp_path)
    assert (done.code, done.out, done.words) == (0, b"", "")
    assert [(tmp_path / "out" / f"{rank}-of-localhost").read_text() for rank in (0, 1)] == ["out 0\n", "out 1\n"]
    assert [(tmp_path / f"err.{rank}").read_text() for rank in (0, 1)] == ["err 0\n", "err 1\n"]


def test_ranks_share_a_file_line_by_line(tmp_path: Path) -> None:
    half = "for i in 1 2 3 4 5 6 7 8; do printf 'rank %s ' $RANK; sleep 0.01; echo line $i of $RANK; done; printf last"
    done = launch("-np", "3", "--output-file", "all.txt", *sh(half), cwd=tmp_path)
    assert done.code == 0 and done.out == b""
    lines = (tmp_path / "all.txt").read_text().splitlines()
    assert sorted(lines) == sorted([f"rank {r} line {i} of {r}" for r in range(3) for i in range(1, 9)] + ["last"] * 3)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--output-filename", "d"), True),
        (("--output-filename", "d:nocopy"), False),
        (("--output-filename", "d:nocopy,nojobid"), False),
        (("--output-filename", "d", "--no-copy"), False),
        (("--output", "dir=d"), False),
        (("--output", "dir=d:copy"), True),
        (("--output-file", "d/rank-0000.out"), False),
        (("--output-file", "d/rank-0000.out", "--copy"), True),
    ],
)
def test_what_goes_to_files_is_printed_or_not(tmp_path: Path, words: tuple[str, ...], printed: bool) -> None:
    done = launch("-np", "1", *words, "echo", "hi", cwd=tmp_path)
    assert (done.code, done.out) == (0, b"hi\n" if printed else b"")
    assert (tmp_path / "d" / "rank-0000.out").read_text() == "hi\n"


def test_a_file_that_cannot_be_written_is_reported_before_any_rank_starts(tmp_path: Path) -> None:
    done = launch("-np", "1", "--output-file", "/proc/none/out", "touch", tmp_path / "ran")
    assert done.code == 2 and "error[output-directory]: /proc/none/out" in done.words
    assert not (tmp_path / "ran").exists()
    done = launch("-np", "1", "--output-file", "/dev/null", "echo", "hi")
    assert (done.code, done.out) == (0, b"")


@pytest.mark.parametrize(
    ("words", "openmpi", "pmi"),
    [
        ([], 3, -1),
        (["-usize", "17"], 17, 17),
        (["--universe-size", "SYSTEM"], 3, 3),
        (["-usize", "INFINITE"], 3, -1),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_the_size_of_the_universe(words: list[str], openmpi: int, pmi: int) -> None:
    # MPI_UNIVERSE_SIZE is the number of slots under Open MPI's mpirun, and unset under Hydra, which answers -1.
    program = sh(f'echo $OMPI_UNIVERSE_SIZE; exec python3 {PROGRAMS / "pmi_say.py"} cmd=get_universe_size')
    done = launch("-H", "local:3", "-np", "1", *words, *program)
    assert (done.code, done.err) == (0, b"")
    assert done.out.decode().splitlines() == [f"{openmpi}", f"0 cmd=universe_size rc=0 size={pmi}"]


def test_a_universe_of_no_size_is_refused() -> None:
    for size in ("0", "MANY"):
        done = launch("-np", "1", "--universe-size", size, "true")
        assert done.code == 2 and "--universe-size" in done.words
    assert "'MANY' is not a whole number or SYSTEM or INFINITE" in done.words


def test_the_environment_of_an_apps_rank_is_shown() -> None:
    words = ("--show-env", "1", "-np", "1", "-x", "ONE=1", "a", ":", "-np", "1", "-x", "TWO=2", "--prefix", "/opt", "b")
    shown = dict(line.split("=", 1) for line in launch(*words, env={"PATH": os.environ["PATH"]}).out.decode().splitlines())
    assert shown["TWO"] == "2" and "ONE" not in shown
    assert shown["PATH"] == "/opt/bin:<the node's>"
