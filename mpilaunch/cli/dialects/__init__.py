"""The options of other launchers: one module for each launcher, with a table of options and the functions it uses.

A new launcher is a new module with a `DIALECT`, and its name in `NAMES`. `table` looks options up.
"""

NAMES = ("openmpi", "hydra", "intel")
ANY_MPI = "mpi"
"""The value of --dialect for one of several MPI launchers: which one, their own options tell."""
