"""Ray as its documents start it: a driver that finds the cluster by itself, and a task on each node."""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

ray.init()
add = ray.remote(num_cpus=0)(lambda number: number + 1)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
total = 0
for node in nodes:
    total = ray.get(add.options(scheduling_strategy=OnNode(node, soft=False)).remote(total))
print(f"nodes {len(nodes)} total {total}", flush=True)
