"""The MPI launchers: their options count together, until one tells which launcher is meant."""
