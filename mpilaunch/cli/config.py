"""Defaults from outside the command line: the config file, and the variables and defaults of other launchers.

Click converts the values and picks the strongest source. This module records the source of each value. It refuses unknown keys,
MPILAUNCH_* variables that set nothing, and files that another user may have written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from mpilaunch.cli.files import check_trusted, parse_yaml, text_and_status
from mpilaunch.cli.options import BY_FLAG, BY_NAME, OPTIONS
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
    *("DEBUG", "KUBECTL", "VERSION", "HELP", "ALLOCATED"),
    *("HOME", "ROOT", "DIR", "BIN", "LIB"),
})
"""Variables MPILAUNCH_* that set no option: those of ranks and tools, and those of environment modules."""


Defaults = dict["str | None", tuple[Any, Origin]]
"""Values for click's default map and their sources, by the name of click's parameter."""


def defaults(path: str | None, environ: Mapping[str, str], launcher: Mapping[str, tuple[str | list[str], str]]) -> Defaults:
    """Return the values for options that neither the command line nor a variable sets; raises UsageError.

    Args:
        path: the config file that the command line names; without it MPILAUNCH_CONFIG, then mpilaunch/config.yaml in
            XDG_CONFIG_HOME, if it exists.
        launcher: the defaults of the detected launcher: values and their sources.
    """
    result: Defaults = {}
    for name, (value, source) in {**_inherited(environ), **launcher}.items():
        option = BY_NAME[name]
        items = [value] if option.multiple and isinstance(value, str) else value
        result[option.name] = items, Origin(source, source, Layer.INHERITED)
    _refuse_unknown_variables(environ)
    named = path is not None
    if path := path or environ.get(BY_NAME["config"].variable) or _personal_file(environ):
        _add_file(result, path, named)
    return result


def _inherited(environ: Mapping[str, str]) -> Mapping[str, tuple[str | list[str], str]]:
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
    prefix = f"{VARIABLES}_"
    known = [option.variable.removeprefix(prefix) for option in OPTIONS if option.configurable]
    words = {name.removeprefix(prefix) for name, value in environ.items() if value and name.startswith(prefix)}
    for word in sorted(words.difference(known, NOT_OPTIONS)):
        hint = _right_spelling(word.lower().replace("_", "-"), "{0.variable}={1}")
        if hint is None and (guess := closest(word, known)):
            hint = f"did you mean {prefix}{guess}?"
        if hint:
            raise UsageError("config-key", f"the variable {prefix}{word} sets nothing", hint=hint)


def _right_spelling(word: str, setting: str) -> str | None:
    """Return a hint if the key or variable is another flag of an option, or an option for the command line only.

    Args:
        setting: a template of the right setting, with the option and its value.
    """
    option = BY_FLAG.get(f"--{word}")
    if option is None or (word == option.key and option.configurable):
        return None
    if word == option.key:
        return f"--{word} is for the command line only"
    fixed = option.fixed_value(f"--{word}")
    return f"write {setting.format(option, 'VALUE' if fixed in (None, 'yes') else fixed)}"


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
            hint = _right_spelling(str(key), "{0.key}: {1}") or "mpilaunch --show-config lists every key"
            guess = did_you_mean(str(key), known)
            raise UsageError("config-key", f"{path}:{line}:{column}: unknown key '{key}'{guess}", hint=hint)
        option = BY_NAME[key]
        origin = Origin(f"{path}:{line}", f"{path}:{line}:{column}: {key}", Layer.FILE)
        if key in COMMANDS:
            check_trusted(origin.place, status, named=named)
        items = value if option.multiple and isinstance(value, list) else [value]
        values = [_plain(option, item, origin.place, os.path.dirname(path)) for item in items]
        result[option.name] = values if option.multiple else values[0], origin


def _plain(option: Option, data: object, place: str, folder: str) -> bool | str:
    """Return a value of the file in click's form: a bool or a text; raises UsageError.

    A file name is relative to the folder of the config file, so that a profile can be next to its hostfile.
    """
    wanted = getattr(option.type, "wanted", "")
    if option.is_flag and not isinstance(data, bool):
        raise UsageError("option-value", f"{place}: {data!r} is neither true nor false", hint=option.value_hint)
    # YAML reads an unquoted `on` as a bool: as text it would become 'True', which is not in the file.
    if not option.is_flag and (isinstance(data, bool) or not isinstance(data, (str, int, float))):
        message = f"{place}: {type(data).__name__} {data!r} where {wanted} is expected"
        raise UsageError("option-value", message, hint=option.value_hint)
    if isinstance(data, bool):
        return data
    return os.path.join(folder, os.path.expanduser(str(data))) if getattr(option.type, "read", False) else str(data)
