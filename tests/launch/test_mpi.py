"""MPI programs, with MPICH and Open MPI: one world over local nodes and real hosts, and each way in which a rank can end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpilaunch.daemon.ranks.reaper import command_name
from mpilaunch.errors import ExitCode
from tests.support.failures import RANKS, proves
from tests.support.hosts import Hosts
from tests.support.launching import (
    LIMIT,
    MPILAUNCH,
    children,
    environment,
    finish,
    guard_and_daemon,
    kill_hard,
    launch,
    launch_with_file_limit,
    launching,
    living,
    script,
    sh,
    wait_for_files,
    wait_until,
)
from tests.support.mpi.programs import compile_programs
from tests.support.paths import PROGRAMS

OVER_TCP = ("-x", "UCX_TLS=tcp,self")
RING_BYTES = 1 << 20


@pytest.fixture(scope="session")
def programs(mpich: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the programs, compiled with MPICH."""
    return compile_programs(mpich, tmp_path_factory.mktemp("mpich"))


@pytest.fixture(scope="session")
def open_programs(openmpi: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the programs, compiled with Open MPI."""
    return compile_programs(openmpi, tmp_path_factory.mktemp("openmpi"))


@pytest.fixture(params=["mpich", "openmpi"])
def family_programs(request: pytest.FixtureRequest, programs: Path, open_programs: Path) -> Path:
    """Give both, one after the other."""
    return programs if request.param == "mpich" else open_programs


@pytest.fixture(scope="session")
def shared_programs(programs: Path, hosts: Hosts) -> Path:
    """Give the programs where all hosts see them."""
    return Path(shutil.copytree(programs, hosts.shared / "programs"))


def world(*nodes: tuple[str, list[int]]) -> list[str]:
    """Return what the ring prints when these hosts have these ranks."""
    size = sum(len(ranks) for _, ranks in nodes)
    return sorted(
        f"{rank} of {size}, {local} of {len(ranks)} on {host}" for host, ranks in nodes for local, rank in enumerate(ranks)
    )


def ring(programs: Path, size: int, *words: str) -> list[str]:
    """Run the ring on this machine; return its lines, sorted."""
    done = launch(*words, programs / "ring", str(size))
    assert (done.code, done.err) == (0, b"")
    return done.lines


# One world

HERE = os.uname().nodename


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
def test_ranks_on_one_node(programs: Path, size: int) -> None:
    assert ring(programs, size, "-np", str(size)) == world((HERE, list(range(size))))


@pytest.mark.parametrize("mpi", ["auto", "pmi1"])
def test_two_local_nodes_share_no_memory(programs: Path, mpi: str) -> None:
    assert ring(programs, 4, "--mpi", mpi, "-H", "local:2,local:2") == world((HERE, [0, 1]), (HERE, [2, 3]))


def test_unequal_nodes_and_ranks_round_the_nodes(programs: Path) -> None:
    assert ring(programs, 5, "-H", "local:1,local:4") == world((HERE, [0]), (HERE, [1, 2, 3, 4]))
    assert ring(programs, 4, "--map-by", "node", "-H", "local:2,local:2") == world((HERE, [0, 2]), (HERE, [1, 3]))


def test_each_role_is_a_world(family_programs: Path) -> None:
    """MPI connects the ranks of a role only, on nodes that both roles use."""
    ring = family_programs / "ring"
    roles = ("--role", "a", "-np", "3", ring, "3", ":", "--role", "b", "-np", "2", ring, "2")
    done = launch("-H", "local:2,local:3", *roles)
    assert (done.code, done.err) == (0, b"")
    assert done.lines == sorted([*world((HERE, [0, 1]), (HERE, [2])), *world((HERE, [0, 1]))])


def test_two_roles_connect_to_each_other(open_programs: Path) -> None:
    """Names are those of the job, and a world may be on nodes where the other has no rank; MPICH over UCX opens no port."""
    roles = open_programs / "roles"
    server = ("--role", "server", "-np", "2", "-H", "local:2", roles, "server")
    done = launch(*server, ":", "--role", "client", "-np", "3", "-H", "local:3", roles, "client", limit=60)
    assert (done.code, done.err) == (0, b"")
    met = [*(f"client {rank} of 3 met 2" for rank in range(3)), *(f"server {rank} of 2 met 3" for rank in range(2))]
    assert done.lines == met


def test_several_programs_are_one_world(programs: Path) -> None:
    here = (programs / "ring", "4")
    done = launch("-H", "local:2,local:2", "-np", "1", *here, ":", "-np", "3", *here)
    assert (done.code, done.err) == (0, b"")
    assert done.lines == world((HERE, [0, 1]), (HERE, [2, 3]))


@pytest.mark.parametrize(
    ("words", "of_mpich", "of_openmpi"), [((), -1, 4), (("-usize", "17"), 17, 17)], ids=["by-default", "by-request"]
)
def test_the_size_of_the_universe_is_that_of_the_librarys_own_launcher(
    programs: Path, open_programs: Path, words: tuple[str, ...], of_mpich: int, of_openmpi: int
) -> None:
    for place, size in ((programs, of_mpich), (open_programs, of_openmpi)):
        done = launch("-H", "local:4", "-np", "2", *words, place / "facts")
        assert (done.code, done.err) == (0, b"")
        assert done.lines == [f"{rank} of 2, app 0, universe of {size}" for rank in range(2)]


@pytest.mark.testbed
@pytest.mark.parametrize(
    ("map_by", "places", "mapping"),
    [("slot", (1, 1, 2, 2), "(vector,(0,2,2))"), ("node", (1, 2, 1, 2), "(vector,(0,2,1),(0,2,1))")],
)
def test_what_ranks_put_reaches_those_of_other_hosts(
    hosts: Hosts, map_by: str, places: tuple[int, ...], mapping: str
) -> None:
    # Not an MPI program: UCX takes hosts of one kernel for one host, looks for a rank of another in its own /proc, and aborts.
    client = str(shutil.copy(PROGRAMS / "pmi_client.py", hosts.shared))
    done = hosts.launch("--wdir", "/", "-H", "node01:2,node02:2", "--map-by", map_by, "python3", client)
    values = " ".join(f"rank-{rank}-of-node{place:02}" for rank, place in enumerate(places))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"{rank} {mapping} {values}" for rank in range(4)]


@pytest.mark.testbed
def test_ranks_on_two_hosts_meet_over_the_network(hosts: Hosts, shared_programs: Path) -> None:
    before = [hosts.received(name) for name in hosts.names[:2]]
    words = ["--wdir", "/", "-H", "node01,node02", *OVER_TCP, f"{shared_programs}/ring", "2"]
    done = hosts.run_mpi([sys.executable, "-m", "mpilaunch", *words], 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == world(("node01", [0]), ("node02", [1]))
    assert all(hosts.received(name) - bytes_ > RING_BYTES for name, bytes_ in zip(hosts.names[:2], before, strict=True))


def test_without_pmi_each_rank_is_a_world_of_its_own(programs: Path) -> None:
    done = launch("--mpi", "none", "-np", "2", programs / "ring", "2")
    assert done.code == 9
    assert "a world of 1 instead of 2" in done.words


def test_an_mpi_program_under_a_shell_and_beside_the_output_of_others(programs: Path) -> None:
    done = launch("-np", "2", *sh(f'echo before; "{programs}/ring" 2; echo after'))
    assert (done.code, done.err) == (0, b"")
    assert done.lines == sorted([*world((HERE, [0, 1])), "before", "before", "after", "after"])


# The end of a rank


@pytest.mark.parametrize("nodes", ["local:4", "local:2,local:2"])
@pytest.mark.parametrize(
    ("words", "code", "how"),
    [
        (["abort", "42"], 42, "called MPI_Abort with code 42"),
        (["abort", "0"], 1, "called MPI_Abort with code 0"),
        (["no-finalize"], 1, "exited with code 0 without MPI_Finalize"),
        (["exit"], 7, "exited with code 7 without MPI_Finalize"),
        (["crash"], 134, "killed by SIGABRT (signal 6)"),
        (["before-init"], 1, "exited with code 0 without the MPI_Init that others wait in"),
        (["in-init"], 142, "killed by SIGALRM (signal 14)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
@proves(
    "mpi-left", RANKS, "a rank leaves an MPI job: MPI_Abort, no MPI_Finalize, no MPI_Init", finder="its daemon's PMI server",
    says="`rank 1 on localhost called MPI_Abort with code 7`", code="the rank's", within=20,
)  # fmt: skip
def test_a_rank_that_leaves_the_world_ends_the_job(
    family_programs: Path, nodes: str, words: list[str], code: int, how: str
) -> None:
    done = launch("-H", nodes, family_programs / "ends", *words)
    assert done.code == code
    assert f"error[rank-failed]: rank 1 on local {how} after " in done.words
    assert "    ranks 0,2-3 stopped after it" in done.words


def test_a_node_whose_ranks_all_end_without_mpi_is_named_to_the_last(programs: Path) -> None:
    done = launch("-H", "local:2,local:2", *sh(f'[ $RANK -ge 2 ] && exit 0; exec "{programs}/ring" 4'))
    assert done.code == 1
    how = "exited with code 0 without the MPI_Init that others wait in"
    # Which of the two is the first is for the clock to say.
    assert any(f"rank {first} on local {how}" in done.words for first in (2, 3))
    assert "    ranks 0-1 stopped after it\n" in done.words


def test_a_lost_node_ends_those_that_wait_for_it_in_a_job_that_continues(programs: Path, tmp_path: Path) -> None:
    program = f'[ $RANK = 0 ] && {{ echo $PPID > daemon; exec sleep 100; }}; exec "{programs}/ring" 2'
    with launching("--continue-on-error", "-H", "local:1,local:1", *sh(program), cwd=tmp_path) as process:
        (daemon,) = wait_for_files(tmp_path / "daemon")
        kill_hard(int(daemon))
        done = finish(process)
    assert done.code == 125 and "error[node-lost]: local: lost: " in done.words


@pytest.mark.parametrize("words", [["abort", "7"], ["no-finalize"], ["crash"]])
def test_a_rank_that_leaves_the_world_ends_also_a_job_that_continues(programs: Path, words: list[str]) -> None:
    done = launch("--continue-on-error", "-H", "local:2", programs / "ends", *words)
    assert done.code != 0 and "error[rank-failed]: rank 1 on local " in done.words


@pytest.mark.testbed
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    ("words", "code", "how"),
    [
        (["abort", "42"], 42, "called MPI_Abort with code 42"),
        (["before-init"], 1, "exited with code 0 without the MPI_Init that others wait in"),
    ],
    ids=["abort", "before-init"],
)
def test_a_rank_on_a_host_that_leaves_the_world(
    hosts: Hosts, shared_programs: Path, count: int, words: list[str], code: int, how: str
) -> None:
    nodes = ",".join(hosts.names[:count])
    done = hosts.launch("--wdir", "/", "-H", nodes, *OVER_TCP, f"{shared_programs}/ends", *words)
    assert done.returncode == code, done.stderr
    assert f"error[rank-failed]: rank 1 on node02 {how} after " in done.stderr
    others = {2: "rank 0", 3: "ranks 0,2", 4: "ranks 0,2-3"}[count]
    assert f"    {others} stopped after it\n" in done.stderr


@pytest.mark.testbed
@pytest.mark.parametrize("words", [["ring", "4"], ["ends", "abort", "42"], ["ends", "no-finalize"], ["ends", "before-init"]])
def test_nothing_is_left_in_dev_shm(family_programs: Path, words: list[str]) -> None:
    look = 'mount -t tmpfs tmpfs /dev/shm && { "$@" >&2; echo $?; ls -A /dev/shm; }'
    command = [*MPILAUNCH, "-H", "local:2,local:2", str(family_programs / words[0]), *words[1:]]
    unshare = ["unshare", "--mount", *sh(look), "sh"]
    done = subprocess.run([*unshare, *command], env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False)
    code, *left = done.stdout.splitlines()
    assert (int(code) == 0) == (words[0] == "ring"), done.stderr
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_is_gone_leaves_no_shared_memory(family_programs: Path, number: int) -> None:
    before = set(os.listdir("/dev/shm"))
    with launching("--heartbeat", "0.8", "-H", "local:4", family_programs / "ends", "stay") as process:
        guard, daemon = guard_and_daemon(process.pid)

        def mapped() -> set[str]:
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in children(daemon) if command_name(pid) == "ends"]
            return {line.rpartition("/dev/shm/")[2] for text in maps for line in text.splitlines() if "/dev/shm/" in line}

        wait_until(lambda: len(mapped() - before) >= (4 if "openmpi" in str(family_programs) else 1), "the ranks share memory")
        time.sleep(0.2)
        memory = {name for name in mapped() - before if not name.endswith(" (deleted)")}
        if number == signal.SIGKILL:  # and the guard comes late: Open MPI's ranks would exit a second after their server
            os.kill(guard, signal.SIGSTOP)
        os.kill(daemon, number)
        if number == signal.SIGKILL:
            time.sleep(1.4)
            os.kill(guard, signal.SIGCONT)
        done = finish(process)
    assert done.code == ExitCode.NODE_LOST, done.words
    assert not memory & set(os.listdir("/dev/shm"))


def test_who_keeps_the_others_waiting_in_mpi_init_is_named(programs: Path) -> None:
    words = sh(f'[ $RANK -lt 2 ] || exec sleep 60; exec "{programs}/ring" 4')
    for nodes in ("local:4", "local:1,local:3", "local:2,local:2"):
        done = launch("--mpi-init-timeout", "1", "-H", nodes, *words)
        assert done.code == ExitCode.TIMEOUT
        absent = "ranks 2-3 on local have not called MPI_Init, where the others have waited for"
        assert f"note: {absent} 0 s\n" in done.words or f"note: {absent} 1 s\n" in done.words
        assert f"error[timeout]: {absent} 1 s (--mpi-init-timeout)\n" in done.words


def test_a_late_rank_is_waited_for(programs: Path) -> None:
    done = launch("-H", "local:1,local:1", "--mpi-init-timeout", "0", *sh(f'sleep $RANK; exec "{programs}/ring" 2'))
    assert (done.code, done.err) == (0, b"")
    assert done.lines == world((HERE, [0]), (HERE, [1]))


# PMIx


def test_a_libpmix_that_crashes_ends_the_job_and_leaves_nothing(open_programs: Path) -> None:
    with launching("-H", "local:4", open_programs / "ends", "stay") as process:
        _, daemon = guard_and_daemon(process.pid)

        def helper() -> int | None:
            # The others are ranks, which have a name of their own.
            return next((pid for pid in children(daemon) if command_name(pid) != "ends"), None)

        def segments() -> set[str] | None:
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in children(daemon) if command_name(pid) == "ends"]
            mapped = [set(re.findall(r"/dev/shm/\S*_segment\.\S*", text)) for text in maps]
            return set.union(*mapped) if len(mapped) == 4 and all(mapped) else None

        made = wait_until(segments, "the ranks are in MPI_Init")
        pid = wait_until(helper, "a helper")
        os.kill(pid, signal.SIGKILL)
        done = finish(process)
    assert done.code == ExitCode.MPI_FAILED
    assert "error[mpi-failed]: local: the PMIx helper was killed by SIGKILL (signal 9)" in done.words
    assert [path for path in made if os.path.exists(path)] == []


@pytest.mark.parametrize(
    ("words", "program", "told"),
    [
        (["--mpi", "pmi1"], ["ring", "1"], "--mpi pmi1 offers no PMIx, which Open MPI needs"),
        (["--pmix-library", "/nope.so"], ["ring", "1"], "no PMIx there, which Open MPI needs: /nope.so: "),
        (
            ["-x", "OMPI_MCA_schizo=orte"],
            ["ends", "sleep", "3"],
            "it asked for neither PMI nor PMIx: was it built for another launcher?",
        ),
    ],
    ids=["not-offered", "no-library", "not-asked"],
)
def test_ranks_that_do_not_find_each_other_are_warned_of_once(
    open_programs: Path, words: list[str], program: list[str], told: str
) -> None:
    done = launch(*words, "-H", "local:2,local:1", open_programs / program[0], *program[1:])
    assert done.code == 0 and len(done.lines) == (3 if program[0] == "ring" else 0)
    (warning,) = [line for line in done.words.splitlines() if line.startswith("mpilaunch: warning")]
    assert " on local has an MPI library (libmpi.so.40, Open MPI) and has not found the other ranks" in warning
    assert told in warning


@pytest.mark.slow
@pytest.mark.needs("mpicc.mpich", "mpicc.openmpi", "libpmix.so.2")
@pytest.mark.parametrize(
    ("library", "family", "mpi"), [("libmpi.so.40", "Open MPI", "pmi1"), ("libmpich.so.12", "MPICH", "pmix")]
)
def test_a_script_is_warned_of_for_its_mpi_init_and_not_for_its_library(
    tmp_path: Path, library: str, family: str, mpi: str
) -> None:
    program = f"import ctypes, sys, time\nmpi = ctypes.CDLL('{library}', ctypes.RTLD_GLOBAL)\n"
    program += "'init' in sys.argv and mpi.MPI_Init(None, None)\ntime.sleep(3)\n'init' in sys.argv and mpi.MPI_Finalize()\n"
    path = script(tmp_path / "program.py", program)
    done = launch("--mpi", mpi, "-np", "2", path, "init")
    assert done.code == 0
    assert f"has an MPI library ({library}" in done.words and f", {family}) and has not found the other ranks" in done.words
    for offer in (mpi, "auto"):
        done = launch("--mpi", offer, "-np", "2", path)
        assert (done.code, done.err) == (0, b""), "it never wants MPI"


def test_a_program_that_is_linked_with_mpi_and_never_wants_it_is_not_warned_of(family_programs: Path) -> None:
    done = launch("-np", "2", family_programs / "ends", "never-init")
    assert (done.code, done.err) == (0, b"")


def test_a_world_of_one_and_a_world_that_is_not_to_be_are_not_warned_of(open_programs: Path) -> None:
    for words in (["--mpi", "pmi1", "-np", "1"], ["--mpi", "none", "-np", "2"]):
        # A world of one starts an orted of its own, which may still be on its way out.
        done = launch(*words, open_programs / "ring", "1")
        assert (done.code, [line for line in done.words.splitlines() if "(orted)" not in line]) == (0, [])


def test_a_missing_pmix_is_reported_to_who_wants_no_other(open_programs: Path) -> None:
    done = launch("--mpi", "pmix", "--pmix-library", "/nope.so", "-H", "local:1,local:1", open_programs / "ring", "2")
    assert (done.code, done.out) == (ExitCode.START_FAILED, b"")
    assert "error[start-pmix-missing]: 2 of 2 nodes: " in done.words and "/nope.so: cannot open" in done.words


# New worlds, by a client that says PMI-1 word for word


def spawning(*children: tuple[int, list[str]], **info: str) -> str:
    """Return what a rank says to start programs: how many ranks, and their words; `info` is that of each."""
    lines = []
    for count, (program, *arguments) in children:
        lines += ["mcmd=spawn", f"nprocs={count}", f"execname={program}", f"totspawns={len(children)}"]
        lines += [f"arg{number}={argument}" for number, argument in enumerate(arguments, 1)]
        lines += [f"argcnt={len(arguments)}", "preput_num=0", f"info_num={len(info)}"]
        for number, (key, value) in enumerate(info.items()):
            lines += [f"info_key_{number}={key}", f"info_val_{number}={value}"]
        lines.append("endcmd")
    return "\n".join(lines)


SAY = ["python3", str(PROGRAMS / "pmi_say.py")]
STAY_IN_MPI = (
    'import os, socket, time; said = socket.socket(fileno=int(os.environ["PMI_FD"]));'
    ' said.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\\n"); said.recv(99);'
    ' print("in", file=open("in", "w")); time.sleep(99)'
)
"""Calls MPI_Init, as far as its daemon sees it, and stays."""
CHILD = list(sh('echo "child $PMI_RANK of $PMI_SIZE, spawned $PMI_SPAWNED, app $APP, slot on $MPILAUNCH_NODE_RANK"'))


def test_a_rank_starts_others_beside_it(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = launch("-H", "local:2,local:2", "-np", "1", "--report", report, *SAY, spawning((3, CHILD)))
    assert (done.code, done.err) == (0, b"")
    children = [f"child {rank} of 3, spawned 1, app , slot on {node}" for rank, node in enumerate((0, 1, 1))]
    assert done.lines == sorted(["0 cmd=spawn_result rc=0 msg=success errcodes=0,0,0", *children])
    ranks = json.loads(report.read_text())["ranks"]
    assert [(rank["rank"], rank["node"], rank["exit_code"]) for rank in ranks] == [(0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0)]


def test_worlds_come_one_after_the_other_and_several_programs_are_one_world() -> None:
    programs = [(count, ["sh", "-c", f"echo {name} $PMI_RANK of $PMI_SIZE"]) for count, name in ((1, "one"), (2, "two"))]
    first = spawning(*programs)
    done = launch("--tag", "rank", "-H", "local:2", "-np", "2", *SAY, f"0:{first}", f"1:{spawning((1, ['echo', 'alone']))}")
    assert (done.code, done.err) == (0, b"")
    lines = [line.partition("] ") for line in done.lines]
    # Which of the two was first is for the head to say; ranks are counted on in either order.
    assert sorted(text for _, _, text in lines if "cmd=" not in text) == [
        "alone",
        "one 0 of 3",
        "two 1 of 3",
        "two 2 of 3",
    ]
    assert len({tag for tag, _, text in lines if "cmd=" not in text}) == 4


def test_words_of_spawned_ranks_arrive_byte_for_byte(tmp_path: Path) -> None:
    words = ["\u00e4\u65e5", "\udcff"]
    (tmp_path / words[0]).mkdir()
    child = spawning((1, ["sh", "-c", 'printf "%s " "${PWD##*/}" "$@"; echo', "sh", *words]), wdir=str(tmp_path / words[0]))
    done = launch("-H", "local:2", "-np", "1", *SAY, child)
    assert (done.code, done.err) == (0, b"")
    assert os.fsencode(f"{words[0]} {words[0]} {words[1]} \n") in done.out, done.out


def test_info_keys_of_a_spawn_over_pmi(tmp_path: Path) -> None:
    (tmp_path / "child").write_text("#!/bin/sh\necho child $PMI_RANK of $PMI_SIZE in $PWD\n")
    (tmp_path / "child").chmod(0o755)
    child = spawning((3, ["child"]), path=f"/nope:{tmp_path}", wdir="/usr", soft="1:2", arch="x", host="local", other="x")
    done = launch("-H", "local:8", "-np", "1", *SAY, child, child)
    assert done.code == 0
    answer = "0 cmd=spawn_result rc=0 msg=success errcodes=0,0,1"
    assert done.lines == sorted([answer, "child 0 of 2 in /usr", "child 1 of 2 in /usr"] * 2)
    (note,) = done.words.splitlines()
    assert note.startswith("note: the info key arch of MPI_Comm_spawn has no effect: ")


def test_info_keys_of_a_spawn_with_open_mpi(open_programs: Path, tmp_path: Path) -> None:
    program = (open_programs / "spawn_info", open_programs / "spawn_info")
    for given, directory in (("wdir=/usr", "/usr"), ("wdir=sub", f"{tmp_path}/sub"), ("host=local", str(tmp_path))):
        (tmp_path / "sub").mkdir(exist_ok=True)
        done = launch("-H", "local:3", "-np", "1", *program, "2", given, cwd=tmp_path)
        assert (done.code, done.err) == (0, b"")
        assert done.lines == ["2 children, 0 errors", *[f"child of 2 in {directory}"] * 2]
    done = launch("-H", "local:3", "-np", "1", *program, "1", "add-host=elsewhere", "map_by=node")
    assert done.code == 0 and "1 children, 0 errors" in done.lines
    notes = [line for line in done.words.splitlines() if "of MPI_Comm_spawn has no effect: " in line]
    assert [line.split()[4] for line in notes] == ["add-host", "map_by"]


def test_what_cannot_be_spawned_is_reported_and_the_job_continues() -> None:
    words = ("cmd=barrier_in", f"0:{spawning((2, ['no-such-program']))}", f"0:{spawning((2, CHILD))}")
    done = launch("-H", "local:1,local:1", *SAY, *words)
    assert done.code == 0
    assert "note: MPI_Comm_spawn failed: 2 of 2 nodes: local" in done.words and "no-such-program: not found" in done.words
    assert "0 cmd=spawn_result rc=-1 msg=could_not_spawn errcodes=1" in done.lines
    assert "0 cmd=spawn_result rc=0 msg=success errcodes=0,0" in done.lines
    assert sum(line.startswith("child ") for line in done.lines) == 2


@pytest.mark.parametrize("nodes", ["local:1,other:1", "other:1,local:1"])
def test_a_rank_starts_others_where_another_agent_leads(tmp_path: Path, nodes: str) -> None:
    report = tmp_path / "report.json"
    words = ("-H", nodes, "--remote-agent", "fake", "-np", "1")
    done = launch(*words, *SAY, spawning((1, CHILD)))
    assert (done.code, done.err) == (0, b"") and "child 0 of 1, spawned 1, app , slot on 0" in done.lines
    assert launch(*words, "--report", report, *SAY, spawning((1, CHILD))).code == 0
    assert [rank["node"] for rank in json.loads(report.read_text())["ranks"]] == [0, 1]


def test_files_that_cannot_be_opened_for_spawned_ranks_are_reported_and_the_job_continues(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = [*sh(f'rm -r {out}; touch {out}; exec "$@"'), "sh", *SAY, spawning((1, CHILD))]
    done = launch("--output-filename", out, "-H", "local:2", "-np", "1", *program)
    assert (done.code, done.lines) == (0, ["0 cmd=spawn_result rc=-1 msg=could_not_spawn errcodes=1"]), done.words
    assert f"note: MPI_Comm_spawn failed: {out}/rank-0001.out: the ranks' output cannot go there: " in done.words


def test_a_spawn_that_is_cut_off_holds_up_no_end(tmp_path: Path) -> None:
    text = f"echo $PPID > daemon-$RANK; echo $$ > pid-$RANK; [ $RANK = 0 ] || exec python3 -c '{STAY_IN_MPI}'"
    text += "; until [ -e go ]; do :; done"
    program = [*sh(f'{text}; exec "$@"'), "sh", *SAY, spawning((2, ["no-such-program"]))]
    nodes = ("-H", "local:2,local:2", "--map-by", "node", "-np", "2")
    with launching("--heartbeat", "1", *nodes, *program, cwd=tmp_path) as process:
        rank, frozen, _ = wait_for_files(*(tmp_path / name for name in ("pid-0", "daemon-1", "in")))
        time.sleep(0.3)  # its daemon has said so
        os.kill(int(frozen), signal.SIGSTOP)
        (tmp_path / "go").touch()
        time.sleep(0.5)  # the first node refuses the program meanwhile, and the second says nothing
        os.kill(int(rank), signal.SIGKILL)
        done = finish(process)
    # The second node has been silent since before the rank was killed, and stays so.
    assert done.code == 125 and "    rank 0 on local failed too: killed by SIGKILL" in done.words


def test_a_spawn_that_is_cut_off_on_a_node_whose_ranks_have_ended_holds_up_no_end(tmp_path: Path) -> None:
    text = f"echo $PPID > daemon-$RANK; echo $$ > pid-$RANK; [ $RANK = 0 ] || exec {' '.join(SAY)}; until [ -e go ]; do :; done"
    program = [*sh(f'{text}; exec "$@"'), "sh", *SAY, spawning((2, CHILD))]
    nodes = ("-H", "local:1,local:2", "--map-by", "node", "-np", "2")
    with launching("--heartbeat", "1", *nodes, *program, cwd=tmp_path) as process:
        rank, ended, frozen = wait_for_files(*(tmp_path / name for name in ("pid-0", "pid-1", "daemon-1")))
        wait_until(lambda: not living(int(ended)), "the rank has gone")
        time.sleep(0.3)  # and its daemon has said so
        os.kill(int(frozen), signal.SIGSTOP)
        (tmp_path / "go").touch()
        time.sleep(0.3)  # the spawn waits for it
        os.kill(int(rank), signal.SIGKILL)
        done = finish(process)
    assert done.code == 137, done.words


def test_nothing_is_spawned_when_the_job_ends() -> None:
    program = [*sh('trap \'exec "$@"\' TERM; while :; do sleep 0.02; done'), "sh", *SAY, spawning((1, CHILD))]
    done = launch("-H", "local:2", "-np", "1", "--timeout", "0.5", *program)
    assert (done.code, done.lines) == (124, ["0 cmd=spawn_result rc=-1 msg=could_not_spawn errcodes=1"])


def test_a_node_that_is_at_its_limit_of_files_says_so_when_ranks_are_spawned() -> None:
    # The second world alone would have room.
    worlds = [f"0:{spawning((40, list(sh(program))))}" for program in ("sleep 2", "true")]
    done = launch_with_file_limit(240, "-H", "local:100", "-np", "1", *SAY, *worlds)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("msg=success") == done.stdout.count("msg=could_not_spawn") == 1
    assert "note: MPI_Comm_spawn failed: local: limit of open files too low: 40 ranks need " in done.stderr


def test_a_spawned_rank_that_fails_ends_the_job() -> None:
    done = launch("-H", "local:2", "-np", "1", *SAY, spawning((2, list(sh("exit 3")))), "cmd=barrier_in group=NODE")
    assert done.code == 3
    assert "on local exited with code 3 after " in done.words


def test_names_are_found_by_ranks_of_other_nodes_and_worlds() -> None:
    publish = ["0:cmd=publish_name service=s port=here", "0:cmd=publish_name service=s port=again"]
    lookup = ["1:cmd=lookup_name service=s", "1:cmd=lookup_name service=other"]
    take_back = ["1:cmd=unpublish_name service=s", "1:cmd=lookup_name service=s"]
    done = launch("-H", "local:1,local:1", *SAY, *publish, "cmd=barrier_in", *lookup, *take_back)
    assert (done.code, done.err) == (0, b"")
    assert [line for line in done.out.decode().splitlines() if line.startswith("1 ")][-4:] == [
        "1 cmd=lookup_result rc=0 msg=success port=here",
        "1 cmd=lookup_result rc=1 msg=no_such_name",
        "1 cmd=unpublish_result rc=0 msg=success",
        "1 cmd=lookup_result rc=1 msg=no_such_name",
    ]
    assert "0 cmd=publish_result rc=0 msg=success" in done.lines
    assert "0 cmd=publish_result rc=1 msg=name_is_taken" in done.lines


@pytest.mark.testbed
def test_a_world_reaches_hosts_that_had_no_rank(hosts: Hosts) -> None:
    client = str(shutil.copy(PROGRAMS / "pmi_say.py", hosts.shared))
    child = spawning((3, ["sh", "-c", "echo child $PMI_RANK on $(hostname)"]))
    done = hosts.launch("--wdir", "/", "-H", "node01:1,node02:2,node03:1", "-np", "1", "python3", client, child)
    assert (done.returncode, done.stderr) == (0, "")
    children = ["child 0 on node02", "child 1 on node02", "child 2 on node03"]
    assert sorted(done.stdout.splitlines()) == ["0 cmd=spawn_result rc=0 msg=success errcodes=0,0,0", *children]


@pytest.mark.testbed
def test_a_world_does_not_start_where_a_host_cannot_be_reached(hosts: Hosts) -> None:
    client = str(shutil.copy(PROGRAMS / "pmi_say.py", hosts.shared))
    child = spawning((1, ["true"]))
    done = hosts.launch("--wdir", "/", "-H", "node01:1,nowhere:1", "-np", "1", "python3", client, child, child)
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["0 cmd=spawn_result rc=-1 msg=could_not_spawn errcodes=1"] * 2
    assert "note: MPI_Comm_spawn failed: nowhere: host name unknown" in done.stderr


# The connection


def test_variables_of_a_surrounding_job_do_not_reach_the_ranks(programs: Path) -> None:
    outer = {"PMI_FD": "7", "PMI_RANK": "3", "PMI_SIZE": "9", "PMI_PORT": "localhost:1", "MPI_LOCALNRANKS": "9"}
    done = launch("-np", "2", programs / "ring", "2", env=outer)
    assert (done.code, done.lines) == (0, world((HERE, [0, 1])))
    done = launch("--mpi", "none", "-np", "1", *sh("env | grep -E '^(PMI|MPI_LOCAL)'; true"), env=outer)
    assert (done.code, done.out) == (0, b"")
    done = launch("--mpi", "pmi1", "-np", "1", *sh("env | grep -E '^(PMI|MPI_LOCAL)'"), env=outer)
    assert done.lines == ["MPI_LOCALNRANKS=1", "MPI_LOCALRANKID=0", "PMI_FD=60", "PMI_RANK=0", "PMI_SIZE=1"]


def test_a_rank_has_its_own_connection_and_nothing_else_of_ours(tmp_path: Path) -> None:
    program = 'ls -l /proc/self/fd >list-$RANK; readlink /proc/self/fd/60'
    done = launch("-np", "40", *sh(program), cwd=tmp_path)
    assert done.code == 0
    assert len(set(done.lines)) == 40 and all(line.startswith("socket:") for line in done.lines)
    for listing in tmp_path.iterdir():
        links = [line.split(" -> ")[0].split()[-1] for line in listing.read_text().splitlines() if " -> " in line]
        assert sorted(map(int, links)) == [0, 1, 2, 3, 60]  # 3 is the directory that ls reads
    assert launch("--mpi", "none", "-np", "1", *sh("ls /proc/self/fd")).lines == ["0", "1", "2", "3"]


def test_pmi_by_a_port(programs: Path) -> None:
    assert ring(programs, 4, "--pmi-port", "-H", "local:2,local:2") == world((HERE, [0, 1]), (HERE, [2, 3]))
    done = launch("--pmi-port", "-np", "2", *sh("env | grep -E '^PMI_(FD|PORT|ID)' | sed s/:.*/:port/"))
    *ids, first, second = done.lines
    assert (first, second) == ("PMI_PORT=127.0.0.1:port", "PMI_PORT=127.0.0.1:port")
    numbers = {int(line.partition("PMI_ID=")[2]) for line in ids}
    assert len(numbers) == 2 and all(0 < number < 1 << 31 for number in numbers)  # a secret, and no rank
    # A rank that leaves the world is a failure here too.
    assert launch("--pmi-port", "-np", "2", programs / "ends", "no-finalize").code == 1


STRANGERS = """
import os, socket
host, _, port = os.environ["PMI_PORT"].partition(":")
ours = b"cmd=initack pmiid=%s\\n" % os.environ["PMI_ID"].encode()
def say(words):
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(10)
        try:
            connection.sendall(words)
            return len(connection.recv(100))
        except ConnectionError:
            return 0
for words in (b"GET / HTTP/1.0\\n", b"cmd=initack pmiid=0\\n", b"cmd=initack pmiid=x\\n", b"x" * 300, b"cmd=init\\n"):
    print(say(words))
child = os.fork()
if not child:
    os.setuid(65534)
    print(say(ours), flush=True)  # the secret is no use to another user
    os._exit(0)
os.waitpid(child, 0)
print(say(ours) > 60)
print(say(ours))  # and it is good for one connection
"""


@pytest.mark.testbed
def test_the_port_serves_nobody_else(tmp_path: Path) -> None:
    done = launch("--pmi-port", "-np", "1", script(tmp_path / "program.py", STRANGERS))
    assert done.code == 0
    assert done.out.decode().split() == ["0", "0", "0", "0", "0", "0", "True", "0"]
    assert "a connection to the PMI port of world" in done.words and "gave a wrong PMI_ID" in done.words


HOSTILE = {
    "garbage": (b"GET / HTTP/1.0\n", "'GET' is not key=value"),
    "no end of line": (b"x" * 9000, "a line of more than 4096 bytes"),
    "out of order": (b"cmd=get_maxes\n", "get_maxes from a rank that is absent"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_rank_that_speaks_something_else_is_cut_off_and_named(tmp_path: Path, case: str) -> None:
    said, words = HOSTILE[case]
    program = f"""
        import socket
        connection = socket.socket(fileno=60)
        connection.sendall({said!r})
        while connection.recv(100):
            pass
        raise SystemExit(5)
    """
    lines = "\n".join(line.strip(" " * 8) if line.startswith(" " * 8) else line for line in program.splitlines())
    path = script(tmp_path / "program.py", lines.replace("pass", "    pass"))
    done = launch("-np", "1", path, "--python", sys.executable)
    assert done.code == 5
    assert f"note: localhost: rank 0 broke the PMI protocol and was cut off from it: {words}" in done.words


def test_a_rank_that_never_listens_costs_the_daemon_nothing(tmp_path: Path) -> None:
    program = "import os\nos.write(60, b'cmd=init\\n')\ntry:\n  while True: os.write(60, b'cmd=get_maxes\\n' * 1000)\n"
    path = script(tmp_path / "program.py", program + "except ConnectionError: print('the connection is closed')\n")
    done = launch("-np", "1", path)
    assert (done.code, done.lines) == (1, ["the connection is closed"])
    assert "rank 0 on localhost exited with code 0 without MPI_Finalize" in done.words


def test_a_child_that_keeps_writing_holds_up_nothing(tmp_path: Path) -> None:
    chatter = "exec 2>/dev/null; echo cmd=init >&60; while echo cmd=get_maxes >&60; do read x <&60; done"
    done = launch("-np", "2", "bash", "-c", f"({chatter}) & exit 3")
    assert done.code == 3


def test_the_rank_that_is_late_to_a_barrier_is_reported_when_the_job_hangs(family_programs: Path) -> None:
    done = launch("--hang-timeout", "1", "-H", "local:3", family_programs / "ends", "late")
    assert done.code == ExitCode.TIMEOUT
    late = [line for line in done.words.splitlines() if "pause" in line]
    assert [line.split(":")[0] for line in late] == ["    rank 1 on local"], done.words
