"""Observers of a launch. They record and print; they never change what a launch does."""
