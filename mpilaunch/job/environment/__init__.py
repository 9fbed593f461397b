"""The environment of a rank: variables that the head forwards, that mpilaunch sets, and that a node drops.

`contracts` has one module for each framework, library or launcher whose variables mpilaunch knows. docs/environment.md lists
all names; a test compares it with these modules.
"""
