"""Records: each does what the standard library's dataclass of the same text does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mpilaunch import records
from mpilaunch.jobspec import JobSpec

TEXT = """
@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
    tags: list = field(default_factory=list)

    def far(self):
        return self.x + self.y

@dataclass
class Counter:
    count: int = 0

@dataclass(eq=False)
class Thing:
    name: str
"""


def classes(module: Any) -> dict[str, Any]:
    names: dict[str, Any] = {name: getattr(module, name) for name in ("asdict", "dataclass", "field")} | {"__name__": __name__}
    exec(compile(TEXT, "<text>", "exec", flags=annotations.compiler_flag), names)
    return names


OURS, THEIRS = classes(records), classes(dataclasses)

USES: list[Callable[[dict[str, Any]], Any]] = [
    lambda m: repr(m["Point"](1)),
    lambda m: repr(m["Point"](1, 5, tags=["a"])),
    lambda m: m["Point"](y=3, x=1).far(),
    lambda m: (m["Point"](1) == m["Point"](1, 2), m["Point"](1) == m["Point"](2), m["Point"](1) == 1, m["Point"](1) != 1),
    lambda m: m["Point"](1).tags is not m["Point"](1).tags,
    lambda m: hash(m["Point"](1, 2, (3,))) == hash(m["Point"](1, 2, (3,))),
    lambda m: hash(m["Point"](1)),
    lambda m: hash(m["Counter"]()),
    lambda m: m["Thing"]("a") == m["Thing"]("a"),
    lambda m: len({m["Thing"]("a"), m["Thing"]("a")}),
    lambda m: m["Point"](),
    lambda m: m["Point"](1, 2, [], 4),
    lambda m: m["Point"](1, x=1),
    lambda m: m["Point"](1, z=1),
    lambda m: m["Point"](1, 2, [], z=1),
    lambda m: m["Thing"](z=1),
    lambda m: setattr(m["Point"](1), "x", 2),
    lambda m: setattr(m["Point"](1), "new", 2),
    lambda m: delattr(m["Point"](1), "x"),
    lambda m: [counter := m["Counter"](), setattr(counter, "count", 4), counter][-1].count,
    lambda m: repr(copy.deepcopy(m["Point"](1, 2, [[3]]))),
    lambda m: dataclasses.asdict(m["Point"](1)),
    lambda m: m["asdict"](m["Point"](1, m["Point"](2), [(3, m["Counter"](4)), {m["Point"](5, 6, ()): m["Counter"]()}])),
    lambda m: m["asdict"](m["Point"](1, 2, made := [3]))["tags"] is made,
    lambda m: dataclasses.fields(m["Point"])[0] is dataclasses.fields(m["Point"])[0],
    lambda m: [(one.name, one.type, one.default) for one in dataclasses.fields(m["Point"])],
    lambda m: repr(dataclasses.replace(m["Point"](1), y=4)),
    lambda m: dataclasses.is_dataclass(m["Thing"]),
    lambda m: m["Point"].__match_args__,
    lambda m: (m["Point"].y, hasattr(m["Point"], "tags"), m["Counter"].count),
]


def outcome(use: Callable[[dict[str, Any]], Any], module: dict[str, Any]) -> Any:
    try:
        return use(module)
    except (TypeError, AttributeError) as error:
        return type(error)


@pytest.mark.parametrize("use", USES, ids=range(len(USES)))
def test_a_record_does_what_a_dataclass_does(use: Callable[[dict[str, Any]], Any]) -> None:
    assert outcome(use, OURS) == outcome(use, THEIRS)


def test_replace() -> None:
    point = OURS["Point"](1, 2, [3])
    assert repr(records.replace(point, x=5)) == "Point(x=5, y=2, tags=[3])"
    assert point.x == 1
    with pytest.raises(TypeError):
        records.replace(point, z=1)


def test_what_a_record_cannot_be_is_said_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="inherits"):
        records.dataclass(type("Child", (OURS["Point"],), {"__annotations__": {"z": int}}))
    with pytest.raises(TypeError, match="__post_init__"):
        records.dataclass(type("Late", (), {"__annotations__": {}, "__post_init__": lambda self: None}))


def test_a_record_of_ours_can_be_stored() -> None:
    assert JobSpec.__module__ == "mpilaunch.jobspec"
    options = sys.modules["mpilaunch.agent"].AgentOptions(template="x")
    assert pickle.loads(pickle.dumps(options)) == options
