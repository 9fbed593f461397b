"""MultiWorkerMirroredStrategy with the loop of TensorFlow's guide: the gradients are summed over the workers."""

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id or 0
with strategy.scope():
    weight = tf.Variable(0.0)


@tf.function
def train(number: tf.Tensor) -> tf.Tensor:
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = weight * number
        gradient = tape.gradient(loss, weight)
        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        weight.assign_sub(summed)
        return summed

    return strategy.run(step)


for _ in range(2):
    total = train(tf.constant(worker + 1.0))
print(f"rank {worker} of {strategy.num_replicas_in_sync} sum {float(total):g} weight {float(weight.numpy()):g}", flush=True)
