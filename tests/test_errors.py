"""Errors are data: what each carries, and its exit code."""

from __future__ import annotations

import pytest

from mpilaunch.errors import DaemonFault, DaemonTraceback, ExitCode, LaunchError, UsageError, reason_of


def test_a_usage_error_has_its_exit_code_and_keeps_all_within_a_place() -> None:
    error = UsageError("hostfile-slots", "no slots", context=["a: 0"], hint="add slots").within("hosts:3")
    assert (error.reference, error.message, error.context, error.hint) == (
        *("hostfile-slots", "hosts:3: no slots"),
        *(("a: 0",), "add slots"),
    )
    assert error.exit_code == ExitCode.USAGE and not error.nodes


@pytest.mark.parametrize(("given", "code"), [(None, ExitCode.START_FAILED), (130, 130), (0, 0)])
def test_a_launch_error_may_choose_its_exit_code(given: int | None, code: int) -> None:
    assert LaunchError("interrupted", "SIGINT", exit_code=given).exit_code == code


def test_the_reason_of_a_system_error_follows_a_colon() -> None:
    assert reason_of(FileNotFoundError(2, "No such file or directory", "/x")) == "no such file or directory"
    assert reason_of(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")).endswith("invalid start byte")


def test_the_fault_of_a_daemon_shows_its_traceback() -> None:
    fault = DaemonFault("node01", ["Traceback", "KeyError: 'x'"])
    assert str(fault) == "in the daemon on node01: KeyError: 'x'"
    assert isinstance(fault.__cause__, DaemonTraceback) and str(fault.__cause__) == "Traceback\nKeyError: 'x'"
    assert str(DaemonFault("node01", [])) == "in the daemon on node01: unknown"
