"""Masks of GPUs that the user sets count for the programs that they are set for, and not beside a choice of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.job.preparation.gpu_masks import check_masks, keep_masks
from mpilaunch.job.preparation.messages import common_preparation, preparations
from mpilaunch.job.preparation.world_facts import WorldFacts
from mpilaunch.job.worlds import first_worlds
from mpilaunch.placement.gpu_binding import RankBinding
from mpilaunch.wire.environment import rank_environment
from tests.support.command_line import job_of

BINDING = RankBinding(
    gpus=("nvidia 0 GPU-a",),
    environment={"CUDA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    unset=("HIP_VISIBLE_DEVICES",),
)


@pytest.mark.parametrize(
    ("line", "bound"),
    [
        ("-x CUDA_VISIBLE_DEVICES=1 -np 2 ./x", []),
        ("-x A=1 -np 2 ./x", [0, 1]),
        ("-np 1 ./x : -np 1 -x CUDA_VISIBLE_DEVICES=1 ./y", [0]),
        ("--template -np 2 -x CUDA_VISIBLE_DEVICES={local_rank} ./x {rank}", []),
    ],
)
def test_a_mask_of_the_user_counts_for_the_programs_that_it_is_set_for(line: str, bound: list[int]) -> None:
    job = job_of(line)
    kept = keep_masks(job, first_worlds(job)[0], {0: BINDING, 1: BINDING})
    assert [rank for rank, binding in kept.items() if binding == BINDING] == bound
    assert all(binding.environment == {} and binding.gpus == () for rank, binding in kept.items() if rank not in bound)


def test_it_is_what_the_rank_gets() -> None:
    job = job_of("-H a -np 1 -x CUDA_VISIBLE_DEVICES=1 ./x")
    world, known = first_worlds(job)[0], WorldFacts("m", "1", "2")
    common = common_preparation(job, world, known, 1)
    ((_, own),) = preparations(job, world, known, keep_masks(job, world, {0: BINDING}))
    inherited = {b"CUDA_VISIBLE_DEVICES": b"0", b"CUDA_DEVICE_ORDER": b"FASTEST_FIRST"}
    got = rank_environment({**common, **own}, 0, inherited, {})
    assert (got[b"CUDA_VISIBLE_DEVICES"], got[b"CUDA_DEVICE_ORDER"]) == (b"1", b"FASTEST_FIRST")


@pytest.mark.parametrize("line", ["--gpus-per-rank 1 ./x", "--gpu-bind virtual ./x", "--gpu-bind node --gpus-per-rank 2 ./x"])
def test_beside_a_choice_of_gpus_a_mask_is_a_mistake(line: str) -> None:
    job_of(line)
    with pytest.raises(UsageError, match="-x ROCR_VISIBLE_DEVICES and --gpu"):
        job_of(f"-x ROCR_VISIBLE_DEVICES=0 {line}")


@pytest.mark.parametrize("line", ["--gpu-bind node ./x", "--gpu-bind none --gpus-per-rank 1 ./x", "./x"])
def test_a_choice_of_no_gpus_in_particular_allows_it(line: str) -> None:
    check_masks(job_of(f"-x CUDA_VISIBLE_DEVICES=0 {line}"), [])


def test_slots_that_name_gpus_are_a_choice(tmp_path: Path) -> None:
    (tmp_path / "named").write_text("a gpus=0,1\n", encoding="utf-8")
    with pytest.raises(UsageError, match="slots that name GPUs"):
        job_of(f"-x CUDA_VISIBLE_DEVICES=0 --hostfile {tmp_path}/named ./x")
