"""A relayed channel reports how a daemon has ended, even while the head sends data."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mpilaunch.agent import ChannelEnd
from mpilaunch.relay import STDOUT, FrameProtocol, RelayedChannel
from mpilaunch_agents.conformance import Recorder


class Other(FrameProtocol):
    """The other side, which sends everything at once."""

    lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send it while data of the head is unread."""
        super().connection_made(transport)
        transport.pause_reading()  # type: ignore[attr-defined]
        self.send_frame(STDOUT, b"all" * 1000)
        self.send_end(ChannelEnd(7, "its words", "a-cause"))

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
        assert await recorder.ended() == ChannelEnd(7, "its words", "a-cause")
        assert recorder.stdout == b"all" * 1000
        while not other.lost:
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(main(), 10))
