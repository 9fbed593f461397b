"""The nodes as the head sees them: starting daemons, the link to each, and what is sent there."""
