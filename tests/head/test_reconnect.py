"""A connection lost while ranks run is replaced, with nothing lost or doubled; otherwise no process is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.agent import python_command
from mpilaunch.daemon.attach import MOST_PENDING
from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.reconnect import ATTACH, NO_DAEMON
from mpilaunch.head.tasks import cancel_all
from mpilaunch.wire.challenge import ANSWER_SIZE, NONCE_SIZE, PROOF_SIZE, Caller
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, MARKER, WireError
from mpilaunch.wire.session import ACK_EVERY, RESUME_SIZE, Session, Unacknowledged, encode_shared, resume_count, resume_frame
from tests.support.launching import WireToDaemon, children, finish, launching, living, script, sh, wait_for_files, wait_until

# The wire


def test_only_unacknowledged_data_is_kept() -> None:
    unacknowledged = Unacknowledged()
    unacknowledged.add([b"abc"])
    unacknowledged.add([b"de", b"", b"fg"])
    unacknowledged.acknowledge(3)
    assert [unacknowledged.after(count) for count in (3, 5, 7)] == [b"defg", b"fg", b""]
    for count in (2, 8):
        with pytest.raises(WireError, match=f"{count} bytes acknowledged of 7 sent, with those from 3 kept"):
            unacknowledged.after(count)
    with pytest.raises(WireError):
        unacknowledged.acknowledge(8)


def test_a_message_to_all_nodes_is_stored_once() -> None:
    shared = encode_shared({"parts": ["x" * 1_000_000]})
    sessions = [Session() for _ in range(20)]
    tracemalloc.start()
    try:
        for session in sessions:
            session.keep()
            session.send({"type": "collective"}, shared)
            sent = session.data_to_send()
            assert session.resend(0) == sent
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3_000_000  # the last `sent`, and little more


@pytest.mark.parametrize("said", [b"\0" * RESUME_SIZE, MARKER.ljust(RESUME_SIZE), b"ML\1" + b"\0" * 17])
def test_a_new_channel_must_begin_with_resume(said: bytes) -> None:
    with pytest.raises(WireError, match="a new channel begins with"):
        resume_count(said)


class Side:
    """One side of a wire whose channels are lost: a session and the events it received."""

    def __init__(self) -> None:
        self.session = Session()
        self.session.keep()
        self.heard: list[tuple[int, int, object]] = []
        self.outgoing = b""

    def hear(self, data: bytes) -> None:
        self.heard += [event for event in self.session.receive_data(data, 0.0) if event[0] != CREDIT]

    def flush(self) -> None:
        self.outgoing += self.session.data_to_send()


@given(st.data())
def test_data_of_a_lost_channel_arrives_once_and_in_order(data: st.DataObject) -> None:
    head, node = Side(), Side()
    node.session.open_sending(1, 1 << 30)
    head.session.open_receiving(1, 1 << 30)
    said: dict[int, list[tuple[int, int, object]]] = {0: [], 1: []}
    for number in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(["say", "ask", "data", "carry", "lose"]))
        if action == "say":
            node.session.send({"type": "t", "n": number})
            said[1].append((CONTROL, 0, {"type": "t", "n": number}))
        elif action == "ask":
            head.session.send_ping(float(number))
            head.session.send({"type": "q", "n": number})
            said[0].append((CONTROL, 0, {"type": "q", "n": number}))
        elif action == "data":
            payload = bytes([number]) * data.draw(st.integers(1, 100_000))
            node.session.send_data(1, payload)
            said[1].append((DATA, 1, payload))
        for side in (head, node):
            side.flush()
        for source, target in ((head, node), (node, head)):
            if action in ("carry", "lose"):
                size = data.draw(st.integers(0, len(source.outgoing)))
                target.hear(source.outgoing[:size])
                source.outgoing = source.outgoing[size:]
        if action == "lose":
            for side in (head, node):
                side.flush()
            for source, target in ((head, node), (node, head)):
                source.outgoing = source.session.resend(target.session.received)
    node.session.send_end(1)
    said[1].append((END, 1, None))
    while True:
        for side in (head, node):
            side.flush()
        if not head.outgoing + node.outgoing:
            break
        for source, target in ((head, node), (node, head)):
            sent, source.outgoing = source.outgoing, b""
            target.hear(sent)
    assert [event for event in node.heard if event[0] == CONTROL] == said[0]
    assert [event for event in head.heard if event[0] in (CONTROL, DATA, END)] == said[1]


def test_acknowledged_data_is_discarded() -> None:
    head, node = Side(), Side()
    node.session.open_sending(1, 1 << 30)
    head.session.open_receiving(1, 1 << 30)
    for _ in range(100):
        node.session.send_data(1, bytes(100_000))
        node.flush()
        head.hear(node.outgoing)
        node.outgoing = b""
        head.flush()
        node.hear(head.outgoing)
        head.outgoing = b""
    assert head.session.received > 10_000_000
    with pytest.raises(WireError, match="kept"):
        node.session.resend(head.session.received - 2 * ACK_EVERY)


def test_without_reconnection_nothing_is_kept_or_acknowledged() -> None:
    head, node = Session(), Session()
    node.keep()
    head.send_ping(1.0)
    node.receive_data(head.data_to_send(), 2.0)
    assert [kind for kind, _, _ in head.receive_data(node.data_to_send(), 3.0)], "the ACK that comes is no harm"
    with pytest.raises(WireError, match="nothing was kept"):
        head.resend(0)


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a directory with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="short-", dir="/tmp") as folder:
        yield Path(folder)


# The daemon


SECRET = bytes(range(32))


def attach(seconds: float) -> dict[str, object]:
    """Return the `attach` member of `prepare`."""
    return {"secret": SECRET.hex(), "seconds": seconds}


@pytest.fixture
def daemon() -> Iterator[WireToDaemon]:
    """Yield a daemon that has sent its hello."""
    with WireToDaemon() as made:
        made.until("hello")
        yield made


def path_of(daemon: WireToDaemon) -> str:
    """Return the path of the socket where a daemon waits for its head."""
    path = daemon.until("listening")["path"]
    assert isinstance(path, str)
    return path


def read_exactly(process: subprocess.Popen[bytes], size: int) -> bytes:
    """Return up to `size` bytes of a process's output, fewer when it ends."""
    assert process.stdout
    data = b""
    while len(data) < size and (more := process.stdout.read(size - len(data))):
        data += more
    return data


def prove(process: subprocess.Popen[bytes], secret: bytes = SECRET) -> bool:
    """Do the head's part of the challenge over ATTACH; return whether the daemon has done its own."""
    assert process.stdin
    caller = Caller(secret)
    said = read_exactly(process, len(MARKER) + NONCE_SIZE)
    assert said.startswith(MARKER)
    process.stdin.write(caller.answer(said[len(MARKER) :]))
    return caller.check(read_exactly(process, PROOF_SIZE))


def take_back(process: subprocess.Popen[bytes], daemon: WireToDaemon) -> bytes:
    """Reconnect as the head does; return the daemon's RESUME."""
    assert process.stdin and prove(process)
    process.stdin.write(resume_frame(daemon.session.received))
    return read_exactly(process, RESUME_SIZE)


@contextlib.contextmanager
def attaching(path: str, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run ATTACH as an agent would."""
    pipe = subprocess.PIPE
    # Another user may not see ours.
    argv = python_command(sys.executable if user is None else "/usr/bin/python3", "attach", ATTACH, path)
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, user=user) as process:
        try:
            yield process
        finally:
            process.kill()


def count_to(number: int, tmp_path: Path) -> tuple[str, ...]:
    """Return a rank that counts, waits for `go`, and counts on."""
    wait = f"echo $$ >{tmp_path}/up; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    return "sh", "-c", f"seq 0 {number - 1}; {wait}; seq {number} {2 * number - 1}"


def test_a_daemon_sends_again_what_the_head_has_not_received(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.session.keep()
    daemon.run(*count_to(1000, tmp_path), attach=attach(30.0))
    wait_for_files(tmp_path / "up")
    daemon.close_wire()
    with attaching(path_of(daemon)) as process:
        assert process.stdin and process.stdout
        process.stdin.write(daemon.session.resend(resume_count(take_back(process, daemon))))
        (tmp_path / "go").touch()
        while not any(message["type"] == "finished" for message in daemon.messages):
            got = process.stdout.read(1 << 16)
            assert got
            for kind, channel, value in daemon.session.receive_data(got, 0.0):
                if kind == CONTROL:
                    daemon.messages.append(value)
                elif kind == DATA:
                    daemon.output[channel] = daemon.output.get(channel, b"") + value
        daemon.session.send({"type": "release"})
        process.stdin.write(daemon.session.data_to_send())
        assert process.wait(10) == NO_DAEMON, "it ends with the daemon"
    assert daemon.stdout_of(0).split() == [b"%d" % number for number in range(2000)]


def test_the_ranks_end_if_the_head_does_not_return(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*count_to(1, tmp_path), attach=attach(1.0))
    (pid,) = wait_for_files(tmp_path / "up")
    begun = time.monotonic()
    daemon.close_wire()
    daemon.process.wait(20)
    assert time.monotonic() - begun > 0.9
    assert not living(int(pid))
    path = path_of(daemon)
    assert not os.path.lexists(os.path.dirname(path))
    with attaching(path) as process:
        assert process.wait(10) == NO_DAEMON


def test_a_release_ends_the_ranks_at_once(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*count_to(1, tmp_path), attach=attach(600.0))
    (pid,) = wait_for_files(tmp_path / "up")
    daemon.send("release")
    daemon.process.wait(20)
    assert not living(int(pid))


def test_a_connection_lost_before_the_launch_is_not_awaited(daemon: WireToDaemon) -> None:
    daemon.prepare("true", attach=attach(600.0))
    daemon.until("ready")
    daemon.close_wire()
    daemon.process.wait(20)


def connected(daemon: WireToDaemon) -> socket.socket:
    """Return a connection to the daemon's socket, which has sent its nonce."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(path_of(daemon))
    return connection


def proved(daemon: WireToDaemon) -> socket.socket:
    """Return a connection that has proved itself."""
    connection, caller = connected(daemon), Caller(SECRET)
    connection.sendall(caller.answer(connection.recv(NONCE_SIZE)))
    assert caller.check(connection.recv(PROOF_SIZE))
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1000):
            assert len(data) <= NONCE_SIZE
    return True


def finish_unharmed(daemon: WireToDaemon, tmp_path: Path) -> None:
    """Check that the ranks of `count_to(10)` and the first channel are unaffected."""
    (tmp_path / "go").touch()
    daemon.until("finished")
    daemon.send("release")
    assert daemon.stdout_of(0).split() == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    "wrong",
    [pytest.param("user", marks=pytest.mark.testbed), "secret", "words", "one descriptor", "no pipe", "frame", "count", "end"],
)
def test_an_impostor_of_the_head_changes_nothing(daemon: WireToDaemon, tmp_path: Path, wrong: str) -> None:
    daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
    wait_for_files(tmp_path / "up")
    if wrong == "user":
        with attaching(path_of(daemon), user=65534) as process:
            assert process.wait(10) == NO_DAEMON
    elif wrong == "secret":
        with attaching(path_of(daemon)) as process:
            assert not prove(process, bytes(32))
            assert process.wait(10) == NO_DAEMON
    elif wrong in ("words", "one descriptor", "no pipe"):
        with proved(daemon) as connection, open(os.devnull) as null:
            passed = {"words": b"", "one descriptor": struct.pack("i", 0), "no pipe": struct.pack("3i", *3 * [null.fileno()])}
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed[wrong])] if passed[wrong] else []
            connection.sendmsg([b"give me all"], rights)
            assert is_closed(connection)
    else:
        with attaching(path_of(daemon)) as process:
            assert process.stdin and prove(process)
            said = {"frame": b"GET / HTTP/1.1\r\n\r\n".ljust(RESUME_SIZE), "count": resume_frame(1 << 40), "end": b"ML"}[wrong]
            process.stdin.write(said)
            process.stdin.close()
            assert process.wait(10) == NO_DAEMON
    finish_unharmed(daemon, tmp_path)


def test_no_descriptor_is_taken_before_the_proof(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
    wait_for_files(tmp_path / "up")
    ours, theirs = os.pipe()
    with connected(daemon) as connection:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", theirs, theirs, theirs))]
        connection.sendmsg([bytes(ANSWER_SIZE)], rights)
        os.close(theirs)
        assert is_closed(connection)
        os.set_blocking(ours, False)
        wait_until(lambda: os.read(ours, 1) == b"", "the daemon has not kept them")
    os.close(ours)
    finish_unharmed(daemon, tmp_path)


def test_the_socket_is_in_a_private_directory_and_no_abstract_one_is_there(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
    wait_for_files(tmp_path / "up")
    folder = os.path.dirname(path_of(daemon))
    state = os.lstat(folder)
    assert (state.st_mode & 0o7777, state.st_uid) == (0o700, os.geteuid())
    (guard_child,) = children(daemon.process.pid)
    for pid in (daemon.process.pid, guard_child):
        names = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        inodes = [name[len("socket:[") : -1] for name in names if name.startswith("socket:[")]
        table = [line.split() for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()]
        assert not [line for line in table if line[6] in inodes and line[7:] and line[7].startswith("@")]
    finish_unharmed(daemon, tmp_path)
    daemon.process.wait(20)
    assert not os.path.lexists(folder)


def test_silent_connections_are_bounded_and_do_not_keep_the_head_out(tmp_path: Path) -> None:
    with WireToDaemon(settings="from mpilaunch.daemon import attach;attach.ATTACH_SECONDS=4.0") as daemon:
        daemon.until("hello")
        connect_in_silence(daemon, tmp_path)


def connect_in_silence(daemon: WireToDaemon, tmp_path: Path) -> None:
    """Fill the place where a daemon waits for its head, and connect as the head nevertheless."""
    daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
    wait_for_files(tmp_path / "up")
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(3 * MOST_PENDING):
            silent.append(stack.enter_context(connected(daemon)))
            assert len(silent[-1].recv(NONCE_SIZE)) == NONCE_SIZE
        assert all(map(is_closed, silent[: 2 * MOST_PENDING])), "the oldest have gone"
        process = stack.enter_context(attaching(path_of(daemon)))
        assert process.stdin and len(take_back(process, daemon)) == RESUME_SIZE
        assert all(map(is_closed, silent)), "each has its deadline"
        daemon.session.send({"type": "release"})
        process.stdin.write(daemon.session.data_to_send())
        assert process.wait(10) == NO_DAEMON


@pytest.mark.parametrize("killed", ["daemon", "daemon, and its name is taken"])
def test_the_directory_of_a_killed_daemon_goes_and_no_link_is_followed(short: Path, killed: str) -> None:
    tmp_path, place, precious = short, short / "t", short / "precious"
    place.mkdir()
    precious.mkdir()
    (precious / "file").touch()
    with WireToDaemon(env={"TMPDIR": str(place), "XDG_RUNTIME_DIR": ""}) as daemon:
        daemon.until("hello")
        daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
        wait_for_files(tmp_path / "up")
        folder = Path(path_of(daemon)).parent
        assert folder.parent == place
        (folder / "link").symlink_to(precious)
        (guard_child,) = children(daemon.process.pid)
        ranks = children(guard_child)
        if killed == "daemon":
            os.kill(guard_child, signal.SIGKILL)
            daemon.process.wait(20)
        else:
            folder.rename(place / "elsewhere")
            folder.symlink_to(precious)
            os.kill(guard_child, signal.SIGKILL)
            daemon.process.wait(20)
            assert folder.is_symlink(), "the new owner of the name keeps it"
        wait_until(lambda: not any(map(living, ranks)), "the ranks have gone")
    assert (precious / "file").exists()
    assert killed != "daemon" or list(place.iterdir()) == []


def test_a_head_connects_again_where_the_path_is_longer_than_a_sockets_address(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    with WireToDaemon(env={"TMPDIR": str(place), "XDG_RUNTIME_DIR": ""}) as daemon:
        daemon.until("hello")
        daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
        wait_for_files(tmp_path / "up")
        assert path_of(daemon).startswith(str(place)) and len(path_of(daemon)) > 107
        with attaching(path_of(daemon)) as process:
            assert process.stdin and len(take_back(process, daemon)) == RESUME_SIZE
            daemon.session.send({"type": "release"})
            process.stdin.write(daemon.session.data_to_send())
            assert process.wait(10) == NO_DAEMON
    wait_until(lambda: list(place.iterdir()) == [], "the directory has gone")


def test_the_newest_of_two_heads_is_served(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.run(*count_to(10, tmp_path), attach=attach(30.0))
    wait_for_files(tmp_path / "up")
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(2):
            made.append(process := stack.enter_context(attaching(path_of(daemon))))
            assert len(take_back(process, daemon)) == RESUME_SIZE
        first, second = made
        assert first.wait(10) == NO_DAEMON
        assert second.poll() is None and second.stdin
        daemon.session.send({"type": "release"})
        second.stdin.write(daemon.session.data_to_send())
        assert second.wait(10) == NO_DAEMON


# Launches, over an agent whose connections can be cut


RELAY = """#!{python}
import os, subprocess, sys, threading, time
place = os.path.dirname(os.path.abspath(__file__))
if os.path.exists(place + "/down"):
    sys.exit("ssh: connection refused")
if os.path.exists(place + "/slow"):
    time.sleep(float(open(place + "/slow").read()))
pipe = subprocess.PIPE
child = subprocess.Popen(["sh", "-c", sys.argv[2]], stdin=pipe, stdout=pipe, start_new_session=True)
with open(place + "/relays", "a") as file:
    file.write("%s %d\\n" % (sys.argv[1], os.getpid()))

def carry(source, target, most):
    while most > 0 and (data := os.read(source, min(most, 65536))):
        most -= len(data)
        while data:
            data = data[os.write(target, data):]
    os.close(target)

threading.Thread(target=carry, args=(0, child.stdin.fileno(), 1 << 60), daemon=True).start()
short = place + "/short"
carry(child.stdout.fileno(), 1, int(open(short).read()) if os.path.exists(short) else 1 << 60)
sys.exit(255 if os.path.exists(short) else child.wait())
"""
"""Like sshd: its end is not that of what it has started."""


class Lines:
    """An agent whose connections the test can cut."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.words = ["--agent", f"{script(place / 'relay', RELAY.format(python=sys.executable))} {{host}} {{command}}"]

    def all(self) -> list[tuple[str, int]]:
        """Return the node and the process of each connection that was made."""
        file = self._place / "relays"
        return [(node, int(pid)) for node, pid in map(str.split, file.read_text().splitlines())] if file.exists() else []

    def cut(self, node: str) -> None:
        """Lose the newest connection to a node."""
        pid = [pid for name, pid in self.all() if name == node][-1]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Refuse new connections."""
        (self._place / "down").touch()

    def slow_down(self, seconds: float) -> None:
        """Let every new connection take this long."""
        (self._place / "slow").write_text(str(seconds))

    def shorten(self, size: int) -> None:
        """End new connections after this many bytes."""
        (self._place / "short").write_text(str(size))

    def open(self) -> None:
        """Undo `close`."""
        (self._place / "down").unlink()


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """Yield an agent whose connections can be cut."""
    return Lines(tmp_path)


def test_no_line_is_lost_or_comes_twice(lines: Lines, tmp_path: Path) -> None:
    count = "seq -f $RANK:%.0f $((i * 5000)) $((i * 5000 + 4999)); i=$((i + 1)); sleep 0.05"
    text = f"echo >{tmp_path}/up-$RANK; i=0; while [ $i -lt 40 ]; do {count}; done; exit $((RANK * 7))"
    with launching(*lines.words, "--continue-on-error", "-H", "a,b", *sh(text)) as job:
        wait_for_files(tmp_path / "up-0", tmp_path / "up-1")
        chance = random.Random(7)
        for _ in range(6):
            time.sleep(chance.uniform(0.05, 0.3))
            lines.cut(chance.choice("ab"))
        done = finish(job)
    wanted = {f"{rank}:{number}" for rank in (0, 1) for number in range(200_000)}
    got = done.lines
    assert len(got) == len(wanted) and set(got) == wanted
    assert done.code == 7
    assert "; connected again after " in done.words


def test_no_byte_of_stdin_is_lost_or_comes_twice(lines: Lines, tmp_path: Path) -> None:
    text = b"".join(b"%09d\n" % number for number in range(2_000_000))
    (tmp_path / "text").write_bytes(text)
    with (tmp_path / "text").open("rb") as stdin, (tmp_path / "out").open("wb") as out:
        words = [*lines.words, "-H", "a", *sh(f"echo >{tmp_path}/up; cat")]
        with launching(*words, stdin=stdin, stdout=out) as job:
            wait_for_files(tmp_path / "up")
            for _ in range(3):
                lines.cut("a")
                time.sleep(0.2)
            assert finish(job).code == 0
    assert (tmp_path / "out").read_bytes() == text


def test_a_node_that_is_not_reached_again_in_time_is_lost(lines: Lines, tmp_path: Path) -> None:
    words = [*lines.words, "--reconnect-timeout", "1", "-H", "a,b", *sh(f"echo $$ >{tmp_path}/up-$RANK; exec sleep 60")]
    with launching(*words) as job:
        ranks = [int(text) for text in wait_for_files(tmp_path / "up-0", tmp_path / "up-1")]
        lines.close()
        lines.cut("b")
        done = finish(job)
    assert done.code == ExitCode.NODE_LOST
    assert "error[node-lost]: b: lost: " in done.words
    assert "; not reached again within 1 s: ssh: connection refused" in done.words
    wait_until(lambda: not any(map(living, ranks)), "the ranks have gone")


def test_a_node_whose_logins_are_slow_is_reached_again(lines: Lines, tmp_path: Path) -> None:
    lines.slow_down(2.5)  # longer than a third of the time that there is
    words = [*lines.words, "--reconnect-timeout", "6", "-H", "a", *sh(f"echo >{tmp_path}/up; sleep 2; echo done")]
    with launching(*words) as job:
        wait_for_files(tmp_path / "up")
        lines.cut("a")
        done = finish(job)
    assert (done.code, done.lines) == (0, ["done"]), done.words
    assert "; connected again after " in done.words


def test_useless_connections_are_not_repeated_forever(lines: Lines, tmp_path: Path) -> None:
    words = [*lines.words, "--reconnect-timeout", "2", "-H", "a", *sh(f"echo $$ >{tmp_path}/up; exec sleep 60")]
    with launching(*words) as job:
        (rank,) = wait_for_files(tmp_path / "up")
        lines.shorten(len(MARKER) + RESUME_SIZE)
        lines.cut("a")
        done = finish(job)
    assert done.code == ExitCode.NODE_LOST
    assert "; not reached again within 2 s: " in done.words
    assert 2 < len(lines.all()) < 15
    wait_until(lambda: not living(int(rank)), "the rank has gone")


def test_a_node_without_its_daemon_is_lost_at_once(lines: Lines, tmp_path: Path) -> None:
    words = [*lines.words, "--reconnect-timeout", "600", "-H", "a", *sh(f"echo $PPID >{tmp_path}/up; exec sleep 60")]
    with launching(*words) as job:
        (daemon,) = wait_for_files(tmp_path / "up")
        os.kill(int(daemon), signal.SIGKILL)
        done = finish(job)
    assert done.code == ExitCode.NODE_LOST
    assert "error[node-lost]: a: lost: its daemon ended with code 137\n" in done.words


def test_a_reconnect_timeout_of_0_loses_the_node_at_once(lines: Lines, tmp_path: Path) -> None:
    words = [*lines.words, "--reconnect-timeout", "0", "-H", "a", *sh(f"echo $$ >{tmp_path}/up; exec sleep 60")]
    with launching(*words) as job:
        (rank,) = wait_for_files(tmp_path / "up")
        lines.cut("a")
        done = finish(job)
    assert done.code == ExitCode.NODE_LOST and "connected again" not in done.words
    assert len(lines.all()) == 1
    wait_until(lambda: not living(int(rank)), "the rank has gone")


def test_a_killed_head_leaves_nothing_after_the_reconnect_timeout(lines: Lines, tmp_path: Path) -> None:
    words = [*lines.words, "--reconnect-timeout", "1.5", "-H", "a,b", *sh(f"echo $$ >{tmp_path}/up-$RANK; exec sleep 60")]
    with launching(*words) as job:
        ranks = [int(text) for text in wait_for_files(tmp_path / "up-0", tmp_path / "up-1")]
        job.kill()
        begun = time.monotonic()
        wait_until(lambda: not any(map(living, ranks)), "the ranks have gone")
        assert time.monotonic() - begun < 10


def test_a_lost_connection_is_made_again_where_tmpdir_is_longer_than_a_sockets_address(lines: Lines, tmp_path: Path) -> None:
    place = tmp_path / ("x" * 120)
    place.mkdir()
    words = [*lines.words, "-H", "a", *sh(f"echo >{tmp_path}/up; sleep 0.5; echo done")]
    with launching(*words, env={"TMPDIR": str(place), "XDG_RUNTIME_DIR": ""}) as job:
        wait_for_files(tmp_path / "up")
        lines.cut("a")
        done = finish(job)
    assert (done.code, done.lines) == (0, ["done"]), done.words
    assert "; connected again after " in done.words
    assert list(place.iterdir()) == []


def test_an_interrupt_reaches_a_reconnected_node(lines: Lines, tmp_path: Path) -> None:
    text = f"trap 'echo bye from $RANK; exit 0' INT; echo >{tmp_path}/up-$RANK; while :; do sleep 0.01; done"
    with launching(*lines.words, "--reconnect-timeout", "30", "-H", "a,b", *sh(text)) as job:
        wait_for_files(tmp_path / "up-0", tmp_path / "up-1")
        lines.close()
        lines.cut("b")
        job.send_signal(signal.SIGINT)
        lines.open()
        done = finish(job)
    assert done.code == 130
    assert sorted(done.lines) == ["bye from 0", "bye from 1"]


def test_a_task_that_swallows_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpilaunch.head.tasks.CANCEL_AGAIN", 0.01)

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # as asyncio.wait_for before Python 3.12, at a bad moment
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def main() -> None:
        tasks = [asyncio.ensure_future(deaf()) for _ in range(3)]
        await asyncio.sleep(0)
        await cancel_all(tasks)
        assert all(task.cancelled() for task in tasks)
        await cancel_all([])

    asyncio.run(main())
