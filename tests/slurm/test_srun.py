"""The same lines by Slurm's srun and by mpilaunch under the name srun, inside one allocation of two nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Slurm
from tests.support.launching import wait_until

ALLOCATION = ("--partition=both", "--nodes=2", "--exclusive")
SECONDS = 60.0
VARIABLES = (
    "PROCID LOCALID NODEID NTASKS NPROCS NNODES STEP_NUM_NODES STEP_NUM_TASKS STEP_NODELIST STEP_TASKS_PER_NODE JOB_ID "
    "CPUS_PER_TASK"
)
PLACE = "./place"
"""A program that prints its variables of the step, and ends as its arguments say."""
PROGRAM = f"""#!/bin/sh
line=place
for name in {VARIABLES} TASKS_PER_NODE JOB_NODELIST; do eval "line=\\"\\$line $name=\\$SLURM_$name\\""; done
echo "$line $SLURMD_NODENAME A=$A B=$B $*"
[ "$1" != fail ] || [ "$SLURM_PROCID" != "$2" ] || exit "$3"
[ "$1" != late ] || [ "$SLURM_PROCID" = 0 ] || {{ sleep 1; echo on; }}
"""
LINES = (
    f"{PLACE}",
    f"-l -n12 {PLACE}",
    f"-lN1 -n3 {PLACE}",
    f"-n5 {PLACE}",
    f"-n6 -m cyclic {PLACE}",
    f"-n7 -m plane=3 {PLACE}",
    f"-n5 -m block,Pack {PLACE}",
    f"-N1 -w n02 -n2 {PLACE}",
    f"-N1 -x n01 -n2 {PLACE}",
    f"-N1 -r1 {PLACE}",
    f"--ntasks-per-node=2 {PLACE}",
    f"-c4 --cpu-bind=none {PLACE}",
    f"-n18 -O {PLACE}",
    f"-n2 --export=ALL,A=line,B=line {PLACE}",
    f"-n2 --export=PATH,A,C=1 {PLACE}",
    "-n5 -l --multi-prog ./programs more",
    f"-n3 {PLACE} fail 1 7",
    f"-n2 -K0 {PLACE} late",
    "-n2 -l sh -c 'cat; echo read'",
    "-n2 -i1 -l cat",
    "-n2 sh -c 'kill -9 $$'",
    f"-n17 {PLACE}",
    f"-N3 {PLACE}",
)
"""Lines whose output, and whether they fail, must be the same by both."""
CODES = {f"-n3 {PLACE} fail 1 7": 7, "-n2 sh -c 'kill -9 $$'": 137}
"""Exit codes of those that fail by a task; both have their own for bad options."""
PROGRAMS = "0,2 ./place %t %o\n1 echo 'is %t' %t\n* echo rest %t %o\n"


@pytest.fixture(scope="module")
def outputs(made_slurm: Slurm) -> Iterator[dict[tuple[str, str], tuple[int, list[str]]]]:
    """Run all lines in one job; give exit code and sorted lines of stdout by launcher and line."""
    shared = made_slurm.shared
    (shared / "place").write_text(PROGRAM)
    (shared / "place").chmod(0o755)
    (shared / "programs").write_text(PROGRAMS)
    # sbatch --export sets SLURM_EXPORT_ENV, which both follow.
    script = ["unset SLURM_EXPORT_ENV; export A=head"]
    launchers = {"slurm": "srun", "mpilaunch": f"{sys.executable} -m mpilaunch --dialect srun"}
    for number, line in enumerate(LINES):
        for name, command in launchers.items():
            script.append(
                f"echo input | {command} {line} >{name}.{number}.out 2>{name}.{number}.err; echo $? >{name}.{number}.code"
            )
    job = made_slurm.sbatch("\n".join([*script, "echo done"]), *ALLOCATION)
    wait_until(lambda: made_slurm.lines(job)[-1:] == ["done"], f"job {job} is done", SECONDS)
    yield {
        (name, line): (
            int((shared / f"{name}.{number}.code").read_text()),
            sorted((shared / f"{name}.{number}.out").read_text().splitlines()),
        )
        for number, line in enumerate(LINES)
        for name in launchers
    }


@pytest.mark.parametrize("line", LINES)
def test_mpilaunch_does_what_srun_does(outputs: dict[tuple[str, str], tuple[int, list[str]]], line: str) -> None:
    code, lines = outputs["slurm", line]
    own_code, own_lines = outputs["mpilaunch", line]
    assert own_lines == lines
    assert bool(own_code) == bool(code) == (not lines or line in CODES)
    if line in CODES:
        assert own_code == code == CODES[line]
