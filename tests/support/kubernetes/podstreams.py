"""The streams of one exec session on the wire: WebSocket's v5.channel.k8s.io and SPDY/3.1, as far as kubectl uses them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import struct
import zlib
from typing import Any

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
"""WebSocket's channels, and what we call the streams of SPDY."""

WEBSOCKET = "v5.channel.k8s.io"

STREAMS_MADE = 0.3
"""Seconds that kubectl may need after the handshake to make its streams. What comes before, it throws away ("Unknown stream
id", websocket.go of client-go); a real container takes longer to start a command than the shells and Pythons of the tests."""


class WebSocket:
    """Streams over WebSocket: the first byte of a message is its channel; 255 and a channel closes that channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._listens = asyncio.Event()

    async def shake_hands(self, key: str) -> None:
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Accept: {accept}", f"Sec-WebSocket-Protocol: {WEBSOCKET}", "", ""]
        self._writer.write("\r\n".join(lines).encode())
        await self._writer.drain()

    async def stdin(self) -> Any:
        """Yield what the client sends on stdin, empty for its end."""
        while True:
            kind, data = await self._frame()
            self._listens.set()
            if kind == 8:
                return
            if kind == 9:
                self._put(10, data)
            elif data[:1] == bytes([STDIN]) and len(data) > 1:
                yield data[1:]
            elif data == bytes([255, STDIN]):
                yield b""

    async def _frame(self) -> tuple[int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 127
        if size > 125:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
        mask = await self._reader.readexactly(4)
        data = await self._reader.readexactly(size)
        repeated = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return first & 15, (int.from_bytes(data, "big") ^ repeated).to_bytes(size, "big")

    def _put(self, kind: int, data: bytes) -> None:
        size = len(data)
        head = (
            bytes([size])
            if size < 126
            else b"\x7e" + struct.pack(">H", size)
            if size < 1 << 16
            else b"\x7f" + struct.pack(">Q", size)
        )
        self._writer.write(bytes([128 | kind]) + head + data)

    async def send(self, channel: int, data: bytes) -> None:
        if not self._listens.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._listens.wait(), STREAMS_MADE)
            self._listens.set()
        self._put(2, bytes([channel]) + data)
        await self._writer.drain()

    async def finish(self, status: dict[str, Any]) -> None:
        await self.send(STATUS, json.dumps({"metadata": {}, **status}).encode())
        self.close(1000)
        await self._writer.drain()

    def close(self, code: int) -> None:
        self._put(8, struct.pack(">H", code))


class Spdy:
    """Streams over SPDY/3.1, as far as kubectl uses it.

    kubectl opens its streams in one order (error, stdin, stdout, stderr, what the query asks for), so their headers, which are
    compressed with a dictionary of their own, need not be read. It heeds no windows.
    """

    SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wanted: list[int]) -> None:
        self._reader, self._writer, self._wanted = reader, writer, wanted
        self._ids: dict[int, int] = {}
        self._headers = zlib.compressobj()

    async def shake_hands(self) -> None:
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: SPDY/3.1", "Connection: Upgrade"]
        self._writer.write("\r\n".join([*lines, "X-Stream-Protocol-Version: v4.channel.k8s.io", "", ""]).encode())
        await self._writer.drain()
        while self._wanted:
            await self._frame()

    async def stdin(self) -> Any:
        """Yield what the client sends on stdin, empty for its end."""
        while True:
            data, last = await self._frame()
            if data:
                yield data
            if last:
                yield b""

    async def _frame(self) -> tuple[bytes, bool]:
        """Take one frame; return the data of stdin, and whether it was the last of it."""
        first, rest = struct.unpack(">II", await self._reader.readexactly(8))
        flags, data = rest >> 24, await self._reader.readexactly(rest & 0xFFFFFF)
        if not first >> 31:
            is_stdin = first == self._ids.get(STDIN)
            return (data, bool(flags & 1)) if is_stdin else (b"", False)
        kind = first & 0xFFFF
        if kind == self.SYN_STREAM and self._wanted:
            stream = int.from_bytes(data[:4], "big") & 0x7FFFFFFF
            self._ids[self._wanted.pop(0)] = stream
            headers = self._headers.compress(bytes(4)) + self._headers.flush(zlib.Z_SYNC_FLUSH)
            self._control(self.SYN_REPLY, struct.pack(">I", stream) + headers)
        elif kind == self.PING:
            self._control(self.PING, data)
        elif kind == self.GOAWAY:
            raise ConnectionError("the client says good-bye")
        await self._writer.drain()
        return b"", False

    def _control(self, kind: int, data: bytes) -> None:
        self._writer.write(struct.pack(">II", 1 << 31 | 3 << 16 | kind, len(data)) + data)

    async def send(self, channel: int, data: bytes, last: bool = False) -> None:
        self._writer.write(struct.pack(">II", self._ids[channel], last << 24 | len(data)) + data)
        await self._writer.drain()

    async def finish(self, status: dict[str, Any]) -> None:
        for channel in (STDOUT, STDERR):
            if channel in self._ids:
                await self.send(channel, b"", last=True)
        await self.send(STATUS, json.dumps({"metadata": {}, **status}).encode(), last=True)

    def close(self, code: int) -> None:
        """End the connection in good order, without a status."""
        self._writer.close()
