"""A relayed channel reports how a daemon has ended, even while the head sends data."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from mpilaunch.agent import ChannelEnd
from mpilaunch.relay import CLOSED, STDOUT, FrameProtocol, RelayedChannel
from mpilaunch_agents.conformance import Recorder


class Other(FrameProtocol):
    """The other side, which sends everything at once."""

    lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send it while data of the head is unread."""
        super().connection_made(transport)
        transport.pause_reading()  # type: ignore[attr-defined]
        self.send_frame(STDOUT, b"all" * 1000)
        self.send_end(ChannelEnd(7, "its words", "timeout"))

    def frame_received(self, kind: int, data: bytes) -> None:
        """Ignore the frame."""

    def connection_lost(self, error: Exception | None) -> None:
        """Record the end."""
        self.lost = True


def test_a_sending_head_receives_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        other, recorder = Other(), Recorder()
        server = await loop.create_unix_server(lambda: other, tmp_path / "socket")
        channel = RelayedChannel(recorder, "lost")
        await loop.create_unix_connection(lambda: channel, str(tmp_path / "socket"))
        channel.transport.pause_reading()
        while not hasattr(other, "transport"):
            await asyncio.sleep(0.01)
        for _ in range(10):  # the other side does all that it wants to
            await asyncio.sleep(0.01)
        for _ in range(10):
            channel.write(b"a word" * 1000)
        channel.write_eof()
        await asyncio.sleep(0.01)
        channel.transport.resume_reading()
        assert await recorder.ended() == ChannelEnd(7, "its words", "timeout")
        assert recorder.stdout == b"all" * 1000
        while not other.lost:
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"\xff", b"7", b"{}", b"[1]", b'[1, "", "", ""]', b'["1", "", ""]', b'[1, 2, ""]', b'[1, "", "no-such-cause"]',
     b'[1, "", []]', b"[" * 100_000],
)  # fmt: skip
def test_a_malformed_end_cuts_the_connection(data: bytes) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        reported: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        ours, theirs = socket.socketpair()
        recorder, other = Recorder(), FrameProtocol()
        await loop.create_connection(lambda: RelayedChannel(recorder, "lost"), sock=ours)
        await loop.create_connection(lambda: other, sock=theirs)
        other.send_frame(CLOSED, data)
        assert await recorder.ended() == ChannelEnd(None, "lost")
        assert reported == []

    asyncio.run(asyncio.wait_for(main(), 10))
