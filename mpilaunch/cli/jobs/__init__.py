"""Running and detached jobs on the command line: their tables, their stacks and their kept output."""
