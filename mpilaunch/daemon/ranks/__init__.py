"""The ranks of this node: started, watched, ended. Travels to every node."""
