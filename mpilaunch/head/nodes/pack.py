"""Pack modules for the nodes: a compressed zip file of their byte code, and behind it one of their source.

Docstrings, comment lines, annotations and TYPE_CHECKING blocks are removed; every line keeps its number, so a traceback from a
node is correct. The byte code is for the head's version of Python; a node of another version skips it and compiles the source.
Each archive is compressed as a whole: modules have much in common, and Python imports faster from an uncompressed archive.
"""

from __future__ import annotations

import ast
import errno
import io
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.abc import SourceLoader
from typing import Any

_HEADER, _UNCHECKED = 16, b"\x01\0\0\0" + bytes(8)
"""Bytes of the header of a `.pyc` file; its flags and hash where neither is compared (PEP 552), behind the magic number."""

Position = tuple[int, int]
"""A line number, from 1, and a byte offset in the line."""


def pack(modules: Iterable[tuple[str, str]]) -> bytes:
    """Return modules, each a path in the archive and a file, as two zip files compressed by zlib: byte code, then source."""
    sources = {}
    for name, path in modules:
        with open(path, "rb") as file:
            sources[name] = strip(file.read())
    return b"".join(_archive(files) for files in (compiled(sources), sources))


def _archive(files: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as opened:
        for name, data in files.items():
            opened.writestr(zipfile.ZipInfo(name), data)
    compressor = zlib.compressobj(9, memLevel=9)
    return compressor.compress(archive.getvalue()) + compressor.flush()


def compiled(sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the `.pyc` files of modules; Python uses them without looking for the source (PEP 552)."""
    files = {}
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # else the loader would keep none
    try:
        for name, source in sources.items():
            module = _Module(name, source)
            module.get_code(name)
            files[name + "c"] = module.written[:4] + _UNCHECKED + module.written[_HEADER:]
    finally:
        sys.dont_write_bytecode = before
    return files


class _Module(SourceLoader):
    """Compiles a module as an import would, but keeps its `.pyc` file in memory: a killed head leaves no file behind."""

    def __init__(self, name: str, source: bytes) -> None:
        self._name, self._source, self.written = name, source, b""

    def get_filename(self, fullname: str) -> str:
        return self._name

    def path_stats(self, path: str) -> Mapping[str, Any]:
        return {"mtime": 0, "size": len(self._source)}

    def get_data(self, path: str) -> bytes:
        if path != self._name:
            raise FileNotFoundError(errno.ENOENT, "not compiled before", path)
        return self._source

    def set_data(self, path: str, data: bytes) -> None:
        self.written = bytes(data)


def strip(source: bytes) -> bytes:
    """Return source without docstrings, comment lines, annotations and TYPE_CHECKING blocks; the rest keeps its line."""
    lines = source.split(b"\n")
    cuts = sorted(_unneeded(ast.parse(source), lines))
    for (first, start), (last, end), replacement in reversed(cuts):
        rest = lines[last - 1][end:]
        lines[first - 1 : last] = [lines[first - 1][:start] + replacement + rest, *[b""] * (last - first)]
    return b"\n".join(b"" if line.lstrip().startswith(b"#") else line for line in lines)


def _unneeded(tree: ast.Module, lines: list[bytes]) -> Iterator[tuple[Position, Position, bytes]]:
    """Yield start, end and replacement of every part of the source that a node does not need."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield _start(node), _end(node), b"pass"
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            yield _start(node), _end(node), b"pass"  # `annotations`: none is left
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield _start(node), _end(node), b"''"
        elif isinstance(node, ast.AnnAssign):
            if node.value is None:
                yield _start(node), _end(node), b"pass"
            else:
                yield _end(node.target), _end(node.annotation), b""
        elif isinstance(node, ast.arg) and node.annotation is not None:
            line, column = _start(node)
            yield (line, column + len(node.arg.encode())), _end(node.annotation), b""
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            line, column = _start(node.returns)
            yield (line, lines[line - 1].rindex(b"->", 0, column)), _end(node.returns), b""


def _start(node: ast.stmt | ast.expr | ast.arg) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.stmt | ast.expr | ast.arg) -> Position:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
