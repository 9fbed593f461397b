"""One command in a pod: its process, and what goes between it and the client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.support.kubernetes.podstreams import STDERR, STDOUT, Spdy, WebSocket

POLL = 0.01
"""Seconds between looks whether a command has ended."""

CLIENT_LEAVES = 30.0
"""Seconds in which a client reads what was sent to it and leaves; it loses the rest when the connection is cut before."""


class Session:
    """One command in a pod, and the client's streams."""

    def __init__(self, streams: WebSocket | Spdy, writer: asyncio.StreamWriter) -> None:
        self._streams = streams
        self._writer = writer

    def drop(self) -> None:
        """Cut the connection."""
        self._writer.transport.abort()

    async def refuse(self, status: dict[str, Any]) -> None:
        """Say why no command was started, and wait until the client has gone."""
        await self._streams.finish(status)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read(None), CLIENT_LEAVES)

    async def run(self, argv: Sequence[str], wants_stdin: bool) -> None:
        """Run the command until it ends or the client is gone; then the command is left to itself."""
        loop = asyncio.get_running_loop()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if wants_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        readers = [asyncio.StreamReader(), asyncio.StreamReader()]
        pipes: list[Any] = []
        copies: list[asyncio.Future[None]] = []
        stdin: asyncio.StreamWriter | None = None
        try:
            for reader, pipe in zip(readers, (process.stdout, process.stderr), strict=True):
                pipes.append((await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe))[0])
            if process.stdin is not None:
                transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
                stdin = asyncio.StreamWriter(transport, protocol, None, loop)
            copies = [asyncio.ensure_future(self._read(stdin)), asyncio.ensure_future(self._write(process, readers))]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            if copies[1].done() and copies[1].exception() is None:
                await asyncio.wait(copies, timeout=CLIENT_LEAVES)
        finally:
            for task in copies:
                task.cancel()
            try:
                await asyncio.gather(*copies, return_exceptions=True)
            finally:  # also where `end_sessions` comes now
                if stdin is not None and not stdin.is_closing():
                    stdin.transport.abort()
                elif stdin is None and process.stdin is not None:
                    process.stdin.close()
                self._leave(process, pipes)

    def _leave(self, process: subprocess.Popen[bytes], pipes: Sequence[Any]) -> None:
        """Drain the command's output no more, but do not close it either, until the command has ended."""
        if process.poll() is not None:
            for pipe in pipes:
                pipe.close()
            return
        for pipe in pipes:
            if not pipe.is_closing() and pipe.is_reading():
                pipe.pause_reading()
        asyncio.get_running_loop().call_later(POLL, self._leave, process, pipes)

    async def _read(self, stdin: asyncio.StreamWriter | None) -> None:
        """Hand the client's stdin to the command; returns when the client is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            async for data in self._streams.stdin():
                if stdin is None or stdin.is_closing():
                    continue
                try:
                    stdin.write(data)
                    await stdin.drain()
                    if not data:
                        stdin.close()
                except ConnectionError:
                    stdin.close()

    async def _write(self, process: subprocess.Popen[bytes], readers: Sequence[asyncio.StreamReader]) -> None:
        """Hand the command's output, and then its end, to the client."""

        async def copy(stream: asyncio.StreamReader, channel: int) -> None:
            while data := await stream.read(1 << 15):
                await self._streams.send(channel, data)

        await asyncio.gather(*(copy(reader, channel) for reader, channel in zip(readers, (STDOUT, STDERR), strict=True)))
        while (code := process.poll()) is None:
            await asyncio.sleep(POLL)
        code = 128 - code if code < 0 else code
        causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
        message = f"command terminated with non-zero exit code: {code}"
        failure = {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": causes}
        await self._streams.finish(failure if code else {"status": "Success"})
