"""Ranks that hang: what they do, in the words of their code and of the kernel. Pure."""
