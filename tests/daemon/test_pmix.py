"""PMIx on real Open MPI programs: one world over one and two nodes, each way in which a rank or the helper can end."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mpilaunch.daemon import guard
from mpilaunch.daemon.mpi import segments
from mpilaunch.daemon.pmix.channel import DAEMON_SENDS, HELPER_SENDS, MAX_TEXT, Channel
from mpilaunch.daemon.pmix.helper import Helper
from mpilaunch.daemon.pmix.helper_process import HelperProcess
from mpilaunch.daemon.pmix.ranks import PmixRanks
from mpilaunch.daemon.pmix.search import LIBPMIX, Libpmix
from mpilaunch.daemon.poller import Poller
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.head.nodes import bundle
from tests.support.launching import children, guard_and_daemon, launch, launching, living, open_files, wait_until
from tests.support.mpi.pmix_nodes import Nodes, served
from tests.support.paths import ROOT

pytestmark = pytest.mark.needs("libpmix.so.2")

HERE = os.uname().nodename
LIMIT = 60
WORLD_OF_ONE = {
    "name": "w",
    "namespace": "n",
    "size": 1,
    "universe_size": 1,
    "appnums": [0],
    "spawned": False,
    "hosts": ["node0"],
    "ranks_by_node": [[0]],
    "node": 0,
}


def run(files: Path, nodes: int, ranks: int, *command: object) -> Nodes:
    """Run a job to its end; nothing of it is left."""
    with Nodes(nodes, served(Path(str(command[0]))), files) as job:
        job.run(*command, count=ranks)
        job.lines = job.output()
    assert list(files.iterdir()) == []
    return job


def events(job: Nodes, name: str) -> list[tuple[Any, ...]]:
    return [event[1:] for event in job.log if event[0] == name]


# One world


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_on_one_node(files: Path, programs: Path, ranks: int) -> None:
    job = run(files, 1, ranks, programs / "ring", ranks)
    assert job.lines == [f"{rank} of {ranks}, {rank} of {ranks} on {HERE}" for rank in range(ranks)]
    assert set(job.exits.values()) == {0}
    assert {rank for _, rank in events(job, "connected")} == {rank for _, rank in events(job, "finalized")} == set(range(ranks))
    assert events(job, "collective") == []  # it is all on this node


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_ranks_on_two_nodes(files: Path, programs: Path, ranks: int) -> None:
    job = run(files, 2, ranks, programs / "ring", ranks)
    on_node = [len(range(node, ranks, 2)) for node in (0, 1)]
    assert job.lines == [f"{rank} of {ranks}, {rank // 2} of {on_node[rank % 2]} on {HERE}" for rank in range(ranks)]
    fences = events(job, "collective")
    assert fences and {kind for kind, *_ in fences} == {"fence"}
    assert sorted({(tuple(members), here) for _, members, here, _ in fences}) == [
        (((next(iter(job.worlds)), -1),), here) for here in sorted(set(on_node))
    ]


def test_without_pmix_each_rank_is_a_world_of_its_own(files: Path, programs: Path) -> None:
    with Nodes(1, Libpmix([LIBPMIX]), files) as job:
        environment = {name: value for name, value in job.environment.items() if name != "OMPI_MCA_schizo"}
    for _ in range(2):
        done = subprocess.run([programs / "ring", "2"], env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (9, "")
        assert "a world of 1 instead of 2" in done.stderr


def test_what_a_rank_has_put_is_fetched_from_its_node(files: Path, programs: Path) -> None:
    fetch = 'export OMPI_MCA_pmix_base_collect_data=0; exec "$0" "$@"'
    job = run(files, 2, 4, "/bin/sh", "-c", fetch, programs / "ring", 4)
    assert set(job.exits.values()) == {0}
    assert {rank for _, rank in events(job, "modex")} == set(range(4))


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_apps_know_their_numbers(files: Path, nodes: int, programs: Path) -> None:
    with Nodes(nodes, Libpmix([LIBPMIX]), files) as job:
        words = {"program": str(programs / "facts"), "arguments": [], "environment": {}}
        job.start_world([{**words, "app": app} for app in (0, 0, 1)])
        job.turn(lambda: len(job.exits) == 3)
        assert job.output() == [f"{rank} of 3, app {app}, universe of 5" for rank, app in enumerate((0, 0, 1))]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_spawned_ranks_meet_their_parents(files: Path, programs: Path, nodes: int, ranks: int) -> None:
    job = run(files, nodes, ranks, programs / "spawn", "one", ranks, 2, 0)
    parents = [f"parent {rank} of {ranks}, with 2 children" for rank in range(ranks)]
    assert job.lines == [f"child {rank} of 2, of program 0" for rank in (0, 1)] + parents
    ((_, rank, (app,)),) = events(job, "spawn")
    assert (rank, app["program"], app["count"]) == (0, str(programs / "spawn"), 2)
    assert app["arguments"] == ["child", str(ranks), "2", "0"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_published_port_is_found_and_taken_back(files: Path, programs: Path, nodes: int) -> None:
    job = run(files, nodes, 2, programs / "publish", 2)
    assert job.lines == ["0 of 2, of the servers", "1 of 2, of the clients"]
    assert set(job.exits.values()) == {0}


# The end of a rank

ENDS: dict[str, tuple[list[str], int]] = {
    "abort": (["abort", "42"], -signal.SIGKILL),
    "no-finalize": (["no-finalize"], 0),
    "exit": (["exit"], 7),
    "crash": (["crash"], -signal.SIGABRT),
}


@pytest.mark.testbed
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("how", ENDS)
def test_a_rank_that_leaves_the_world(tmp_path: Path, programs: Path, nodes: int, how: str) -> None:
    # In a mount namespace, where nobody else uses /dev/shm and /tmp.
    words, code = ENDS[how]
    look = (
        "mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /run && mkdir /run/files && "
        'TMPDIR=/run/files "$@" && cd /dev/shm && find . /run/files -mindepth 1'
    )
    script = ROOT / "tests/support/mpi/pmix_nodes.py"
    job = [sys.executable, str(script), str(nodes), "4", "/run/files", str(programs / "ends"), *words]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", look, "sh", *job],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result, *left = done.stdout.splitlines()
    assert left == []
    told = json.loads(result)
    assert told["exits"][1] == code
    assert {rank for event, _, rank, *_ in told["log"] if event == "connected"} == {0, 1, 2, 3}
    assert [event[2:] for event in told["log"] if event[0] in ("abort", "finalized")] == ([[1, 42]] if how == "abort" else [])


# The helper


def idle_job(files: Path, programs: Path, nodes: int = 1) -> Nodes:
    """Return a job of two ranks that have met and wait for ever."""
    job = Nodes(nodes, Libpmix([LIBPMIX]), files)
    job.start_world([{"program": str(programs / "ends"), "arguments": ["idle"], "environment": {}}] * 2)
    job.turn(lambda: len(events(job, "connected")) == 2)
    return job


def test_a_helper_that_is_killed_is_an_event_and_its_files_go(files: Path, programs: Path) -> None:
    with idle_job(files, programs) as job:
        ranks = [process.pid for process in job._ranks.values()]
        waited = time.monotonic() + LIMIT
        while len(segments.mapped_by(ranks)) < 2 and time.monotonic() < waited:
            time.sleep(0.01)
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)  # else they see it themselves, and are gone before anybody can look
        memory = segments.mapped_by(ranks)
        assert len(memory) == 2 and all(map(os.path.exists, memory))
        os.kill(job.nodes[0].server.pid, signal.SIGKILL)
        job.turn(lambda: bool(job.nodes[0].failed_with) and not job._ranks)
        assert job.nodes[0].failed_with == "the PMIx helper was killed by SIGKILL (signal 9)"
        job.nodes[0].server.register({})  # nobody is there: nothing happens
        job.nodes[0].server.answer(1)
        assert list(files.iterdir()) == []
        segments.remove(memory)
        assert not any(map(os.path.exists, memory))


def test_the_last_words_of_a_helper_are_reported(files: Path) -> None:
    with Nodes(1, Libpmix([LIBPMIX]), files) as job:
        job.nodes[0].server.register({"name": "incomplete", "node": None})
        job.turn(lambda: bool(job.nodes[0].failed_with))
    failed = job.nodes[0].failed_with
    assert failed.startswith("the PMIx helper ended with code 1; its last words: ") and failed.endswith("KeyError: 'namespace'")
    assert list(files.iterdir()) == []


def test_a_helper_keeps_its_descriptors(files: Path) -> None:
    """What it inherits is never collected: the numbers of its descriptors are closed, and used again."""

    class Inherited:
        """Unreachable at once; only a collection of garbage ends it."""

        def __init__(self) -> None:
            self.itself, self.owner = self, os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.owner:
                os._exit(9)

    class Settings(dict[str, str]):
        """The helper reads them when it has closed what is not its own."""

        def items(self) -> Any:
            gc.collect()
            return super().items()

    gc.disable()
    try:
        Inherited()
        with Nodes(1, Libpmix([LIBPMIX], settings=Settings(PMIX_MCA_none="")), files) as job:
            job.nodes[0].server.register({"name": "incomplete", "node": None})
            job.turn(lambda: bool(job.nodes[0].failed_with))
    finally:
        gc.enable()
    assert "ended with code 1" in job.nodes[0].failed_with and "'namespace'" in job.nodes[0].failed_with


def test_no_library_can_be_used(files: Path) -> None:
    old = files.parent / "old.so"
    source = 'const char *PMIx_Get_version(void) { return "OpenPMIx 3.2.5 (PMIx Standard: 3.2)"; }'
    subprocess.run(["gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", old], input=source.encode(), check=True)
    other = files.parent / "other.so"
    subprocess.run(["gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", other], input=b"int f;", check=True)
    with Nodes(1, Libpmix(["/missing/libpmix.so.2", str(old), str(other)]), files) as job:
        job.turn(lambda: bool(job.nodes[0].failed_with))
    assert job.nodes[0].failed_with == (
        "/missing/libpmix.so.2: cannot open shared object file: No such file or directory; "
        f"{old}: it is OpenPMIx 3.2.5, and 4.0 or newer is needed; "
        f"{other}: undefined symbol: PMIx_Get_version"
    )
    assert list(files.iterdir()) == []


def test_what_a_library_needs_is_found_in_the_ranks_library_path(tmp_path: Path) -> None:
    def build(name: str, source: str, *words: str | Path) -> Path:
        command = ["gcc", "-x", "c", "-", "-x", "none", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", f"{tmp_path}/{name}"]
        subprocess.run([*command, *words, f"-Wl,-soname,{name}"], input=source.encode(), check=True)
        return tmp_path / name

    deepest = build("libdeepest.so.1", "int f;")
    deep = build("libdeep.so.1", "int g;", deepest)
    version = 'const char *PMIx_Get_version(void) { return "OpenPMIx 4.2.2"; }'
    library = build(LIBPMIX, version, deep, f"-Wl,-rpath-link,{tmp_path}")
    program = """
import sys
from mpilaunch.daemon.pmix.library import UnusableLibrary, load
try:
    load(sys.argv[1])
except UnusableLibrary as error:
    print(error)
print(load(sys.argv[1], ["/missing", sys.argv[2]])._name)
"""
    command: list[str | Path] = [sys.executable, "-c", program, library, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "libdeep.so.1: cannot open shared object file: No such file or directory",
        str(library),
    ]


def test_the_next_library_serves_when_the_nearest_cannot(files: Path, programs: Path) -> None:
    with Nodes(1, Libpmix(["/missing/libpmix.so.2", LIBPMIX]), files) as job:
        job.run(programs / "ring", 2, count=2)
        assert set(job.exits.values()) == {0}


def port_of(job: Nodes) -> tuple[str, int]:
    """Return the address where libpmix waits for ranks."""
    world = next(iter(job.worlds.values()))
    host, _, port = world.environments[0]["PMIX_SERVER_URI2"].rpartition("/")[2].partition(":")
    return host, int(port)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.0\r\n\r\n", b"", bytes(64), b"\xff" * 4096, struct.pack("<5Q", 1, 2, 3, 4, 1 << 60) + os.urandom(4096)],
    ids=["http", "nothing", "zeros", "ones", "random"],
)
def test_a_stranger_at_the_helpers_port_harms_nobody(files: Path, programs: Path, words: bytes) -> None:
    with idle_job(files, programs) as job:
        host, port = port_of(job)
        assert host == "127.0.0.1"
        for _ in range(20):
            with socket.create_connection((host, port), timeout=LIMIT) as stranger:
                stranger.sendall(words)
        job.exits.clear()
        ranks = list(job._ranks)
        job.start_world([{"program": str(programs / "ring"), "arguments": ["2"], "environment": {}}] * 2)
        job.turn(lambda: len(job.exits) == 2)
        assert set(job.exits.values()) == {0}
        assert list(job._ranks) == ranks and not job.nodes[0].failed_with
    assert list(files.iterdir()) == []


def test_the_helper_holds_nothing_of_its_parent(files: Path) -> None:
    with (files.parent / "secret").open("w") as file, Nodes(1, Libpmix([LIBPMIX]), files) as job:
        os.set_inheritable(file.fileno(), True)
        pid = job.nodes[0].server.pid
        job.nodes[0].server.register({**WORLD_OF_ONE, "hosts": ["node1"], "node": None})
        told: list[str] = []
        job.registered = lambda name, environments: told.append(name)  # type: ignore[method-assign]
        job.turn(lambda: told == ["w"])
        assert not [path for path in open_files(pid) if "secret" in path or "pidfd" in path]
        (directory,) = files.glob("mpilaunch-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        status = Path(f"/proc/{pid}/status").read_text()
        masks = dict(line.split(":\t", 1) for line in status.splitlines())
        assert int(masks["SigCgt"], 16) & (1 << (signal.SIGINT - 1)) == 0
        # Of the standard signals: what started the tests may ignore one that is the C library's own, which nobody can reset.
        ignored = {*guard.IGNORED, signal.SIGTERM, signal.SIGPIPE}
        assert int(masks["SigIgn"], 16) & 0x7FFFFFFF == sum(1 << (number - 1) for number in ignored)


def test_the_helper_runs_from_the_bundle_that_a_node_is_sent(files: Path) -> None:
    program = f"""
import os, sys, zlib
bundle = os.memfd_create("bundle")
os.write(bundle, zlib.decompress(sys.stdin.buffer.read()))
sys.path.insert(0, "/proc/self/fd/%d" % bundle)
from mpilaunch.daemon.pmix import helper_process as pmix
from mpilaunch.daemon.poller import Poller
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.daemon.pmix.search import Libpmix
def registered(world, environments):
    print(pmix.__file__, sorted(environments[0])[0])
    server.close()
    os._exit(sys.stdout.flush() or 0)
poller = Poller()
handlers = {{"registered": registered, "failed": lambda reason: sys.exit(reason)}}
server = pmix.HelperProcess(poller, handlers, Libpmix([{LIBPMIX!r}]), "node0", PrivateDirectory())
server.register({WORLD_OF_ONE!r})
while True:
    poller.run(None)
"""
    command = [sys.executable, "-I", "-S", "-B", "-c", program]
    done = subprocess.run(command, input=bundle.load(), capture_output=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"/proc/self/fd/") and done.stdout.endswith(b" PMIX_BFROP_BUFFER_TYPE\n")
    assert list(files.iterdir()) == []


@pytest.mark.parametrize("killed", ["daemon", "guard"])
def test_the_helper_and_its_directory_go_with_the_daemon(files: Path, killed: str) -> None:
    program = f"""
import os, time
from mpilaunch.daemon import guard
from mpilaunch.daemon.pmix.helper_process import HelperProcess
from mpilaunch.daemon.poller import Poller
from mpilaunch.daemon.pmix.search import Libpmix
from mpilaunch.daemon.private_directory import PrivateDirectory
directory = PrivateDirectory()
guarded = guard.stand_behind(os.pipe(), directory)
if isinstance(guarded, int):
    os._exit(guarded)
alive, _ = guarded
def registered(world, environments):
    print(os.getppid(), os.getpid(), server.pid, directory.path, flush=True)
poller = Poller()
poller.watch(alive, lambda: (server.close(), os._exit(0)))
server = HelperProcess(poller, {{"registered": registered}}, Libpmix([{LIBPMIX!r}]), "node0", directory)
server.register({WORLD_OF_ONE!r})
while True:
    poller.run(None)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        guard, daemon, helper, directory = process.stdout.readline().split()
        assert int(guard) == process.pid and Path(directory).parent == files and Path(directory).is_dir()
        os.kill(int(daemon if killed == "daemon" else guard), signal.SIGKILL)
        assert process.stdout.read() == ""  # guard and daemon are gone
        assert process.wait() == (137 if killed == "daemon" else -signal.SIGKILL)
    assert not Path(f"/proc/{helper}").exists()
    assert list(files.iterdir()) == []


# What the helper says is not believed

NONSENSE: dict[str, Callable[[], bytes]] = {
    "an unknown event": lambda: message({"type": "close"}),
    "a wrong type": lambda: message({"type": "abort", "world": "w", "rank": "1", "code": 1}),
    "too little": lambda: message({"type": "abort", "world": "w"}),
    "no event": lambda: message({"type": ["abort"]}),
    "no object": lambda: message([1]),
    "no JSON": lambda: struct.pack(">II", 3, 0) + b"{{{",
    "too deep": lambda: struct.pack(">II", 100_000, 0) + b"[" * 100_000,
    "too long": lambda: struct.pack(">II", MAX_TEXT + 1, 0),
    "wrong members": lambda: message({"type": "collective", "kind": "f", "members": [1], "ranks": 1, "token": 1}),
    "wrong environments": lambda: message({"type": "registered", "world": "w", "environments": {"x": {}}}),
}


def message(words: Any) -> bytes:
    text = json.dumps(words).encode()
    return struct.pack(">II", len(text), 0) + text


@pytest.mark.parametrize("case", NONSENSE)
def test_a_helper_that_talks_nonsense_is_ended(files: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    from mpilaunch.daemon.pmix import helper as pmix_helper

    def talk(connection: socket.socket, *_: object) -> None:
        connection.sendall(NONSENSE[case]())
        signal.pause()

    monkeypatch.setattr(pmix_helper, "run", talk)
    with Nodes(1, Libpmix([LIBPMIX]), files) as job:
        job.turn(lambda: bool(job.nodes[0].failed_with))
    assert job.nodes[0].failed_with.startswith("the PMIx helper broke off: ")


def test_messages_arrive_whole_in_any_pieces(files: Path) -> None:
    ours, theirs = socket.socketpair()
    got: list[tuple[Any, bytes]] = []
    lost: list[str] = []
    with theirs:
        channel = Channel(ours, Poller(), lambda words, data: got.append((words, data)), lost.append)
        for byte in message({"type": "\udcff"}) + struct.pack(">II", 11, 3) + b'{"type":""}\0\1\2':
            theirs.sendall(bytes([byte]))
            channel.ready()
        assert got == [({"type": "\udcff"}, b""), ({"type": ""}, b"\0\1\2")]
        big = os.urandom(4 << 20)
        assert channel.send({"b": 1}, big)
        assert not channel.send({"b": "x" * 100}, b"", longest=99)
        read = b""
        while len(read) < len(big) + 15:
            channel.ready()
            read += theirs.recv(1 << 20)
        assert read == struct.pack(">II", 7, len(big)) + b'{"b":1}' + big
        theirs.shutdown(socket.SHUT_WR)
        channel.ready()
        assert lost == [""]
        assert channel.send({"c": 1})


@pytest.mark.parametrize(
    "members",
    [[("other", -1)], [("w", 4)], [("w", -2), ("other", 0)], [("w", 0), ("w", 0)], [("w", -1), ("w", 0)]],
    ids=str,
)
def test_members_that_there_are_not_are_refused_on_the_node(members: list[tuple[str, int]]) -> None:
    """A rank may name any; the head would take them for a fault of the node."""
    sent: list[object] = []
    answers: list[str] = []
    ranks = members_of_a_world(sent, answers)
    ranks.requests.collective("fence", members, 1, b"", 1)
    ranks.requests.modex("other", 0, 2)
    ranks.requests.modex("w", 4, 3)
    assert (sent, answers) == ([], ["not-found"] * 3)
    ranks.requests.collective("fence", [("w", -1)], 2, b"", 4)
    ranks.requests.modex("w", 3, 5)
    assert len(sent) == 2


def members_of_a_world(sent: list[object], answers: list[str]) -> PmixRanks:
    """Return the PMIx ranks of a node that knows the world "w" of four ranks; its helper notes errors."""

    class Helper:
        def answer(self, token: int, data: bytes = b"", error: str = "") -> None:
            answers.append(error)

    def send(*message: object) -> None:
        sent.append(message)

    ranks = PmixRanks(Poller(), send, PrivateDirectory("/nonexistent"), send, send, send, send, send, send)
    ranks._helper = cast(HelperProcess, Helper())
    ranks._worlds.known = {"w": {"size": 4, "node": 0, "ranks_by_node": [[0, 1], [2, 3]]}}
    return ranks


def test_each_message_between_daemon_and_helper_has_a_handler(tmp_path: Path) -> None:
    assert set(members_of_a_world([], [])._handlers()) == set(HELPER_SENDS)
    ours, theirs = socket.socketpair()
    with ours:
        helper = Helper(theirs, Poller(), str(tmp_path))
        assert set(helper._handlers) == set(DAEMON_SENDS)
        helper._channel.close()
        for pipe in (helper._posts._woken, helper._posts._wake):
            os.close(pipe)


# The whole of a job killed


@pytest.mark.parametrize("left_alone", [False, True], ids=["dead", "alive"])
def test_what_a_job_left_that_was_killed_as_a_whole_goes_with_the_next(files: Path, programs: Path, left_alone: bool) -> None:
    with launching("-n", "2", str(programs / "ends"), "stay") as process:
        guard, daemon = guard_and_daemon(process.pid)
        wait_until(lambda: list(files.glob("mpilaunch-*/pmix/0/0")), "libpmix knows the ranks")
        (directory,) = files.glob("mpilaunch-*")
        wait_until(lambda: len(children(daemon)) == 3, "two ranks and the helper run")
        everything = [process.pid, guard, daemon, *children(daemon)]
        if not left_alone:
            for pid in everything:
                os.kill(pid, signal.SIGSTOP)  # so that none sees the end of another
            for pid in everything:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(living, everything)), "all are gone")
            assert directory.is_dir()
        old = time.time() - 3600
        os.utime(directory, (old, old))
        done = launch("-n", "2", str(programs / "ring"), "2")
        assert (done.code, done.err) == (0, b"")
        assert directory.is_dir() == left_alone
        if left_alone:
            process.terminate()
            process.communicate(timeout=LIMIT)
    assert list(files.iterdir()) == []
