"""The head: starts the daemons, gives them their ranks, brings output and exit codes back, and tells how it ended."""
