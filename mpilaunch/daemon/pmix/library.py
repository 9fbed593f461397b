"""ctypes bindings of libpmix: structures, functions, and ownership of memory. Only the PMIx helper loads this module.

A wrong layout would crash elsewhere, so the sizes are asserted on import. They are those of the headers of PMIx 4.1, 4.2.2,
5.0.9 and 6.1.0 on 64-bit machines (pmix_common.h, pmix_server.h). `pmix_server_module_t` has only grown at its end, so an array
padded with zeros serves all versions. Servers of PMIx 3 lack functions that are used here, and are refused.

Memory that is passed to libpmix stays ours and must live until libpmix calls `release`, except for the endpoints of a group,
which libpmix frees. Memory that libpmix passes to us is its own, and valid during the call only.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
from ctypes import CFUNCTYPE, POINTER, Structure, addressof, c_char, c_char_p, c_int, c_size_t, c_uint16, c_uint32, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

OLDEST = 4
"""The oldest usable major version of libpmix."""

# pmix_status_t
SUCCESS, ERROR, TIMEOUT, BAD_PARAMETER, OUT_OF_RESOURCE = 0, -1, -24, -27, -29
NOT_FOUND, NOT_SUPPORTED, DUPLICATE_KEY, OPERATION_SUCCEEDED, FAILED_TO_LAUNCH = -46, -47, -53, -157, -181
"""OPERATION_SUCCEEDED: done at once, without a later answer."""

# pmix_data_type_t
BOOL, STRING, SIZE, PROC, INFO, UINT16, UINT32, BYTE_OBJECT, DATA_ARRAY, PROC_RANK = 1, 3, 4, 22, 24, 13, 14, 27, 39, 40
OWNED_BYTES = "bytes that libpmix will free"
"""Not a type of PMIx: a BYTE_OBJECT whose bytes libpmix will own."""

WILDCARD, LOCAL_NODE, LARGEST_RANK = 0xFFFFFFFE, 0xFFFFFFFD, 0x7FFFFFFF
"""Ranks that mean all of a namespace, and those on this node; other numbers above the largest are invalid."""
LONGEST_NAMESPACE, LONGEST_KEY = 255, 511


class Proc(Structure):
    _fields_ = [("namespace", c_char * (LONGEST_NAMESPACE + 1)), ("rank", c_uint32)]


class ByteObject(Structure):
    _fields_ = [("bytes", c_void_p), ("size", c_size_t)]


class DataArray(Structure):
    _fields_ = [("type", c_uint16), ("size", c_size_t), ("array", c_void_p)]


class Value(Structure):
    """`data` is a union, which is read and written by its address, depending on `type`."""

    _fields_ = [("type", c_uint16), ("data", ctypes.c_uint64 * 3)]


class Info(Structure):
    _fields_ = [("key", c_char * (LONGEST_KEY + 1)), ("flags", c_uint32), ("value", Value)]


class PublishedData(Structure):
    _fields_ = [("proc", Proc), ("key", c_char * (LONGEST_KEY + 1)), ("value", Value)]


class App(Structure):
    _fields_ = [
        ("program", c_char_p),
        ("arguments", POINTER(c_char_p)),
        ("environment", POINTER(c_char_p)),
        ("directory", c_char_p),
        ("count", c_int),
        ("infos", POINTER(Info)),
        ("info_count", c_size_t),
    ]


SIZES = tuple(map(ctypes.sizeof, (Proc, Value, Info, PublishedData, App)))
assert SIZES == (260, 32, 552, 808, 56), "libpmix's structures have other sizes on this machine: %r" % (SIZES,)

SCALARS: dict[int, Any] = {
    BOOL: ctypes.c_bool, 2: ctypes.c_uint8, STRING: c_char_p, SIZE: c_size_t, 5: c_int, 6: c_int, 7: ctypes.c_int8,
    8: ctypes.c_int16, 9: ctypes.c_int32, 10: ctypes.c_int64, 11: ctypes.c_uint, 12: ctypes.c_uint8, UINT16: c_uint16,
    UINT32: c_uint32, 15: ctypes.c_uint64, 16: ctypes.c_float, 17: ctypes.c_double, 20: c_int, PROC_RANK: c_uint32,
}  # fmt: skip
"""Types that are one C value."""

# Functions of libpmix that answer an upcall; void pointers are returned unchanged.
Release = CFUNCTYPE(None, c_void_p)
OperationDone = CFUNCTYPE(None, c_int, c_void_p)
ModexDone = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)
LookupDone = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p)
SpawnDone = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
InfoDone = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)
ModexReady = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p)
"""Our callback of PMIx_server_dmodex_request."""

_PROCS, _INFOS, _ANSWER = (POINTER(Proc), c_size_t), (POINTER(Info), c_size_t), (c_void_p, c_void_p)
UPCALLS = {
    "client_connected": None,
    "client_finalized": CFUNCTYPE(c_int, POINTER(Proc), c_void_p, *_ANSWER),
    "abort": CFUNCTYPE(c_int, POINTER(Proc), c_void_p, c_int, c_char_p, *_PROCS, *_ANSWER),
    "fence": CFUNCTYPE(c_int, *_PROCS, *_INFOS, c_void_p, c_size_t, *_ANSWER),
    "direct_modex": CFUNCTYPE(c_int, POINTER(Proc), *_INFOS, *_ANSWER),
    "publish": CFUNCTYPE(c_int, POINTER(Proc), *_INFOS, *_ANSWER),
    "lookup": CFUNCTYPE(c_int, POINTER(Proc), POINTER(c_char_p), *_INFOS, *_ANSWER),
    "unpublish": CFUNCTYPE(c_int, POINTER(Proc), POINTER(c_char_p), *_INFOS, *_ANSWER),
    "spawn": CFUNCTYPE(c_int, POINTER(Proc), *_INFOS, POINTER(App), c_size_t, *_ANSWER),
    "connect": CFUNCTYPE(c_int, *_PROCS, *_INFOS, *_ANSWER),
    "disconnect": CFUNCTYPE(c_int, *_PROCS, *_INFOS, *_ANSWER),
    "register_events": CFUNCTYPE(c_int, c_void_p, c_size_t, *_INFOS, *_ANSWER),
    "deregister_events": CFUNCTYPE(c_int, c_void_p, c_size_t, *_ANSWER),
    "listener": None,
    "notify_event": None,
    "query": None,
    "tool_connected": CFUNCTYPE(None, c_void_p, c_size_t, *_ANSWER),
    "log": None,
    "allocate": None,
    "job_control": CFUNCTYPE(c_int, POINTER(Proc), *_PROCS, *_INFOS, *_ANSWER),
    "monitor": None,
    "get_credential": None,
    "validate_credential": None,
    "iof_pull": None,
    "push_stdin": None,
    "group": CFUNCTYPE(c_int, c_int, c_char_p, *_PROCS, *_INFOS, *_ANSWER),
    "fabric": None,
    "client_connected2": CFUNCTYPE(c_int, POINTER(Proc), c_void_p, *_INFOS, *_ANSWER),
}
"""The members of pmix_server_module_t in order; None for those that are not provided."""
MODULE_POINTERS = 64
"""Size of the padded module in pointers; PMIx 6.1 has 32."""

_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = c_void_p, (c_size_t,)
_libc.free.restype, _libc.free.argtypes = None, (c_void_p,)


class UnusableLibrary(Exception):
    """A library cannot be the server; the text is the reason."""


def load(name: str, folders: Sequence[str] = ()) -> ctypes.CDLL:
    """Load a libpmix; raises UnusableLibrary.

    `folders` are the ranks' LD_LIBRARY_PATH, for libraries that it needs and this process's loader does not find.
    """
    try:
        version = _open(name, folders, set()).PMIx_Get_version
    except (OSError, AttributeError) as error:
        reason = str(error)
        raise UnusableLibrary(reason[len(name) + 2 :] if reason.startswith(name + ": ") else reason) from None
    version.restype = c_char_p
    description = (version() or b"").decode("utf-8", "replace")
    number = re.search(r"\d+", description)
    if number is None or int(number.group()) < OLDEST:
        shown = description.partition(" (")[0] or "of no version"
        raise UnusableLibrary("it is %s, and %d.0 or newer is needed" % (shown, OLDEST))
    # Its components search its symbols in the global scope, where a refused library must not be.
    return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)


def _open(name: str, folders: Sequence[str], tried: set[str]) -> ctypes.CDLL:
    """Load a library and, before it, missing libraries that it needs; raises OSError."""
    while True:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            missing = str(error).partition(": ")[0]  # "libx.so.1: cannot open shared object file: ..."
            places = [place for place in (os.path.join(folder, missing) for folder in folders) if os.path.isfile(place)]
            if missing in tried or not places:
                raise
            tried.add(missing)
            _open(places[0], folders, tried)


class Infos:
    """An array of pmix_info_t, and the memory that it points at.

    Args:
        items: (key, type, value): a text for STRING, a list of such items for DATA_ARRAY, a list of (namespace, rank) for PROC,
            bytes for BYTE_OBJECT and OWNED_BYTES, a number for the others.
    """

    def __init__(self, items: Sequence[tuple[str, Any, Any]]) -> None:
        self.count = len(items)
        self.array = (Info * max(1, self.count))()
        self._kept: list[Any] = []
        for info, (key, kind, value) in zip(self.array, items):
            info.key = key.encode()
            set_value(info.value, kind, value, self._kept)


def set_value(place: Value, kind: Any, value: Any, kept: list[Any]) -> None:
    """Set a value; memory that it points at is added to `kept`, which must live as long."""
    address = _data(place)
    if kind == STRING:
        place.type = STRING
        characters = ctypes.create_string_buffer(value.encode("utf-8", "surrogateescape"))
        kept.append(characters)
        c_void_p.from_address(address).value = addressof(characters)
    elif kind in SCALARS:
        place.type = kind
        SCALARS[kind].from_address(address).value = value
    elif kind in (BYTE_OBJECT, OWNED_BYTES):
        place.type = BYTE_OBJECT
        if kind == OWNED_BYTES:
            start = _libc.malloc(max(1, len(value)))
            ctypes.memmove(start, value, len(value))
        else:
            buffer = ctypes.create_string_buffer(value, max(1, len(value)))
            kept.append(buffer)
            start = addressof(buffer)
        ByteObject.from_address(address).bytes = start
        ByteObject.from_address(address).size = len(value)
    else:
        place.type = DATA_ARRAY
        owner: Any
        elements: Any
        if kind == PROC:
            owner = elements = (Proc * len(value))(*(Proc(namespace.encode(), rank) for namespace, rank in value))
        else:
            owner = Infos(value)
            elements = owner.array
        array = DataArray(PROC if kind == PROC else INFO, len(value), addressof(elements))
        kept += [owner, array]
        c_void_p.from_address(address).value = addressof(array)


def get_value(place: Value) -> tuple[int, Any] | None:
    """Return type and value of a pmix_value_t for JSON (bytes as base 64), None for other types."""
    if place.type in SCALARS:
        value = SCALARS[place.type].from_address(_data(place)).value
        return place.type, text(value) if place.type == STRING else value
    if place.type == BYTE_OBJECT:
        return BYTE_OBJECT, base64.b64encode(ctypes.string_at(*bytes_of(place))).decode("ascii")
    return None


def bytes_of(place: Value) -> tuple[int, int]:
    """Return address and size of the bytes of a BYTE_OBJECT; raises ValueError for another type."""
    if place.type != BYTE_OBJECT:
        raise ValueError("a value of type %d instead of bytes" % place.type)
    content = ByteObject.from_address(_data(place))
    return (content.bytes, content.size) if content.bytes else (addressof(place), 0)


def _data(place: Value) -> int:
    return addressof(place) + Value.data.offset


def text(value: bytes | None) -> str:
    """Return a C string as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return (value or b"").decode("utf-8", "surrogateescape")


def texts(array: Any) -> list[str]:
    """Return the strings of an array that ends with NULL, or is NULL."""
    strings: list[str] = []
    while array and array[len(strings)] is not None:
        strings.append(text(array[len(strings)]))
    return strings


def environment_for(setup_fork: Callable[[Any], None]) -> dict[str, str]:
    """Return the variables by which a rank finds its server, which PMIx_server_setup_fork stores through a pointer."""
    array = POINTER(c_char_p)()
    setup_fork(ctypes.byref(array))
    pairs = [line.partition("=") for line in texts(array)]
    # The array and its strings are ours to free.
    pointers = ctypes.cast(array, POINTER(c_void_p))
    for index in range(len(pairs)):
        _libc.free(pointers[index])
    _libc.free(pointers)
    return {name: value for name, _, value in pairs}
