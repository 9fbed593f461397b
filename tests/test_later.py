"""Modules that are put off are there, whole, as soon as somebody needs them; and a daemon that nobody needs is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.agent import AgentOptions
from mpilaunch.head.bundle import LOCAL_BOOT
from mpilaunch_agents.local import LocalAgent
from tests.launching import children, finish, launch, launching, wait_for_files

ROOT = Path(__file__).parent.parent


def told(code: str) -> list[str]:
    """Return the lines that some code prints in a bare Python that finds our modules."""
    start = f"import sys; sys.path += [{str(ROOT)!r}, {str(ROOT / 'agents')!r}]\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_module_is_loaded_when_it_is_asked_for_what_is_not_known() -> None:
    code = """
from mpilaunch.later import is_put_off, put_off
put_off("colorsys", {"ONE_THIRD": 7})
import colorsys
print(colorsys.ONE_THIRD, is_put_off("colorsys"))
print(colorsys.rgb_to_hsv(0, 0, 0), is_put_off("colorsys"))
print(colorsys.ONE_THIRD == 1 / 3, colorsys.hls_to_rgb is sys.modules["colorsys"].hls_to_rgb)
"""
    assert told(code) == ["7 True", "(0.0, 0.0, 0) False", "True True"]


def test_a_module_that_is_there_already_is_not_put_off() -> None:
    code = "from mpilaunch.later import *; put_off('os', {}); import os; print(is_put_off('os'), is_put_off('nosuch'), os.sep)"
    assert told(code) == ["False False /"]


def test_patterns_of_ours_and_of_json_are_compiled_when_something_is_matched() -> None:
    code = """
from mpilaunch.later import is_put_off, put_off_re
put_off_re()
import json, re
__name__ = "mpilaunch.one"
pattern = re.compile("(a+)b", re.IGNORECASE)
match = pattern.fullmatch
print(json.JSONDecoder().raw_decode(json.dumps({"a": [1.5, "\\n\\xe4"]}))[0], is_put_off("re"))
print(match("AAb")[1], pattern.search("ccab")[0], pattern.search("cab").start(), is_put_off("re"))
print(re.sub("a", "b", "a"), isinstance(re.compile("a"), re.Pattern))
"""
    assert told(code) == ["{'a': [1.5, '\\n\xe4']} True", "AA ab 1 False", "b True"]


def test_patterns_of_others_are_what_they_expect() -> None:
    code = """
from mpilaunch.later import put_off_re
put_off_re()
import re
pattern = re.compile("a", re.ASCII)
print(re.sub(pattern, "b", "a"), pattern.pattern, isinstance(pattern, re.Pattern), pattern.flags == re.ASCII)
"""
    assert told(code) == ["b a True True"]


def test_no_module_of_ours_needs_what_is_put_off_to_be_loaded() -> None:
    code = """
from importlib import import_module
from pathlib import Path
from mpilaunch.head import lazily
lazily.put_off_what_everyone_imports()
lazily.load_asyncio(tls=False)
top = Path(sys.path[-2])
ours = {*top.glob("mpilaunch/*.py"), *top.glob("mpilaunch/head/*.py")} - {top / "mpilaunch/help.py"}  # it loads click
for path in sorted(ours):
    import_module(".".join(path.relative_to(top).with_suffix("").parts))
    if not lazily.is_put_off("typing"):
        print(path.stem)
        break
"""
    assert told(code) == []


def test_what_asyncio_does_without_is_there_for_others() -> None:
    code = """
there = set(sys.modules)  # from 3.13 on `-c` loads linecache
from mpilaunch.head import lazily
lazily.put_off_what_everyone_imports()
lazily.load_asyncio(tls=False)
import asyncio, logging, signal, subprocess, traceback, typing
assert all(map(lazily.is_put_off, {"typing", "signal", *lazily.FOR_ASYNCIO} - there)), sys.modules
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="%(name)s %(message)s")
logging.getLogger("asyncio").setLevel(logging.DEBUG)

async def main():
    child = await asyncio.create_subprocess_exec("true")
    print(await child.wait())
    asyncio.get_running_loop().call_exception_handler({"message": "something is wrong"})

asyncio.run(main())
print(subprocess.run(["false"]).returncode, signal.Signals(9).name, typing.get_args(typing.Optional[int]))
try:
    raise ValueError("here")
except ValueError:
    print(traceback.format_exc().splitlines()[-1])
"""
    assert told(code) == [
        "asyncio Using selector: EpollSelector",
        "0",
        "asyncio something is wrong",
        "1 SIGKILL (<class 'int'>, <class 'NoneType'>)",
        "ValueError: here",
    ]


def test_a_daemon_finds_what_it_had_put_off() -> None:
    code = """
import mpilaunch.daemon.main, re, json, signal
from mpilaunch.later import is_put_off
assert not {"socket"} & set(sys.modules)
print(is_put_off("re"), json.loads(' {"a": [1.5, "x"]} '), is_put_off("re"))
print(re.fullmatch("a+", "aaa")[0], signal.Signals(15).name)
"""
    start = f"import sys; sys.path.append({str(ROOT)!r})\n"
    argv = [sys.executable, "-I", "-S", "-c", start + code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["True {'a': [1.5, 'x']} False", "aaa SIGTERM"], done.stderr


@pytest.mark.parametrize("words", [("--map-by", "ppr:1:node", "-np", "3", "true"), ("--map-by", "nonsense", "true")])
def test_a_mistake_leaves_no_daemon_that_had_started_already(words: tuple[str, ...]) -> None:
    done = launch(*words)
    assert done.code == 2
    assert done.words.startswith("error[")


def test_a_daemon_is_not_kept_where_the_nodes_turn_out_to_be_others(tmp_path: Path) -> None:
    env: dict[str, str | bytes] = {"SLURM_JOB_NODELIST": "elsewhere", "SLURM_TASKS_PER_NODE": "1"}
    program = f"echo up >{tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    with launching("--remote-agent", "sh -c 'eval \"exec $0\"' {command}", "sh", "-c", program, env=env) as job:
        wait_for_files(tmp_path / "up")
        (only,) = children(job.pid)
        assert LOCAL_BOOT.encode() not in Path(f"/proc/{only}/cmdline").read_bytes()
        (tmp_path / "go").touch()
        assert finish(job).code == 0


def test_what_was_begun_and_is_not_wanted_goes_though_it_will_not() -> None:
    agent = LocalAgent(AgentOptions())
    agent.begin(["sh", "-c", "trap '' TERM HUP; sleep 100 & wait"], 2)
    agent.dismiss()
    agent.begin(["no-such-program-anywhere"], 1)
    agent.dismiss()
