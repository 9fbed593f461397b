"""horovodrun's variables: dropped, and given by a profile, with the store at which ranks on Gloo meet.

Without the profile, Horovod finds its place through the MPI library or Open MPI's variables; on Gloo alone, each rank would be
a world of one. Source: horovod/runner/gloo_run.py, horovod/common/gloo/gloo_context.cc.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(
    scrubbed=(
        *("HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_GLOO_RENDEZVOUS_*"),
    )
)
PROFILE = Contract(
    job=lambda job: {
        "HOROVOD_SIZE": str(job.size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": job.rendezvous[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": job.rendezvous[1],
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    },
    # It tells apart the nodes in the store, where some names of hosts and pods would break the path of a request.
    node=lambda job, node: {"HOROVOD_HOSTNAME": f"node{node.node_rank}", "HOROVOD_LOCAL_SIZE": str(node.local_size)},
    rank=lambda job, node, rank: {
        "HOROVOD_RANK": str(rank.rank),
        "HOROVOD_LOCAL_RANK": str(rank.local_rank),
        "HOROVOD_CROSS_RANK": str(rank.cross_rank),
        "HOROVOD_CROSS_SIZE": str(rank.cross_size),
    },
    rendezvous=True,
)
