"""Reads the stacks of a process that runs Python out of its memory. Nothing is sent to it, stopped or put into it."""
