"""The ranks' output and input on the head."""
