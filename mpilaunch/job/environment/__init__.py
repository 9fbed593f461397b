"""The environment of a rank: what the head forwards, what mpilaunch sets, and what a node drops.

`contracts` holds one module for each framework, library or launcher whose variables mpilaunch knows. docs/environment.md lists
every name, and a test compares that page with these modules.
"""
