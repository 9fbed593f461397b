"""The environment of a rank: what the head forwards, what is scrubbed, and what mpilaunch sets.

Pure. The variables and their sources are in docs/environment.md. Nothing here reads os.environ.
"""
