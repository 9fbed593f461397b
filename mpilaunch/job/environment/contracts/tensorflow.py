"""TensorFlow's description of a cluster: dropped. Source: tf.distribute.cluster_resolver.TFConfigClusterResolver."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(scrubbed=("TF_CONFIG",))
