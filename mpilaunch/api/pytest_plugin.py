"""The plugin of pytest: a test marked `ranks(N)` runs as the N ranks of a job, and its result is that of all of them.

Each rank is a pytest of its own with this one test, started by `run`; it prints its reports as a line of JSON, made as those
that pytest-xdist's workers send. Options of `run` may follow N: `@pytest.mark.ranks(4, host="a:2,b:2", timeout=60)`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Literal

import pytest

ONE: Literal[1] = 1
MARK, AS_RANK = "ranks", "--as-rank"
RESULT = "mpilaunch-test-reports: "
"""What the line with the reports of a rank begins with."""
LONGEST_SECTION = 1 << 16
"""Characters of each captured output that a rank sends: its line must not become longer than mpilaunch keeps whole."""
PAIRS = ("location", "longrepr")
"""Members of a report that are tuples; JSON has lists only."""
SEVERITY = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mpilaunch")
    group.addoption(AS_RANK, action="store_true", help="be a rank of a test: the plugin itself starts ranks so")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(n, **options): run the test as n ranks, with options of mpilaunch")
    if config.getoption(AS_RANK):
        config.pluginmanager.register(_Sender(config))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a marked test as ranks, and report for them; other tests are left to pytest."""
    mark = item.get_closest_marker(MARK)
    if mark is None or item.config.getoption(AS_RANK):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, mark):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class _Sender:
    """Prints the reports of a rank's test when it has ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._reports = config, list[object]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        report.sections = [(name, text[-LONGEST_SECTION:]) for name, text in report.sections]
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_sessionfinish(self) -> None:
        rank = int(os.environ["RANK"])
        sys.stdout.write(f"\n{RESULT}{json.dumps([rank, self._reports], default=str)}\n")
        sys.stdout.flush()


def _reports(item: pytest.Item, mark: pytest.Mark) -> Sequence[pytest.TestReport]:
    """Run a test as ranks; return the reports of the rank that failed first, or else of one that was skipped, or of rank 0."""
    from mpilaunch.api.job import run  # most runs of pytest have no such test

    if len(mark.args) != 1 or not isinstance(mark.args[0], int) or mark.args[0] < 1:
        return [_failed(item, f"write how many ranks run the test: @pytest.mark.{MARK}(2)")]
    count = mark.args[0]
    options = {"oversubscribe": True, "env": _environment(), **mark.kwargs}
    try:
        job = run(_command(item), **{**options, "np": count, "check": False, "capture_output": True})
    except (OSError, TypeError, ValueError) as error:
        return [_failed(item, f"{type(error).__name__}: {error}")]
    results, others = _read(item.config, job.stdout)
    if item.config.getoption("capture") == "no":
        sys.stdout.write(others)
    by_severity = sorted(results, key=lambda rank: (-_severity(results[rank]), rank != job.first_rank, rank))
    reports = results[by_severity[0]] if by_severity else []
    for report in reports:
        if report.failed:
            report.sections.append(("ranks", f"rank {by_severity[0]} of {count} failed"))
    if (job.exit_code == 0 and len(results) == count) or any(report.failed for report in reports):
        return reports
    missing = ", ".join(str(rank) for rank in range(count) if rank not in results)
    failed = _failed(item, str(job) if job.exit_code else f"these ranks ended before the test did: {missing}")
    failed.sections += [("Captured stdout of ranks", others), ("Captured stderr of ranks", job.stderr)]
    return [failed]


def _severity(reports: Sequence[pytest.TestReport]) -> int:
    return max(SEVERITY[report.outcome] for report in reports)


def _command(item: pytest.Item) -> list[str]:
    """Return the pytest of a rank. It reads the same configuration, and runs this test only."""
    _, *names = item.nodeid.split("::")
    words = [sys.executable, "-m", "pytest", AS_RANK, "-q", "-p", "no:cacheprovider", f"--rootdir={item.config.rootpath}"]
    words += [f"--capture={item.config.getoption('capture')}"]
    words += [f"--config-file={item.config.inipath}"] if item.config.inipath else []
    words += ["--numprocesses=0"] if item.config.pluginmanager.hasplugin("xdist") else []
    return [*words, "::".join([str(item.path), *names])]


def _environment() -> dict[str, str]:
    """Return the variables of the ranks: pytest's own are those of this pytest, or of this worker of pytest-xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def _read(config: pytest.Config, stdout: str) -> tuple[dict[int, list[pytest.TestReport]], str]:
    """Return the reports of each rank that has sent some, and the other lines."""
    results, others = dict[int, list[pytest.TestReport]](), []
    for line in stdout.splitlines(keepends=True):
        _, mark, text = line.partition(RESULT)
        if not mark:
            others.append(line)
            continue
        rank, sent = json.loads(text)
        for data in sent:
            pairs = {name: tuple(value) for name, value in data.items() if isinstance(value, list) and name in PAIRS}
            report = config.hook.pytest_report_from_serializable(config=config, data={**data, **pairs})
            results.setdefault(rank, []).append(report)
    return results, "".join(others)


def _failed(item: pytest.Item, reason: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, ONE), "failed", reason, "call")
