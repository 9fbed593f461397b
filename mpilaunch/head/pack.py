"""Pack modules for the nodes: a compressed zip file of their source and byte code, without what no node reads.

Docstrings, lines of comment, annotations and blocks for the type checker go; every line keeps its number, so that a traceback
from a node says where it happened. The byte code is for the head's own version of Python and saves a node of the same version
the compiling; another version passes over it and takes the source. It is the archive that is compressed, and not each file in
it: modules have much in common.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import marshal
import zipfile
import zlib
from collections.abc import Iterable, Iterator

UNCHECKED_HASH = b"\1\0\0\0" + bytes(8)
"""Flags and hash field of byte code that is to be used without a look at its source (PEP 552)."""

Place = tuple[int, int]
"""A line, from 1, and bytes into it."""


def pack(modules: Iterable[tuple[str, str]]) -> bytes:
    """Return modules as a zip file, compressed by zlib; each is given as its path there and its file."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as opened:
        for name, path in modules:
            with open(path, "rb") as file:
                source = strip(file.read())
            opened.writestr(zipfile.ZipInfo(name), source)
            opened.writestr(zipfile.ZipInfo(name + "c"), byte_code(name, source))
    return zlib.compress(archive.getvalue(), 9)


def byte_code(path: str, source: bytes) -> bytes:
    """Return the content of a .pyc file; it knows lines and no columns, which are a fifth of it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.col_offset = node.end_col_offset = 0
            node.end_lineno = node.lineno
    code = compile(tree, path, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + marshal.dumps(code)


def strip(source: bytes) -> bytes:
    """Return source without docstrings, lines of comment, annotations and `if TYPE_CHECKING:` blocks, on the same lines."""
    lines = source.split(b"\n")
    cuts = sorted(_unread(ast.parse(source), lines))
    for (first, start), (last, end), instead in reversed(cuts):
        rest = lines[last - 1][end:]
        lines[first - 1 : last] = [lines[first - 1][:start] + instead + rest, *[b""] * (last - first)]
    return b"\n".join(b"" if line.lstrip().startswith(b"#") else line for line in lines)


def _unread(tree: ast.Module, lines: list[bytes]) -> Iterator[tuple[Place, Place, bytes]]:
    """Yield what is in the syntax and of no use on a node, as start, end and what stands there instead."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield _start(node), _end(node), b"pass"
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


def _start(node: ast.stmt | ast.expr | ast.arg) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.stmt | ast.expr | ast.arg) -> Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
