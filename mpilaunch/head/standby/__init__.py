"""Standby daemons (`mpilaunch up`): the keeper process that holds them between launches, and its clients."""
