"""What this node is made of. Travels to every node."""
