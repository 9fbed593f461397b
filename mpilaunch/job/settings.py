"""Settings: the value of each option, and its source.

Pure data, independent of the command line, so that decisions based on settings can be tested without one. Nothing here parses a
value, reads a file or knows which options exist.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

Value = bool | int | float | str | tuple[str, ...] | None


class Layer(enum.IntEnum):
    """The precedence of a setting's source; the highest wins."""

    DEFAULT = 0
    INHERITED = 1
    """A variable of another launcher, or the default of the launcher whose options are used."""
    FILE = 2
    ENVIRONMENT = 3
    COMMAND_LINE = 4


class Setting(NamedTuple):
    """The value of one option; `source` is "--np", "MPILAUNCH_NP", "jobs.yaml:3" or "default"."""

    value: Value
    source: str = "default"
    layer: int = Layer.DEFAULT


class Settings:
    """The setting of every option, by name; `settings["np"]` is the value."""

    def __init__(self, by_name: Mapping[str, Setting]) -> None:
        self.by_name = by_name

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name].value

    def source(self, name: str) -> str:
        return self.by_name[name].source

    def layer(self, name: str) -> int:
        return self.by_name[name].layer

    def fields(self, *names: str) -> dict[str, Any]:
        """Return the values as keyword arguments, with underscores in the names."""
        return {name.replace("-", "_"): self[name] for name in names}


class Section(NamedTuple):
    """One program of a command line with its arguments, and the settings for this program only."""

    program: list[str]
    settings: Mapping[str, Setting] = {}

    def values(self, name: str) -> tuple[str, ...]:
        """Return the program's own values of an option that may be repeated."""
        value = self.settings[name].value if name in self.settings else ()
        return value if isinstance(value, tuple) else ()


def merge_program_settings(job: Mapping[str, Setting], own: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the settings of a program: its own override those of the job; lists of the same layer are joined."""
    merged = {**job, **own}
    for name in job.keys() & own.keys():
        first, second = job[name], own[name]
        if isinstance(first.value, tuple) and isinstance(second.value, tuple) and first.layer == second.layer:
            merged[name] = Setting(first.value + second.value, second.source, second.layer)
    return merged
