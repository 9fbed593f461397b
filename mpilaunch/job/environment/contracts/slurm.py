"""Slurm's variables of a step: dropped, so that a rank does not join that step. Source: srun(1)."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(scrubbed=("SLURM_*", "SLURMD_*"))
