"""The protocol between head and daemon, without I/O; docs/wire.md is the specification. It travels to every node."""
