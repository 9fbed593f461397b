"""Pack modules for the nodes: a compressed zip file of their source and byte code, without what no node reads.

Before the zip file, in what Python takes no notice of, may stand where the byte code of each module is: see `bundled`.

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
from typing import TYPE_CHECKING

from mpilaunch import bundled

if TYPE_CHECKING:
    from mpilaunch.bundled import Places

PYC_HEADER = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)
"""Of byte code that is to be used without a look at its source (PEP 552)."""

Place = tuple[int, int]
"""A line, from 1, and bytes into it."""


def pack(modules: Iterable[tuple[str, str]], front: int) -> bytes:
    """Return modules as a zip file, compressed by zlib; each is given as its path there and its file.

    Args:
        front: bytes that the places of the modules have before the zip file, 0 for none.

    Raises:
        OverflowError: these do not suffice.
    """
    archive = io.BytesIO(bytes(front))
    places: Places = {}
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as opened:
        for name, path in modules:
            source = _stripped(path)
            code = byte_code(name, source)
            opened.writestr(zipfile.ZipInfo(name), source)
            opened.writestr(zipfile.ZipInfo(name + "c"), PYC_HEADER + code)
            module = name.removesuffix(".py").replace("/", ".")
            is_package = module.endswith(".__init__")
            places[module.removesuffix(".__init__")] = is_package, archive.tell() - len(code), len(code)
    if front:
        loader = marshal.loads(byte_code("mpilaunch/bundled.py", _stripped(bundled.__file__)))
        begin = importlib.util.MAGIC_NUMBER + marshal.dumps((loader, places))
        if len(begin) > front:
            raise OverflowError(f"{len(begin)} bytes before a zip file that begins at {front}")
        archive.getbuffer()[: len(begin)] = begin
    return zlib.compress(archive.getvalue(), 9)


def _stripped(path: str) -> bytes:
    with open(path, "rb") as file:
        return strip(file.read())


def byte_code(path: str, source: bytes) -> bytes:
    """Return marshalled code; it knows lines and no columns, which are a fifth of it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.col_offset = node.end_col_offset = 0
            node.end_lineno = node.lineno
    code = compile(tree, path, "exec", dont_inherit=True)
    return marshal.dumps(code)


def strip(source: bytes) -> bytes:
    """Return source without docstrings, comment lines, annotations and their `__future__`, `if TYPE_CHECKING:` blocks.

    All else stays on its line.
    """
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
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            yield _start(node), _end(node), b"pass"  # how annotations are read, of which none is left
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
