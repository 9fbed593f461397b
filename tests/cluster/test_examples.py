"""The manifest of the examples, unchanged, from its Service to the log of its Job."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import MANIFEST


def test_the_manifest_of_the_examples(cluster: Cluster) -> None:
    namespace = "--namespace=training"
    cluster.kubectl("create", "namespace", "training")
    cluster.kubectl("apply", namespace, f"--filename={MANIFEST}")
    workers = [cluster.pod(f"job-worker-{number}", "training") for number in range(2)]
    cluster.kubectl("wait", namespace, "--for=condition=complete", "--timeout=50s", "job/launcher")
    said = sorted(cluster.kubectl("logs", namespace, "job/launcher").splitlines())
    assert len(said) == 4
    for rank, line in enumerate(said):
        assert line.startswith(f"[{rank}] rank {rank} of 4 on job-worker-{rank // 2}: the sum of 262144 numbers is right, ")
    assert [pod.left() for pod in workers] == [{}, {}]
    cluster.kubectl("delete", namespace, f"--filename={MANIFEST}")
    cluster.kubectl("wait", namespace, "--for=delete", "--timeout=50s", "pods", "--all")
