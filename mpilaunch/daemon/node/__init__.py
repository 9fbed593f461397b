"""The hardware and network of this node. Travels to every node."""
