"""The head: starts daemons on the nodes, sends them their ranks, forwards input and output, and reports how the job ended."""
