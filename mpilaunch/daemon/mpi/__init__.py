"""MPI wire-up on this node: PMI-1, PMI-2, and what both share. Travels to every node."""
