"""Settings: the value of each option, and where the value came from.

Pure data, below the command line: whatever is decided by settings can be read and tested without it. Nothing here parses a
value, reads a file or knows which options there are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = bool | int | float | str | tuple[str, ...] | None


class Layer(enum.IntEnum):
    """How strong a setting is; the strongest one wins."""

    DEFAULT = 0
    INHERITED = 1
    """A variable of another launcher, or the default of the launcher whose options are used."""
    FILE = 2
    ENVIRONMENT = 3
    COMMAND_LINE = 4


@dataclass(frozen=True)
class Setting:
    """The value of one option; `source` is "--np", "MPILAUNCH_NP", "jobs.yaml:3" or "default"."""

    value: Value
    source: str = "default"
    layer: int = Layer.DEFAULT


@dataclass(frozen=True)
class Settings:
    """The setting of every option, by name; `settings["np"]` is the value."""

    by_name: Mapping[str, Setting]

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name].value

    def source(self, name: str) -> str:
        """Return where the value came from."""
        return self.by_name[name].source

    def layer(self, name: str) -> int:
        """Return the layer of the value."""
        return self.by_name[name].layer

    def given(self, name: str) -> Any:
        """Return the value, or None when it is only the default."""
        return self[name] if self.layer(name) else None


@dataclass(frozen=True)
class Section:
    """One program of a command line with its arguments, and the settings for it alone."""

    program: list[str]
    settings: Mapping[str, Setting] = field(default_factory=dict)


def merge_program_settings(job: Mapping[str, Setting], own: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the settings of a program: its own before those of the job; lists of the same layer are joined."""
    both = {**job, **own}
    for name in job.keys() & own.keys():
        first, second = job[name], own[name]
        if isinstance(first.value, tuple) and isinstance(second.value, tuple) and first.layer == second.layer:
            both[name] = Setting(first.value + second.value, second.source, second.layer)
    return both
