"""Which launcher a command line is written for."""

from __future__ import annotations

import pytest

from mpilaunch.cli.detection import Detection
from mpilaunch.cli.dialects import DETECTED


@pytest.mark.parametrize(
    ("command", "names", "separate"),
    [
        ("mpilaunch", DETECTED, None),
        ("mpirun", DETECTED, None),
        ("orterun", {"openmpi"}, None),
        ("torchrun", {"torchrun"}, "torchrun"),
        ("another", DETECTED, None),
    ],
)
def test_the_command_name_tells_the_launcher(command: str, names: frozenset[str], separate: str | None) -> None:
    launcher = Detection(command)
    assert launcher.names == names
    assert (launcher.separate.name if launcher.separate else None) == separate
    assert not launcher.named


def test_the_users_word_counts_more_than_the_command_name() -> None:
    launcher = Detection("torchrun")
    launcher.name("srun")
    assert launcher.named and launcher.names == {"srun"}
    launcher.name("mpi")
    assert launcher.separate is None and launcher.names == DETECTED
    launcher.name("no launcher")
    assert launcher.names == DETECTED


def test_options_exclude_launchers_but_never_all() -> None:
    launcher = Detection("mpirun")
    launcher.narrow({"hydra", "intel"})
    assert launcher.names == {"hydra", "intel"}
    launcher.narrow({"openmpi"})
    assert launcher.names == {"hydra", "intel"}


@pytest.mark.parametrize(("command", "marked"), [("mpirun", True), ("mpilaunch", False)])
def test_our_options_are_marks_only_under_a_name_that_every_mpi_uses(command: str, marked: bool) -> None:
    launcher = Detection(command)
    launcher.narrow_by_mark("-x")
    assert (launcher.names == {"openmpi"}) is marked


def test_the_words_that_start_a_separate_launcher_come_once() -> None:
    launcher = Detection("pdsh")
    assert launcher.start_words(["python", "-m", "torch.distributed.run"]) == 0
    launcher = Detection("torchrun")
    words = ["python3", "-u", "-m", "torch.distributed.run", "--nnodes=2"]
    assert launcher.start_words(words) == 4
    assert launcher.start_words(words) == 0


def test_joined_short_options_are_split_for_a_launcher_that_joins_them() -> None:
    assert Detection("mpilaunch").split_joined("-n4") == ["-n4"]
    assert Detection("srun").split_joined("-n4") == ["-n=4"]
