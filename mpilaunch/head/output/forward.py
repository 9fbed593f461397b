"""Forward the ranks' output: as whole, tagged lines to stdout and stderr, to files, or folded into one text.

Credit for a byte returns to its node only when the byte is written, so a slow reader of our output slows the ranks; nothing is
lost or piled up. A job of one rank without a tag passes bytes unchanged: prompts, progress bars and binary data.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from mpilaunch.asyncio_timeouts import wait_at_most
from mpilaunch.head.detached import records
from mpilaunch.head.detached.records import NO_RANK
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.os_limits import start_thread
from mpilaunch.head.output.live import LiveLine
from mpilaunch.head.output.rank_files import STREAMS, RankFile, is_printed, open_files, streams_of
from mpilaunch.head.output.writer import Writer
from mpilaunch.head.safe_files import write_all
from mpilaunch.job.hangs.stacks import DUMP
from mpilaunch.job.output.lines import LineJoiner, as_shown, close_colours, tag_lines
from mpilaunch.job.output.tags import BoundTag, parse_tag
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import World
from mpilaunch.wire.frames import STDERR, STDOUT, stream_channel

if TYPE_CHECKING:
    from mpilaunch.head.output.dumps import Dumps
    from mpilaunch.head.output.folded import Folded

WINDOWS = 64 << 20
"""Bytes of output in flight or queued for all streams of a job together, as far as LEAST_WINDOW allows."""
LEAST_WINDOW, MOST_WINDOW = 8 << 10, 1 << 20
"""Bounds of the credit of one stream."""
KEPT = 8 << 10
"""Bytes of each rank's stderr that are kept to explain its failure."""
KEPT_OF_STDOUT = 400
"""Bytes of its stdout that are kept to tell what it does."""
LAST_WRITES = 2.0
"""Seconds in which our reader must take at least one block of a `Writer`, once the end was asked for."""
MOST_FOLDED = 64 << 20
"""Bytes that --fold collects; beyond them output is printed as it comes."""
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}
"""Control characters, which a terminal would interpret, and their escaped forms."""


class Stream(LineJoiner):
    """The stdout or stderr of one rank. A large job has tens of thousands, so each is one small object."""

    __slots__ = ("before", "file", "heard", "kept", "kind", "open", "owed", "printed", "rank", "raw", "received", "tag")

    def __init__(self, rank: int, kind: int, tag: BoundTag | None, raw: bool, file: RankFile | None, printed: bool) -> None:
        super().__init__()
        self.rank, self.kind, self.tag, self.raw, self.file, self.printed = rank, kind, tag, raw, file, printed
        self.open = True
        self.before = self.kept = b""
        self.owed = self.received = 0
        self.heard = time.monotonic()

    def keep(self, data: bytes) -> None:
        """Keep the end of a rank's stderr; a dump of stacks, which may be longer, does not drive out what came before it."""
        begin = data.rfind(DUMP)
        unfinished = not self.kept and self.before[-1:] not in (b"", b"\n")  # its first line comes in pieces
        if begin >= 0 or unfinished:
            end = data.find(b"\n", max(begin, 0)) + 1 or len(data)
            self.before = ((self.before if unfinished else self.kept) + data[:end])[-KEPT:]
            self.kept, data = b"", data[end:]
        self.kept = data[-KEPT:] if len(data) >= KEPT else (self.kept + data)[-KEPT:]


def after_two(call: Callable[[], None]) -> Callable[[], None]:
    """Return a function whose second call makes this one."""
    called = False

    def one() -> None:
        nonlocal called
        if called:
            call()
        called = True

    return one


class OutputForwarder:
    """All output of a job.

    Attributes:
        lost: why some output could not be written, or "".
        unread: some output was dropped because the reader of stdout or stderr did not take it.

    Args:
        broken: called once when stdout or stderr can no longer be written.
    """

    def __init__(self, job: JobSpec, broken: Callable[[OSError], None]) -> None:
        self._job, self._broken = job, broken
        self.window = max(LEAST_WINDOW, min(MOST_WINDOW, WINDOWS // (2 * len(job.job_map.placements))))
        self.lost = ""
        self.unread = self._abandoned = False
        # When both are the same file they share a writer, or a line of one could land inside a line of the other.
        same = False
        with suppress(OSError):
            same = job.output.recorded or os.path.sameopenfile(1, 2)
        stdout = Writer(self._write_failed)
        stderr = stdout if same else Writer(self._write_failed)
        self._writers = {STDOUT: stdout, STDERR: stderr}
        self._live = self._live_lines()
        self._folded: dict[tuple[int, int], bytearray] | None = {} if job.output.fold else None
        self._folded_bytes = 0
        self._dumps: Dumps | None = None
        self._file_error: OSError | None = None
        self._streams: dict[int, Stream] = {}
        self._nodes: dict[int, int] = {}
        self._files: dict[str, RankFile] = {}

    def begin(self) -> None:
        """Start the threads that write; raises LaunchError."""
        for writer in set(self._writers.values()):
            writer.begin()

    # Events of links

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        stream = self._streams[channel]
        stream.received += len(data)
        stream.heard = time.monotonic()
        if stream.kind == STDERR or self._job.output.merge_stderr:
            stream.keep(data)
        else:
            stream.kept = data[-KEPT_OF_STDOUT:] if len(data) >= KEPT_OF_STDOUT else (stream.kept + data)[-KEPT_OF_STDOUT:]
        lines = data if stream.raw else stream.feed(data)
        printed = self._without_dump(stream, lines)
        if stream.printed and not stream.raw and self._folded is None and stream.kind in self._live:
            self._live[stream.kind].show(stream, self._prefix(stream), stream.tail)
        owe: Callable[[], None] = partial(self._owe, link, channel, stream, len(data))
        if stream.file is not None:
            owe = self._write_file(stream, stream.file, lines if stream.file.shared else data, owe)
        if stream.printed and printed:
            self._print(stream, printed, owe)
        else:
            owe()

    def end(self, channel: int) -> None:
        """End a rank's stream: print its last line if that has no newline, and release its file."""
        stream = self._streams[channel]
        rest = stream.finish()
        if stream.printed and (printed := self._without_dump(stream, rest)):
            self._print(stream, printed, lambda: None)
        if stream.file is not None:
            self._write_file(stream, stream.file, rest if stream.file.shared else b"", lambda: None)
            stream.file.release()
            stream.file = None
        stream.open = False

    def expect_dumps(self, known: Mapping[int, str]) -> None:
        """Collect the stacks that ranks write to stderr from now on, and print equal ones once, at the end, with known ones."""
        if self._dumps is None:
            from mpilaunch.head.output.dumps import Dumps  # most jobs end without

            self._dumps = Dumps(known)

    def add_world(self, world: World) -> None:
        """Add the streams of a world's ranks; raises UsageError when a file cannot be opened."""
        job = self._job
        tag = parse_tag(job.output.tag) if job.output.tag else None
        files = open_files(job, world, self._files, self._file_failed)
        raw = len(job.job_map.placements) == 1 and world.number == 0 and tag is None and not job.output.fold
        if not raw:
            for stream in self._streams.values():
                stream.raw = False  # the job no longer has a single rank
        self._nodes |= {world.first + place.rank: place.node for place in world.job_map.placements}
        for channel, kind, fields in streams_of(job, world):
            bound = tag.bind(**fields) if tag else None
            printed = is_printed(job, kind, fields["local_rank"])
            self._streams[channel] = Stream(fields["rank"], kind, bound, raw, files.get(channel), printed)

    def drained(self, rank: int) -> bool:
        """Return whether every stream of a rank has ended."""
        streams = (self._streams.get(stream_channel(rank, kind)) for kind in STREAMS)
        return not any(stream is not None and stream.open for stream in streams)

    def say(self, text: str) -> None:
        """Write our own lines to stderr, between whole lines of the ranks; control characters from nodes are escaped."""
        self._put(STDERR, text.translate(CONTROLS).encode("utf-8", "backslashreplace"))

    def show_status(self, text: str) -> None:
        """Show a status below all output, where stderr is a terminal; an empty text removes it."""
        if STDERR in self._live:
            self._live[STDERR].show_status(text.translate(CONTROLS).encode("utf-8", "backslashreplace"))

    def bytes_of(self, rank: int) -> tuple[int, int]:
        """Return how many bytes of a rank's stdout and stderr have come."""
        streams = [self._streams.get(stream_channel(rank, kind)) for kind in (STDOUT, STDERR)]
        stdout, stderr = (0 if stream is None else stream.received for stream in streams)
        return stdout, stderr

    def silence(self, rank: int) -> float:
        """Return the seconds since the last output of a rank, or since it was prepared."""
        streams = [self._streams.get(stream_channel(rank, kind)) for kind in STREAMS]
        return time.monotonic() - max(stream.heard for stream in streams if stream is not None)

    def last_line(self, rank: int) -> str:
        """Return what a rank wrote last, without its control characters: a line that is not empty, or the end of one."""
        streams = [self._streams.get(stream_channel(rank, kind)) for kind in STREAMS]
        texts = [stream.kept for stream in sorted(filter(None, streams), key=lambda stream: -stream.heard)]
        lines = (line for text in texts for line in reversed(as_shown(text).splitlines()) if line.strip())
        return next(lines, b"")[-KEPT_OF_STDOUT:].decode("utf-8", "replace")

    def last_lines(self, rank: int) -> tuple[bytes, ...]:
        """Return the kept last lines of a rank's stderr, or of its stdout when stderr is merged into it."""
        stream = self._streams.get(stream_channel(rank, STDERR)) or self._streams[stream_channel(rank, STDOUT)]
        return tuple(line for text in (stream.before, stream.kept) for line in text.splitlines()[len(text) == KEPT :])

    def has_printed(self, rank: int) -> bool:
        """Return whether anything has come of a rank's stdout."""
        return self._streams[stream_channel(rank, STDOUT)].received > 0

    def stacks_of(self, rank: int) -> bytes:
        """Return the stacks that a rank has written because it was asked to, or the end of its stderr."""
        collected = b"" if self._dumps is None else self._dumps.of(rank)
        return collected or b"\n".join(self.last_lines(rank))

    async def drain(self) -> None:
        """Print folded output and unfinished lines; return when all is written, or after `abandon` when nobody reads."""
        for channel, stream in self._streams.items():
            if stream.open:
                self.end(channel)
        if self._dumps is not None:
            self._put_folded(self._dumps.folded(self._node_names, tagged=bool(self._job.output.tag)))
        if self._folded is not None and self._job.output.fold == "diff":
            await self._print_differences()
        elif self._folded is not None:
            self._print_folded()
        for live in self._live.values():
            live.close()
        self._live = {}
        await self._drain(self._file_writers())
        await self._drain(set(self._writers.values()))  # the last, for what was said about the others

    async def _drain(self, writers: set[Writer]) -> None:
        """Return when these have written all, or after `abandon` when nobody reads."""
        left = {asyncio.ensure_future(writer.drain()) for writer in writers}
        unread = False
        while left and not unread:
            written = sum(writer.written for writer in writers)
            _, left = await asyncio.wait(left, timeout=LAST_WRITES)
            unread = self._abandoned and bool(left) and written == sum(writer.written for writer in writers)
        self.unread |= unread
        for task in left:
            task.cancel()
        for writer in writers:
            writer.close()

    @property
    def held_up(self) -> bool:
        """Whether output is queued that the reader of stdout, of stderr or of a pipe has not taken."""
        return any(writer.queued for writer in {*self._writers.values(), *self._file_writers()})

    def _file_writers(self) -> set[Writer]:
        return {file.writer for file in self._files.values() if file.writer is not None}

    def abandon(self) -> None:
        """Stop waiting for a reader that does not read."""
        self._abandoned = True

    def _owe(self, link: NodeLink, channel: int, stream: Stream, size: int) -> None:
        """Collect credit and grant it in portions, so that not every block needs a frame."""
        stream.owed += size
        if stream.owed * 4 >= self.window:
            link.session.grant(channel, stream.owed)
            link.channel.flush()
            stream.owed = 0

    def _print(self, stream: Stream, lines: bytes, written: Callable[[], None]) -> None:
        """Print lines of a rank, or keep them for the end with --fold; call `written` when they need no more credit."""
        if self._folded is not None and (stream.kind == STDOUT or self._job.output.fold == "lines"):
            self._fold(self._folded, stream, lines)
            written()
            return
        if not stream.raw:
            lines = self._tagged(stream.kind, lines, self._prefix(stream))
        self._put(stream.kind, lines, written, stream.rank)

    def _tagged(self, kind: int, lines: bytes, prefix: bytes) -> bytes:
        """Return lines with their tag, on a terminal without what would change other lines."""
        if kind in self._live:
            lines = close_colours(as_shown(lines))
        return tag_lines(lines, prefix)

    def _without_dump(self, stream: Stream, lines: bytes) -> bytes:
        """Return what is to be printed of lines of a rank, but for stacks that are collected."""
        if self._dumps is None or stream.kind != STDERR or stream.raw or not stream.printed or not lines:
            return lines
        return self._dumps.take(stream.rank, lines)

    def _prefix(self, stream: Stream) -> bytes:
        return b"" if stream.tag is None else stream.tag.prefix(time.time())

    def _put(self, kind: int, lines: bytes, written: Callable[[], None] | None = None, rank: int = NO_RANK) -> None:
        live = self._live.get(kind)
        if self._job.output.recorded:
            self._writers[kind].write(STDOUT, records.encode(kind, rank, lines), written)
        else:
            self._writers[kind].write(kind, lines if live is None else live.above(lines), written)

    def _live_lines(self) -> dict[int, LiveLine]:
        """Return the live line of each stream that is a terminal; streams on the same terminal share one."""
        terminals = [kind for kind in STREAMS if os.isatty(kind) and os.environ.get("TERM") != "dumb"]
        lines = {writer: LiveLine(kind, partial(writer.write, kind)) for kind, writer in self._writers.items()}
        return {kind: lines[self._writers[kind]] for kind in terminals}

    def _write_file(self, stream: Stream, file: RankFile, data: bytes, owe: Callable[[], None]) -> Callable[[], None]:
        """Write to a stream's file; return what to call in place of `owe` once the data is printed."""
        if not data or self._file_error is not None:
            return owe
        if file.writer is not None:
            both = after_two(owe)
            file.writer.write(file.descriptor, data, both)
            return both
        try:
            write_all(file.descriptor, data)
        except OSError as error:
            self._file_failed(f"the file of rank {stream.rank}", error)
        return owe

    def _file_failed(self, name: str, error: OSError) -> None:
        if self._file_error is None:
            self._file_error = error
            self._lose(f"{name}: {error.strerror}: the files are incomplete from here on")

    def _write_failed(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:
            self._lose(f"output can no longer be written: {error.strerror}")
        self._broken(error)

    def _lose(self, text: str) -> None:
        self.lost = self.lost or text
        self.say(f"mpilaunch: warning: {text}\n")

    def _fold(self, folded: dict[tuple[int, int], bytearray], stream: Stream, lines: bytes) -> None:
        folded.setdefault((stream.kind, stream.rank), bytearray()).extend(lines)
        self._folded_bytes += len(lines)
        if self._folded_bytes > MOST_FOLDED:
            self._print_folded("blocks" if self._job.output.fold == "diff" else None)
            self._folded = None
            self.say(f"mpilaunch: warning: --fold: over {MOST_FOLDED >> 20} MiB of output, no longer folded from here on\n")

    def _print_folded(self, style: str | None = None) -> None:
        """Print what is kept for the end, each text once."""
        self._put_folded(self._folded_texts(style or self._job.output.fold or ""))

    async def _print_differences(self) -> None:
        """Print them when a thread has found them, which may take seconds, unless `abandon` comes first."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        texts: list[Folded] = []

        def find() -> None:
            texts.extend(self._folded_texts("diff"))
            with suppress(RuntimeError):  # the loop is closed: mpilaunch is ending
                loop.call_soon_threadsafe(done.set)

        start_thread(threading.Thread(target=find, name="mpilaunch-differences", daemon=True))
        while not done.is_set() and not self._abandoned:
            await wait_at_most(LAST_WRITES, done.wait())
        self._put_folded(texts if done.is_set() else ())

    def _put_folded(self, texts: Iterable[Folded]) -> None:
        for each in texts:
            self._put(each.kind, each.header.encode() + self._tagged(each.kind, each.text, each.label.encode()))

    def _folded_texts(self, style: str) -> Iterator[Folded]:
        from mpilaunch.head.output.folded import folded  # few jobs fold

        outputs = {stream: bytes(text) for stream, text in (self._folded or {}).items()}
        return folded(outputs, self._node_names, style, tagged=bool(self._job.output.tag))

    @property
    def _node_names(self) -> dict[int, str]:
        return {rank: self._job.allocation.nodes[node].name for rank, node in self._nodes.items()}
