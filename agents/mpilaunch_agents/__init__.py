"""The agents: how the head runs a command on a node. One module each; they know nothing of ranks, wire or jobs."""
