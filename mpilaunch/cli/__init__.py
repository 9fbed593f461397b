"""The command line: what the user wrote becomes settings, a job and an exit code."""
