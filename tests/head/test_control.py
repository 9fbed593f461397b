"""The socket of a head: where it is, who is admitted, and what a client believes of the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.head.control import client, place, requests
from mpilaunch.head.control.requests import ANSWER, REFUSED, BadMessage, decode_answer, decode_refusal, decode_request
from mpilaunch.relay import HEADER

RUN_ID = "0123456789abcdef"
ABOUT: dict[str, Any] = {
    "id": RUN_ID, "name": "x", "program": ["a"], "state": "running", "ranks": 1, "nodes": ["n"], "began": 1.0, "age": 1.0,
    "silent": None, "pid": 1, "restart": 0, "version": "1", "stop_seconds": 1.0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for sockets."""
    path = tmp_path / "jobs"
    monkeypatch.setattr(place, "folders", lambda: [str(path)])
    return path


@pytest.fixture
def head(folder: Path) -> Iterator[list[bytes]]:
    """A head that gives these answers, one to each connection, and then hangs up; an empty one waits for the end."""
    listening, _ = place.listen(RUN_ID)
    answers: list[bytes] = []
    leave = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # the client may have left
                connection.recv(1 << 16)
                answer = answers.pop(0) if answers else b""
                if not answer:
                    leave.wait(20)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield answers
    leave.set()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(20)


def frame(kind: int, value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return HEADER.pack(kind, len(data)) + data


def test_the_directory_is_private_and_a_dead_head_is_forgotten(folder: Path) -> None:
    listening, entry = place.listen(RUN_ID)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert place.entries() == [entry]
    listening.close()
    assert client.find_all() == []
    assert not folder.exists(), "who finds what a killed head has left removes it"


def test_the_next_head_that_ends_removes_what_killed_ones_have_left(folder: Path) -> None:
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    left, _ = place.listen("f" * 16)
    left.close()
    (folder / f"{'f' * 16}.{os.getpid()}").rename(folder / f"{'f' * 16}.{dead}")
    (folder / f"new-{'e' * 16}.{dead}").touch()
    elsewhere, _ = place.listen("d" * 16)
    (folder / f"{'d' * 16}.{os.getpid()}").rename(folder / f"{'d' * 16}.{dead}")
    listening, entry = place.listen(RUN_ID)
    place.remove(entry)
    listening.close()
    assert [path.name for path in folder.iterdir()] == [f"{'d' * 16}.{dead}"], "a head of another container still listens"
    elsewhere.close()
    assert client.find_all() == [] and not folder.exists()


def test_a_directory_that_goes_as_a_head_begins_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind, times = socket.socket.bind, [0]

    def late(self: socket.socket, address: str) -> None:
        times[0] += 1
        if times[0] == 1:
            folder.rmdir()
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", late)
    listening, entry = place.listen(RUN_ID)
    assert place.entries() == [entry] and times == [2]
    place.remove(entry)
    listening.close()


def test_a_socket_appears_under_its_name_when_it_listens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "rename", lambda *names, **at: seen.append(sorted(os.listdir(folder))))
    listening, _ = place.listen(RUN_ID)
    listening.close()
    assert seen == [[f"new-{RUN_ID}.{os.getpid()}"]] and place.entries() == []


@pytest.mark.parametrize("how", ["open to others", "of another user", "a link", "a file"])
def test_a_directory_of_another_user_is_not_used(folder: Path, how: str) -> None:
    if how == "a file":
        folder.touch()
    elif how == "a link":
        (folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    else:
        folder.mkdir(mode=0o755 if how == "open to others" else 0o700)
        if how == "of another user":
            os.chown(folder, 65534, 65534)
    with pytest.raises(OSError):
        place.listen(RUN_ID)
    assert place.entries() == []


def test_what_is_no_socket_of_a_head_is_no_job(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name in ("abc", RUN_ID, f"{RUN_ID.upper()}.1", f"new-{RUN_ID}.1", f"{RUN_ID}0.1", f"{RUN_ID}.0", f"{RUN_ID}.1x"):
        (folder / name).touch()
    (folder / f"{RUN_ID}.1").touch()
    assert [entry.run_id for entry in place.entries()] == [RUN_ID]
    assert client.find_all() == []


HOSTILE = [
    b"\0", frame(ANSWER, b"{"), frame(ANSWER, []), frame(ANSWER, {**ABOUT, "name": 1}), frame(ANSWER, b"[" * 100_000),
    frame(REFUSED, {"error": []}), frame(99, ABOUT), HEADER.pack(ANSWER, (1 << 32) - 1) + b"x",
    frame(ANSWER, {**ABOUT, "age": -1}),
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE)
def test_what_a_head_answers_is_checked(head: list[bytes], answer: bytes) -> None:
    head.append(answer)
    assert all(job.about is None for job in client.find_all())
    head += [frame(ANSWER, ABOUT), answer]
    job = client.find(RUN_ID)
    with pytest.raises(LaunchError) as raised:
        client.ask(job, "ranks")
    assert raised.value.reference in ("job-refused", "job-gone")


def test_each_wait_for_a_head_ends(head: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    head.append(frame(ANSWER, ABOUT))
    job = client.find("x")
    with pytest.raises(LaunchError) as raised:
        client.ask(job, "stop", 0.1, now=False)
    assert raised.value.reference == "job-silent"
    assert f"process {os.getpid()}" in raised.value.message


def test_a_stopped_head_is_silent_however_many_have_asked_it(folder: Path) -> None:
    listening, entry = place.listen(RUN_ID)
    asked = list[socket.socket]()
    with listening, contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError), place.address(entry) as address:
            while len(asked) < 1000:
                asked.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
                asked[-1].setblocking(False)
                asked[-1].connect(address)
        assert len(asked) < 1000
        (job,) = client.find_all()
        assert job.about is None
        with pytest.raises(LaunchError) as raised:
            client.ask(job, "ranks")
        assert raised.value.reference == "job-silent"


def test_a_request_that_the_end_of_the_job_cuts_off_is_refused() -> None:
    from mpilaunch.head.control import answers, connection

    async def ranks(*_: object) -> dict[str, Any]:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return await asyncio.shield(future)

    async def main() -> bytes:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        serving: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: connection.ControlConnection(None, serving), ours)  # type: ignore[arg-type]
        theirs.setblocking(False)
        with theirs:
            await loop.sock_sendall(theirs, frame(requests.REQUEST, {"request": "ranks"}))
            return await asyncio.wait_for(loop.sock_recv(theirs, 1000), 20)

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(answers.HANDLERS, "ranks", ranks)
        assert asyncio.run(main()) == frame(REFUSED, {"error": "it has ended, or begins another attempt"})


def test_a_refusal_is_reported(head: list[bytes]) -> None:
    head += [frame(ANSWER, ABOUT), frame(REFUSED, {"error": "no rank runs"})]
    with pytest.raises(LaunchError, match=r"^job 0123456789abcdef: no rank runs$"):
        client.ask(client.find(RUN_ID[:4]), "ranks")


@pytest.mark.parametrize("name", requests.REQUESTS)
def test_each_request_has_a_handler(name: str) -> None:
    from mpilaunch.head.control.answers import HANDLERS

    assert name in HANDLERS and len(HANDLERS) == len(requests.REQUESTS)


@pytest.mark.parametrize(
    "data", [b"", b"1", b"{}", b'{"request": "kill"}', b'{"request": {}}', b'{"request": "stop"}', b"\xff"]
)
def test_a_request_that_does_not_fit_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_request(data)


def test_messages_survive_the_way() -> None:
    stop = {"request": "stop", "now": True}
    assert decode_request(requests.encode(stop)) == stop
    assert decode_answer("job", requests.encode(ABOUT)) == ABOUT
    assert decode_refusal(b'{"error": "why"}') == "why"


def test_a_connection_of_another_user_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpilaunch.head.control import connection

    async def main() -> bytes:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        serving: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: connection.ControlConnection(None, serving), ours)  # type: ignore[arg-type]
        theirs.setblocking(False)
        data = await asyncio.wait_for(loop.sock_recv(theirs, 100), 20)
        theirs.close()
        return data

    assert asyncio.run(main()) == b""
