"""Services of the head for MPI programs: collectives of several nodes, published names, spawned worlds."""
