"""The socket of a head: where it is, who is admitted, and what a client believes of the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
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
    assert not list(folder.iterdir()), "it removes what a killed head has left"


def test_a_socket_appears_under_its_name_when_it_listens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "rename", lambda *names, **at: seen.append(sorted(os.listdir(folder))))
    listening, _ = place.listen(RUN_ID)
    listening.close()
    assert seen == [[f"new-{RUN_ID}"]] and place.entries() == []


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
    for name in ("abc", RUN_ID.upper(), f"new-{RUN_ID}", f"{RUN_ID}0"):
        (folder / name).touch()
    (folder / RUN_ID).touch()
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


def test_a_refusal_is_told(head: list[bytes]) -> None:
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
