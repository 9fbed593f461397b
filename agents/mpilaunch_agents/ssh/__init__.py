"""The agent `ssh`: connections made by asyncssh."""
