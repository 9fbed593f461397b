"""The lines of the ranks' output: cutting bytes into lines, and the tag before each line. Pure."""
