"""Standby daemons (`mpilaunch up`): which launches get one, and that none is left in any case."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpilaunch.agent import AgentOptions, ChannelEnd
from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.bundle import local_command
from mpilaunch.head.nodes.link import NodeLink, Replacement
from mpilaunch.head.nodes.survey import IgnoreEvents
from mpilaunch.head.standby.client import DOWN, NO, NONCE, PROOF, TAKE, YES, KeeperClient, KeeperConnection
from mpilaunch.head.standby.record import Record
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import HEADER, RelayedChannel
from mpilaunch.wire.challenge import ANSWER_SIZE, NONCE_SIZE, PROOF_SIZE, Caller
from mpilaunch.wire.frames import GO, MARKER, STANDBY
from mpilaunch.wire.session import Session
from mpilaunch_agents.conformance import Recorder
from tests.support import goldens
from tests.support.hosts import Hosts
from tests.support.launching import (
    Launched,
    children,
    finish,
    launch,
    launching,
    living,
    script,
    sh,
    wait_for_files,
    wait_until,
)

AGENT = """#!/bin/sh
echo "$PPID $$" >>"$(dirname "$0")/started"
shift
eval "exec $1"
"""


@dataclass(frozen=True)
class Place:
    """A user's runtime directory, and an agent that logs its parent's and its own process id."""

    folder: Path

    @property
    def words(self) -> list[str]:
        """Options that name the nodes and the agent."""
        return ["--agent", f"{self.folder}/agent {{host}} {{command}}", "-H", "a:2,b:2"]

    @property
    def env(self) -> dict[str, str | bytes]:
        """Variables for the socket's directory and the nodes' files."""
        return {"XDG_RUNTIME_DIR": str(self.folder), "TMPDIR": str(self.files)}

    @property
    def files(self) -> Path:
        """Directory of the nodes' files."""
        return self.folder / "files"

    @property
    def started(self) -> list[tuple[int, int]]:
        """Pairs of the parent's and the agent's process id; the agent is the guard of its daemons."""
        lines = (self.folder / "started").read_text().splitlines()
        return [(int(parent), int(own)) for parent, own in map(str.split, lines)]

    @property
    def standing(self) -> list[int]:
        """The process ids of the guards, and behind each that of its daemon."""
        return [pid for _, guard in self.started for pid in (guard, *children(guard))]

    @property
    def socket(self) -> Path:
        """Path of the keeper's socket."""
        return self.folder / "mpilaunch/standby"

    def up(self, *words: str) -> int:
        """Run `mpilaunch up`; return the keeper's process id."""
        done = self.launch(*words, verb="up")
        assert (done.code, done.out) == (0, b"")
        assert b"standby daemons run on 2 nodes until" in done.err
        return self.started[-1][0]

    def down(self) -> bytes:
        """Run `mpilaunch down`; return its message."""
        with launching("down", env=self.env) as process:
            done = finish(process)
        assert (done.code, done.out) == (0, b"")
        return done.err

    def launch(self, *words: str, verb: str = "run") -> Launched:
        """Launch on the nodes, without the check of `launch` that no process is left."""
        with launching(verb, *self.words, *words, env=self.env) as job:
            return finish(job)


@pytest.fixture
def place() -> Iterator[Place]:
    """Yield a place with a path short enough for a socket; its keeper is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="mpilaunch-test-") as folder:
        script(Path(folder, "agent"), AGENT)
        made = Place(Path(folder))
        made.files.mkdir()
        yield made
        made.down()
        assert not made.socket.exists()
        wait_until(lambda: not os.listdir(made.files), "the files of the jobs have gone")


def test_every_launch_gets_the_daemons_that_stand_by(place: Place) -> None:
    keeper = place.up()
    assert len(place.started) == 2
    for _ in range(3):
        done = place.launch("--continue-on-error", *sh("echo $RANK/$WORLD_SIZE; exit $((RANK / 3 * 7))"))
        assert (done.code, done.lines) == (7, ["0/4", "1/4", "2/4", "3/4"])
        assert "rank 3" in done.words
        assert place.launch(*sh("echo $RANK")).lines == ["0", "1", "2", "3"], "at once"
    assert {parent for parent, _ in place.started} == {keeper}, "no launch has started one by itself"
    assert len(place.started) == 2, "nor was another started"
    standing = wait_until(lambda: len(found := place.standing) == 4 and found, "a daemon stands by behind each guard again")
    assert place.down() == b"note: all standby daemons have ended\n"
    assert not any(map(living, standing))
    wait_until(lambda: not living(keeper), "the keeper has gone", 1)
    assert place.down() == b"note: no standby daemon was running\n"


def test_a_second_up_says_which_nodes_it_has_dropped(place: Place) -> None:
    first, same = place.launch("-H", "c,d", verb="up"), place.launch("-H", "c,d", verb="up")
    assert (first.code, same.code) == (0, 0) and b"have ended" not in first.err + same.err
    fewer = place.launch(verb="up")
    goldens.check("messages/up-dropped.txt", fewer.words)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--python", sys.executable], 2),
        (["--ssh-option", "Port=1"], 2),
        (["-H", "c:2"], 1),
        (["-H", "root@a:2"], 1),
    ],
    ids=["python", "option", "host", "user"],
)
def test_a_launch_that_would_start_other_daemons_starts_its_own(place: Place, words: list[str], own: int) -> None:
    keeper = place.up()
    done = place.launch(*words, *sh("echo up"))
    assert (done.code, done.err, set(done.lines)) == (0, b"", {"up"})
    assert len([parent for parent, _ in place.started if parent != keeper]) == own


def test_two_launches_at_once_share_nothing(place: Place, tmp_path: Path) -> None:
    keeper = place.up()
    program = sh(f"echo >{tmp_path}/up-$RANK; cat >/dev/null; echo first")
    with launching(*place.words, *program, stdin=subprocess.PIPE, env=place.env) as first:
        wait_for_files(*(tmp_path / f"up-{rank}" for rank in range(4)))
        assert {parent for parent, _ in place.started} == {keeper}
        second = place.launch(*sh("echo second"))
        assert first.poll() is None
        done = finish(first)
    assert (done.code, set(done.lines), set(second.lines)) == (0, {"first"}, {"second"})
    assert len([parent for parent, _ in place.started if parent != keeper]) == 2, "those of the second are its own"


def test_output_and_stdin_go_through_whole(place: Place) -> None:
    place.up()
    sent = b"".join(b"%09d\n" % number for number in range(500_000))
    with launching(*place.words, "-np", "1", "cat", stdin=subprocess.PIPE, env=place.env) as job:
        out, err = job.communicate(sent, timeout=30)
    assert (job.returncode, err) == (0, b"") and out == sent


def test_a_job_continues_after_down(place: Place, tmp_path: Path) -> None:
    keeper = place.up()
    program = sh(f"echo >{tmp_path}/up-$RANK; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo done")
    with launching(*place.words, *program, env=place.env) as job:
        wait_for_files(*(tmp_path / f"up-{rank}" for rank in range(4)))
        assert place.down() == b"note: all standby daemons have ended\n"
        assert place.down() == b"note: no standby daemon was running\n"
        assert living(keeper), "it hands on what the job says"
        (tmp_path / "go").touch()
        done = finish(job)
    assert (done.code, done.lines, done.err) == (0, ["done"] * 4, b"")
    wait_until(lambda: not living(keeper), "the keeper has gone with the job")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_keeper_leaves_nothing(place: Place, number: int) -> None:
    keeper = place.up()
    standing = place.standing
    os.kill(keeper, number)
    wait_until(lambda: not any(map(living, standing)), "the daemons have gone")
    done = place.launch(*sh("echo $RANK"))
    assert (done.code, done.lines, done.err) == (0, ["0", "1", "2", "3"], b""), "a socket that nobody listens at is no reason"
    assert place.up() != keeper


@pytest.mark.parametrize(("time", "code"), [("30", 5), ("0", ExitCode.NODE_LOST)])
def test_a_job_survives_its_keeper_within_the_reconnect_timeout(place: Place, tmp_path: Path, time: str, code: int) -> None:
    keeper = place.up()
    wait = f"echo >{tmp_path}/up-$RANK; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    words = ["--reconnect-timeout", time, *sh(f"{wait}; echo $RANK; exit 5")]
    with launching(*place.words, *words, env=place.env) as job:
        wait_for_files(*(tmp_path / f"up-{rank}" for rank in range(4)))
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not living(keeper), "the keeper has gone")
        (tmp_path / "go").touch()
        done = finish(job)
    assert done.code == code
    assert "the process that kept its daemon has gone" in done.words


def test_a_killed_launch_ends_its_daemons_and_ranks(place: Place, tmp_path: Path) -> None:
    place.up()
    with launching(*place.words, *sh(f"echo $$ >{tmp_path}/up-$RANK; sleep 60"), env=place.env) as job:
        ranks = [int(text) for text in wait_for_files(*(tmp_path / f"up-{rank}" for rank in range(4)))]
        job.kill()
        wait_until(lambda: not any(map(living, ranks)), "the ranks have gone")


def test_nothing_passes_from_a_job_to_the_next(place: Place, tmp_path: Path) -> None:
    show = sh("pwd; umask; ulimit -n; echo ${LEFT-none}; ls /proc/self/fd | wc -l")
    usual = launch("-H", "local:4", *show)
    keeper = place.up()
    leave = f"umask 0; cd /; (sleep 100 & echo $! >{tmp_path}/left-$RANK); ulimit -n 20; echo $$; echo $PPID"
    first = place.launch("-x", "LEFT=behind", "--wdir", "/", *sh(leave))
    assert first.code == 0
    left = [int(text) for text in wait_for_files(*(tmp_path / f"left-{rank}" for rank in range(4)))]
    assert not any(map(living, left)), "it was swept, as at the end of any job"
    assert place.launch(*show).lines == usual.lines
    assert {parent for parent, _ in place.started} == {keeper}


def test_a_standby_guard_forks_again_only_after_a_release() -> None:
    session = Session()
    pipe = subprocess.PIPE
    with subprocess.Popen([*local_command(), STANDBY], stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin and process.stdout
        output = process.stdout.fileno()

        def until(words: bytes) -> None:
            said = b""
            while words not in said:
                data = os.read(output, 65536)
                assert data, said
                said += data

        for released in (True, True, False):
            until(MARKER)
            process.stdin.write(GO)
            until(b'"hello"')
            if released:
                session.send({"type": "release"})
                process.stdin.write(session.data_to_send())
        process.stdin.close()
        assert process.wait(20) == 1, "nobody knows what would be said next"


class Taken(RelayedChannel):
    """A channel that records the data to be sent."""

    said = b""

    def __init__(self, link: NodeLink) -> None:
        super().__init__(link.channel, "")

    def send_frame(self, kind: int, data: bytes = b"") -> None:
        """Keep it."""
        self.said += data or b"<end>"


def test_a_launch_does_not_wait_for_the_end_of_a_standby_daemon() -> None:
    async def main() -> None:
        for first, ended in ((GO, True), (b"a bundle", False)):
            link = NodeLink(Node(0, "a", (), "ssh"), IgnoreEvents(), Replacement())
            channel = Taken(link)
            link.opened(channel, first)
            link.release()
            assert (link.channel.ended.done(), link.channel.living) == (ended, not ended)
            assert (b'"release"' in channel.said, channel.said.endswith(b"<end>")) == (ended, True)
            link.channel.closed(ChannelEnd(7))
            assert link.channel.end == ChannelEnd(0 if ended else 7)

    asyncio.run(main())


def test_a_launch_waits_for_the_end_of_a_daemon_that_it_started() -> None:
    async def main() -> None:
        link = NodeLink(Node(0, "a", (), "ssh"), IgnoreEvents(), Replacement(10.0, lambda link, why: None))
        link.opened(Taken(link), GO)
        link.keep()
        link.channel.closed(ChannelEnd(None, error="the keeper has gone"))
        link.resume(Taken(link), 0)
        link.release()
        assert link.channel.living, "nobody else sees to it that it goes"
        link.channel.closed(ChannelEnd(0))
        assert not link.channel.living

    asyncio.run(main())


def test_a_daemon_that_dies_in_a_job_is_replaced(place: Place, tmp_path: Path) -> None:
    keeper = place.up()
    words = ("--reconnect-timeout", "0", *sh(f"echo $PPID >{tmp_path}/up-$RANK; sleep 60"))
    with launching(*place.words, *words, env=place.env) as job:
        daemon = int(wait_for_files(*(tmp_path / f"up-{rank}" for rank in range(4)))[0])
        os.kill(daemon, signal.SIGKILL)
        assert finish(job).code == ExitCode.NODE_LOST
    wait_until(lambda: len(place.started) == 3, "another is started")
    assert place.launch(*sh("echo $RANK")).lines == ["0", "1", "2", "3"]
    assert {parent for parent, _ in place.started} == {keeper}


@pytest.mark.parametrize("behind", [0, 1], ids=["guard", "daemon"])
def test_a_lost_or_hanging_standby_daemon_is_replaced_by_the_launch(place: Place, behind: int) -> None:
    keeper = place.up()
    standing = place.standing
    lost, hanging = standing[behind::2]
    os.kill(lost, signal.SIGKILL)
    os.kill(hanging, signal.SIGSTOP)
    wait_until(lambda: not any(map(living, standing[:2])), "it has gone, and so has the other of the two")
    done = place.launch(*sh("echo $RANK"))
    assert (done.code, done.lines, done.err) == (0, ["0", "1", "2", "3"], b"")
    assert place.started[2][0] != keeper, "the launch has started one by itself for the first, and did not wait"
    wait_until(lambda: not living(hanging), "what hangs is cut")


def test_standby_daemons_end_after_the_idle_time(place: Place) -> None:
    keeper = place.up("--up-idle", "1")
    standing = place.standing
    wait_until(lambda: not living(keeper), "it has gone")
    assert not any(map(living, standing))


def test_a_stopped_keeper_delays_no_launch(place: Place) -> None:
    keeper = place.up()
    os.kill(keeper, signal.SIGSTOP)
    try:
        done = place.launch("--start-timeout", "30", *sh("echo up"))
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert (done.code, done.err, done.lines) == (0, b"", ["up"] * 4)
    assert place.started[2][0] != keeper


def test_a_launch_on_many_nodes_is_not_cut_off(place: Place) -> None:
    place.up()
    (record,) = place.socket.parent.glob("keeper-*")
    kept = Record(str(record), str(place.socket), secret_of(place))

    async def main() -> list[object]:
        taker = KeeperClient(AgentOptions(), [], b"")
        taker._record = kept
        nodes = [Node(number, f"other{number}", (), "ssh") for number in range(64)]
        assert await asyncio.gather(*(taker.take(node, Recorder()) for node in nodes)) == [None] * 64
        assert taker._record is kept  # none was refused, so that it would be asked for more
        connections = [KeeperConnection(kept) for _ in range(64)]
        ends = await asyncio.gather(*(one.connect() for one in connections), return_exceptions=True)
        for one in connections:
            one.abort()
        return [type(end) for end in ends if end is not None]

    # Without a limit, connections are cut: the keeper admits so many that have not proved themselves.
    assert set(asyncio.run(main())) <= {ConnectionAbortedError}


def test_a_keeper_that_does_not_answer_is_not_forgotten(place: Place) -> None:
    keeper = place.up()
    os.kill(keeper, signal.SIGSTOP)
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(BlockingIOError):
                for _ in range(1000):
                    client = stack.enter_context(socket.socket(socket.AF_UNIX))
                    client.setblocking(False)
                    client.connect(os.fspath(place.socket))
            with launching("down", env=place.env) as process:
                done = finish(process)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert done.code == 1 and b"error[standby-failed]: the process at " in done.err
    assert place.socket.exists() and [*place.socket.parent.glob("keeper-*")]


def test_of_two_keepers_started_at_once_one_remains(place: Place) -> None:
    with launching("up", *place.words, env=place.env) as one, launching("up", *place.words, env=place.env) as other:
        assert {finish(one).code, finish(other).code} == {0}
    keepers = {parent for parent, _ in place.started}
    assert len(keepers) == 2
    assert place.down() == b"note: all standby daemons have ended\n"
    wait_until(lambda: not any(map(living, keepers)), "both have gone")


def test_the_keeper_inherits_no_foreign_descriptor(place: Place) -> None:
    read, write = os.pipe()
    with launching("up", *place.words, env=place.env, pass_fds=(write,)) as process:
        assert finish(process).code == 0
    os.close(write)
    assert os.read(read, 1) == b"", "nobody holds the other end"
    os.close(read)


def test_a_new_keeper_takes_the_place_of_the_old_one(place: Place) -> None:
    old = place.up()
    new = place.up()
    assert living(new) and new != old
    wait_until(lambda: not living(old), "the old one has gone")


def secret_of(place: Place) -> bytes:
    """Return the secret from the private record."""
    (record,) = place.socket.parent.glob("keeper-*")
    assert record.stat().st_mode & 0o777 == 0o600
    socket_path, secret = json.loads(record.read_text(encoding="ascii"))
    assert socket_path == str(place.socket)
    return bytes.fromhex(secret)


@contextlib.contextmanager
def connected(place: Place, secret: bytes | None = None) -> Iterator[socket.socket]:
    """Connect to the keeper, and prove the secret if it is given."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(os.fspath(place.socket))
        nonce = client.recv(1000)
        assert nonce[: HEADER.size] == HEADER.pack(NONCE, NONCE_SIZE) and len(nonce) == HEADER.size + NONCE_SIZE
        if secret is not None:
            caller = Caller(secret)
            client.sendall(HEADER.pack(PROOF, ANSWER_SIZE) + caller.answer(nonce[HEADER.size :]))
            assert caller.check(client.recv(1000)[HEADER.size :])
        yield client


@pytest.mark.parametrize("proved", [False, True])
def test_invalid_messages_do_not_disturb_the_keeper(place: Place, proved: bool) -> None:
    keeper = place.up()
    secret = secret_of(place) if proved else None
    frames = [HEADER.pack(kind, 3) + b"abc" for kind in range(20) if kind != DOWN or not proved]
    for words in (*frames, HEADER.pack(TAKE, 1 << 31), b"x" * (2 << 20), b"\1", b""):
        with connected(place, secret) as client, contextlib.suppress(OSError):  # it has hung up on us
            client.sendall(words)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100)[: HEADER.size] in (b"", HEADER.pack(NO, 0), HEADER.pack(YES, 24))
    assert place.launch(*sh("echo up")).lines == ["up"] * 4
    assert {parent for parent, _ in place.started} == {keeper}


def test_clients_without_the_secret_get_nothing(place: Place) -> None:
    keeper = place.up()
    for request in (HEADER.pack(DOWN, 0), HEADER.pack(TAKE, 0), HEADER.pack(PROOF, ANSWER_SIZE) + bytes(ANSWER_SIZE)):
        with connected(place) as client:
            client.sendall(request)
            assert client.recv(100)[: HEADER.size] in (b"", HEADER.pack(NO, 0), HEADER.pack(YES, 24))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(place)) for _ in range(40)]
        assert place.launch(*sh("echo up")).lines == ["up"] * 4
        assert {parent for parent, _ in place.started} == {keeper}
        for client in silent:
            assert client.recv(100) == b"", "none may be silent for ever"


def test_a_launch_sends_nothing_to_an_impostor_of_the_keeper(place: Place) -> None:
    keeper = place.up()
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not living(keeper), "the keeper has gone")
    place.socket.unlink()
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(os.fspath(place.socket))
        impostor.listen(8)
        impostor.settimeout(20)
        with launching(*place.words, *sh("echo up"), env=place.env) as job:
            connection, _ = impostor.accept()
            with connection:
                connection.settimeout(20)
                connection.sendall(HEADER.pack(NONCE, NONCE_SIZE) + bytes(NONCE_SIZE))
                said = connection.recv(1000)
                assert said[: HEADER.size] == HEADER.pack(PROOF, ANSWER_SIZE)
                connection.sendall(HEADER.pack(PROOF, PROOF_SIZE) + said[HEADER.size + NONCE_SIZE :])
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1000) == b"", "no request, and no bundle"
            done = finish(job)
    assert done.lines == ["up"] * 4


def test_socket_and_record_are_private(place: Place) -> None:
    place.up()
    assert len(secret_of(place)) == 32
    assert place.socket.stat().st_mode & 0o077 == 0
    assert place.socket.parent.stat().st_mode & 0o077 == 0


@pytest.mark.testbed
@pytest.mark.parametrize("wrong", ["open to others", "another user's", "a link", "a file", "too deep"])
def test_the_keeper_uses_another_directory_if_its_own_is_taken(place: Place, wrong: str) -> None:
    cache = place.folder / "cache"
    env = {**place.env, "XDG_CACHE_HOME": str(cache)}
    folder = place.socket.parent
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    if wrong == "too deep":
        deep = place.folder / ("x" * 90)
        deep.mkdir()
        env["XDG_RUNTIME_DIR"] = str(deep)
    elif wrong == "a link":
        folder.symlink_to(elsewhere)
    elif wrong == "a file":
        folder.touch()
    else:
        folder.mkdir(0o700)
        folder.chmod(0o755 if wrong == "open to others" else 0o700)
        if wrong == "another user's":
            os.chown(folder, 65534, 65534)
    with launching("up", *place.words, env=env) as job:
        assert finish(job).code == 0
    try:
        assert list(elsewhere.iterdir()) == []
        with launching(*place.words, *sh("echo up"), env=env) as job:
            assert finish(job).lines == ["up"] * 4
        assert len(place.started) == 2, "the launch has found it"
    finally:
        with launching("down", env=env) as job:
            assert finish(job).err == b"note: all standby daemons have ended\n"
    assert not [path for path in (cache / "mpilaunch-standby").rglob("*") if path.is_file() or path.is_socket()]


@pytest.mark.testbed
@pytest.mark.parametrize("trap", ["link", "directory", "nothing", "home"])
def test_up_makes_nothing_in_the_home_of_another_user(place: Place, tmp_path: Path, trap: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    aim = tmp_path / "etc"
    aim.mkdir()
    if trap == "link":
        (home / ".cache").symlink_to(aim)
    elif trap == "directory":
        (home / ".cache").mkdir()
    elif trap == "home":
        (tmp_path / "link").symlink_to(home)
        (home / ".cache").mkdir()
    for path in (home, *home.iterdir()):
        os.lchown(path, 65534, 65534)
    if trap == "home":
        os.chown(home / ".cache", 0, 0)
        os.lchown(tmp_path / "link", 65534, 65534)
    env = {**place.env, "XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": "", "HOME": str(tmp_path / "link" if trap == "home" else home)}
    before = sorted(tmp_path.rglob("*"))
    with launching("up", *place.words, env=env) as job:
        done = finish(job)
    assert done.code == 2 and done.words.startswith("error[standby-place]: mpilaunch up: no place for its socket: "), done.words
    assert "belongs to nobody (uid 65534)" in done.words and "hint: set XDG_RUNTIME_DIR" in done.words
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.testbed
def test_a_record_of_another_user_is_rejected(place: Place) -> None:
    folder = place.socket.parent
    folder.mkdir(0o700)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    record = folder / f"keeper-{boot_id}"
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(os.fspath(place.folder / "impostor"))
        impostor.listen(8)
        for mode, owner, text in ((0o644, 0, True), (0o600, 65534, True), (0o600, 0, False)):
            words = json.dumps([str(place.folder / "impostor"), "00" * 32]) if text else "[1, {}, \0"
            record.write_text(words, encoding="ascii")
            record.chmod(mode)
            os.chown(record, owner, owner)
            done = place.launch(*sh("echo up"))
            assert (done.code, done.lines, done.err) == (0, ["up"] * 4, b"")
        impostor.setblocking(False)
        with pytest.raises(BlockingIOError):
            impostor.accept()
    record.unlink()


def test_without_any_place_there_is_an_error(place: Place) -> None:
    (place.folder / "file").touch()
    done = launch("up", *place.words, env={"XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": f"{place.folder}/file"})
    assert (done.code, done.out) == (ExitCode.USAGE, b"")
    assert "error[standby-place]: mpilaunch up: no place for its socket: " in done.words


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["up"], ExitCode.USAGE, "error[no-nodes]: mpilaunch up: there is no node but this machine"),
        (["up", "-H", "localhost"], ExitCode.USAGE, "error[no-nodes]"),
        (["up", "-H", "a", "--dry-run"], ExitCode.USAGE, "error[option-conflict]: mpilaunch up and --dry-run cannot"),
        (["down", "prog"], ExitCode.USAGE, "error[option-conflict]: mpilaunch down runs no program, but was given 'prog'"),
        (["up", "-H", "a", "prog"], ExitCode.USAGE, "error[option-conflict]: mpilaunch up runs no program, but was given"),
        (["up", "-H", "a", "--agent", "false {host}"], ExitCode.START_FAILED, "error[start-agent-failed]: a: "),
    ],
)
def test_errors_of_up(place: Place, words: list[str], code: int, message: str) -> None:
    done = launch(*words, env=place.env)
    assert (done.code, done.out) == (code, b"")
    assert message in done.words


@pytest.mark.testbed
@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_daemons_stand_by_on_real_hosts(hosts: Hosts, agent: str) -> None:
    words = ("--agent", agent, "-H", "node[01-03]", "--wdir", "/")

    def standing(name: str) -> list[int]:
        return sorted(pid for pid, argv in hosts.processes(name) if argv[-1:] == [STANDBY])

    with tempfile.TemporaryDirectory(prefix="mpilaunch-test-") as folder:
        runtime = {"XDG_RUNTIME_DIR": folder}
        try:
            done = hosts.launch("up", *words, env=runtime)
            assert (done.returncode, "standby daemons run on 3 nodes" in done.stderr) == (0, True)
            first = {name: standing(name) for name in hosts.names[:3]}
            assert [len(pids) for pids in first.values()] == [2, 2, 2], "a daemon, and its guard before it"
            hosts.stop_sshd("node02")  # nobody logs in there any more, and nobody needs to
            done = hosts.launch(*words, "hostname", env=runtime)
            hosts.start_sshd("node02")
            assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, hosts.names[:3], "")
            assert [standing(name)[0] for name in first] == [pids[0] for pids in first.values()], "they stand by again"
        finally:
            done = hosts.launch("down", env=runtime)
        assert (done.returncode, done.stderr) == (0, "note: all standby daemons have ended\n")
        assert not any(standing(name) for name in hosts.names)


@pytest.mark.testbed
def test_a_job_on_real_hosts_whose_keeper_was_killed_leaves_no_daemon(hosts: Hosts) -> None:
    words = ("--agent", "ssh", "-H", "node[01-03]", "--wdir", "/")
    go = hosts.shared / "keeper-killed"  # hosts have a /tmp of their own
    with tempfile.TemporaryDirectory(prefix="mpilaunch-test-") as folder:
        runtime = {"XDG_RUNTIME_DIR": folder}
        assert hosts.launch("up", *words, env=runtime).returncode == 0
        wait = sh(f"echo >{go}-$RANK; until [ -e {go} ]; do sleep 0.01; done; echo over")
        with hosts.popen([sys.executable, "-m", "mpilaunch", *words, "--reconnect-timeout", "60", *wait], env=runtime) as job:
            try:
                wait_for_files(*(Path(f"{go}-{rank}") for rank in range(3)))
            finally:
                with socket.socket(socket.AF_UNIX) as keeper:
                    keeper.connect(f"{folder}/mpilaunch/standby")
                    pid, _, _ = struct.unpack("3i", keeper.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not living(pid), "the keeper has gone")
                go.touch()
            out, err = job.communicate(timeout=60)
        assert (job.returncode, out.split()) == (0, ["over"] * 3), err

        def left() -> list[list[str]]:
            return [argv for name in hosts.names for _, argv in hosts.processes(name) if "mpilaunch" in "".join(argv)]

        # A guard forks one more daemon, which finds that its wire has ended.
        wait_until(lambda: not left(), "nothing is left", 5)
