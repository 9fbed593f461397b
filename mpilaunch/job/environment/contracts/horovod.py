"""horovodrun's variables: dropped. Horovod finds its place through the MPI library or Open MPI's variables.

Source: horovod/runner/gloo_run.py.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(
    scrubbed=(
        *("HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_GLOO_RENDEZVOUS_*"),
    )
)
