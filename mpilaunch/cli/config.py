"""Defaults from outside the command line: the config file, and the variables and defaults of other launchers.

Click converts the values and picks the strongest source. This module records the source of each value. It refuses unknown keys,
MPILAUNCH_* variables that set nothing, and files that another user may have written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mpilaunch.cli.files import check_trusted, parse_yaml, text_and_status
from mpilaunch.cli.options import BY_NAME, OPTIONS
from mpilaunch.cli.types import VARIABLES, Option, Origin
from mpilaunch.errors import UsageError
from mpilaunch.job.settings import Layer
from mpilaunch.text import closest, did_you_mean

COMMANDS = (
    *("agent", "remote-agent", "ssh-option", "host-discovery-script", "python", "pmix-library"),
    *("export", "env-file", "prepend-env", "append-env"),
)
"""Keys that can make mpilaunch run a command or load a library as the user, some through a variable such as LD_PRELOAD."""

FOREIGN_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "HYDRA_", "I_MPI_", "MPIEXEC_")
"""Prefixes of the variables of other launchers."""
NOT_OPTIONS = frozenset({
    *("RANK", "SIZE", "LOCAL_RANK", "NODE_RANK", "JOB_ID", "RESTART_COUNT", "RESTART_DIR", "CHECKPOINT_DIR"),
    *("DEBUG", "KUBECTL", "VERSION", "HELP"),
    *("HOME", "ROOT", "DIR", "BIN", "LIB"),
})
"""Variables MPILAUNCH_* that set no option: those of ranks and tools, and those of environment modules."""


class Defaults:
    """Values for click's default map and their sources, by parameter name."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}

    def set(self, option: Option, value: Any, origin: Origin) -> None:
        """Set a default, replacing a weaker one."""
        self.values[str(option.name)] = value
        self.origins[str(option.name)] = origin


def defaults(
    path: str | None, environ: Mapping[str, str], launcher: Mapping[str, tuple[str | list[str], str]] | None = None
) -> Defaults:
    """Return the values for options that neither the command line nor a variable sets; raises UsageError.

    Args:
        path: the config file that the command line names; without it MPILAUNCH_CONFIG, then mpilaunch/config.yaml in
            XDG_CONFIG_HOME, if it exists.
        launcher: the defaults of the detected launcher: values and their sources.
    """
    result = Defaults()
    weak: dict[str, tuple[str | list[str], str]] = {**_inherited(environ), **(launcher or {})}
    for name, (value, source) in weak.items():
        option = BY_NAME[name]
        items = [value] if option.multiple and isinstance(value, str) else value
        result.set(option, items, Origin(source, source, Layer.INHERITED))
    _refuse_unknown_variables(environ)
    named = path is not None
    path = path or environ.get(BY_NAME["config"].variable) or _personal_file(environ)
    if path:
        _add_file(result, path, named)
    return result


def _inherited(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the settings of other launchers' variables; loads their tables only if there are any."""
    if not any(name.startswith(FOREIGN_PREFIXES) for name in environ):
        return {}
    from mpilaunch.cli.dialects.table import inherited

    return inherited(environ)


def _personal_file(environ: Mapping[str, str]) -> str | None:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    path = os.path.join(base, "mpilaunch", "config.yaml")
    return path if os.path.exists(path) else None


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Refuse a variable that resembles an option but sets none: MPILAUNCH_HOSTS, MPILAUNCH_DRY_RUN, MPILAUNCH_NPP."""
    known = [option.variable for option in OPTIONS if option.configurable]
    unknown = {name for name in environ if name.startswith(f"{VARIABLES}_") and environ[name]} - set(known)
    for name in sorted(unknown):
        word = name.removeprefix(f"{VARIABLES}_")
        if word in NOT_OPTIONS:
            continue
        hint = _right_spelling(word.lower().replace("_", "-"), "{0.variable}={1}".format)
        guess = closest(word, [variable.removeprefix(f"{VARIABLES}_") for variable in known])
        if hint or guess:
            hint = hint or f"did you mean {VARIABLES}_{guess}?"
            raise UsageError("config-key", f"the variable {name} sets nothing", hint=hint)


def _right_spelling(word: str, write: Callable[[Option, str], str]) -> str | None:
    """Return a hint if the key or variable is another flag of an option, or an option for the command line only."""
    for option in OPTIONS:
        if word == option.key and not option.configurable:
            return f"--{word} is for the command line only"
        flag = f"--{word}"
        if flag in (*option.opts, *option.secondary_opts) and word != option.key:
            fixed = option.fixed_value(flag)
            return f"write {write(option, 'VALUE' if fixed in (None, 'yes') else str(fixed))}"
    return None


def _add_file(result: Defaults, path: str, named: bool) -> None:
    """Add the settings of a config file; `named` as for `check_trusted`."""
    text, status = text_and_status(path, "YAML file", None if named else partial(check_trusted, path, named=False))
    data, positions = parse_yaml(path, text)
    if data is None:
        return
    if not isinstance(data, dict):
        raise UsageError("config-format", f"{path}:1:1: a config file must have 'option: value' lines", hint="write np: 4")
    known = [option.key for option in OPTIONS if option.configurable and option.key != "config"]
    for key, value in data.items():
        line, column = positions[(key,)]
        # Each key has exactly one spelling; other flags of the option get a hint.
        if key not in known:
            hint = _right_spelling(str(key), "{0.key}: {1}".format) or "mpilaunch --show-config lists every key"
            guess = did_you_mean(str(key), known)
            raise UsageError("config-key", f"{path}:{line}:{column}: unknown key '{key}'{guess}", hint=hint)
        option = BY_NAME[key]
        origin = Origin(f"{path}:{line}", f"{path}:{line}:{column}: {key}", Layer.FILE)
        if key in COMMANDS:
            check_trusted(origin.place, status, named=named)
        checked = _plain(option, value, origin.place)
        result.set(option, _beside(path, checked) if getattr(option.type, "read", False) else checked, origin)


def _plain(option: Option, data: object, place: str) -> Any:
    """Return a value of the file in click's form: a bool, a text, or a list of texts; raises UsageError."""
    if option.multiple:
        return [_text(option, item, place) for item in (data if isinstance(data, list) else [data])]
    if not option.is_flag:
        return _text(option, data, place)
    if not isinstance(data, bool):
        raise _wrong(option, f"{place}: {data!r} is neither true nor false")
    return data


def _text(option: Option, data: object, place: str) -> str:
    # YAML reads an unquoted `on` as a bool: as text it would become 'True', which is not in the file.
    if isinstance(data, bool) or not isinstance(data, (str, int, float)):
        wanted = getattr(option.type, "wanted", "text")
        raise _wrong(option, f"{place}: {type(data).__name__} {data!r} where {wanted} is expected")
    return str(data)


def _wrong(option: Option, message: str) -> UsageError:
    return UsageError("option-value", message, hint=option.value_hint)


def _beside(path: str, value: str | list[str]) -> str | list[str]:
    """Resolve file names relative to the directory of the config file, so that a profile can be next to its hostfile."""
    if isinstance(value, list):
        return [str(_beside(path, item)) for item in value]
    return os.path.join(os.path.dirname(path), os.path.expanduser(value))
