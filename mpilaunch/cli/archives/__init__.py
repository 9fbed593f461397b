"""Tar archives that the stdin of all ranks is, and that the stdout of each is."""
