"""When a server of the job answers HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

import pytest

from mpilaunch.head.observe import readiness
from mpilaunch.job.servers.ready import ReadyUrl

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


async def asked(answers: Sequence[bytes | None]) -> tuple[list[str], int]:
    """Watch a server with these answers, None for none; return what is said, and how many requests came."""
    waiting: Iterator[bytes | None] = iter(answers)
    requests: list[bytes] = []
    said: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        answer = next(waiting)
        if answer is None:
            await reader.read()  # until the other end gives up
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await asyncio.wait_for(readiness.watch(ReadyUrl("", port, "/health"), "127.0.0.1", said.append), 20)
    return said, len(requests)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PAUSE", 0.01)
    monkeypatch.setattr(readiness, "LIMIT", 0.2)


@pytest.mark.parametrize(
    "before",
    [
        [],
        [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"HTTP/1.1 404 x\r\n", b"HTTP/1.1 302 x\r\n"],
        [b"", b"\r\n", b"200\r\n", b"SSH-2.0-x 200\r\n", b"HTTP/1.1 2000\r\n", b"\xff\x00" * 9],
        [b"HTTP/1.1 200 " + b"x" * 100_000, None],
    ],
    ids=["at once", "other codes", "no HTTP", "a line without an end, and silence"],
)
def test_it_is_reported_once_a_code_of_success_comes(before: list[bytes | None]) -> None:
    said, requests = asyncio.run(asked([*before, OK]))
    assert requests == len(before) + 1 and len(said) == 1
    assert re.fullmatch(r"ready: http://127\.0\.0\.1:[0-9]+/health answers after [0-9.]+ s", said[0])


def test_a_port_on_which_nobody_listens_is_asked_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PAUSE", 0.0)

    async def main() -> None:
        for steps in range(40):  # of the loop: the end may come at each of a request
            watching = asyncio.ensure_future(readiness.watch(ReadyUrl("127.0.0.1", 1, "/"), "", print))
            for _ in range(steps):
                await asyncio.sleep(0)
            assert not watching.done()
            watching.cancel()
            await asyncio.wait([watching], timeout=20)
            assert watching.cancelled(), steps

    asyncio.run(main())
