"""Which Python runs a program: the same one for `train.py` and `python3 train.py`, and a note where a node lacks the head's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.hosts import Hosts

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("shared")]

SHOW = "import sys\nprint(sys.executable)\n"
PROGRAMS = (["./train.py"], ["python3", "train.py"])


def python_at(folder: Path) -> str:
    """Make a virtual environment's python3 in a folder; return the PATH of its user."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    python = folder / "bin/python3"
    python.unlink(missing_ok=True)
    python.symlink_to("/usr/bin/python3")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return f"{folder}/bin:{os.environ['PATH']}"


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_python_that_nodes_have_too_runs_both(hosts: Hosts, shared: Path, program: list[str]) -> None:
    (shared / "train.py").write_text(SHOW)
    done = hosts.launch("-H", "node01", *program, env={"PATH": python_at(shared / "venv")})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{shared}/venv/bin/python3\n", "")


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_node_without_the_python_says_so(hosts: Hosts, shared: Path, tmp_path: Path, program: list[str]) -> None:
    (shared / "train.py").write_text(SHOW)
    done = hosts.launch("-H", "node01", *program, env={"PATH": python_at(tmp_path)})  # hosts have a /tmp of their own
    assert (done.returncode, done.stdout) == (0, "/usr/bin/python3\n"), done.stderr
    missing = f"no {tmp_path}/bin/python3 here: Python programs run under /usr/bin/python3"
    assert done.stderr == f"note: node01: {missing}\n"


def test_a_path_of_the_job_decides_about_python3(hosts: Hosts, shared: Path) -> None:
    own = shared / "own/bin"
    own.mkdir(parents=True)
    (own / "python3").symlink_to("/usr/bin/python3")
    program = ["python3", "-c", SHOW]
    done = hosts.launch("-H", "node01", "-x", f"PATH={own}:/usr/bin", *program, env={"PATH": python_at(shared / "venv")})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{own}/python3\n", "")
