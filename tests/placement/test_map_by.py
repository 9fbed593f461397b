"""What --map-by, --rank-by, --bind-to and the options beside them say together."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.cli.job.ranks import placement_options
from mpilaunch.errors import UsageError
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.map_by import PlacementOptions, placement_policies
from mpilaunch.placement.mapping import MappingPolicy
from tests.support.command_line import settings


def read(words: str) -> tuple[MappingPolicy, CpuPolicy]:
    return placement_policies(placement_options(settings(words)))


def on(kind: str, **fields: object) -> CpuPolicy:
    """A policy of ranks that are mapped and bound to one kind of object, as --map-by alone says it."""
    return CpuPolicy(**{"bind_to": kind, "map_by": kind, "overload": True, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "policy", "cpu"),
    [
        ("", MappingPolicy(), CpuPolicy()),
        ("-np 4 -map-by node -rank-by slot", MappingPolicy(4, "node", rank_by="slot"), CpuPolicy()),
        ("-c 4", MappingPolicy(4), CpuPolicy()),
        ("-N 2", MappingPolicy(per_node=2), CpuPolicy()),
        ("--map-by ppr:2:node", MappingPolicy(per_node=2), CpuPolicy()),
        ("--map-by PPR:2:NODE:OVERSUBSCRIBE -N 2", MappingPolicy(per_node=2, oversubscribe=True), CpuPolicy()),
        ("--map-by ppr:2:node,pe=3", MappingPolicy(per_node=2), CpuPolicy("core", 3)),
        ("--map-by node:oversubscribe", MappingPolicy(map_by="node", oversubscribe=True), CpuPolicy()),
        ("--oversubscribe --map-by :nooversubscribe", MappingPolicy(), CpuPolicy()),
        ("--map-by slot:PE=4", MappingPolicy(), CpuPolicy("core", 4)),
        ("--map-by slot:PE=1", MappingPolicy(), CpuPolicy("core", 1)),
        ("--map-by socket:PE=1", MappingPolicy(map_by="socket"), CpuPolicy("core", 1, "socket")),
        ("--cpu-set 0,1 --bind-to none", MappingPolicy(), CpuPolicy("cpu-list", cpu_list=(0, 1))),
        ("--map-by slot:PE=4 --bind-to hwthread", MappingPolicy(), CpuPolicy("hwthread", 4)),
        ("--map-by slot:PE=4:HWTCPUS", MappingPolicy(), CpuPolicy("hwthread", 4, hwthreads=True)),
        ("--use-hwthread-cpus --cpus-per-proc 2", MappingPolicy(), CpuPolicy("hwthread", 2, hwthreads=True)),
        ("--cpus-per-rank 2 --bind-to none", MappingPolicy(), CpuPolicy("none", 2)),
        ("--bind-to socket", MappingPolicy(), CpuPolicy("socket", 1)),
        ("--bind-to Package:OVERLOAD", MappingPolicy(), CpuPolicy("socket", overload=True)),
        ("--bind-to core:if-supported:no-overload:report", MappingPolicy(), CpuPolicy("core", if_supported=True)),
        ("--bind-to numa:2", MappingPolicy(), CpuPolicy("numa", 2)),
        ("--bind-to default", MappingPolicy(), CpuPolicy("default", overload=True, if_supported=True)),
        ("--bind-to default --map-by l3cache", MappingPolicy(map_by="l3cache"), on("l3cache")),
        ("--bind-to default --cpus-per-rank 2", MappingPolicy(), CpuPolicy("core", 2)),
        ("--bind-order cyclic --bind-to core", MappingPolicy(), CpuPolicy("core", in_turn=True, overload=True)),
        ("--bind-order numa", MappingPolicy(), CpuPolicy(map_by="default", in_turn=True)),
        ("--bind-order numa --map-by slot", MappingPolicy(), CpuPolicy(in_turn=True)),
        ("--bind-order numa -N 2", MappingPolicy(per_node=2), CpuPolicy(in_turn=True)),
        ("--bind-to rr", MappingPolicy(), CpuPolicy("user")),
        ("--bind-to user:0+2,1+4,3,2", MappingPolicy(), CpuPolicy("user", lists=((0, 2), (1, 4), (3,), (2,)))),
        ("--map-by l3cache", MappingPolicy(map_by="l3cache"), on("l3cache")),
        ("--map-by package", MappingPolicy(map_by="socket"), on("socket")),
        ("--map-by socket:PE=2", MappingPolicy(map_by="socket"), CpuPolicy("core", 2, "socket")),
        ("--map-by socket --bind-to none", MappingPolicy(map_by="socket"), CpuPolicy("none", map_by="socket")),
        ("--map-by numa --bind-to core", MappingPolicy(map_by="numa"), CpuPolicy("core", map_by="numa")),
        ("--map-by ppr:1:numa", MappingPolicy(map_by="numa", per_object=1), on("numa", per_object=1)),
        ("--npersocket 2", MappingPolicy(map_by="socket", per_object=2), on("socket", per_object=2)),
        ("-persocket --map-by ppr:1:socket", MappingPolicy(map_by="socket", per_object=1), on("socket", per_object=1)),
        (
            "--map-by numa:SPAN,nolocal",
            MappingPolicy(map_by="numa", rank_by="numa", span=True, rank_span=True, nolocal=True),
            on("numa", rank_by="numa"),
        ),
        ("--map-by slot:span", MappingPolicy(map_by="node"), CpuPolicy()),
        ("--map-by core --rank-by socket", MappingPolicy(map_by="core", rank_by="socket"), on("core", rank_by="socket")),
        (
            "--map-by core --rank-by numa:span",
            MappingPolicy(map_by="core", rank_by="numa", rank_span=True),
            on("core", rank_by="numa"),
        ),
        ("--map-by core --rank-by FILL", MappingPolicy(map_by="core", rank_by="fill"), on("core", rank_by="fill")),
        ("--rank-by span", MappingPolicy(rank_by="slot"), CpuPolicy()),
        ("--cpu-set 0-2,5", MappingPolicy(), CpuPolicy("cpu-list", cpu_list=(0, 1, 2, 5))),
        ("--cpu-list 1,3 --bind-to core", MappingPolicy(), CpuPolicy("core", cpu_list=(1, 3))),
        ("--map-by pe-list=1,3:ordered", MappingPolicy(), CpuPolicy("cpu-list", cpu_list=(1, 3), ordered=True)),
        ("--map-by rankfile:FILE=Ranks.txt", MappingPolicy(map_by="rankfile", file="Ranks.txt"), CpuPolicy("user")),
        ("-rf Ranks.txt", MappingPolicy(map_by="rankfile", file="Ranks.txt"), CpuPolicy("user")),
        ("--map-by seq", MappingPolicy(map_by="seq"), CpuPolicy()),
        ("--map-by slot:inherit", MappingPolicy(), CpuPolicy()),
    ],
)
def test_what_the_words_say(words: str, policy: MappingPolicy, cpu: CpuPolicy) -> None:
    assert read(words) == (policy, cpu)


@pytest.mark.parametrize(
    ("words", "reference", "message"),
    [
        *((f"--map-by {text}", "map-by", "--map-by: ") for text in ("ppr", "ppr:2", "ppr:0:node", "ppr:x:node", "ppr:1:nod")),
        *((f"--map-by {text}", "map-by", "--map-by: ") for text in ("cor", "slot:PE=0", "slot:", "slot:x", "core:2")),
        ("--map-by machine", "map-by", "--map-by: unknown policy 'machine'"),
        ("--map-by board", "map-by", "'board' is not supported"),
        ("--map-by dist:span", "map-by", "'dist' is not supported"),
        ("--bind-to cpu-list", "bind-to", "--bind-to cpu-list: there is no list"),
        ("--map-by core:PE=2", "map-by", "a core does not have 2 CPUs"),
        ("--map-by hwthread --cpus-per-rank 2", "map-by", "a hwthread does not have 2 CPUs"),
        ("--map-by slot:PE=2 --bind-to socket", "option-conflict", "2 CPUs for each rank do not go with --bind-to socket"),
        ("-N 2 --map-by ppr:3:node", "option-conflict", "-N 2 and --map-by ppr:3:node contradict each other"),
        ("--npersocket 2 --map-by core", "option-conflict", "contradict each other"),
        ("--rank-by cor", "rank-by", "did you mean core?"),
        ("--rank-by socket:x", "rank-by", "unknown modifier 'x'"),
        ("--bind-to cor", "bind-to", "did you mean core?"),
        ("--bind-to core:x", "bind-to", "unknown modifier 'x'"),
        ("--bind-to gpu0", "bind-to", "unknown policy 'gpu0'"),
        ("--bind-to gpu", "bind-to", "'gpu' is not supported"),
        ("--bind-to l4cache", "bind-to", "'l4cache' is not supported"),
        ("--bind-to user:0+x", "bind-to", "--bind-to:1:8: 'x' is not a CPU number"),
        ("--bind-to user:", "bind-to", "'' is not a CPU number"),
        ("--cpu-set 3-1", "nodeset-syntax", "--cpu-set:1:1: the range '3-1' is reversed"),
    ],
)
def test_what_is_refused(words: str, reference: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(words)
    assert caught.value.reference == reference
    assert message in caught.value.message
    assert caught.value.hint


@given(
    st.sampled_from(["map-by", "rank-by", "bind-to"]),
    st.lists(st.sampled_from([*"2:,=+", "slot", "core", "ppr", "pe", "user", "span", "seq", "file", "0-3", "pe-list"])),
)
def test_any_words_are_read_or_refused(option: str, words: list[str]) -> None:
    text = "".join(words) or ":"
    with contextlib.suppress(UsageError):
        options: dict[str, Any] = {option.replace("-", "_"): text}
        placement_policies(PlacementOptions(**options))
