"""Launchers of batch systems: here they start the ranks on the nodes of the allocation, and request none themselves."""
