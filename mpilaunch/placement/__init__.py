"""Placement: which rank runs where, and which CPUs and GPUs it is bound to. Pure: data in, decisions out."""
