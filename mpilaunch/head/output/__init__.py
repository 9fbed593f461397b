"""The ranks' output and input on the head, and the files that output goes to."""
