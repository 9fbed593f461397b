"""Reads the files that the user or the environment names, as text, YAML or groups of hosts; checks that they can be trusted.
Also returns the umask, for the modes of files that are copied.

The only module that imports yaml, and only when there is a YAML file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from mpilaunch.errors import UsageError, reason_of
from mpilaunch.job import trust
from mpilaunch.text import closest

if TYPE_CHECKING:
    import yaml

    from mpilaunch.hosts.nodeset import Span

MAX_BYTES = 1 << 20
MAX_ITEMS = 100_000
LONGEST_NUMBER = 100
"""Characters of a number in YAML: 1:59:59:... has base 60, and its value costs quadratic time."""

NAMES_COMMANDS = frozenset({"app file", "parameter file", "file of --multi-prog", "config file of Horovod", "config file"})
"""Files of options, as errors call them, that can name a program or set any variable; the others name hosts."""

Position = tuple[int, int]
"""Line and column, from 1."""
Positions = Mapping[tuple[str | int, ...], Position]
"""The position of each key and list item in the file, by its path of keys and indices."""


def check_trusted(where: str, status: os.stat_result, *, named: bool) -> None:
    """Raise UsageError "file-untrusted" if another user may have written the commands in a file.

    Args:
        where: the place in the message.
        named: the command line names the file. A file named by HOME or another variable may be another user's (`sudo -E`).
    """
    reason = trust.why_config_untrusted(status, named=named)
    if reason is not None:
        hint = "make it yours, and writable only by you (chown, chmod go-w)"
        hint += "" if named else ", or name it on the command line if you trust its owner"
        raise UsageError("file-untrusted", f"{where}: the file is not trusted: {reason}", hint=hint)


def read_text(path: str, purpose: str) -> str:
    """Return the text of a file that the user names; `purpose` is its name in errors. Raises UsageError "file-unreadable"."""
    return text_and_status(path, purpose)[0]


def read_trusted(path: str, purpose: str, *, named: bool = True) -> str:
    """As `read_text`, for a file that can name a program or set any variable; raises also UsageError "file-untrusted".

    Args:
        named: as for `check_trusted`. Only a file that the command line names may be a pipe that nobody has opened yet.
    """
    if not named:
        return text_and_status(path, purpose, partial(check_trusted, path, named=False))[0]
    text, status = text_and_status(path, purpose)
    check_trusted(path, status, named=True)
    return text


def read_named(path: str, purpose: str) -> str:
    """Return the text of a file that an option names, checked by what it can name; raises UsageError."""
    return (read_trusted if purpose in NAMES_COMMANDS else read_text)(path, purpose)


def text_and_status(
    path: str, purpose: str, check: Callable[[os.stat_result], None] | None = None
) -> tuple[str, os.stat_result]:
    """Return the text of a file and the status of the same open file; raises UsageError "file-unreadable".

    Args:
        check: called with the status before the file is read; opening it never blocks, not even on another user's pipe.
    """

    def open_without_blocking(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK)

    try:
        with open(path, encoding="utf-8", opener=None if check is None else open_without_blocking) as file:
            status = os.fstat(file.fileno())
            if check is not None:
                check(status)
                os.set_blocking(file.fileno(), True)
            return file.read().removeprefix("\ufeff"), status  # some editors begin a file with a byte order mark
    except OSError as error:
        message = f"cannot read {purpose} '{path}': {reason_of(error)}"
        raise UsageError("file-unreadable", message, hint=_nearest_file(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError("file-unreadable", f"cannot read {purpose} '{path}': not UTF-8 text") from error
    except ValueError as error:
        raise UsageError("file-unreadable", f"cannot read {purpose} '{path}': invalid file name") from error


def read_unnamed(path: str, purpose: str) -> str | None:
    """Return the text of a file that the command line does not name, None if there is none; raises UsageError if untrusted."""
    if not os.path.isfile(path):
        return None
    return text_and_status(path, purpose, partial(check_trusted, path, named=False))[0]


def _nearest_file(path: str) -> str | None:
    """Return a hint: an existing file with a similar name, or the missing directory."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f"the directory '{folder}' does not exist" if not os.path.lexists(folder) else None
    guess = closest(name, (os.path.join(folder, other) for other in names if other != name))
    return f"did you mean {guess}?" if guess else None


def load_yaml(path: str) -> tuple[Any, Positions]:
    """Return the data of a YAML file and the positions of its parts; raises UsageError with file:line:column.

    Reads plain data only (no Python objects). A duplicate key is an error, and so is a file over MAX_BYTES or with more than
    MAX_ITEMS items.
    """
    return parse_yaml(path, read_text(path, "YAML file"))


def parse_yaml(path: str, text: str) -> tuple[Any, Positions]:
    """As `load_yaml`, for a text; `path` is for error messages."""
    if len(text) > MAX_BYTES:
        raise UsageError("yaml-size", f"'{path}' is larger than {MAX_BYTES >> 20} MiB")
    import yaml  # takes 15 ms

    positions: dict[tuple[str | int, ...], Position] = {}

    def check_number(node: yaml.ScalarNode) -> None:
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(node.value) > LONGEST_NUMBER:
            line, column = _position(node)
            raise UsageError("yaml-syntax", f"{path}:{line}:{column}: a number of {len(node.value):,} characters")

    def note_positions(node: yaml.Node, trail: tuple[str | int, ...]) -> None:
        # Aliases can expand a small file to a huge one, so this counts the visited items.
        if len(positions) > MAX_ITEMS:
            raise UsageError("yaml-size", f"'{path}' has more than {MAX_ITEMS:,} items")
        if isinstance(node, yaml.ScalarNode):
            check_number(node)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                here = (*trail, index)
                positions[here] = _position(item)
                note_positions(item, here)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line, column = _position(key)
                if not isinstance(key, yaml.ScalarNode):
                    raise UsageError("yaml-syntax", f"{path}:{line}:{column}: a key must be a single word")
                check_number(key)
                here = (*trail, loader.construct_object(key))
                if here in positions:
                    message = f"{path}:{line}:{column}: duplicate key '{key.value}'"
                    raise UsageError("yaml-duplicate", message, hint=f"the first one is on line {positions[here][0]}")
                positions[here] = line, column
                note_positions(value, here)

    try:
        # The constructor already raises on control characters.
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None, positions
        note_positions(root, ())
        return loader.construct_document(root), positions
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        context = text.splitlines()[mark.line : mark.line + 1] if mark else ()
        raise UsageError("yaml-syntax", f"{where}: {error.problem or error.context}", context=context) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError("yaml-syntax", f"{path}: {str(error).splitlines()[0]}") from None
    except (LookupError, TypeError, AttributeError, ArithmeticError):  # of yaml's constructors
        raise UsageError("yaml-syntax", f"{path}: a value is not what its tag, like !!int, says") from None
    except RecursionError:
        raise UsageError("yaml-size", f"'{path}' is nested too deeply") from None


def _position(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def expand_group(item: Span) -> list[str]:
    """Return the hosts of an item such as @GROUP, by the library ClusterShell where it is installed; raises UsageError."""
    from mpilaunch.hosts import groups

    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException
    except ImportError:
        read = cache(_text_or_none)  # each file once
        files = groups.Files(read, _paths, lambda path, text: parse_yaml(path, text)[0])
        return groups.expand_item(item, groups.read_groups(os.environ, files))
    for path in groups.config_files(os.environ):
        with suppress(OSError):  # it may run commands
            check_trusted(path, os.stat(path), named=False)
    try:
        names: list[str] = list(NodeSet(item.text))
    except (NodeSetException, OSError) as error:
        raise item.error("group-unknown", str(error).partition("\n")[0]) from None
    if not names:
        raise item.error("group-unknown", f"'{item.text}' names no host", "nodeset -l lists the groups of ClusterShell")
    return names


def _text_or_none(path: str) -> str | None:
    try:
        return read_text(path, "file of groups") if os.path.isfile(path) else None
    except UsageError as error:
        if isinstance(error.__cause__, PermissionError):  # as ClusterShell does
            return None
        raise


def _paths(folder: str) -> list[str]:
    try:
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except OSError:
        return []


def app_lines(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place ("apps.txt:3") and the words of each nonempty line of an app file; raises UsageError.

    Words may be quoted as in a shell, "#" begins a comment, and a line that ends in a backslash continues on the next.
    """
    import shlex  # few command lines need it

    pending, begin = "", 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        begin = begin if pending else number
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError as error:
            message = f"{source}:{begin}: {str(error).lower()}"
            raise UsageError("app-file", message, context=[pending], hint="quote words as for a shell") from None
        pending = ""
        if words:
            yield f"{source}:{begin}", words


def current_umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
