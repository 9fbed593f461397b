"""The real mpirun and mpiexec in a launcher pod, with mpilaunch-rsh as their remote shell."""

from __future__ import annotations

AGENT = "/usr/local/bin/mpilaunch-rsh"
SETTINGS = {
    "MPILAUNCH_AGENT": "kubectl",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Its libraries hang in MPI_Finalize over several hosts (docs/mpi.md): mpiexec ends them.
    "MPIEXEC_TIMEOUT": "10",
}
LINES = {
    "openmpi": f"mpirun.openmpi --mca plm_rsh_agent {AGENT} -np 4 --map-by node --host job-worker-0:2,job-worker-1:2".split(),
    "mpich": f"mpiexec.hydra -launcher ssh -launcher-exec {AGENT} -np 4 -hosts job-worker-0,job-worker-1".split(),
}
"""Command lines for four ranks, on two pods in turn."""
