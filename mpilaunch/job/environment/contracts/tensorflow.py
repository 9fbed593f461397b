"""TensorFlow's description of a cluster: a profile, since a program without tf.distribute would wait for the other ranks.

Source: tf.distribute.cluster_resolver.TFConfigClusterResolver.
"""

from __future__ import annotations

import json

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables

_ROLES = ("chief", "worker", "ps", "evaluator")


def _rank(job: JobFacts, node: NodePlace, rank: RankPlace) -> Variables:
    """Return TF_CONFIG: the addresses of each role's ranks, and the rank's own role; a rank without one is a worker."""
    roles = [endpoint.role if endpoint.role in _ROLES else "worker" for endpoint in job.endpoints]
    cluster: dict[str, list[str]] = {}
    for role, endpoint in zip(roles, job.endpoints, strict=True):
        cluster.setdefault(role, []).append(endpoint.address)
    # An evaluator is no member of the cluster.
    cluster.pop("evaluator", None)
    own = roles[rank.rank]
    task = {"type": own, "index": roles[: rank.rank].count(own)}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


CONTRACT = Contract(scrubbed=("TF_CONFIG",))
PROFILE = Contract(rank=_rank, endpoints=True)
