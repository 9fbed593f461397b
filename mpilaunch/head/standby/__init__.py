"""Daemons that stand by between launches: the process that keeps them, and its client."""
