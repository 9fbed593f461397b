"""Binding: which CPUs and GPUs each rank may use.

Pure: a job map, the facts of each node and two policies give a binding per rank, or an error that names ranks, slots and
nodes before any rank runs. An inherited mask is in the facts already; nothing here ever widens it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuPolicy:
    """What the user asked for.

    Attributes:
        per_rank: `--gpus-per-rank`, 0 or more; None when not said.
        bind: "slot" (a rank sees its slot's GPUs only), "node" (a rank sees all GPUs of the node's used slots in slot order,
            LOCAL_RANK indexes them), "virtual" (as slot, with LOCAL_RANK=0 for frameworks that index the visible GPUs),
            "none" (touch nothing); None: "slot" when slots name GPUs or per_rank is said, else "node".
        oversubscribe: several ranks may share a GPU.
    """

    per_rank: int | None = None
    bind: str | None = None
    oversubscribe: bool = False


@dataclass(frozen=True)
class CpuPolicy:
    """`bind_to`: "none", "hwthread", "core", "socket" or "numa"; `cpus_per_rank`: mpirun's PE=n, 1 or more, in `bind_to`'s
    unit for core and hwthread. CPUs that a slot names always bind, and `bind_to` then chooses among them."""

    bind_to: str = "none"
    cpus_per_rank: int = 1


@dataclass(frozen=True)
class RankBinding:
    """What one rank gets.

    Attributes:
        cpus: CPU numbers for sched_setaffinity, None to leave the daemon's own.
        gpus: labels of its GPUs for reports ("nvidia 0 GPU-8a1b..."), in the order the rank sees them.
        environment: variables that make it so (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, ...; LOCAL_RANK for "virtual").
        unset: variables that must be absent or the rank would see other GPUs.
    """

    cpus: tuple[int, ...] | None = None
    gpus: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
