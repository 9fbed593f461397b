"""Ranks, their places and their environment, in real launches on local nodes."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launching import LIMIT, environment, launch, script, sh, wait_for_files
from tests.support.paths import ROOT

PLACE = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK/$GROUP_WORLD_SIZE"
ARGUMENTS = "import os, sys\nprint([os.fsencode(word) for word in sys.argv[1:]])\n"


def variables(data: bytes) -> dict[bytes, bytes]:
    """Return what /proc/self/environ says."""
    pairs = [item.partition(b"=") for item in data.split(b"\0") if item]
    return {name: value for name, _, value in pairs}


def seen(tmp_path: Path, *words: str | bytes, env: dict[str, str | bytes] | None = None) -> dict[bytes, bytes]:
    """Return the environment of a single rank, exactly."""
    done = launch("-np", "1", *words, "cat", "/proc/self/environ", env=env, cwd=tmp_path)
    assert (done.code, done.err) == (0, b"")
    return variables(done.out)


# Places


def test_every_rank_once_with_its_place_on_two_nodes() -> None:
    done = launch("-H", "local:2,local:2", *sh(PLACE))
    assert (done.code, done.err) == (0, b"")
    assert done.lines == ["0/4 0/2 0/2", "1/4 1/2 0/2", "2/4 0/2 1/2", "3/4 1/2 1/2"]


def test_unequal_nodes_and_ranks_round_the_nodes() -> None:
    done = launch("-H", "local:1,local:3", "--map-by", "node", *sh(PLACE))
    assert done.lines == ["0/4 0/1 0/2", "1/4 0/3 1/2", "2/4 1/3 1/2", "3/4 2/3 1/2"]


def test_256_ranks_on_4_nodes() -> None:
    done = launch("-np", "256", "-H", "local:64,local:64,local:64,local:64", *sh(PLACE))
    assert (done.code, done.err) == (0, b"")
    assert done.lines == sorted(f"{rank}/256 {rank % 64}/64 {rank // 64}/4" for rank in range(256))


def test_ranks_of_a_crowded_machine_let_each_other_run() -> None:
    cpus = len(os.sched_getaffinity(0))
    yields = sh("echo ${OMPI_MCA_mpi_yield_when_idle-unset}")
    for hosts, words, said in (
        (f"local:{cpus}", (), "unset"),
        (f"local:{cpus},local:1", (), "1"),
        (f"local:{cpus + 1}", ("-x", "OMPI_MCA_mpi_yield_when_idle=0"), "0"),
        (f"local:{cpus + 1}", ("--mpi", "none"), "unset"),
    ):
        assert set(launch("-H", hosts, *words, *yields).lines) == {said}


def test_the_universal_environment(tmp_path: Path) -> None:
    script(tmp_path / "show", 'cat /proc/self/environ > "environ-$RANK"\n', mode=0o644)
    assert launch("-H", "local:2,local:1", "sh", "show", cwd=tmp_path).code == 0
    ranks = [variables((tmp_path / f"environ-{rank}").read_bytes()) for rank in range(3)]
    job = ranks[0][b"MPILAUNCH_JOB_ID"]
    assert len(job) == 16 and int(job, 16)
    for rank, found in enumerate(ranks):
        node, local = divmod(rank, 2)
        expected = {
            "RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": (2, 1)[node], "NODE_RANK": node,
            "GROUP_RANK": node, "GROUP_WORLD_SIZE": 2, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": 3,
            "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 3, "OMPI_COMM_WORLD_LOCAL_RANK": local,
            "OMPI_COMM_WORLD_LOCAL_SIZE": (2, 1)[node], "OMPI_COMM_WORLD_NODE_RANK": local, "OMPI_UNIVERSE_SIZE": 3,
            "CROSS_RANK": node, "CROSS_SIZE": (2, 1)[local], "MPILAUNCH_RANK": rank, "MPILAUNCH_SIZE": 3,
            "MPILAUNCH_LOCAL_RANK": local, "MPILAUNCH_NODE_RANK": node,
        }  # fmt: skip
        assert {name: int(found[name.encode()]) for name in expected} == expected
        assert found[b"ROLE_NAME"] == b"default"
        assert found[b"MPILAUNCH_JOB_ID"] == found[b"TORCHELASTIC_RUN_ID"] == job
        assert found[b"MASTER_ADDR"] == ranks[0][b"MASTER_ADDR"] and found[b"MASTER_PORT"] == ranks[0][b"MASTER_PORT"]
        assert 1024 <= int(found[b"MASTER_PORT"]) < 65536


def test_rank_0_can_listen_where_the_others_expect_it() -> None:
    # A rendezvous as frameworks do it, with nothing said on the command line.
    program = (
        "import os, socket, time\n"
        "where = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    server = socket.create_server(where)\n"
        "    print(sorted(server.accept()[0].makefile().readline().strip() for _ in range(3)))\n"
        "else:\n"
        "    while True:\n"
        "        try: peer = socket.create_connection(where); break\n"
        "        except ConnectionRefusedError: time.sleep(0.01)\n"
        "    peer.sendall(os.environ['RANK'].encode() + b'\\n')\n"
    )
    done = launch("-H", "local:2,local:2", "python3", "-c", program)
    assert (done.code, done.out, done.err) == (0, b"['1', '2', '3']\n", b"")


# The environment


@pytest.mark.parametrize(
    "value",
    [b"", b"a\nb\n", b"\"'`$HOME\\", b"=a==b=", "ähm 🚀 \u2028".encode(), b"\xff\xfe\x80", bytes(range(1, 256)), b" \t\r\n "],
    ids=["empty", "newlines", "quotes", "equals", "unicode", "not-utf8", "every-byte", "blanks"],
)
def test_a_value_arrives_exactly(tmp_path: Path, value: bytes) -> None:
    assert seen(tmp_path, "-x", b"ODD=" + value)[b"ODD"] == value
    assert seen(tmp_path, "-x", "ODD", env={"ODD": value})[b"ODD"] == value


def test_large_values_arrive_exactly_and_stand_in_no_command_line(tmp_path: Path) -> None:
    # The nodes of this machine would inherit what the head has in its environment; of an env file they know nothing.
    values = {f"LARGE_{number}": f"{number}-secret-" + f"xyz{number}" * 32_497 for number in range(8)}
    assert {len(value) for value in values.values()} == {129_997} and sum(map(len, values.values())) > 1_000_000
    (tmp_path / "env").write_text("".join(f"{name}={value}\n" for name, value in values.items()), encoding="utf-8")
    (tmp_path / "env").chmod(stat.S_IRUSR)
    program = (
        "import glob, os\n"
        "for file in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: text = open(file, 'rb').read()\n"
        "    except OSError: continue\n"
        "    if b'-sec' + b'ret-' in text: print(file, text[:200])\n"
        "os.execvp('cat', ['cat', '/proc/self/environ'])\n"
    )
    done = launch("-np", "1", "--env-file", "env", "python3", "-c", program, cwd=tmp_path)
    found = variables(done.out)
    assert {name: found.get(name.encode()) for name in values} == {name: value.encode() for name, value in values.items()}
    assert done.out.count(b"-secret-") == 8


def test_what_a_surrounding_job_left_is_scrubbed(tmp_path: Path) -> None:
    stale = {
        "SLURM_PROCID": "7", "OMPI_COMM_WORLD_RANK": "9", "OMPI_MCA_orte": "1", "PMI_RANK": "9", "PMIX_RANK": "9",
        "RANK": "9", "WORLD_SIZE": "99", "LOCAL_RANK": "9", "MASTER_ADDR": "elsewhere", "TORCHELASTIC_RUN_ID": "old",
        "HYDI_CONTROL_FD": "4", "MPILAUNCH_RANK": "9", "HOROVOD_RANK": "9",
    }  # fmt: skip
    found = seen(tmp_path, "-H", "local", env={**stale, "MY_OWN": "stays"})
    kept = {name for name, value in stale.items() if found.get(name.encode()) == value.encode()}
    assert not kept
    assert (found[b"RANK"], found[b"WORLD_SIZE"], found[b"MY_OWN"]) == (b"0", b"1", b"stays")


def test_what_the_user_says_wins_over_the_defaults(tmp_path: Path) -> None:
    assert seen(tmp_path)[b"PYTHONUNBUFFERED"] == b"1"
    assert seen(tmp_path, env={"PYTHONUNBUFFERED": ""})[b"PYTHONUNBUFFERED"] == b""
    assert seen(tmp_path, "-x", "PYTHONUNBUFFERED=no")[b"PYTHONUNBUFFERED"] == b"no"


def test_an_inner_mpilaunch_is_a_job_of_its_own() -> None:
    inner = f"{sys.executable} -m mpilaunch -np 2 sh -c '{PLACE}'"
    done = launch("-np", "1", "--stdin", "none", *sh(inner))
    assert (done.code, done.lines, done.err) == (0, ["0/2 0/2 0/1", "1/2 1/2 0/1"], b"")


def test_a_rank_has_three_descriptors_and_default_signals() -> None:
    # `ls` itself opens the fourth; an MPI program finds its connection at 60.
    assert launch("-np", "1", "--mpi", "none", "ls", "/proc/self/fd").out == b"0\n1\n2\n3\n"
    assert launch("-np", "1", "ls", "/proc/self/fd").out == b"0\n1\n2\n3\n60\n"
    (limit,) = launch("-np", "1", *sh("ulimit -n")).lines
    assert int(limit) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Of the rank itself: a shell blocks signals while it starts something.
    blocked, ignored = launch("-np", "1", "grep", "-E", "SigBlk|SigIgn", "/proc/self/status").lines
    assert int(blocked.split()[1], 16) == 0
    # The C library keeps two signals for itself, and ignores them in every process that it spawns.
    assert not [number for number in signal.valid_signals() if int(ignored.split()[1], 16) >> (number - 1) & 1]


@pytest.mark.parametrize(("mpi", "own_session"), [("none", True), ("pmi1", True), ("pmix", False)])
def test_a_rank_that_may_yield_to_others_is_in_their_session(mpi: str, own_session: bool) -> None:
    done = launch("-np", "2", "--oversubscribe", "--mpi", mpi, *sh("cut -d ' ' -f 1,4-7 /proc/$$/stat"))
    assert len(done.lines) == 2, done.words
    for line in done.lines:
        pid, daemon, group, session, terminal = line.split()
        assert (group, session, terminal) == (pid, pid if own_session else daemon, "0")


OLD = """
import os
del os.memfd_create
def refusing(spawn):
    def refused(*arguments, setsid=False, **others):
        if setsid:
            raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
        return spawn(*arguments, **others)
    return refused
os.posix_spawn, os.posix_spawnp = refusing(os.posix_spawn), refusing(os.posix_spawnp)
os.confstr = {"CS_GNU_LIBC_VERSION": "glibc 2.17"}.get
"""
"""What a Python is like that was built for an old C library, glibc before 2.26, as uv's were until 2026, on such a one."""


@pytest.mark.parametrize(("mpi", "descriptors"), [("pmi1", "0 1 2 3 60 "), ("pmix", "0 1 2 3 ")])
def test_a_python_that_was_built_for_an_old_c_library(tmp_path: Path, mpi: str, descriptors: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(OLD)
    begin = f"import os, sys; words = sys.argv[1:]; code = words.index('-c') + 1; words[code] = {OLD!r} + words[code]"
    python = script(tmp_path / "python", f"#!{sys.executable} -I\n{begin}\nos.execv(sys.executable, ['python', *words])\n")
    path = f"{tmp_path}:{ROOT}:{ROOT / 'agents'}"
    show = "ls /proc/self/fd | tr '\\n' ' '; grep SigBlk /proc/self/status; cut -d ' ' -f 5 /proc/$$/stat; echo $$; exit 5"
    words = ["--python", str(python), "-np", "1", "--mpi", mpi, *sh(show)]
    argv = [sys.executable, "-m", "mpilaunch", *words]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    state, group, pid = done.stdout.splitlines()
    assert (done.returncode, state, group) == (5, f"{descriptors}SigBlk:\t0000000000000000", pid), done.stderr


# The program


@pytest.mark.parametrize(
    ("name", "mode", "text"),
    [
        ("plain.py", 0o644, "print('ran', __file__)\n"),
        ("no_line.py", 0o755, "print('ran', __file__)\n"),
        ("line.py", 0o755, "#!/usr/bin/env python3\nprint('ran', __file__)\n"),
        ("not_executable.py", 0o644, "#!/no/such/python\nprint('ran', __file__)\n"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "./", "{folder}/"])
def test_python_files(tmp_path: Path, name: str, mode: int, text: str, prefix: str) -> None:
    script(tmp_path / name, text, mode=mode)
    done = launch("-np", "1", prefix.format(folder=tmp_path) + name, cwd=tmp_path)
    assert (done.code, done.err) == (0, b"")
    assert done.out.decode().startswith("ran ") and done.out.decode().rstrip().endswith(name)


def test_an_executable_in_the_working_directory_needs_no_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script(tmp_path / "here", "#!/bin/sh\necho here\n")
    script(tmp_path / "sub" / "there", "#!/bin/sh\necho there\n")
    assert launch("-np", "1", "here", cwd=tmp_path).out == b"here\n"
    assert launch("-np", "1", "sub/there", cwd=tmp_path).out == b"there\n"


def test_the_path_comes_before_the_working_directory(tmp_path: Path) -> None:
    script(tmp_path / "true", "#!/bin/sh\necho wrong\n")
    assert launch("-np", "1", "true", cwd=tmp_path).out == b""


def test_a_forwarded_path_is_searched(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "only-there", "#!/bin/sh\necho found\n")
    done = launch("-np", "1", "-x", f"PATH={tmp_path / 'bin'}:/usr/bin:/bin", "only-there", cwd=Path("/"))
    assert (done.code, done.out) == (0, b"found\n")
    path = os.fsdecode(environment()[b"PATH"])
    env = {"PATH": f"{tmp_path / 'bin'}:{path}"}
    assert launch("-np", "1", "-x", "PATH", "only-there", env=env, cwd=Path("/")).out == b"found\n"


def test_arguments_arrive_exactly() -> None:
    words = [b"", b"a\nb", b"--d", b"-x", b"--", b"-np", b"$HOME", b"*", b"'\"", b"\xff\xfe", "é🚀".encode(), b" ", b"{host}"]
    done = launch("-np", "1", "python3", "-c", ARGUMENTS, *words)
    assert (done.code, done.out.decode()) == (0, f"{words}\n")


def test_arguments_go_to_every_rank_of_a_script(tmp_path: Path) -> None:
    script(tmp_path / "show.py", ARGUMENTS, mode=0o644)
    done = launch("-H", "local:1,local:1", "show.py", "--lr", "0.1", "--d", cwd=tmp_path)
    assert done.lines == ["[b'--lr', b'0.1', b'--d']"] * 2


def test_the_working_directory(tmp_path: Path) -> None:
    inner = tmp_path / "a b\nc"
    inner.mkdir()
    assert launch("-np", "1", "pwd", cwd=inner).out.decode() == f"{inner}\n"
    done = launch("-np", "1", "--wdir", str(inner), "pwd", cwd=tmp_path)
    assert (done.code, done.out.decode(), done.err) == (0, f"{inner}\n", b"")


def test_the_interpreter_for_scripts(tmp_path: Path) -> None:
    script(tmp_path / "python-of-the-job", '#!/bin/sh\necho "interpreter runs $*"\n')
    script(tmp_path / "job.py", "never read\n", mode=0o644)
    done = launch("-np", "1", "--python", str(tmp_path / "python-of-the-job"), "job.py", "x", cwd=tmp_path)
    assert (done.code, done.out.decode()) == (0, f"interpreter runs {tmp_path}/job.py x\n")


def test_ranks_wait_for_all_nodes(tmp_path: Path) -> None:
    # The second node is slow to answer: the first has not begun meanwhile.
    script(tmp_path / "job", f"#!/bin/sh\ntouch started-$RANK\n{'while [ ! -e started-1 ]; do sleep 0.01; done'}\n")
    began = time.time()
    done = launch("--agent", "fake", "-H", "node1,slow1", tmp_path / "job", cwd=tmp_path)
    assert done.code == 0
    assert os.stat(tmp_path / "started-0").st_mtime - began >= 0.5, "the second node answers after half a second"


def test_cpus_of_a_slot_bind_its_rank(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    (tmp_path / "hosts").write_text(f"local slots=1 cpus={cpus[-1]}\n", encoding="utf-8")
    done = launch("-f", "hosts", "python3", "-c", "import os; print(os.sched_getaffinity(0))", cwd=tmp_path)
    assert (done.code, done.out.decode()) == (0, f"{{{cpus[-1]}}}\n")


def test_marker_files_are_read_back(tmp_path: Path) -> None:
    assert launch("-np", "2", *sh("echo $RANK > file-$RANK"), cwd=tmp_path).code == 0
    assert wait_for_files(tmp_path / "file-0", tmp_path / "file-1") == ["0\n", "1\n"]
