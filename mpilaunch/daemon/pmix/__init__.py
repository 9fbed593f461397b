"""PMIx on this node: the helper process that hosts libpmix, and the daemon's side of it. Travels to every node."""
