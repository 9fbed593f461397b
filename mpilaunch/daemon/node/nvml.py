"""Calls of NVML in a child process with a deadline: the library can crash or hang on a broken GPU, and the daemon must not."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    NvmlAnswer = dict[str, tuple[str, list[tuple[str, str]]]]

NVML_SECONDS = 5.0
KILL_SECONDS = 1.0
"""Limits for the library, and for the end of a killed child."""


def ask_nvml(bus_ids: list[str]) -> NvmlAnswer:
    """Return the UUID and the MIG instances (UUID, name) of each GPU that NVML knows."""
    return run_in_child(lambda: read_nvml(ctypes.CDLL("libnvidia-ml.so.1"), bus_ids), NVML_SECONDS) or {}


def read_nvml(library: Any, bus_ids: Iterable[str]) -> NvmlAnswer:
    """Make the calls of `ask_nvml` on a loaded library."""

    def text(function: Callable[..., int], handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(96)
        return buffer.value.decode() if function(handle, buffer, len(buffer)) == 0 else ""

    answer: NvmlAnswer = {}
    if library.nvmlInit_v2() != 0:
        return answer
    for bus_id in bus_ids:
        gpu, instance, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint(0)
        if library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(gpu)) != 0:
            continue
        library.nvmlDeviceGetMaxMigDeviceCount(gpu, ctypes.byref(count))
        instances = [
            (text(library.nvmlDeviceGetUUID, instance), text(library.nvmlDeviceGetName, instance))
            for number in range(count.value)
            if library.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number, ctypes.byref(instance)) == 0
        ]
        answer[bus_id] = (text(library.nvmlDeviceGetUUID, gpu), instances)
    return answer


def run_in_child(call: Callable[[], Any], seconds: float) -> Any:
    """Return the result of `call` by way of JSON, None if it raises, crashes or takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(call()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        answer = _read_to_end(reader, seconds)
        if answer is None:
            os.kill(child, signal.SIGKILL)
            if _read_to_end(reader, KILL_SECONDS) is None:
                return None  # stuck in the kernel; the daemon's reaper will collect it
        os.waitpid(child, 0)
        return json.loads(answer) if answer else None
    finally:
        os.close(reader)


def _read_to_end(reader: int, seconds: float) -> bytes | None:
    """Read until end of file; return None at the deadline."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    data = b""
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        part = os.read(reader, 65536)
        if not part:
            return data
        data += part
    return None
