"""Profiles of accelerators whose runtimes read the job from variables of their own, one device for each rank.

Source: jax/_src/test_multiprocess.py and pytorch/xla's torch_xla/_internal/tpu.py for TPUs; libneuronxla's
`configure_pjrt_environment` and AWS's scripts for Neuron; HCCL's documentation of RANK_TABLE_FILE for Ascend.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables

_TPU_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "4,2,1"}
"""How the chips of one machine are connected, by their number."""


def _tpu(job: JobFacts, node: NodePlace, rank: RankPlace) -> Variables:
    bounds = _TPU_BOUNDS.get(job.size) if job.node_count == 1 else None
    return {
        "CLOUD_TPU_TASK_ID": str(rank.rank),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": ",".join(endpoint.address for endpoint in job.endpoints),
        "TPU_PROCESS_PORT": job.endpoints[rank.rank].port,
        "TPU_VISIBLE_CHIPS": str(rank.local_rank),
        **({"TPU_PROCESS_BOUNDS": bounds} if bounds else {}),
    }


def _neuron(job: JobFacts, node: NodePlace, rank: RankPlace) -> Variables:
    return {
        "NEURON_RT_ROOT_COMM_ID": f"{job.master_addr}:{job.master_port}",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": ",".join(["1"] * job.size),
        "NEURON_PJRT_PROCESS_INDEX": str(rank.rank),
        "NEURON_RT_VISIBLE_CORES": str(rank.local_rank),
    }


def _ascend(job: JobFacts, node: NodePlace, rank: RankPlace) -> Variables:
    return {"RANK_ID": str(rank.rank), "RANK_SIZE": str(job.size), "DEVICE_ID": str(rank.local_rank)}


TPU = Contract(rank=_tpu, endpoints=True)
NEURON = Contract(rank=_neuron)
ASCEND = Contract(rank=_ascend)
