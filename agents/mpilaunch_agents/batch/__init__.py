"""The agents that reach the nodes of the surrounding batch job: `slurm` and `gridengine`."""
