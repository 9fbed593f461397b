"""The line of every instruction is that which the interpreter itself tells, for every interpreter of this machine."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from mpilaunch.daemon.observe.python.lines import line_of
from tests.support.pythons import each_python, version_of

TABLES = """
import argparse, asyncio.base_events, dis, json, sys, types, typing
code_type = types.CodeType

def lines(code):
    if sys.version_info >= (3, 10):
        return [[start, end, line or 0] for start, end, line in code.co_lines()]
    starts = [*dis.findlinestarts(code), (len(code.co_code), 0)]
    return [[start, end, line] for (start, line), (end, _) in zip(starts, starts[1:])]

def walk(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    yield [table.hex(), code.co_firstlineno, lines(code)]
    for constant in code.co_consts:
        if isinstance(constant, code_type):
            yield from walk(constant)

long = "def f(x):\\n" + "    x = x + 1\\n" * 300 + "\\n" * 300 + "    return (x,\\n" + "\\n" * 200 + "  [y for y in x])\\n"
codes = [compile(long, "long", "exec")]
codes += [compile(open(module.__file__).read(), "f", "exec") for module in (argparse, typing, asyncio.base_events)]
print(json.dumps([row for code in codes for row in walk(code)]))
"""


@each_python
def test_the_line_of_each_instruction(python: str) -> None:
    done = subprocess.run([python, "-c", TABLES], capture_output=True, text=True, timeout=60, check=True)
    version = version_of(python)
    assert version is not None
    count = 0
    for table, first_line, ranges in json.loads(done.stdout):
        for start, end, line in ranges:
            told = {line_of(version, bytes.fromhex(table), first_line, index) for index in range(start, end, 2)}
            assert not told or told == {line}, (table, first_line, start)
            count += len(told)
    assert count > 3000


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 11)], ids=str)
def test_any_bytes_give_a_line(version: tuple[int, int]) -> None:
    chance = random.Random(1)
    for _ in range(3000):
        table = chance.randbytes(chance.randrange(40))
        assert isinstance(line_of(version, table, 1, chance.randrange(-2, 200)), int)
