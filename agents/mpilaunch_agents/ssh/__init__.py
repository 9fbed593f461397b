"""The agent `ssh`: connects by asyncssh."""
