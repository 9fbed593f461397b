"""mpilaunch starts one program as N ranks on many nodes and brings everything back.

This file travels to every node: it holds the version and imports nothing.
"""

__version__ = "0.1.0"
