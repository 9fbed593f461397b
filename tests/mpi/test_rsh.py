"""The own launcher of each family from PyPI starts a real MPI program on hosts over mpilaunch-rsh.

Debian's are in `tests/agents/test_rsh.py`, with all that can go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.cases import OWN, Case
from tests.mpi.families import FAMILIES, Family
from tests.mpi.outcomes import outcome
from tests.mpi.places import PLACES
from tests.mpi.results import ALL
from tests.mpi.runs import run
from tests.mpi.works import WORKS
from tests.support.agents.programs import remote_shell
from tests.support.hosts import Hosts
from tests.support.launching import script

AGENT_OF = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC")
"""By what each launcher is told of its remote shell."""
FROM_PYPI = [family for family in FAMILIES if not family.package and (ALL or family.in_test_slow)]


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("family", FROM_PYPI, ids=lambda family: family.name)
def test_the_launcher_of_a_family_over_mpilaunch_rsh(
    family: Family, hosts: Hosts, programs: Callable[[Family, str], Path], tmp_path: Path
) -> None:
    ring = next(work for work in WORKS if work.name == "ring")
    case = Case(family, "mpi4py", ring, PLACES["2 hosts x 1"], OWN)
    called = hosts.shared / f"called-{family.name}"
    shell = script(hosts.shared / "noted-rsh", f'#!/bin/sh\necho "$@" >>{called}\nexec {remote_shell(hosts.shared)} "$@"\n')
    # Intel's mpiexec takes the number behind a host for nothing.
    settings = {**dict.fromkeys(AGENT_OF, str(shell)), "MPILAUNCH_AGENT": "ssh", "I_MPI_PERHOST": "1"}
    done = run(case, programs(family, "mpi4py"), hosts, settings)
    outcome(case, done)
    hosts_called = called.read_text(encoding="utf-8")
    assert "node01" in hosts_called and "node02" in hosts_called
