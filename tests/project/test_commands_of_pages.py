"""Each command of a page of docs/, an example or the help is one that mpilaunch takes, as it stands, in bash and in zsh."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from mpilaunch.cli import help
from tests.support.launching import MPILAUNCH, environment
from tests.support.paths import ROOT

LAUNCHERS = {"mpirun": "openmpi", "mpiexec": "hydra"}
COMMANDS = re.compile(
    r"^    (?:exec )?((?:\w+=\S+ )*)"
    r"(mpilaunch|torchrun|horovodrun|deepspeed|accelerate|srun|flux|pdsh|clush|mpirun|mpiexec) (.*)$",
    re.MULTILINE,
)
PLACES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]
EXAMPLES_OF_PAGES = {
    f"{place.name}: {found[0].strip()}": (found[1], found[2], found[3])
    for place in PLACES
    for found in COMMANDS.finditer(re.sub(r" *\\\n *", " ", place.read_text(encoding="utf-8")))
    if not found[3].startswith(("[OPTIONS]", "up", "down", "|"))  # its form, and what starts no job
} | {f"help: {line}": ("", "mpilaunch", line.partition(" ")[2]) for line, _ in help.EXAMPLES}
USERS_FILES = {
    "hosts": "node01 slots=8\nnode02 slots=8\n",
    "hosts.txt": "node01 slots=8\nnode02 slots=8\n",
    "programs.txt": "-np 1 ./master\n-np 7 ./worker\n",
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 2\n",
}
SLURM_OF_TWO = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)"}
"""For the examples of srun, flux and --slurm, which belong into a batch job or act there."""


@pytest.mark.parametrize("example", EXAMPLES_OF_PAGES)
def test_the_examples_of_the_pages_are_right(example: str, tmp_path: Path) -> None:
    variables, name, rest = EXAMPLES_OF_PAGES[example]
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"| # .*", "", rest)
    assert not set("[*?") & set(unquoted), "zsh takes it for a pattern: quote it"
    for file, text in USERS_FILES.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    dialect = [] if name == "mpilaunch" else ["--dialect", LAUNCHERS.get(name, name)]
    words = shlex.join([*MPILAUNCH, "--dry-run", *dialect])
    line = f"{variables}{words} {re.split(' [|&] ', rest)[0]}"
    batch = SLURM_OF_TWO if re.search("srun|flux|--slurm", example) else {}
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(batch), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, " rank" in done.stdout) == (0, True), done.stderr
