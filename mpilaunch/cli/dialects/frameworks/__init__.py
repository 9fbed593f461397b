"""Launchers of frameworks: each reads the program in its own way, so its options count only under its name."""
