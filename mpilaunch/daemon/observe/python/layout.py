"""Where the structures of CPython keep what a stack is made of: offsets in bytes, for 64 bits. Pure.

Sources: Include/cpython and Include/internal of each version, by offsetof(); they have stayed since the first release of a
version. Python 3.13 says itself where things are (`_Py_DebugOffsets`). Builds for debugging and without the GIL differ.
"""

from __future__ import annotations

import struct
from collections import namedtuple

COOKIE = b"xdebugpy"
DESCRIPTION_BYTES = 8 * 50
"""As much of `_Py_DebugOffsets` as is read."""
NONE = -1
"""The offset of what a version does not have."""

Interpreters = namedtuple("Interpreters", "first next threads")
"""The first interpreter in the state of the runtime; the next one, and the first thread, in the state of an interpreter."""
Thread = namedtuple("Thread", "next frame holder")
"""The next thread, and its innermost frame, which is at `holder` in another structure where a version has that."""
Frame = namedtuple("Frame", "back code instruction owner")
"""The instruction is an index before 3.11, and then an address."""
Code = namedtuple("Code", "file name first_line lines start")
"""A code object; its instructions are at `start`."""
Text = namedtuple("Text", "ascii compact")
"""Bytes before the characters of a str: of one in ASCII, and of others."""
Layout = namedtuple("Layout", "interpreters thread frame code text")

_CODE, _TEXT = Code(104, 112, 40, 120, NONE), Text(48, 72)
_NEW_TEXT = Text(40, 56)
LAYOUTS = {
    (3, 8): Layout(Interpreters(32, 0, 8), Thread(8, 24, NONE), Frame(24, 32, 104, NONE), _CODE, _TEXT),
    (3, 9): Layout(Interpreters(32, 0, 8), Thread(8, 24, NONE), Frame(24, 32, 104, NONE), _CODE, _TEXT),
    (3, 10): Layout(Interpreters(32, 0, 8), Thread(8, 24, NONE), Frame(24, 32, 96, NONE), _CODE, _TEXT),
    (3, 11): Layout(Interpreters(40, 0, 16), Thread(8, 56, 8), Frame(48, 32, 56, 69), Code(112, 120, 72, 136, 184), _TEXT),
    (3, 12): Layout(Interpreters(40, 0, 72), Thread(8, 56, 0), Frame(8, 0, 56, 70), Code(112, 120, 68, 136, 192), _NEW_TEXT),
}


def described(description: bytes) -> Layout | None:
    """Return the layout that Python 3.13 describes; None where it is another version's, or of a build without the GIL."""
    words = struct.unpack("<50Q", description)
    cookie, version, free_threaded = description[:8], words[1], words[2]
    if cookie != COOKIE or version >> 16 != 0x030D or free_threaded:
        return None
    runtime, interpreter, thread, frame, code = words[3:6], words[6:19], words[19:28], words[28:34], words[34:44]
    return Layout(
        Interpreters(runtime[2], interpreter[2], interpreter[3]),
        Thread(thread[2], thread[4], NONE),
        Frame(frame[1], frame[2], frame[3], frame[5]),
        Code(code[1], code[2], code[5], code[4], code[9]),
        _NEW_TEXT,
    )
