"""JAX as its documents start it: jax.distributed.initialize() without arguments, then a sum over all devices."""

import jax
import numpy

jax.distributed.initialize()
mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("all",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
numbers = jax.make_array_from_process_local_data(sharding, numpy.array([jax.process_index() + 1.0]))
total = float(jax.jit(lambda values: values.sum())(numbers))
print(f"rank {jax.process_index()} of {jax.process_count()} sum {total:g}", flush=True)
