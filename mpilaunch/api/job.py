"""Launch jobs from Python: `run` starts mpilaunch, waits for the job, and returns how it ended.

The job runs in a process of its own, so that threads, event loops and signal handlers of the caller are left alone. It ends
with the caller: an exception, Ctrl-C among them, sends SIGTERM to mpilaunch, and if the caller is killed, the kernel does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Value = str | int | float | os.PathLike[str]
Option = Value | bool | Sequence[Value] | None


_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MAIN = "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; from mpilaunch.api.__main__ import main; main()"
"""What Python runs: with -m, modules in the job's directory would stand before those of the standard library."""


class Report(NamedTuple):
    """How a job ended.

    Attributes:
        exit_code: what mpilaunch exited with: 0 if all is well.
        cause: `ok`, `rank-failed` and so on, or the reference of the error for a job that did not start.
        first_rank, host: the rank that failed first, and its node; None where none did.
        detail, hint: how it ended, and what is known of the reason, in words; "" where there is nothing to say.
        stdout, stderr: what the job wrote and mpilaunch said, where they were captured.
        members: the whole report, as docs/report.md describes it.
    """

    exit_code: int
    cause: str
    first_rank: int | None
    host: str | None
    detail: str
    hint: str
    stdout: str
    stderr: str
    members: Mapping[str, Any]

    def __str__(self) -> str:
        verdict = self.members["verdict"]
        where = [f"rank {self.first_rank}"] if self.first_rank is not None else []
        where += [f"on {self.host}"] if where and self.host else []
        lines = [": ".join(part for part in (self.cause, " ".join([*where, self.detail])) if part)]
        lines += [*verdict["context"], *(f"  {line}" for line in verdict["last_lines"])]
        return "\n".join([*lines, f"hint: {self.hint}"] if self.hint else lines)


class JobFailed(Exception):
    """A job ended with another exit code than 0, or did not start; `report` says how."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    check: bool = True,
    capture_output: bool = False,
    input: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    **options: Option,
) -> Report:
    """Run a program as the ranks of a job, and return the report; raises JobFailed unless `check` is False.

    `run(["./a.out"], np=4, map_by="node", oversubscribe=True)` is `mpilaunch --np=4 --map-by=node --oversubscribe ./a.out`.

    Args:
        command: the program and its arguments.
        capture_output: keep stdout and stderr in the report; otherwise they are those of the caller.
        input: what stdin has; nothing by default.
        env, cwd: the variables and the directory of mpilaunch; by default those of the caller.
        report: the file that keeps the report, from `cwd`; none by default.
        options: options of mpilaunch, with `_` for `-`. True stands for an option without a value, a sequence for one that is
            given several times; None and False leave it out.
    """
    if options.get("detach"):
        raise TypeError("a job of run() ends with its caller: detach is for the command")
    with tempfile.TemporaryDirectory(prefix="mpilaunch-run-") as folder:
        path = os.path.abspath(os.path.join(cwd or "", report or os.path.join(folder, "report.json")))
        if os.path.isfile(path) and not os.path.islink(path):
            os.unlink(path)  # an earlier report is not that of this job, if mpilaunch is killed
        words = [f"--report={path}", *option_words(options), "--", *(os.fspath(word) for word in command)]
        stdin = None if input is None else input.encode() if isinstance(input, str) else input
        pipe = subprocess.PIPE if capture_output else None
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, _ROOT, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        stdout, stderr = _wait(process, stdin)
        ended = _read(path, process.returncode, stdout, stderr)
    if check and ended.exit_code:
        raise JobFailed(ended)
    return ended


def option_words(options: Mapping[str, Option]) -> list[str]:
    """Return the words of options: `map_by="node"` is `--map-by=node`, and `x=["A=1", "B"]` is `-x A=1 -x B`."""
    words: list[str] = []
    for name, option in options.items():
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        values = option if isinstance(option, Sequence) and not isinstance(option, str) else [option]
        for value in values:
            if value is True:
                words.append(flag)
            elif value is not None and value is not False:
                text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
                words += [flag, text] if len(name) == 1 else [f"{flag}={text}"]
    return words


def _wait(process: subprocess.Popen[bytes], stdin: bytes | None) -> tuple[str, str]:
    """Return what a process wrote once it has ended; an exception ends it first, and a second one at once."""
    with process:
        try:
            written = process.communicate(stdin)
        except BaseException:
            process.terminate()
            try:
                process.communicate()  # what it still writes must not hold it up
            except BaseException:
                process.terminate()
                raise
            raise
    stdout, stderr = ((data or b"").decode("utf-8", "backslashreplace") for data in written)
    return stdout, stderr


def _read(path: str, code: int, stdout: str, stderr: str) -> Report:
    try:
        with open(path, encoding="utf-8") as file:
            members = json.load(file)
    except (OSError, ValueError):  # it was killed; or an option let it do something else than run a job
        cause, detail = ("killed", f"mpilaunch ended with {code} and wrote no report") if code else ("ok", None)
        members = {"verdict": {"cause": cause, "detail": detail, "context": [], "last_lines": []}}
    verdict = members["verdict"]
    first_rank, host = verdict.get("first_rank"), verdict.get("host")
    detail, hint = verdict["detail"] or "", verdict.get("hint") or ""
    return Report(code, verdict["cause"], first_rank, host, detail, hint, stdout, stderr, members)
