"""What a node can tell of ranks that seem to hang."""
