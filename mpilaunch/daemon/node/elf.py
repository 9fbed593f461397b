"""A reader of ELF files: the libraries that a program or library needs, the folders in which the loader searches them, and
where it keeps what it exports.

It loads and runs nothing. Files are not trusted: any content gives a result or ElfError, in bounded time and memory.

The format: System V ABI, chapters 4 and 5; DT_GNU_HASH: glibc's elf/dl-lookup.c.
"""

from __future__ import annotations

import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes]
    """(offset, size) -> at most `size` bytes, fewer at the end of the file."""

MAX_TABLE = 16 << 20
"""Largest table of strings or symbols, in bytes."""
LONGEST_CHAIN = 64 << 10
"""Bytes that are searched for the end of a chain of a hash table; real chains have a few words."""

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_RPATH = 0, 1, 4, 5, 6, 10, 15
_DT_RUNPATH, _DT_GNU_HASH = 29, 0x6FFFFEF5


class ElfError(Exception):
    """Not an ELF file, or a broken one; the text describes the fault."""


_LAYOUTS = {
    1: ("HHIIIIIHHH", "IIIIIIII", (1, 2, 4), "iI", "II6xH", (0, 1, 2), 4),
    2: ("HHIQQQIHHH", "IIQQQQQQ", (2, 3, 5), "qQ", "I2xHQ8x", (0, 2, 1), 8),
}
"""By the class of the file, 32 and 64 bits: struct formats of the file's header and of a segment; the positions of offset,
address and size in the latter; formats of an entry of the dynamic section and of a symbol; the positions of name, value and
section in the latter; bytes of a word."""


class Elf:
    """The requests of an ELF file to the loader.

    Attributes:
        kind: (class, byte order, machine); a program loads libraries of its own kind only.
        is_program: whether it names a dynamic loader.
        needed: the libraries that it is linked with, in order.
        rpath, runpath: folders to search, as written; empty ones are ignored.
        imports: the names of its undefined symbols.
        start: the address that its first byte is meant to have.
        symbols: those that were asked for and that it defines, with the addresses that they are meant to have.
    """

    def __init__(self, kind: tuple[int, int, int]) -> None:
        self.kind = kind
        self.is_program = False
        self.needed: list[bytes] = []
        self.rpath: list[bytes] = []
        self.runpath: list[bytes] = []
        self.imports: frozenset[bytes] = frozenset()
        self.start = 0
        self.symbols: dict[bytes, int] = {}


def read_elf(path: bytes, with_imports: bool = False, symbols: frozenset[bytes] = frozenset()) -> Elf:
    """Read a file, and where these symbols are; raises ElfError, also when it cannot be opened."""
    try:
        # Non-blocking: it may be a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ElfError(str(error)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ElfError("not a file")
        # pread, because a file that shrinks while mapped would kill this process.
        return parse(lambda offset, size: os.pread(descriptor, size, offset), with_imports, symbols)
    except OSError as error:
        raise ElfError(str(error)) from None
    finally:
        os.close(descriptor)


def parse(read: Read, with_imports: bool = False, wanted: frozenset[bytes] = frozenset()) -> Elf:
    """Read an ELF file through a function, `imports` only if asked, since it takes longest; raises ElfError."""
    try:
        return _parse(read, with_imports, wanted)
    except (struct.error, IndexError, OverflowError) as error:
        raise ElfError("a broken ELF file: %s" % error) from None


def _parse(read: Read, with_imports: bool, wanted: frozenset[bytes]) -> Elf:
    start = read(0, 64)
    if start[:4] != b"\x7fELF":
        raise ElfError("not an ELF file")
    layout, order = _LAYOUTS.get(start[4]), {1: "<", 2: ">"}.get(start[5])
    if layout is None or order is None:
        raise ElfError("an ELF file of class %d and byte order %d" % (start[4], start[5]))
    header, segment_format, fields, entry_format, symbol_format, (name, value, section), word = layout
    _, machine, _, _, table, _, _, _, size, count = struct.unpack_from(order + header, start, 16)
    elf = Elf((start[4], start[5], machine))
    segment = struct.Struct(order + segment_format)
    if size != segment.size:
        raise ElfError("program headers of %d bytes" % size)
    loaded: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int, int] | None = None
    for values in segment.iter_unpack(_exactly(read, table, size * count)):
        offset, address, length = (values[field] for field in fields)
        if values[0] == _PT_LOAD:
            loaded.append((offset, address, length))
        elif values[0] == _PT_DYNAMIC:
            dynamic = (offset, address, length)
        elif values[0] == _PT_INTERP:
            elf.is_program = True
    elf.start = next((address for offset, address, _ in loaded if offset == 0), 0)
    if dynamic is None:
        return elf  # static

    entry = struct.Struct(order + entry_format)
    entries: dict[int, list[int]] = {}
    for tag, argument in entry.iter_unpack(_exactly(read, dynamic[0], dynamic[2] // entry.size * entry.size)):
        if tag == _DT_NULL:
            break
        entries.setdefault(tag, []).append(argument)

    def place(tag: int) -> int:
        """Return the offset in the file of a table of the dynamic section."""
        for offset, address, length in loaded:
            if address <= entries[tag][0] < address + length:
                return entries[tag][0] - address + offset
        raise ElfError("a table lies outside of the file")

    if not {_DT_STRTAB, _DT_STRSZ} <= entries.keys():
        return elf
    strings = _exactly(read, place(_DT_STRTAB), entries[_DT_STRSZ][0])

    def texts(tag: int) -> list[bytes]:
        return [strings[offset : strings.index(b"\0", offset)] for offset in entries.get(tag, [])]

    try:
        elf.needed = texts(_DT_NEEDED)
        elf.rpath = b":".join(texts(_DT_RPATH)).split(b":")
        elf.runpath = b":".join(texts(_DT_RUNPATH)).split(b":")
        if (with_imports or wanted) and _DT_SYMTAB in entries:
            symbols = _symbol_count(read, place, set(entries), order, word)
            symbol = struct.Struct(order + symbol_format)
            rows = list(symbol.iter_unpack(_exactly(read, place(_DT_SYMTAB), symbols * symbol.size)))
            if with_imports:
                undefined = {row[name] for row in rows if row[name] and row[section] == 0}
                elf.imports = frozenset(strings[offset : strings.index(b"\0", offset)] for offset in undefined)
            for each in wanted:
                known = (row[value] for row in rows if row[section] and strings.startswith(each + b"\0", row[name]))
                elf.symbols.update((each, address) for address in known)
    except ValueError:
        raise ElfError("a name lies outside of the table of names") from None
    return elf


def _symbol_count(read: Read, place: Callable[[int], int], tags: set[int], order: str, word: int) -> int:
    """Return the number of symbols, which only the hash tables show."""
    if _DT_HASH in tags:
        return int(struct.unpack(order + "II", _exactly(read, place(_DT_HASH), 8))[1])
    if _DT_GNU_HASH not in tags:
        raise ElfError("no table of symbols")
    start = place(_DT_GNU_HASH)
    buckets, first, filter_words, _ = struct.unpack(order + "IIII", _exactly(read, start, 16))
    start += 16 + filter_words * word
    last = max(struct.unpack("%s%dI" % (order, buckets), _exactly(read, start, buckets * 4)), default=0)
    if last < first:
        return int(first)
    # The hashed symbols are last, in chains; an odd number ends a chain, and the last chain ends the table.
    start += buckets * 4 + (last - first) * 4
    chain = read(start, LONGEST_CHAIN)
    for (value,) in struct.iter_unpack(order + "I", chain[: len(chain) // 4 * 4]):
        last += 1
        if value & 1:
            return int(last)
    raise ElfError("a chain of symbols without an end")


def _exactly(read: Read, offset: int, size: int) -> bytes:
    if size > MAX_TABLE:
        raise ElfError("a table of %d bytes" % size)
    data = read(offset, size)
    if len(data) != size:
        raise ElfError("ends within a table")
    return data
