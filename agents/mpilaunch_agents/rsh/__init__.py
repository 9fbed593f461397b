"""`mpilaunch-rsh`: the remote shell for the launchers of MPI libraries."""
