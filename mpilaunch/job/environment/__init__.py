"""The environment of a rank: one module for each contract that a framework or library expects."""
