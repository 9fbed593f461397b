"""Placement: `mapping` of ranks to slots, `binding` to GPUs, `cpu_binding` to CPUs; `map_by` reads the options. Pure."""
