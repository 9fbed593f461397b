"""Tests marked `ranks`: a run of pytest over a file of them, alone and with pytest-xdist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.launching import environment
from tests.support.paths import DOCS

FILE = """
import os, time
import pytest

@pytest.fixture
def rank():
    return int(os.environ["RANK"])

@pytest.mark.ranks(3)
@pytest.mark.parametrize("text", ["a b", "c[0]"])
def test_passes(rank, tmp_path, text):
    assert os.environ["WORLD_SIZE"] == "3" and rank < 3 and text in ("a b", "c[0]")

@pytest.mark.ranks(3)
def test_fails(rank):
    print("it is", rank)
    assert rank != 1, "one is bad"
    time.sleep(60)

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

@pytest.mark.ranks(2)
def test_has_no_fixture(broken):
    pass

@pytest.mark.ranks(2)
def test_is_skipped_by_one(rank):
    if rank == 1:
        pytest.skip("not on this rank")

@pytest.mark.ranks(2)
@pytest.mark.xfail
def test_fails_as_expected():
    assert not os.environ["RANK"]

class TestOfClass:
    pytestmark = pytest.mark.ranks(2)
    def test_passes(self, rank):
        assert rank < 2

@pytest.mark.ranks(2)
def test_crashes(rank):
    if rank == 1:
        os.abort()
    time.sleep(60)

@pytest.mark.ranks(2)
def test_goes_away(rank):
    if rank == 1:
        os._exit(0)

@pytest.mark.ranks(2, timeout=1)
def test_takes_too_long():
    time.sleep(60)

@pytest.mark.ranks(2)
def test_says_much():
    raise RuntimeError("much " * 1_000_000)

@pytest.mark.ranks(2)
def test_prints_much():
    print("much " * 200_000)

@pytest.mark.ranks(2)
def test_prints_much_and_fails():
    print("much " * 200_000)
    assert 0, "after all that"

@pytest.mark.ranks(2)
@pytest.mark.xfail
def test_passes_although_it_was_to_fail(record_property):
    record_property("size", 2)

HAVE = True

@pytest.mark.ranks(2)
@pytest.mark.skipif("HAVE", reason="a text")
def test_is_skipped_by_a_text():
    pass

@pytest.mark.ranks(2)
def test_prints_what_a_rank_sends():
    print("mpilaunch-test-reports: [0, [7]]")

@pytest.mark.ranks(2)
def test_sets_its_own_rank(monkeypatch):
    os.environ["RANK"] = "0"

@pytest.mark.ranks(2, nop=3)
def test_has_a_wrong_option():
    pass

@pytest.mark.ranks(2, cwd="/no/such")
def test_has_no_directory():
    pass

@pytest.mark.ranks
def test_says_not_how_many():
    pass

@pytest.mark.ranks(2, env={"PATH": os.defpath, "MINE": "1"})
def test_has_variables():
    assert os.environ["MINE"] == "1"

def test_is_no_job():
    assert "RANK" not in os.environ
"""
ENDS = {
    "test_passes[a b]": "",
    "test_passes[c[0]]": "",
    "test_fails": "failure: AssertionError: one is bad",
    "test_has_no_fixture": "failure: RuntimeError: no fixture",
    "test_is_skipped_by_one": "skipped: not on this rank",
    "test_fails_as_expected": "skipped: ",
    "TestOfClass.test_passes": "",
    "test_crashes": "failure: rank-failed: rank 1 on localhost killed by SIGABRT (signal 6)",
    "test_goes_away": "failure: these ranks ended before the test did: 1",
    "test_takes_too_long": "failure: timeout: time limit of 1 s exceeded",
    "test_says_much": "failure: its report is too long to be sent",
    "test_prints_much": "",
    "test_prints_much_and_fails": "failure: AssertionError: after all that",
    "test_passes_although_it_was_to_fail": "",
    "test_is_skipped_by_a_text": "skipped: a text",
    "test_prints_what_a_rank_sends": "",
    "test_sets_its_own_rank": "",
    "test_has_a_wrong_option": "failure: option-unknown: unknown option --nop; did you mean --np?",
    "test_has_no_directory": "failure: FileNotFoundError",
    "test_says_not_how_many": "failure: write how many ranks run the test: @pytest.mark.ranks(2)",
    "test_has_variables": "",
    "test_is_no_job": "",
}


def ends(folder: Path, *words: str) -> tuple[dict[str, str], str]:
    """Run pytest over the file; return how each test ended, by its name, and what was printed."""
    (folder / "test_it.py").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=ends.xml", *words, "test_it.py"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    found = {}
    for case in ElementTree.parse(folder / "ends.xml").iter("testcase"):
        scope = case.attrib["classname"].removeprefix("test_it").lstrip(".")
        name = f"{scope}.{case.attrib['name']}" if scope else case.attrib["name"]
        found[name] = "".join(f"{end.tag}: {end.attrib['message']}" for end in case if "message" in end.attrib)
    return found, done.stdout


@pytest.mark.parametrize("words", [(), ("-n2",)], ids=["alone", "with xdist"])
def test_each_test_ends_as_its_ranks_do(tmp_path: Path, words: tuple[str, ...]) -> None:
    found, out = ends(tmp_path, *words)
    assert found.keys() == ENDS.keys()
    wrong = {name: end for name, end in found.items() if not end.startswith(ENDS[name]) or bool(end) != bool(ENDS[name])}
    assert wrong == {}
    assert "it is 1" in out and "rank 1 of 3 failed" in out
    assert "1 xpassed" in out and '<property name="size" value="2"' in (tmp_path / "ends.xml").read_text()
    assert "it is 0" not in out and "mpilaunch-test-reports" not in out


def one_test(folder: Path, body: str, *words: str, env: dict[bytes, bytes] | None = None) -> str:
    """Run pytest over a test of two ranks, which passes; return what was printed."""
    (folder / "test_it.py").write_text(f"import os, pytest\n@pytest.mark.ranks(2)\ndef test_it():\n    {body}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=folder, env={**environment(), **(env or {})}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_hooks_see_the_test_itself(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n    assert [item.fixturenames for item in items]\n"
        "def pytest_runtest_setup(item):\n    assert 'request' in item.fixturenames or item.function\n"
        "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    report = yield\n    report.sections.append(('Other', 'said'))\n    return report\n"
    )
    one_test(tmp_path, "assert os.environ['RANK']")
    fails = "import pytest\n@pytest.mark.ranks(2)\n@pytest.mark.xfail\ndef test_it():\n    assert 0, 'why'\n"
    (tmp_path / "test_it.py").write_text(fails)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--runxfail"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "AssertionError: why" in done.stdout


def test_output_is_shown_where_it_is_not_captured(tmp_path: Path) -> None:
    out = one_test(tmp_path, "print('\\nit is', os.environ['RANK'])", "-s")
    assert {"it is 0", "it is 1"} <= set(out.splitlines()) and "mpilaunch-test-reports" not in out


def test_a_worker_of_xdist_hides_itself_from_ranks(tmp_path: Path) -> None:
    one_test(tmp_path, "assert 'PYTEST_XDIST_WORKER' not in os.environ", env={b"PYTEST_ADDOPTS": b"-n1"})


def test_a_test_that_hangs_is_told_by_its_line(tmp_path: Path) -> None:
    body = "import time\n    open(os.environ['RANK'], 'w').close()\n    while True: time.sleep(1)"
    (tmp_path / "test_it.py").write_text(
        f"import os, pytest\n@pytest.mark.ranks(2, hang_timeout=3)\ndef test_it():\n    {body}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1 and "in test_it (test_it.py:" in done.stdout


def test_fixtures_of_a_module_end_with_it(tmp_path: Path) -> None:
    fixture = "import pytest\n@pytest.fixture(scope='module', autouse=True)\ndef made():\n    yield\n    print('unmade')\n"
    (tmp_path / "conftest.py").write_text(fixture)
    (tmp_path / "test_a.py").write_text(
        "import os, pytest\ndef test_one():\n    pass\n@pytest.mark.ranks(2)\ndef test_it():\n    assert os.environ['RANK']\n"
    )
    (tmp_path / "test_b.py").write_text("def test_two():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-v", "--tb=short"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.index("unmade") < done.stdout.index("test_b.py")


def test_options_that_choose_tests_choose_none_of_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --ff --strict-markers -m 'not slow' -W error\nmarkers = slow\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.slow\n@pytest.mark.ranks(2)\ndef test_it():\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "slow"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_the_mark_is_known(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--markers"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "@pytest.mark.ranks(n, **options): run the test as n ranks" in done.stdout


@pytest.mark.needs("torch")
def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    (block,) = re.findall(r"^## Tests$.*?^```python\n(.*?)^```", (DOCS / "python.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_it.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "sum"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
