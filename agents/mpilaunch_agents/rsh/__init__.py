"""The command `mpilaunch-rsh`: a remote shell for the real mpirun and mpiexec."""
