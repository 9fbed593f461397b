"""Records: the standard library's dataclasses, without the price of making them.

`dataclasses` writes and compiles the methods of each class as it is loaded: a millisecond for each, in every launch. Here all
classes share methods that are there already. `frozen`, `eq`, `field(default_factory=...)`, `replace` and their errors are as in
the standard library, whose `fields`, `asdict` and `replace` take these classes too. All else is a TypeError. `asdict` copies
what holds records, and nothing else.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs milliseconds at start; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any


def _dataclass(cls: type | None = None, *, frozen: bool = False, eq: bool = True) -> Any:
    """Make a record of a class with annotated members: see `dataclasses.dataclass`."""
    return _made(cls, frozen, eq) if cls is not None else lambda cls: _made(cls, frozen, eq)


def _field(*, default_factory: Callable[[], Any]) -> _Factory:
    """Return what makes a member's default: see `dataclasses.field`."""
    return _Factory(default_factory)


def _replace(record: Any, /, **changes: Any) -> Any:
    """Return a record like this one but for the changes."""
    return type(record)(**{**record.__dict__, **changes})


def _asdict(record: Any) -> dict[str, Any]:
    """Return the members of a record by name, and of the records in them: see `dataclasses.asdict`."""
    return {name: _as_data(value) for name, value in record.__dict__.items()}


def _as_data(value: Any) -> Any:
    if hasattr(type(value), "_members"):
        return _asdict(value)
    if isinstance(value, (tuple, list)):
        return type(value)([_as_data(item) for item in value])
    if isinstance(value, dict):
        return {_as_data(key): _as_data(item) for key, item in value.items()}
    return value


if not TYPE_CHECKING:
    asdict, dataclass, field, replace = _asdict, _dataclass, _field, _replace


_set = object.__setattr__


class _Factory:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Fields:
    """What the standard library knows a dataclass by, made when it asks."""

    def __get__(self, record: Any, cls: Any) -> dict[str, Any]:
        import dataclasses

        members: list[Any] = []
        for name, kind in cls.__annotations__.items():
            default = cls._defaults.get(name, dataclasses.MISSING)
            made = {"default_factory": default.make} if isinstance(default, _Factory) else {"default": default}
            members.append((name, kind, dataclasses.field(**made)))
        fields: dict[str, Any] = dataclasses.make_dataclass(cls.__name__, members).__dict__["__dataclass_fields__"]
        cls.__dataclass_fields__ = fields
        return fields


def _made(cls: Any, frozen: bool, eq: bool) -> Any:
    if hasattr(cls, "__post_init__") or hasattr(cls, "_members"):
        raise TypeError(f"{cls.__qualname__}: a record has no __post_init__, and inherits from no other")
    names = tuple(cls.__annotations__)
    defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    for name, default in defaults.items():
        if isinstance(default, _Factory):
            delattr(cls, name)
    made = {"_members": dict.fromkeys(names), "_defaults": defaults, "__match_args__": names, "__dataclass_fields__": _Fields()}
    made |= {"__init__": _init, "__repr__": _repr}
    if eq:
        made |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        made |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    for name, value in made.items():
        setattr(cls, name, value)
    return cls


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    members, given = self._members, len(values) + len(named)
    state = dict(zip(members, values, strict=False), **named)
    if len(state) == given < len(members):
        for name, default in self._defaults.items():
            if name not in state:
                state[name] = default.make() if isinstance(default, _Factory) else default
    if state.keys() != members.keys() or given > len(members):
        got = f"{len(values)} values and {', '.join(named) or 'no names'}"
        raise TypeError(f"{type(self).__qualname__}({', '.join(members)}) got {got}")
    # One by one and always in this order: so all records of a class share one table of names, and take half the memory.
    for name in members:
        _set(self, name, state[name])


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self._members)})"


def _eq(self: Any, other: object) -> bool:
    return bool(self.__dict__ == other.__dict__) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(self.__dict__[name] for name in self._members))


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")
