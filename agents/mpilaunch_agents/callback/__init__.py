"""An agent around another agent: the daemon calls the head back."""
