"""Jobs of several programs: the map of their ranks, and real launches; what a node does to variables; files for output."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, HostDefaults, Node, Slot, allocate
from mpilaunch.hosts.hostfile import parse_host_list
from mpilaunch.job.environment.forwarded import environment_edits
from mpilaunch.placement.mapping import JobMap, MappingPolicy, map_ranks
from mpilaunch.placement.program_shares import Share, map_apps
from tests.support.hosts import Hosts
from tests.support.launching import launch, script, sh
from tests.support.paths import PROGRAMS

# The map


def of_hosts(text: str, *, elastic: bool = False) -> Allocation:
    found = allocate(parse_host_list(text), "--host", HostDefaults())
    return Allocation(found.nodes, found.source, elastic)


def shares(*ranks: int | None, **policy: Any) -> list[Share]:
    return [Share(f"app{number}", MappingPolicy(count, **policy)) for number, count in enumerate(ranks)]


def drawn(job_map: JobMap) -> str:
    """Each rank as app:node/slot, in rank order."""
    return " ".join(f"{place.app}:{place.node}/{place.slot}" for place in job_map.placements)


@pytest.mark.parametrize(
    ("nodes", "wanted", "expected"),
    [
        ("a:2,b:2", shares(1, 2), "0:0/0 1:0/1 1:1/0"),
        ("a:2,b:2", shares(1, 2, map_by="node"), "0:0/0 1:0/1 1:1/0"),
        ("a:2,b:2", shares(2, 2), "0:0/0 0:0/1 1:1/0 1:1/1"),
        ("a:2,b:2", shares(None, None, per_node=1), "0:0/0 0:1/0 1:0/1 1:1/1"),
        ("a:1,b:1", shares(1, 3, oversubscribe=True), "0:0/0 1:1/0 1:0/0 1:1/0"),
        ("a:1,b:1", shares(2, 1, oversubscribe=True), "0:0/0 0:1/0 1:0/0"),
        ("a:1,b:2", [Share("x", MappingPolicy(1), {1: 2}), Share("y", MappingPolicy(2))], "0:1/0 1:0/0 1:1/1"),
        ("a:1,b:2", [Share("x", MappingPolicy(1), {1: 1}), Share("y", MappingPolicy(1), {1: 1})], "0:1/0 1:1/1"),
    ],
)
def test_each_program_takes_what_is_left(nodes: str, wanted: list[Share], expected: str) -> None:
    assert drawn(map_apps(of_hosts(nodes), wanted)) == expected


def test_this_machine_takes_any_number() -> None:
    assert drawn(map_apps(of_hosts("a:2", elastic=True), shares(1, 3))) == "0:0/0 1:0/1 1:0/0 1:0/1"


def test_ranks_fixed_by_a_slot_map_are_those_of_the_job() -> None:
    slots = (Slot(rank=2), Slot(), Slot(rank=0))
    allocation = Allocation((Node(0, "a", slots, "ssh"), Node(1, "b", (Slot(),), "ssh")), "m.yaml")
    assert drawn(map_apps(allocation, shares(2, 2))) == "0:0/2 0:0/1 1:0/0 1:1/0"


@pytest.mark.parametrize(
    ("nodes", "wanted", "message"),
    [
        ("a:2", shares(3, 1), r"program 1 \(app0\): 3 ranks do not fit in 2 slots"),
        ("a:2", shares(1, 2), r"program 2 \(app1\), in the slots that are left: 2 ranks do not fit in 1 slot"),
        ("a:2", shares(2, 1), r"program 2 \(app1\), in the slots that are left: no slots on 1 node"),
    ],
)
def test_the_error_names_the_program(nodes: str, wanted: list[Share], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        map_apps(of_hosts(nodes), wanted)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from(["slot", "node"]),
    st.booleans(),
)
def test_invariants(slots: list[int], ranks: list[int], map_by: str, oversubscribe: bool) -> None:
    nodes = tuple(Node(index, f"n{index}", (Slot(),) * count, "ssh") for index, count in enumerate(slots))
    allocation = Allocation(nodes, "hosts")
    wanted = shares(*ranks, map_by=map_by, oversubscribe=oversubscribe)
    try:
        job_map = map_apps(allocation, wanted)
    except UsageError:
        assert not sum(slots) or (not oversubscribe and sum(ranks) > sum(slots))
        return
    assert [place.rank for place in job_map.placements] == list(range(sum(ranks)))
    assert Counter(place.app for place in job_map.placements) == dict(enumerate(ranks))
    assert [place.app for place in job_map.placements] == sorted(place.app for place in job_map.placements)
    for node in job_map.nodes:
        assert [place.local_rank for place in job_map.placements if place.node == node] == list(
            range(sum(place.node == node for place in job_map.placements))
        )
    used = Counter((place.node, place.slot) for place in job_map.placements)
    if sum(ranks) <= sum(slots):
        assert set(used.values()) == {1}
    else:
        assert len(used) == sum(slots)
    one = map_ranks(allocation, wanted[0].policy)
    assert [(place.node, place.slot) for place in job_map.placements[: ranks[0]]] == [
        (place.node, place.slot) for place in one.placements
    ]


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


# What a node does to variables


def test_edits_of_variables() -> None:
    assert environment_edits(["A", "B_*"], ["PATH=/x", "LIST[;]=a=b"], ["C[ ]=d"]) == (
        ("unset", "A", "", ""),
        ("unset", "B_*", "", ""),
        ("prepend", "PATH", "/x", ":"),
        ("prepend", "LIST", "a=b", ";"),
        ("append", "C", "d", " "),
    )
    with pytest.raises(UsageError, match=r"--prepend-env 1=: '1=' is not|--prepend-env 1: '1' is not a variable's name"):
        environment_edits([], ["1=x"], [])
    assert environment_edits(["RANK"], [], []) == (("unset", "RANK", "", ""),)
    with pytest.raises(UsageError, match="--prepend-env RANK: 'RANK' says where a rank is"):
        environment_edits([], ["RANK=1"], [])


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


def test_a_file_that_cannot_be_written_is_told_before_any_rank_starts(tmp_path: Path) -> None:
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
