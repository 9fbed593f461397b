"""Masks of GPUs that the user sets, as by `-x CUDA_VISIBLE_DEVICES=0`: they count where nothing chooses GPUs for ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpilaunch.errors import UsageError
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.job.worlds import World
from mpilaunch.placement.gpu_binding import MASKS, RankBinding, without_masks


def check_masks(job: JobSpec, options: Sequence[str]) -> None:
    """Raise UsageError if a mask is set beside what chooses the GPUs of each rank: an option, or slots that name GPUs.

    Args:
        options: those of --gpus-per-rank and --gpu-bind that the user has given.
    """
    choices = [] if job.gpu.bind == "node" and job.gpu.per_rank is None else [*options]
    if any(slot.gpus for node in job.allocation.nodes for slot in node.slots):
        choices.append("slots that name GPUs")
    masks = sorted({name for app in job.apps for name in _masks(job, app)})
    if masks and choices and job.gpu.bind != "none":
        message = f"-x {masks[0]} and {choices[0]} cannot be used together"
        raise UsageError("option-conflict", message, hint="leave one out, or use --gpu-bind none to set the mask yourself")


def keep_masks(job: JobSpec, world: World, bindings: Mapping[int, RankBinding]) -> dict[int, RankBinding]:
    """Return the bindings of a world's ranks without the GPUs of each vendor whose mask the user sets for the program."""
    masks = [_masks(job, app) for app in world.apps]
    app_of = {place.rank: place.app for place in world.job_map.placements}
    return {rank: without_masks(one, masks[app_of[rank]]) for rank, one in bindings.items()}


def _masks(job: JobSpec, app: App) -> frozenset[str]:
    return MASKS & {*job.environment, *app.environment, *app.variables}
