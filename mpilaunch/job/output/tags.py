"""Templates: text with fields in braces. Tags, the text before each line of a rank's output, are templates.

Pure. `bind` fills in all fields of a tag but the time once for each stream, so that a line costs one join; the text of the
time is made once for each millisecond.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.text import did_you_mean

FIELDS = ("rank", "local_rank", "node_rank", "host", "stream", "time", "job", "run", "restart")
PRESETS = {
    "rank": "[{rank}] ",
    "host": "{host}: ",
    "time": "{time} ",
    # The format of `mpirun --tag-output`.
    "ompi": "[1,{rank}]<{stream}>:",
}

_TOKEN = r"\{\{|\}\}|\{([^{}]*)\}|[{}]"
_WIDTH = r"[<>^]?[0-9]{1,2}"


class BoundTag(NamedTuple):
    """The tag of one stream of one rank: fixed parts, joined by the time."""

    parts: tuple[bytes, ...]

    def prefix(self, now: float) -> bytes:
        """Return the bytes before a line that was read at `now`, in seconds since 1970."""
        return self.parts[0] if len(self.parts) == 1 else _clock_text(int(now * 1000)).join(self.parts)


class Tag(NamedTuple):
    """A checked template: pieces of (field, width), or of ("", text)."""

    pieces: tuple[tuple[str, str], ...]

    def bind(self, **fields: int | str) -> BoundTag:
        """Return the tag of one stream ("stdout" or "stderr") of one rank; `fields` are all of `FIELDS` but the time."""
        parts = [""]
        for name, text in self.pieces:
            if name == "time":
                parts.append("")
            else:
                parts[-1] += format(fields[name], text) if name else text
        return BoundTag(tuple(part.encode("utf-8", "surrogateescape") for part in parts))

    def path(self, **fields: int | str) -> str:
        """Return the path of a stream's file, with the fields of `bind`; raises UsageError if a value adds a directory."""
        bare = "".join("x" if name else text for name, text in self.pieces).split("/")
        path = os.fsdecode(self.bind(**fields).prefix(0.0))
        names = path.split("/")
        # A host name comes from a file or a scheduler: it must not lead out of the directory that the user wrote.
        moved = any(name != text and name in ("", ".", "..") for name, text in zip(names, bare, strict=False))
        if "\0" in path or len(names) != len(bare) or moved:
            message = f"{path}: the output of host '{fields['host']}' cannot go there: its name is no part of a file's name"
            raise UsageError("output-directory", message, hint="use {node_rank} for {host}")
        return path

    def fill(self, fields: Mapping[str, int | str]) -> str:
        """Return the template with these fields filled in, for str.format with the others."""

        def piece(name: str, text: str) -> str:
            if name and name not in fields:
                # For a text, Python 3.8 on a node takes leading zeros only after an alignment.
                return f"{{{name}:{'<' if name == 'host' and text.startswith('0') else ''}{text}}}"
            return (format(fields[name], text) if name else text).replace("{", "{{").replace("}", "}}")

        return "".join(piece(name, text) for name, text in self.pieces)


def tag_template(text: str | None, *, timestamp: bool = False) -> str | None:
    """Return the template for `--tag` and `--timestamp-output`, None for no tag; raises UsageError."""
    template = PRESETS.get(text or "", text or "")
    parse_tag(template)
    return ("{time} " if timestamp else "") + template or None


def parse_tag(text: str, option: str = "--tag") -> Tag:
    """Return the parsed template; `--tag` also takes the name of a preset; raises UsageError."""
    template = PRESETS.get(text, text) if option == "--tag" else text
    # A bare word is more likely a misspelt preset than a prefix for every line.
    if template.isalpha() and option == "--tag":
        hint = f"use {', '.join(PRESETS)}, or a template like '{{host}}: '"
        raise UsageError("tag-format", f"--tag: '{text}' is not a tag{did_you_mean(text, PRESETS)}", hint=hint)
    if "\n" in template:
        raise UsageError("tag-format", f"{option}: a template cannot contain a line break")
    return parse_template(template, option)


def parse_template(template: str, option: str, known: Sequence[str] = FIELDS) -> Tag:
    """Return the parsed template, which has only `known` fields; raises UsageError."""
    pieces: list[tuple[str, str]] = []
    end = 0
    for match in re.finditer(_TOKEN, template) if template else ():
        pieces.append(("", template[end : match.start()]))
        end = match.end()
        pieces.append(_piece(template, match, option, known))
    pieces.append(("", template[end:]))
    return Tag(tuple(piece for piece in pieces if piece != ("", "")))


def _piece(template: str, match: re.Match[str], option: str, known: Sequence[str]) -> tuple[str, str]:
    token = match[0]
    if token in ("{{", "}}"):
        return "", token[0]
    if match[1] is None:
        message = f"{option}: column {match.start() + 1} of '{template}': unmatched '{token}'"
        raise UsageError("tag-format", message, hint=f"write '{token * 2}' for a literal '{token}'")
    name, _, width = match[1].partition(":")
    if name not in known:
        message = f"{option}: unknown field '{{{name}}}'{did_you_mean(name, known)}"
        literal = "" if name.replace("_", "").isalnum() else "; write '{{' for a literal '{'"
        raise UsageError("tag-format", message, hint="use " + ", ".join(f"{{{field}}}" for field in known) + literal)
    if width and (name == "time" or not re.fullmatch(_WIDTH, width, re.ASCII)):
        reason = "the time has a fixed width" if name == "time" else f"'{width}' is not a width"
        raise UsageError("tag-format", f"{option}: '{token}': {reason}", hint="write a width like {rank:4} or {host:<12}")
    return name, width


@lru_cache(maxsize=1)
def _clock_text(millisecond: int) -> bytes:
    """Return local time as ISO 8601; cached, as many lines share one millisecond."""
    from datetime import datetime  # few tags have a time

    return datetime.fromtimestamp(millisecond / 1000).isoformat(timespec="milliseconds").encode("ascii")
