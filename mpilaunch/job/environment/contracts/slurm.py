"""Slurm's variables of a step: dropped. A rank that found them would take itself for a task of that step. Source: srun(1)."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(scrubbed=("SLURM_*", "SLURMD_*"))
