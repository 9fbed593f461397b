"""The daemon on a node: starts the ranks, carries their output and input, reaps and ends them. It travels to every node.

Standard library only, Python 3.8; it imports nothing of ours but `mpilaunch.daemon` and `mpilaunch.wire`.
"""
