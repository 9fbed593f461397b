"""On which host each rank runs, under the real mpirun and mpiexec and under mpilaunch with their options, on real hosts.

tests/golden/maps/lines.txt has the lines, of which every third runs, with TABLE=all all of them.
tests/placement/test_mapping_peers.py has maps on topologies that are made up.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.hosts import Hosts
from tests.support.paths import GOLDEN

FILES = {
    "slots": "node01 slots=2\nnode02 slots=2\nnode03 slots=1\n",
    "bare": "node01\nnode02\n",
    "big": "node01 slots=4\nnode02 slots=4\nnode03 slots=4\nnode04 slots=4\n",
    "max": "node01 slots=1 max_slots=2\nnode02 slots=1 max-slots=3\n",
    "hydra": "node01:2\nnode02:1\n",
    "hydrabare": "node01\nnode02\nnode03\n",
    "repeat": "node01\nnode01\nnode02\n",
    "uneven": "node01 slots=1\nnode02 slots=3\n",
}
REAL = {"openmpi": ["mpirun.openmpi", "--wdir", "/"], "hydra": ["mpiexec.hydra", "-wdir", "/"]}
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PROGRAM = ["sh", "-c", "echo ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $(hostname)"]
ROWS = [
    [cell.strip() for cell in line.split("|")]
    for line in (GOLDEN / "maps/lines.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
CHOSEN = ROWS if os.environ.get("TABLE") == "all" else ROWS[::3]


def map_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the host of each rank in rank order, "error" if the launcher has refused the line."""
    if done.returncode:
        return "error"
    ranks = sorted((int(line.split()[0]), line.split()[1]) for line in done.stdout.splitlines())
    assert [rank for rank, _ in ranks] == list(range(len(ranks))), done.stdout
    return " ".join(host for _, host in ranks)


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.needs("mpicc.mpich", "mpicc.openmpi")
@pytest.mark.parametrize("row", CHOSEN, ids=[" ".join(row[:2]) for row in CHOSEN])
def test_ranks_run_where_the_launcher_puts_them(hosts: Hosts, row: list[str]) -> None:
    launcher, options, *otherwise = row
    for name, text in FILES.items():
        (hosts.shared / name).write_text(text)
    words: list[str] = []
    for word in options.split():
        words += PROGRAM if word == "PROGRAM" else [f"{hosts.shared}/{word[1:]}" if word.startswith("@") else word]
    real = map_of(hosts.run([*REAL[launcher], *words, *PROGRAM], env=ENVIRONMENT, timeout=60))
    ours = map_of(hosts.launch("--dialect", launcher, *words, *PROGRAM, timeout=60))
    expected, _, why = otherwise[0].partition("#") if otherwise else (real, "", "")
    assert bool(why) == bool(otherwise), "what mpilaunch does otherwise comes with a reason"
    assert ours == expected.strip() and (not otherwise or ours != real), real


def test_the_lines_are_many() -> None:
    assert len(ROWS) >= 150
