"""The lines of the ranks' output: cutting bytes into lines, and the tag before each line, and masking of secrets in what is printed. Pure."""
