"""dshbak: gathers lines "HOST: TEXT" by host, for people; a command of its own, by its name alone.

It reads all input before it prints, so its memory grows with the input; lines are bytes of any length, and its time grows with
them only as far. Never writes a file outside of the directory of -d, or where another user could decide which.
"""

from __future__ import annotations

import getopt
import os
import re
import string
from collections.abc import Iterable, Sequence

from mpilaunch.cli.console import print_result
from mpilaunch.errors import ExitCode, LaunchError, UsageError, reason_of
from mpilaunch.head import safe_files

USAGE = """\
Usage: dshbak [OPTION]... [FILE]...
 -h       Display this help message
 -c       Coalesce identical output from hosts
 -d DIR   Send output to files in DIR, one file per host
 -f       With -d, force creation of DIR
"""
_BROKEN_PIPE, _INTERRUPTED = 141, 130
_RULE = b"-" * 16 + b"\n"
_LINE = re.compile(rb"\s*(\S+?)\s*: ?")
"""What precedes the text of a line; other lines are left out."""
_DIGITS = string.digits.encode()
_OTHERS = bytes(set(range(256)) - set(_DIGITS))
_LONGEST_NUMBER = 18
"""Digits of a host's number that count."""


def main(words: Sequence[str]) -> int:
    """Gather the lines of the files, or of stdin; return the exit code; raises LaunchError."""
    try:
        pairs, paths = getopt.getopt(list(words), "chfd:")
    except getopt.GetoptError as error:
        raise UsageError("option-unknown", f"dshbak: {error.msg}", hint="dshbak -h lists its options") from None
    options = dict(pairs)
    try:
        if "-h" in options:
            print_result(USAGE)
        else:
            _check(options)
            texts = _gather(paths)
            if "-d" in options:
                _write_files(texts, options["-d"])
            else:
                _print(texts, together="-c" in options)
    except BrokenPipeError:
        return _BROKEN_PIPE
    except KeyboardInterrupt:  # as the end of the program before it in the pipe
        return _INTERRUPTED
    except OSError as error:
        message = f"cannot write to stdout: {reason_of(error)}"
        raise LaunchError("output-lost", message, exit_code=ExitCode.OUTPUT_LOST) from error
    return ExitCode.OK


def _check(options: dict[str, str]) -> None:
    if "-d" not in options:
        if "-f" in options:
            raise UsageError("option-conflict", "dshbak: -f needs -d DIR", hint="-f creates DIR")
        return
    if "-c" in options:
        raise UsageError("option-conflict", "dshbak: -c and -d cannot be used together", hint="leave one out")
    try:
        with safe_files.directory(options["-d"], make="-f" in options):
            pass
    except OSError as error:
        message = f"dshbak: -d {options['-d']}: {reason_of(error)}"
        hint = safe_files.hint_of(error) or "-f creates the directory"
        raise UsageError("output-directory", message, hint=hint) from error


def _gather(paths: Sequence[str]) -> dict[bytes, bytes]:
    """Return the text of each host; raises UsageError."""
    pieces: dict[bytes, list[bytes]] = {}
    for path in paths or ["-"]:
        try:
            with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
                for line in file:
                    if match := _LINE.match(line):
                        end = b"" if line.endswith(b"\n") else b"\n"
                        pieces.setdefault(match[1], []).append(line[match.end() :] + end)
        except (OSError, ValueError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "invalid file name"
            raise UsageError("file-unreadable", f"dshbak: cannot read '{path}': {reason}") from error
    return {host: b"".join(pieces[host]) for host in _by_number(sorted(pieces))}


def _print(texts: dict[bytes, bytes], *, together: bool) -> None:
    """Print each text after its host, or with -c each distinct text once."""
    groups: dict[bytes, list[bytes]] = {}
    for host, text in texts.items():
        groups.setdefault(text if together else host, []).append(host)
    with open(1, "wb", closefd=False) as out:  # sys.stdout writes only a part where PYTHONUNBUFFERED is set
        for hosts in groups.values():
            out.write(_RULE + (compressed(hosts) if together else hosts[0]) + b"\n" + _RULE)
            out.write(texts[hosts[0]])


def _write_files(texts: dict[bytes, bytes], directory: str) -> None:
    for host, text in texts.items():
        path = os.path.join(directory, os.fsdecode(host))
        if b"/" in host or b"\0" in host or host in (b".", b".."):
            raise UsageError("output-directory", f"dshbak: '{os.fsdecode(host)}' is not the name of a host")
        try:
            with open(safe_files.open_output(path, append=False, named=False), "wb", buffering=0) as file:
                safe_files.write_all(file.fileno(), text)
        except OSError as error:
            message = f"dshbak: cannot write {path}: {reason_of(error)}"
            raise UsageError("output-directory", message, hint=safe_files.hint_of(error)) from error


# Lists of hosts, exactly as dshbak prints them: `nodeset.fold` folds other names, in another order.


def compressed(hosts: Iterable[bytes]) -> bytes:
    """Return names as ranges of the number that is last in them: n[1-3],n5-ib."""
    by_suffix: dict[bytes, list[bytes]] = {}
    for host in _by_number(sorted(hosts)):
        head = host.rstrip(_OTHERS)
        by_suffix.setdefault(host[len(head) :], []).append(head)
    return b",".join(item + suffix for suffix, heads in by_suffix.items() for item in _ranges(heads))


def _by_number(hosts: Iterable[bytes]) -> list[bytes]:
    return sorted(hosts, key=lambda host: int(_number(host) or b"0"))


def _number(host: bytes) -> bytes:
    end = host[-_LONGEST_NUMBER:]
    return end[len(end.rstrip(_DIGITS)) :]


def _ranges(names: Iterable[bytes]) -> list[bytes]:
    """Return names that end with a number as ranges, by their prefixes; 09 and 10 are neighbours, 9 and 010 are not."""
    found: dict[bytes, list[list[bytes]]] = {}
    place: dict[tuple[bytes, int, int], int] = {}
    for name in _by_number(names):
        text = _number(name)
        prefix, number = name[: len(name) - len(text)], int(text or b"0")
        width = len(text) if text.startswith(b"0") and text != b"0" else 1
        before = number - 1 if text else -1
        index = place.get((prefix, width, before))
        if index is None and width == 1:
            index = place.get((prefix, len(text), before))
        ranges = found.setdefault(prefix, [])
        if index is None:
            index = len(ranges)
            ranges.append([text])
        else:
            ranges[index][1:] = [text]
        place[prefix, width, number] = index
    result = []
    for prefix, ranges in sorted(found.items()):
        items = b",".join(b"-".join(one) for one in ranges)
        result.append(prefix + (b"[%b]" % items if re.search(b"[,-]", items) else items))
    return result
