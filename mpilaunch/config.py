"""Settings: default < other launchers' habits and variables < config file < MPILAUNCH_* < command line, each with provenance.

The only importer of yaml, and only when there is a file to read. Nothing here knows what an option means: the table in
`options` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mpilaunch.errors import UsageError, reason_of
from mpilaunch.job import trust
from mpilaunch.options import BY_NAME, DEFAULTS, OPTIONS, Option, Setting, Settings
from mpilaunch.text import did_you_mean
from mpilaunch.values import value_from_data, value_from_text

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
MAX_ITEMS = 100_000
COMMANDS = (
    *("agent", "remote-agent", "ssh-option", "host-discovery-script", "python", "pmix-library"),
    *("export", "env-file", "prepend-env", "append-env"),
)
"""Keys of a config file that can name a command or a library, which runs as the user; LD_PRELOAD does by a variable."""

Position = tuple[int, int]
"""Line and column, from 1."""
Positions = Mapping[tuple[str | int, ...], Position]
"""Where each key and each list item stands in the file, by the keys and indices that lead to it."""


def load_settings(
    said: Mapping[str, Setting], environ: Mapping[str, str], habits: Mapping[str, Setting] | None = None
) -> Settings:
    """Return the setting of every option, the strongest layer's.

    The config file is --config, else MPILAUNCH_CONFIG, else mpilaunch/config.yaml under XDG_CONFIG_HOME if it exists.

    Args:
        said: what the command line says.
        habits: what its dialect does when nobody says anything.
    """
    by_environment = _from_environment(environ)
    setting = said.get("config") or by_environment.get("config")
    path = str(setting.value) if setting else _personal_file(environ)
    by_file = _from_file(path, named="config" in said) if path else {}
    return Settings({**DEFAULTS, **_inherited(environ), **(habits or {}), **by_file, **by_environment, **said})


def _inherited(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return what variables of other launchers say; few environments have any, and the others load nothing for them."""
    if not any(name.startswith(("OMPI_MCA_", "PRTE_MCA_", "HYDRA_", "I_MPI_", "MPIEXEC_")) for name in environ):
        return {}
    from mpilaunch import inherited

    return inherited.settings_from(environ, layer=1)


def _personal_file(environ: Mapping[str, str]) -> str | None:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    path = os.path.join(base, "mpilaunch", "config.yaml")
    return path if os.path.exists(path) else None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Read MPILAUNCH_NAME; an option that may be repeated takes one value per line. An empty variable says nothing."""
    found = {}
    for option in OPTIONS:
        text = environ.get(option.variable, "")
        if not text or not option.configurable:
            continue
        if option.repeatable:
            lines = [line for line in text.splitlines() if line]
            value: Any = tuple(value_from_text(option, line, option.variable) for line in lines)
        else:
            value = value_from_text(option, text, option.variable)
        found[option.name] = Setting(value, option.variable, layer=3)
    _refuse_other_spellings(environ)
    return found


def _refuse_other_spellings(environ: Mapping[str, str]) -> None:
    """Refuse a variable that means an option and does not set it: MPILAUNCH_HOSTS, MPILAUNCH_DRY_RUN."""
    unknown = {name for name in environ if name.startswith("MPILAUNCH_") and environ[name]}
    unknown -= {option.variable for option in OPTIONS if option.configurable}
    for name in sorted(unknown):
        said = name.removeprefix("MPILAUNCH_").lower().replace("_", "-")
        if said not in ("version", "help") and (hint := _right_spelling(said, "{0.variable}={1}".format)):
            raise UsageError("config-key", f"the variable {name} sets nothing", hint=hint)


def _right_spelling(said: str, write: Callable[[Option, str], str]) -> str | None:
    """Return a hint for the flag of an option where only its first name counts, None where there is no such flag."""
    for option in OPTIONS:
        if said == option.name and not option.configurable:
            return f"--{said} stands on the command line only"
        if f"--{said}" in (*option.aliases, *option.shorthands):
            value = option.shorthands.get(f"--{said}", "VALUE")
            return f"say {write(option, 'no' if value is False else str(value))}"
    return None


def _from_file(path: str, named: bool) -> dict[str, Setting]:
    """Read a config file.

    Args:
        named: the command line names it. A file that HOME or another variable leads to may be anybody's, as under `sudo -E`.
    """
    text, status = text_and_status(path, "YAML file", None if named else partial(check_trusted, path, named=False))
    data, positions = _parse_yaml(path, text)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError("config-format", f"{path}:1:1: a config file holds 'option: value' lines", hint="write np: 4")
    known = [option.name for option in OPTIONS if option.configurable and option.name != "config"]
    found = {}
    for key, value in data.items():
        line, column = positions[(key,)]
        # What is right on the command line (map_by, as in Python) would be a new dialect here: one spelling, and a hint.
        if key not in known:
            hint = _right_spelling(str(key), "{0.name}: {1}".format) or "mpilaunch --show-config lists every key"
            said = did_you_mean(str(key), known)
            raise UsageError("config-key", f"{path}:{line}:{column}: unknown key '{key}'{said}", hint=hint)
        if key in COMMANDS:
            check_trusted(f"{path}:{line}:{column}: {key}", status, named=named)
        option = BY_NAME[key]
        checked = value_from_data(option, value, f"{path}:{line}:{column}: {key}")
        if option.kind == "file":
            checked = _beside(path, checked)
        found[key] = Setting(checked, f"{path}:{line}", layer=2)
    return found


def _beside(path: str, value: Any) -> Any:
    """Return file names of a config file as seen from its directory, so that a profile can lie beside its hostfile."""
    if isinstance(value, tuple):
        return tuple(_beside(path, item) for item in value)
    return os.path.join(os.path.dirname(path), os.path.expanduser(value))


def check_trusted(where: str, status: os.stat_result, *, named: bool) -> None:
    """Raise UsageError "file-untrusted" for a file whose commands another user may have written; `where` is for the message."""
    reason = trust.why_config_untrusted(status, named=named)
    if reason is not None:
        hint = "make it yours and writable by you only (chown, chmod go-w)"
        hint += "" if named else ", or name it on the command line if you trust its owner"
        raise UsageError("file-untrusted", f"{where}: the file is not trusted: {reason}", hint=hint)


def read_text(path: str, what: str) -> str:
    """Return the text of a file that the user named; raises UsageError "file-unreadable"."""
    return text_and_status(path, what)[0]


def text_and_status(
    path: str, what: str, check: Callable[[os.stat_result], None] | None = None
) -> tuple[str, os.stat_result]:
    """Return the text of a file, and what stat says of the very file that was read; raises UsageError "file-unreadable".

    Args:
        check: is called before anything is read, and before anything is awaited: another user's pipe may never be written.
    """
    try:
        with open(path, encoding="utf-8", opener=None if check is None else _open_at_once) as file:
            status = os.fstat(file.fileno())
            if check is not None:
                check(status)
                os.set_blocking(file.fileno(), True)
            return file.read().removeprefix("\ufeff"), status  # some editors put a mark of the byte order in front
    except OSError as error:
        told = f"cannot read {what} '{path}': {reason_of(error)}"
        raise UsageError("file-unreadable", told, hint=_nearest_file(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError("file-unreadable", f"cannot read {what} '{path}': it is not UTF-8 text") from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _nearest_file(path: str) -> str | None:
    """Return a hint: the name of an existing file that was probably meant, or the part of the path that is missing."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f"there is no directory '{folder}'" if not os.path.lexists(folder) else None
    said = did_you_mean(name, (os.path.join(folder, other) for other in names if other != name))
    return said.removeprefix("; ").removesuffix("?") or None


def load_yaml(path: str) -> tuple[Any, Positions]:
    """Return the data of a YAML file and where each part of it stands; raises UsageError with file:line:column.

    Only plain data is read (no Python objects), a key that stands twice is an error, and so is a file over MAX_BYTES or with
    more than MAX_ITEMS items.
    """
    return _parse_yaml(path, read_text(path, "YAML file"))


def _parse_yaml(path: str, text: str) -> tuple[Any, Positions]:
    if len(text) > MAX_BYTES:
        raise UsageError("yaml-size", f"'{path}' has more than {MAX_BYTES >> 20} MiB")
    import yaml  # 15 ms, and only where a file is used

    positions: dict[tuple[str | int, ...], Position] = {}
    try:
        # Made inside the try: the reader refuses control characters at once.
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None, positions
        _note_positions(path, root, (), positions, loader.construct_object)
        return loader.construct_document(root), positions
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        context = text.splitlines()[mark.line : mark.line + 1] if mark else ()
        raise UsageError("yaml-syntax", f"{where}: {error.problem or error.context}", context=context) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError("yaml-syntax", f"{path}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError("yaml-size", f"'{path}' is nested too deeply") from None


def _note_positions(
    path: str,
    node: yaml.Node,
    trail: tuple[str | int, ...],
    positions: dict[tuple[str | int, ...], Position],
    construct: Callable[[yaml.Node], Any],
) -> None:
    import yaml

    # Aliases let a small file unfold to a huge one: what is counted is what is walked.
    if len(positions) > MAX_ITEMS:
        raise UsageError("yaml-size", f"'{path}' has more than {MAX_ITEMS:,} items")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = trail + (index,)
            positions[here] = _position(item)
            _note_positions(path, item, here, positions, construct)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line, column = _position(key)
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError("yaml-syntax", f"{path}:{line}:{column}: a key must be one word")
            here = trail + (construct(key),)
            if here in positions:
                said = f"{path}:{line}:{column}: '{key.value}' stands twice"
                raise UsageError("yaml-duplicate", said, hint=f"it stands in line {positions[here][0]} already")
            positions[here] = line, column
            _note_positions(path, value, here, positions, construct)


def _position(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1
