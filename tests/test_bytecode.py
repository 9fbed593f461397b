"""The byte code that launches keep for each other: it is used, it is never stale, and nothing depends on it."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpilaunch.head import bytecode, cache

ROOT = Path(__file__).parent.parent
RUN = "from mpilaunch.__main__ import entry; entry()"


class Installed:
    """A copy of mpilaunch, with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.source = folder / "source"
        for package in ("mpilaunch", "agents/mpilaunch_agents"):
            target = self.source / Path(package).name
            shutil.copytree(ROOT / package, target, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *words: str, code: str = RUN, **environ: str) -> tuple[int, str, set[str], set[str]]:
        """Run it; return its exit code, what it printed, and the modules that were kept and that Python has found."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPATH": str(self.source), "XDG_CACHE_HOME": str(self.cache), **environ}
        done = subprocess.run(
            [sys.executable, "-v", "-c", code, *words],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        imports = [line.split("'")[1::2][:1] + [line] for line in done.stderr.splitlines() if line.startswith("import '")]
        kept = {name for name, line in imports if "KeptLoader" in line}
        found = {name for name, line in imports if "SourceFileLoader" in line}
        return done.returncode, done.stdout + done.stderr, kept, found

    @property
    def file(self) -> Path:
        """Where it keeps its byte code."""
        (file,) = self.cache.glob("mpilaunch/code-*")
        return file


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """Give a copy that has not run yet."""
    return Installed(tmp_path)


def test_a_launch_takes_from_one_file_what_one_before_has_loaded(installed: Installed) -> None:
    code, output, kept, found = installed.run("-np", "2", "--oversubscribe", "true")
    assert (code, kept) == (0, set()), output
    assert {"mpilaunch.cli", "mpilaunch_agents.local", "asyncio.base_events"} <= found
    code, output, kept, found_then = installed.run("-np", "2", "--oversubscribe", "true")
    assert code == 0, output
    assert {"mpilaunch.cli", "mpilaunch_agents.local", "asyncio", "asyncio.base_events", "enum"} <= kept
    before_it = {"", ".__main__", ".later", ".head", ".head.bytecode", ".head.cache", ".head.lazily"}
    assert {name for name in found_then if name.startswith("mpilaunch")} == {f"mpilaunch{name}" for name in before_it}
    assert found - found_then == kept


def test_what_is_loaded_for_the_first_time_joins_the_others(installed: Installed) -> None:
    installed.run("-np", "1", "true")
    _, _, kept, found = installed.run("--version")
    assert "mpilaunch.cli" in kept and "mpilaunch.plan" not in found
    _, _, kept, found = installed.run("--dry-run", "-np", "1", "true")
    assert "mpilaunch.plan" in found and "mpilaunch.prepare" in kept
    _, _, kept, found = installed.run("--dry-run", "-np", "1", "true")
    assert "mpilaunch.plan" in kept
    _, _, kept, found = installed.run("-np", "1", "true")
    assert "mpilaunch.head.launch" in kept
    assert oct(installed.file.stat().st_mode & 0o777) == "0o600"


def test_a_module_that_was_changed_is_loaded_anew(installed: Installed) -> None:
    assert "no program to run" in installed.run("-np", "1")[1]
    source = installed.source / "mpilaunch/cli.py"
    source.write_text(source.read_text().replace("no program to run", "no programme to run"))
    for of_the_changed in (False, True):
        _, output, kept, _ = installed.run("-np", "1")
        assert "no programme to run" in output
        assert ("mpilaunch.cli" in kept) is of_the_changed and "mpilaunch.words" in kept


def test_a_module_that_is_gone_is_not_taken_from_there(installed: Installed) -> None:
    installed.run("-np", "1", "true")
    (installed.source / "mpilaunch/words.py").unlink()
    code, output, _, _ = installed.run("-np", "1", "true")
    assert code == 1 and "ModuleNotFoundError: No module named 'mpilaunch.words'" in output


def test_what_the_search_path_puts_in_front_is_found_there(installed: Installed, tmp_path: Path) -> None:
    front = tmp_path / "front"
    front.mkdir()
    for number in range(2):
        _, output, kept, _ = installed.run("-np", "1", "true", PYTHONPATH=f"{front}:{installed.source}:{tmp_path}/{number}")
        assert ("mpilaunch.cli" in kept) is (number == 1), output
    (front / "mpilaunch_agents").mkdir()
    (front / "mpilaunch_agents/__init__.py").write_text("raise SystemExit('another one')\n")
    for path, told in ((f"{front}:{installed.source}", True), (str(installed.source), False)):
        _, output, kept, _ = installed.run("-np", "1", "true", PYTHONPATH=path)
        assert ("another one\n" in output) is told and "mpilaunch.cli" in kept


def test_what_was_installed_anew_in_front_is_kept_from_then_on(installed: Installed, tmp_path: Path) -> None:
    assert installed.run("-np", "1", "true")[0] == 0
    front = shutil.copytree(installed.source / "mpilaunch_agents", tmp_path / "front/mpilaunch_agents")
    local = front / "local.py"
    local.write_text(local.read_text() + "print('the one in front')\n")
    for number in range(2):
        _, output, kept, _ = installed.run("-np", "1", "true", PYTHONPATH=f"{tmp_path}/front:{installed.source}")
        assert "the one in front\n" in output and ("mpilaunch_agents.local" in kept) is (number == 1), output


def test_only_the_files_that_were_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_directory", lambda: str(tmp_path))
    for number in range(6):
        cache.write(f"code-{number}", b"key", b"data")
        os.utime(tmp_path / f"code-{number}", (number, number))
    cache.write("other", b"key", b"data")
    assert cache.read("code-1", b"key") == b"data"
    assert cache.read("code-2", b"another key") is None
    cache.keep_newest("code-", 3)
    assert sorted(os.listdir(tmp_path)) == ["code-1", "code-4", "code-5", "other"]


def test_nothing_is_kept_of_a_zip_file(installed: Installed, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "zipped"), "zip", installed.source)
    for _ in range(2):
        code, output, kept, _ = installed.run("-np", "1", "true", PYTHONPATH=archive)
        assert code == 0 and not {name for name in kept if name.startswith("mpilaunch")}, output
    assert "asyncio.events" in kept


def test_a_kept_module_is_like_any_other(installed: Installed) -> None:
    look = """
import atexit, inspect, pkgutil, sys
sys.argv = ["mpilaunch", "--version"]
from mpilaunch.head import bytecode
bytecode.use()
import mpilaunch.head.signals as one, asyncio
from importlib import reload, resources
assert type(one.__loader__).__name__ == "KeptLoader" == type(asyncio.__loader__).__name__
assert "class SignalRelay" in inspect.getsource(one) and one.__cached__.endswith(".pyc")
assert pkgutil.get_data("mpilaunch.head", "signals.py").startswith(b'""')
assert resources.files("asyncio").joinpath("events.py").is_file()
assert reload(one).SignalRelay.__module__ == "mpilaunch.head.signals"
"""
    installed.run("-np", "1", "true")
    code, output, _, _ = installed.run(code=look)
    assert code == 0, output


def test_a_launch_has_ended_well_whatever_becomes_of_its_byte_code(installed: Installed) -> None:
    trap = "import sys; sys.modules['weird'] = type('Weird', (), {'__getattr__': lambda self, name: 1 / 0})(); " + RUN
    code, output, _, _ = installed.run("-np", "1", "true", code=trap)
    assert code == 0 and "Traceback" not in output


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[: data.index(b")\n") + 400],
        lambda data: b"another version" + data,
        lambda data: data[:-4000] + bytes(4000),
        lambda data: data[: data.index(b")\n") + 2] + (2).to_bytes(8, "big") + marshal.dumps(None),
        lambda data: data.replace(b"mpilaunch.cli\0", b"mpilaunch.xli\0"),
    ],
    ids=["empty", "cut off", "cut off in its table", "another's", "zeros at its end", "no table", "code of another module"],
)
def test_a_file_that_came_to_harm_does_none(installed: Installed, harm: Callable[[bytes], bytes]) -> None:
    installed.run("-np", "1", "true")
    whole = installed.file.read_bytes()
    installed.file.write_bytes(harm(whole))
    code, output, _, _ = installed.run("-np", "1", "echo", "all", "is", "well")
    assert code == 0 and "all is well\n" in output, output
    code, output, kept, _ = installed.run("-np", "1", "true")
    assert code == 0 and {"mpilaunch.cli", "mpilaunch.head.launch"} <= kept, output


def test_nothing_is_kept_where_python_may_keep_nothing(installed: Installed) -> None:
    for _ in range(2):
        code, output, kept, _ = installed.run("-np", "1", "true", PYTHONDONTWRITEBYTECODE="1")
        assert (code, kept) == (0, set()), output
    assert not list(installed.cache.glob("mpilaunch/code-*"))


def test_nothing_is_kept_without_a_place_for_it(installed: Installed) -> None:
    installed.cache.write_text("a file")
    for _ in range(2):
        code, output, kept, _ = installed.run("-np", "1", "true")
        assert (code, kept) == (0, set()), output


def test_a_file_that_was_closed_is_not_mistaken_for_the_next_one(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_directory", lambda: str(tmp_path))
    kept = bytecode.KeptModules()
    monkeypatch.setattr(bytecode, "_KEPT", kept)
    monkeypatch.setattr(sys, "meta_path", [kept, *sys.meta_path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    bytecode.keep()
    file = cache.opened(bytecode.NAME, bytecode.KEY)
    assert file is not None
    kept.read(file)
    assert kept.bytes_of("subprocess") and kept.find_spec("subprocess") is not None
    os.close(file)
    assert kept.bytes_of("subprocess") == b""
    with (tmp_path / "other").open("wb+") as other:
        other.truncate(1 << 24)
        assert other.fileno() == file
        assert kept.bytes_of("subprocess") == b"" and kept.find_spec("subprocess") is None
