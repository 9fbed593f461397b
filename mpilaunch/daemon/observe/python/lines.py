"""The line of an instruction, from the table of its code object. Pure: any bytes give a line, or 0.

The formats: Objects/lnotab_notes.txt (3.8, 3.9, and 3.10 from "PEP 626"), Objects/locations.md (3.11 and later).
"""

from __future__ import annotations


def line_of(version: tuple[int, int], table: bytes, first_line: int, index: int) -> int:
    """Return the line of the instruction at a byte of the code, 0 where it has none; -1 is the place before the first."""
    if version >= (3, 11):
        return _by_locations(table, first_line, index)
    if version == (3, 10):
        return _by_ranges(table, first_line, index)
    return _by_steps(table, first_line, index)


def _by_steps(table: bytes, line: int, index: int) -> int:
    """Each pair goes on by bytes and lines; a pair that begins after the instruction does not count."""
    address = 0
    for step, lines in zip(table[::2], table[1::2]):
        address += step
        if address > index:
            break
        line += _signed(lines)
    return line


def _by_ranges(table: bytes, line: int, index: int) -> int:
    """Each pair is a range of bytes, with the lines to go on before it; -128 is a range without a line."""
    end = 0
    first = line
    for size, lines in zip(table[::2], table[1::2]):
        end += size
        has_line = lines != 0x80
        line += _signed(lines) if has_line else 0
        if index < end:
            return line if has_line else 0
    return first


def _by_locations(table: bytes, line: int, index: int) -> int:
    """Each entry is a range of units of two bytes; its first byte alone has the highest bit."""
    end = position = 0
    while position < len(table):
        head = table[position]
        kind = head >> 3 & 15
        end += ((head & 7) + 1) * 2
        position += 1
        if kind in (13, 14):
            line += _signed_varint(table, position)
        elif 10 <= kind <= 12:
            line += kind - 10
        if index < end:
            return 0 if kind == 15 else line
        while position < len(table) and not table[position] & 0x80:
            position += 1
    return line


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _signed_varint(table: bytes, position: int) -> int:
    """Six bits in each byte, the lowest first; 64 says that more follow. The lowest bit of the value is its sign."""
    value = shift = 0
    for byte in table[position : position + 6]:
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1
