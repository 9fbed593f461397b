"""Parallel shells: they run one command line on each host, by the login shell there, and the hosts share no job."""
