"""The plugin of pytest: a test marked `ranks(N)` runs as the N ranks of a job, and its result is that of all of them.

Each rank is a pytest of its own with this one test, started by `run`; it prints its reports as a line of JSON, made as those
that pytest-xdist's workers send. Here, an item that needs no fixtures stands for the test.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest

from mpilaunch.api.job import Report, run

MARK, AS_RANK = "ranks", "--as-rank"
RESULT = "mpilaunch-test-reports: "
"""What the line with the reports of a rank begins with."""
LONGEST_LINE, SHORT = 1 << 19, 1 << 13
"""Characters of that line, as mpilaunch keeps no longer ones whole; beyond them only the last of captured output are sent, and
then no traceback."""
STANDS_FOR = ("fixturenames", "function", "cls", "module", "callspec")
"""Attributes of a test that hooks ask for."""
ONE_TEST = ("-m", "", "-k", "", "-o", "cache_dir=/dev/null/none", "-W", "ignore::pytest.PytestCacheWarning")
"""Options for a rank in place of those in `addopts` that choose among tests, by marks, names or what failed the last time."""
OF_THIS_PYTEST = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_XDIST_")
SEVERITY = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mpilaunch")
    group.addoption(AS_RANK, action="store_true", help="be a rank of a test: the plugin itself starts ranks so")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(n, **options): run the test as n ranks, with options of mpilaunch")
    if config.getoption(AS_RANK):
        config.pluginmanager.register(_Sender(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test that passed although it was to fail."""
    report = yield
    if isinstance(item, _Ranks) and call.when == "call" and report.passed and item.passed_although is not None:
        report.wasxfail = item.passed_although
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let items that start ranks stand for the marked tests, but not in a rank."""
    if not config.getoption(AS_RANK):
        items[:] = [_Ranks.of(item) if item.get_closest_marker(MARK) else item for item in items]


class _Sender:
    """Prints the reports of a rank's test when it has ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._reports = config, list[dict[str, Any]]()
        self._rank = int(os.environ["RANK"])  # before a test may set another one

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_sessionfinish(self) -> None:
        sys.stdout.write(f"\n{RESULT}{self._line()}\n")
        sys.stdout.flush()

    def _line(self) -> str:
        line = json.dumps([self._rank, self._reports], default=str)
        for shorten in (_shorter_output, _no_traceback):
            if len(line) > LONGEST_LINE:
                self._reports = [shorten(report) for report in self._reports]
                line = json.dumps([self._rank, self._reports], default=str)
        return line


def _shorter_output(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "sections": [(name, text[-SHORT:]) for name, text in report["sections"]]}


def _no_traceback(report: dict[str, Any]) -> dict[str, Any]:
    longrepr = report["longrepr"] and "its report is too long to be sent"
    return {**report, "sections": [], "user_properties": [], "longrepr": longrepr}


class _RankFailed(Exception):
    """A test failed; `longrepr` is what pytest shows: of the rank that failed first, or what mpilaunch says."""

    def __init__(self, longrepr: Any) -> None:
        super().__init__(str(longrepr))
        self.longrepr = longrepr


class _Ranks(pytest.Item):
    """Stands for a marked test."""

    _test: pytest.Item
    passed_although: str | None = None

    @classmethod
    def of(cls, test: pytest.Item) -> _Ranks:
        """Return the item for a test."""
        assert test.parent is not None
        made: _Ranks = cls.from_parent(test.parent, name=test.name, nodeid=test.nodeid)
        made._test, made.own_markers = test, test.own_markers
        made.keywords.update(test.keywords)
        for name in STANDS_FOR:
            if hasattr(test, name):
                setattr(made, name, getattr(test, name))
        return made

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self._test.reportinfo()

    def iter_markers_with_node(self, name: str | None = None) -> Iterator[tuple[Any, pytest.Mark]]:
        """Yield the marks, but those that the ranks know of: xfail, and skipif with a text, which names globals of the test."""
        for node, mark in super().iter_markers_with_node(name):
            if mark.name != "xfail" and not (mark.name == "skipif" and any(isinstance(each, str) for each in mark.args)):
                yield node, mark

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return excinfo.value.longrepr if isinstance(excinfo.value, _RankFailed) else super().repr_failure(excinfo, style)

    def runtest(self) -> None:
        """Run the test as ranks, and end as the rank that failed first, or else as one that was skipped, or as rank 0."""
        mark = self.get_closest_marker(MARK)
        if mark is None or len(mark.args) != 1 or not isinstance(mark.args[0], int) or mark.args[0] < 1:
            raise _RankFailed(f"write how many ranks run the test: @pytest.mark.{MARK}(2)")
        count = mark.args[0]
        options = {"oversubscribe": True, "env": _environment(), **mark.kwargs}
        try:
            job = run(self._command(), **{**options, "np": count, "check": False, "capture_output": True})
        except (OSError, TypeError, ValueError) as error:
            raise _RankFailed(f"{type(error).__name__}: {error}") from None
        results, others = self._results(job.stdout)
        if self.config.getoption("capture") == "no":
            sys.stdout.write(others)
        by_severity = sorted(results, key=lambda rank: (-_severity(results[rank]), rank != job.first_rank, rank))
        worst = results[by_severity[0]] if by_severity else []
        failed = next((report for report in worst if report.failed), None)
        if failed is not None:
            self._fail_as(failed, f"rank {by_severity[0]} of {count} failed")
        if job.exit_code or len(results) < count:
            self._fail_without_report(job, others, [rank for rank in range(count) if rank not in results])
        self.user_properties += worst[-1].user_properties
        for report in worst:
            if report.passed and report.when == "call":
                self.passed_although = getattr(report, "wasxfail", None)
            if report.skipped:
                (pytest.xfail if hasattr(report, "wasxfail") else pytest.skip)(_reason(report))

    def _fail_as(self, report: pytest.TestReport, where: str) -> None:
        for name, text in report.sections:
            words = name.split()
            known = len(words) == 3 and words[0] == "Captured"
            self.add_report_section(*((words[2], words[1]) if known else (str(report.when), name)), text)
        if add_section := getattr(report.longrepr, "addsection", None):
            add_section("ranks", where)
        raise _RankFailed(report.longrepr)

    def _fail_without_report(self, job: Report, others: str, missing: Sequence[int]) -> None:
        self.add_report_section("of ranks", "stdout", others)
        self.add_report_section("of ranks", "stderr", job.stderr)
        early = f"these ranks ended before the test did: {', '.join(map(str, missing))}"
        raise _RankFailed(str(job) if job.exit_code else early)

    def _command(self) -> list[str]:
        """Return the pytest of a rank. It reads the same configuration, and runs this test only."""
        _, *names = self.nodeid.split("::")
        words = [sys.executable, "-m", "pytest", AS_RANK, "-q", f"--rootdir={self.config.rootpath}", *ONE_TEST]
        words += [f"--config-file={self.config.inipath or os.devnull}", f"--capture={self.config.getoption('capture')}"]
        words += ["--numprocesses=0"] if self.config.pluginmanager.hasplugin("xdist") else []
        words += ["--runxfail"] if self.config.getoption("runxfail") else []
        return [*words, "::".join([str(self.path), *names])]

    def _results(self, stdout: str) -> tuple[dict[int, list[pytest.TestReport]], str]:
        """Return the reports of each rank that has sent some, and the other lines."""
        results, others = dict[int, list[pytest.TestReport]](), []
        for line in stdout.splitlines(keepends=True):
            _, mark, text = line.partition(RESULT)
            if not mark:
                others.append(line)
                continue
            try:
                rank, sent = json.loads(text)
                reports = [self._report(data) for data in sent]
            except (ValueError, TypeError, KeyError, AttributeError):  # cut off, or what a test has printed
                others.append(line)
                continue
            if reports:
                results[int(rank)] = reports
        return results, "".join(others)

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        if isinstance(data["longrepr"], list):
            data["longrepr"] = tuple(data["longrepr"])  # of a skipped test: JSON has lists only
        report = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
        if not isinstance(report, pytest.TestReport):
            raise TypeError("no report of a test")
        return report


def _environment() -> dict[str, str]:
    """Return the variables of the ranks, without those of this pytest, or of this worker of pytest-xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PYTEST)}


def _severity(reports: Sequence[pytest.TestReport]) -> int:
    return max(SEVERITY.get(report.outcome, 0) for report in reports)


def _reason(report: pytest.TestReport) -> str:
    """Return why a rank was skipped, or failed as expected."""
    said = getattr(report, "wasxfail", None)
    if said is None:
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(said).removeprefix("reason: ").removeprefix("Skipped: ")
