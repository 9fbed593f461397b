"""The agent `slurm`: the daemons of all nodes by one step of Slurm."""
