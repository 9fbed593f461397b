"""Renders errors, notes, the progress of a start and the final report on stderr, and results (--dry-run, --help) on stdout.

While a job runs, stdout belongs to its ranks. The only module that imports rich, and only for a terminal; without one the text
is the same. Text from ranks, banners and files is escaped, so that terminal sequences in it can never forge a message.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, TextIO

from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.text import printable

if TYPE_CHECKING:
    import rich.console
    import rich.live

    from mpilaunch.job.verdict import Verdict

PROGRESS_AFTER = 0.5
"""Seconds of a start after which a progress line appears."""
LOG_SECONDS = 10.0
"""Seconds between two progress messages without a terminal."""
PROGRESS_NAMES = 3
"""Number of nodes that the progress line names; it counts the others."""
BROKEN_PIPE = 128 + signal.SIGPIPE
"""Exit code of a job whose reader closed the pipe: not an error, as for any filter."""

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold", "hint": "bold cyan"}


def wants_colour(environ: Mapping[str, str], *, terminal: bool) -> bool:
    """Decide by NO_COLOR, FORCE_COLOR, TERM and the terminal, in this order."""
    if environ.get("NO_COLOR"):
        return False
    return bool(environ.get("FORCE_COLOR")) or (terminal and environ.get("TERM") != "dumb")


@contextmanager
def writing_results() -> Iterator[None]:
    """Where results are written: raises BrokenPipeError when their reader closes the pipe, LaunchError for other failures."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes stdout again when it exits; that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
    except OSError as error:
        message = f"cannot write to stdout: {error.strerror}"
        raise LaunchError("output-lost", message, exit_code=ExitCode.OUTPUT_LOST) from error


def print_result(text: str) -> int:
    """Print a result on stdout; return the exit code. A reader that closes the pipe is not an error."""
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names may contain any characters
    with suppress(BrokenPipeError), writing_results():
        print("\n".join(printable(line) for line in text.splitlines()), flush=True)
    return ExitCode.OK


class Console:
    """Writes messages to the user, on stderr by default; the `Observer` of a launch.

    Args:
        environ: for NO_COLOR, FORCE_COLOR and TERM.
        quiet: write only errors and warnings.
        verbose: 0, 1 or 2.

    Attributes:
        show_secrets: do not mask likely secrets in errors and warnings.
    """

    def __init__(
        self, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ, *, quiet: bool = False, verbose: int = 0
    ) -> None:
        # With `2>&-`, sys.stderr is None.
        self._stream = stream or sys.stderr or io.StringIO()
        self._environ = environ
        self.look_at_stream()
        self._progress: ProgressLine | None = None
        self._last_news = time.monotonic()
        self.quiet = quiet
        self.verbose = verbose
        self.show_secrets = False

    def look_at_stream(self) -> None:
        """See whether the stream is a terminal, also when its descriptor has been exchanged."""
        self._terminal = self._stream.isatty()
        self._colour = wants_colour(self._environ, terminal=self._terminal)

    def error(self, error: LaunchError, peer: str = "") -> None:
        """Write an error; as the launcher that calls itself `peer`, for its scripts: then only a terminal gets the hint."""
        context = [self.masked(line) for line in error.context]
        if peer:
            self._message("", f"{peer}: {error.message}", context, error.hint if self._terminal else None)
        else:
            self._message("error", f"[{error.reference}]: {error.message}", context, error.hint)

    def warn(self, text: str, context: Sequence[str] = ()) -> None:
        """Write a warning; the job continues."""
        self._message("warning", f": {text}", context)

    def note(self, text: str, *, level: int = 0) -> None:
        """Write a note; with `level` 1 only for -v, with 2 only for -vv."""
        if not self.quiet and level <= self.verbose:
            self._message("note", f": {text}")

    def note_line(self, text: str) -> str:
        """Return a note as a line; while ranks run, one writer prints their output and our messages."""
        self._last_news = time.monotonic()  # postpones the first progress message of a new attempt
        return "" if self.quiet else f"note: {printable(text)}\n"

    def warning_line(self, text: str) -> str:
        """Return a warning as a line, like `note_line`."""
        return f"mpilaunch: warning: {printable(text)}\n"

    def started(self) -> None:
        """Remove the progress line: from now on, the terminal belongs to the ranks."""
        self.end_progress()

    def verdict(self, verdict: Verdict) -> None:
        """Write how a job ended, with the first failure first; only warnings for a job that succeeded."""
        if verdict.unread:
            if not self._is_read():
                return
            self.warn("unread output was not printed")
        if verdict.cause == "ok":
            who = "ranks" if verdict.finished else "hosts"
            self.note(f"all {who} succeeded after {verdict.seconds:.1f} s", level=1)
        elif verdict.instead is not None:
            self.lines(verdict.instead)
        elif (verdict.cause, verdict.exit_code) != ("interrupted", BROKEN_PIPE):
            self.error(verdict_error(verdict))
        for host, process, command in verdict.swept:
            self.warn(f"{host}: ended process {process} ({command}), left behind by its rank")

    def lines(self, lines: Sequence[str]) -> None:
        """Write the lines of a map or a table, with unprintable characters escaped."""
        self._write([("", printable(line)) for line in lines])

    def progress(self, done: int, total: int, waiting: Collection[str]) -> None:
        """Show how many nodes have started, if the start takes long; without a terminal, as a note from time to time."""
        if done == total:
            self.end_progress()
        elif self._terminal and not self.quiet and self._environ.get("TERM") != "dumb":
            if self._progress is None:
                self._progress = ProgressLine(self._rich)
            self._progress.show(progress_text(done, total, waiting))
        elif not self._terminal and time.monotonic() - self._last_news >= LOG_SECONDS:
            self._last_news = time.monotonic()
            self.note(progress_text(done, total, waiting))

    def end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _message(self, kind: str, text: str, context: Sequence[str] = (), hint: str | None = None) -> None:
        lines = [(kind, kind + printable(self.masked(text))), *(("", "    " + printable(line)) for line in context)]
        if hint:
            lines.append(("hint", "hint: " + printable(self.masked(hint))))
        self.end_progress()
        self._write(lines)

    def masked(self, text: str) -> str:
        """Return the text of a message without likely secrets, unless they are to be shown."""
        if self.show_secrets:
            return text
        from mpilaunch.job.output.masking import mask_message  # most launches end without a message

        return mask_message(text)

    def _write(self, lines: Sequence[tuple[str, str]]) -> None:
        """Write lines of (kind, text); colours the first word if there is a kind."""
        # An error of stderr cannot be reported on stderr; the exit code still shows how the job ended.
        with suppress(OSError):
            if self._colour and any(kind for kind, _ in lines):
                from rich.text import Text

                console = self._rich()
                for kind, line in lines:
                    console.print(Text.assemble((kind, _STYLES.get(kind, "")), line[len(kind) :]), soft_wrap=True)
            else:
                self._stream.write("".join(f"{line}\n" for _, line in lines))
            self._stream.flush()

    def _is_read(self) -> bool:
        """Return whether writing to stderr would not block."""
        import select

        with suppress(OSError, ValueError):  # not a file
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        return True

    def _rich(self) -> rich.console.Console:
        from rich.console import Console as RichConsole

        return RichConsole(
            file=self._stream, force_terminal=True, color_system="standard" if self._colour else None,
            highlight=False, emoji=False, markup=False,
        )


class ProgressLine:
    """A line that is redrawn in place, shown after PROGRESS_AFTER: a quick start does not even import rich.

    A timer draws it first, because a start that hangs reports no progress.
    """

    def __init__(self, make_console: Callable[[], rich.console.Console]) -> None:
        import threading  # asyncio has loaded it by now

        self._make_console, self._text = make_console, ""
        self._live: rich.live.Live | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._timer = threading.Timer(PROGRESS_AFTER, self._draw)
        self._timer.daemon = True
        with suppress(RuntimeError):  # at the limit of processes; the launch continues without the line
            self._timer.start()

    def show(self, text: str) -> None:
        with self._lock:
            self._text = printable(text)
            if self._live is not None:
                self._live.update(self._text, refresh=True)

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._live is not None:
                self._live.stop()

    def _draw(self) -> None:
        from rich.live import Live

        with self._lock:
            if not self._stopped:
                # The head writes to the descriptors directly; rich must not replace sys.stdout and sys.stderr.
                self._live = Live(
                    self._text, console=self._make_console(), transient=True, auto_refresh=False,
                    redirect_stdout=False, redirect_stderr=False,
                )
                self._live.start(refresh=True)


def progress_text(done: int, total: int, waiting: Collection[str]) -> str:
    """Return "launched 30/32, waiting for node07, node19"."""
    named = list(islice(waiting, PROGRESS_NAMES))
    more = total - done - len(named)
    return f"launched {done}/{total}, waiting for {', '.join(named)}" + (f" and {more} more" if more > 0 else "")


# Final report


def verdict_error(verdict: Verdict) -> LaunchError:
    """Return the error of a failed job: the first failure with its last lines, then a summary of the other ranks."""
    context = verdict.detail.splitlines()[1:]
    if verdict.last_lines:
        context += ["its last lines on stderr:", *(f"| {printable(line)}" for line in verdict.last_lines)]
    hint = verdict.hint
    if verdict.likely is not None:
        end, host, lines, its_hint = verdict.likely
        hint = f"likely cause: rank {end.rank} on {host}, which {end.description}" + (f": {its_hint}" if its_hint else "")
        if lines:
            context += [f"the last lines of rank {end.rank} on stderr:", *(f"| {printable(line)}" for line in lines)]
    if verdict.others:
        context += ["what the other ranks did then:", *(f"| {line}" for line in verdict.others)]
    context += [*_other_ranks(verdict), *verdict.earlier]
    return LaunchError(verdict.cause, verdict.headline, context=context, hint=hint, exit_code=verdict.exit_code)


def _other_ranks(verdict: Verdict) -> list[str]:
    from mpilaunch.hosts.nodeset import fold, name_ranks

    by_end: dict[str, list[tuple[int, str]]] = {}
    for end, host in zip(verdict.failed_after, verdict.hosts, strict=True):
        by_end.setdefault(end.description, []).append((end.rank, host))
    lines = []
    for how, ends in by_end.items():
        lines.append(f"{name_ranks([rank for rank, _ in ends])} on {fold(host for _, host in ends)} failed too: {how}")
    if verdict.lost:
        lines.append(f"{fold(verdict.lost)} lost after it")
    if verdict.stopped:
        lines.append(f"{name_ranks(verdict.stopped)} stopped" + (" after it" if verdict.first is not None else ""))
    if verdict.finished:
        lines.append(f"{name_ranks(verdict.finished)} had succeeded")
    return lines
