"""The agents: how the head runs a command on a node. One module or folder for each, and what they share.

They know nothing of ranks, wire or jobs.
"""
