"""The options of other launchers: one file for each launcher, with a table and the functions that it names.

A new launcher is a new file with a `DIALECT` and its name in the line below. `table` looks options up.
"""

NAMES = ("openmpi", "hydra", "intel")
