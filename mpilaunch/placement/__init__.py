"""Placement: the node and slot of each rank, and its CPUs and GPUs. Pure: data in, decisions out."""
