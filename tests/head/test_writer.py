"""The writer: order, whole blocks, slow readers and readers that go away."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from mpilaunch.head.output.writer import Writer


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        try:
            os.close(descriptor)
        except OSError as error:
            assert error.errno == errno.EBADF


def no_error(error: OSError) -> None:
    raise AssertionError(error)


def reading(descriptor: int) -> Callable[[], bytes]:
    """Read in a thread to the end of file; the function that is returned waits for it."""
    pieces: list[bytes] = []

    def read() -> None:
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)

    thread = threading.Thread(target=read)
    thread.start()

    def whole() -> bytes:
        thread.join(20)
        assert not thread.is_alive()
        return b"".join(pieces)

    return whole


def test_a_writer_that_is_closed_leaves_no_thread(pipe: tuple[int, int]) -> None:
    read, write = pipe

    async def main() -> None:
        writer = Writer(no_error)
        writer.write(write, b"first\n")
        thread = writer._thread
        assert thread is not None
        writer.close()
        thread.join(20)
        assert not thread.is_alive()
        writer.write(write, b"second\n")
        await writer.drain()
        writer.close()

    asyncio.run(main())
    assert os.read(read, 100) == b"first\nsecond\n"


def test_blocks_are_written_whole_and_acknowledged_in_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    blocks = [b"%d" % number * (number % 5000) + b"\n" for number in range(300)]
    told: list[int] = []

    async def main() -> None:
        writer = Writer(no_error)
        for number, block in enumerate(blocks):
            writer.write(write, block, lambda number=number: told.append(number))  # type: ignore[misc]
        await writer.drain()

    whole = reading(read)
    asyncio.run(main())
    os.close(write)
    assert whole() == b"".join(blocks)
    assert told == list(range(300))


def test_a_blocked_reader_neither_stops_the_loop_nor_counts_as_having_read(pipe: tuple[int, int]) -> None:
    read, write = pipe
    size = 1 << 20

    async def main() -> None:
        writer = Writer(no_error)
        written = asyncio.Event()
        writer.write(write, bytes(size), written.set)
        # The loop goes on; the block cannot be out while it does not fit into the pipe.
        for _ in range(50):
            await asyncio.sleep(0)
        assert not written.is_set()
        whole = reading(read)
        await asyncio.wait_for(written.wait(), 20)
        os.close(write)
        assert len(whole()) == size

    asyncio.run(main())


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)

    async def main() -> None:
        writer = Writer(no_error)
        writer.write(write, bytes(3 << 20))
        whole = reading(read)
        await asyncio.wait_for(writer.drain(), 20)
        os.close(write)
        assert len(whole()) == 3 << 20

    asyncio.run(main())


def test_a_reader_that_leaves_is_reported_once_and_later_output_counts_as_written(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    errors: list[int | None] = []
    told: list[int] = []

    async def main() -> None:
        writer = Writer(lambda error: errors.append(error.errno))
        for number in range(5):
            writer.write(write, b"lost\n", lambda number=number: told.append(number))  # type: ignore[misc]
        await asyncio.wait_for(writer.drain(), 20)
        writer.write(write, b"lost too\n", lambda: told.append(5))
        await asyncio.wait_for(writer.drain(), 20)

    asyncio.run(main())
    assert errors == [errno.EPIPE]
    assert told == list(range(6))


def test_two_descriptors_of_one_writer_get_their_own_in_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    other = os.dup(write)

    async def main() -> None:
        writer = Writer(no_error)
        for number in range(1000):
            writer.write((write, other)[number % 2], b"%d\n" % number)
        await writer.drain()

    whole = reading(read)
    asyncio.run(main())
    os.close(write)
    os.close(other)
    assert whole() == b"".join(b"%d\n" % number for number in range(1000))


def test_an_unused_writer_has_nothing_to_wait_for() -> None:
    before = threading.active_count()

    async def main() -> None:
        await asyncio.wait_for(Writer(no_error).drain(), 5)

    asyncio.run(main())
    assert threading.active_count() == before
