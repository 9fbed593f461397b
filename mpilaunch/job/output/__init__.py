"""The lines of the ranks' output: cutting bytes into lines, tags, and masking of secrets in what is printed. Pure."""
