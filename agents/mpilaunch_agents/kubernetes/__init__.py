"""The agent `kubectl`, and the names of pods in what it is given."""
