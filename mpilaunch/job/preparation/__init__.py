"""What each node is told before its ranks start. Pure."""
