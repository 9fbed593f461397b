"""The environment of a rank: variables that the head forwards, that mpilaunch sets, and that a node drops.

To add a framework, library or launcher, add a module to `contracts`. A test compares docs/environment.md with these modules.
"""
