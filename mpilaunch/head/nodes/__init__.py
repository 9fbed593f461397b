"""The head's side of the nodes: starting daemons, the link to each of them, and the messages between."""
