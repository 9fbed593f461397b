"""ParameterServerStrategy, as TensorFlow's guide has it: one program for the roles chief, worker and ps.

TensorFlow's servers never return: these wait for a file that the chief writes at its end.
"""

import os
import pathlib
import time

import tensorflow as tf

DONE = pathlib.Path("done")

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id)
    while not DONE.exists():
        time.sleep(0.1)
    os._exit(0)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(0.0)


@tf.function
def step() -> tf.Tensor:
    weight.assign_add(1.0)
    return weight


for _ in range(4):
    coordinator.schedule(step)
coordinator.join()
print(f"chief of {len(resolver.cluster_spec().job_tasks('worker'))} workers: {weight.numpy():g} on {weight.device}", flush=True)
DONE.touch()
os._exit(0)
