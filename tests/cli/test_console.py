"""What mpilaunch says: the renderer, its colours, the report at the end, the progress of a start."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import pytest

from mpilaunch.cli import console as module
from mpilaunch.cli.console import Console, progress_text, verdict_error, wants_colour
from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import Verdict
from tests.support import goldens

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(call: Any, **options: Any) -> str:
    stream = io.StringIO()
    call(Console(stream, {}, **options))
    return stream.getvalue()


VERDICTS = {
    "rank-failed": Verdict(
        3,
        "rank-failed",
        first=RankEnd(3, code=3),
        host="node07",
        last_lines=(b"Traceback (most recent call last):", b"ValueError: \xffno \x1b[2Jsuch\tthing"),
        failed_after=(RankEnd(5, code=1), RankEnd(6, signal=6, core=True), RankEnd(9, code=1)),
        hosts=("node08", "node08", "node10"),
        stopped=(0, 1, 2, 4, 7),
        finished=(8,),
        swept=(("node07", 4711, "python3"),),
        seconds=12.34,
    ),
    "rank-killed": Verdict(
        137, "rank-failed", first=RankEnd(0, signal=9), host="local", hint="look at \x1b[1mdmesg on that node", seconds=0.04
    ),
    "rank-not-executed": Verdict(126, "rank-failed", first=RankEnd(1, errno=13), host="n1", stopped=(0,), seconds=0.5),
    "node-lost": Verdict(125, "node-lost", detail="n2: lost: no sign of life\nbanner \x1b[31m", stopped=(0, 1), finished=(2,)),
    "timeout": Verdict(124, "timeout", detail="time limit of 5 s exceeded", stopped=(0,)),
    "interrupted": Verdict(130, "interrupted", detail="SIGINT", stopped=(0, 1)),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_report_of_a_job_that_failed(name: str) -> None:
    goldens.check(f"messages/{name}.txt", said(lambda console: console.verdict(VERDICTS[name])))


def test_a_report_has_the_exit_code_of_the_verdict() -> None:
    assert verdict_error(VERDICTS["rank-failed"]).exit_code == 3


def test_a_job_that_went_well_is_no_news() -> None:
    verdict = Verdict(0, "ok", finished=(0, 1), seconds=1.25)
    assert said(lambda console: console.verdict(verdict)) == ""
    assert said(lambda console: console.verdict(verdict), verbose=1) == "note: all ranks succeeded after 1.2 s\n"
    verdict = verdict._replace(finished=())
    assert said(lambda console: console.verdict(verdict), verbose=1) == "note: all hosts succeeded after 1.2 s\n"


def test_a_reader_that_went_away_is_no_error() -> None:
    verdict = Verdict(141, "interrupted", detail="the reader of the output has gone", stopped=(0,))
    assert said(lambda console: console.verdict(verdict)) == ""


ERROR = UsageError("some-thing", "a.txt:3:7: 'two' is not a number", context=("n1 slots=two", "         ^^^"), hint="write 2")
PLAIN = "error[some-thing]: a.txt:3:7: 'two' is not a number\n    n1 slots=two\n             ^^^\nhint: write 2\n"


def test_an_error_is_message_context_hint() -> None:
    assert said(lambda console: console.error(ERROR)) == PLAIN
    assert said(lambda console: console.error(LaunchError("a", "b"))) == "error[a]: b\n"


def test_colour_adds_nothing_but_colour() -> None:
    stream = Terminal()
    Console(stream, {"TERM": "xterm"}).error(ERROR)
    assert ANSI.sub("", stream.getvalue()) == PLAIN
    assert stream.getvalue().startswith("\x1b[1;31merror\x1b[0m[some-thing]: ")
    assert "\x1b[1;36mhint\x1b[0m: write 2" in stream.getvalue()


def test_long_lines_and_markup_are_left_alone_on_a_terminal() -> None:
    stream = Terminal()
    text = "[bold]x[/bold] :smile: http://a/b 12 " + "word " * 60
    Console(stream, {"TERM": "xterm"}).warn(text)
    assert ANSI.sub("", stream.getvalue()) == f"warning: {text}\n"


@pytest.mark.parametrize(
    ("environ", "terminal", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_who_decides_on_colour(environ: dict[str, str], terminal: bool, colour: bool) -> None:
    assert wants_colour(environ, terminal=terminal) is colour
    stream = Terminal() if terminal else io.StringIO()
    Console(stream, environ).warn("x")
    assert ("\x1b" in stream.getvalue()) is colour


def test_nothing_from_elsewhere_forges_a_line() -> None:
    error = LaunchError("a", "b\nerror[c]: d", context=("e\r\nhint: f",), hint="g\nh")
    assert said(lambda console: console.error(error)).count("\n") == 3


def test_quiet_says_errors_and_warnings_only() -> None:
    def speak(console: Console) -> None:
        console.note("a")
        console.warn("b")
        console.error(LaunchError("c", "d"))

    assert said(speak, quiet=True) == "warning: b\nerror[c]: d\n"
    assert said(speak) == "note: a\nwarning: b\nerror[c]: d\n"
    assert Console(io.StringIO(), {}, quiet=True).note_line("x") == ""
    assert Console(io.StringIO(), {}).note_line("x\x1b") == "note: x\\x1b\n"


def test_notes_have_levels() -> None:
    assert said(lambda console: console.note("x", level=2), verbose=1) == ""
    assert said(lambda console: console.note("x", level=1), verbose=1) == "note: x\n"


def test_a_stderr_that_is_gone_is_no_fault() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    Console(Gone(), {}).error(ERROR)


# Progress


@pytest.mark.parametrize(
    ("done", "total", "waiting", "text"),
    [
        (30, 32, ["node07", "node19"], "launched 30/32, waiting for node07, node19"),
        (0, 5, ["a", "b", "c", "d", "e"], "launched 0/5, waiting for a, b, c and 2 more"),
    ],
)
def test_progress_text(done: int, total: int, waiting: list[str], text: str) -> None:
    assert progress_text(done, total, waiting) == text


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("mpilaunch.cli.console.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    console = Console(stream, {})
    for later in (0, 9, 1, 4, 5, 1, 10):
        now[0] += later
        console.progress(1, 3, ["a", "b"])
    console.progress(3, 3, [])
    assert stream.getvalue() == "note: launched 1/3, waiting for a, b\n" * 3


def shown_progress(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], stream: io.StringIO, **options: Any) -> Console:
    """Tell a console of progress, let the time come when the line is due, and tell it more."""
    monkeypatch.setattr(module, "PROGRESS_AFTER", 0.0)
    console = Console(stream, environ, **options)
    console.progress(1, 3, ["a", "b"])
    if console._progress is not None:
        console._progress._timer.join()
    console.progress(2, 3, ["b\x1b[2J"])
    return console


def test_progress_is_drawn_over_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    console = shown_progress(monkeypatch, {"TERM": "xterm"}, stream)
    assert "launched 1/3, waiting for a, b" in stream.getvalue()
    assert "launched 2/3, waiting for b\\x1b[2J" in stream.getvalue()
    console.progress(3, 3, [])
    assert stream.getvalue().endswith("\x1b[2K")
    console.started()
    console.error(LaunchError("a", "b"))
    assert ANSI.sub("", stream.getvalue()).endswith("error[a]: b\n")


def test_secrets_in_errors_and_warnings_are_masked() -> None:
    stream = io.StringIO()
    console = Console(stream, {})
    error = LaunchError("a", "agent 'sshpass -p X'", context=["export TOKEN=YYYYYYYY"], hint="by hand: curl http://u:ZZ@h")
    console.error(error)
    console.warn("the agent 'sshpass -p X' failed")
    assert stream.getvalue().splitlines() == [
        "error[a]: agent 'sshpass -p <masked>'",
        "    export TOKEN=<masked>",
        "hint: by hand: curl <masked>",
        "warning: the agent 'sshpass -p <masked>' failed",
    ]
    console.show_secrets = True
    console.error(error)
    assert stream.getvalue().count("sshpass -p X'") == 1


@pytest.mark.parametrize(
    ("environ", "stream", "options"),
    [({}, io.StringIO(), {}), ({"TERM": "dumb"}, Terminal(), {}), ({"TERM": "xterm"}, Terminal(), {"quiet": True})],
)
def test_where_no_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], stream: Any, options: Any
) -> None:
    shown_progress(monkeypatch, environ, stream, **options)
    assert stream.getvalue() == ""


def test_a_quick_start_shows_nothing() -> None:
    stream = Terminal()
    console = Console(stream, {"TERM": "xterm"})
    console.progress(0, 1, ["a"])
    assert console._progress is not None
    timer = console._progress._timer
    console.started()
    timer.join()
    assert stream.getvalue() == ""


def test_without_a_terminal_rich_is_not_imported() -> None:
    code = (
        "import sys; from mpilaunch.cli.console import Console; from mpilaunch.errors import LaunchError\n"
        "Console().error(LaunchError('a', 'b')); assert 'rich' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "error[a]: b\n")
