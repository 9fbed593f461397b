"""Asks NCCL in the ranks of this node for its report on all ranks of the job (RAS, since NCCL 2.24; RCCL has the same).

It tells which ranks lag behind in which communicator. NCCL 2.27.3 crashed a job that was asked often (NVIDIA/nccl#1762), so it
is asked once, on request and where the job ends anyway. The protocol: src/ras/client.cc; lines of text, then the report until
end of file. A server is asked only if one of the ranks listens there.
"""

from __future__ import annotations

import socket
import time

from mpilaunch.daemon.ranks import reaper
from mpilaunch.daemon.ranks.listeners import listens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PORT = 28028
"""Where NCCL listens, unless NCCL_RAS_ADDR says otherwise."""
PATIENCE = 1
"""Seconds that NCCL may wait for the ranks of other nodes."""
SECONDS = 1.8
"""Seconds for the whole report."""
LARGEST = 64 << 10
"""Bytes of a report that are read."""


def report(pids: Iterable[int]) -> str:
    """Return the report of the first of these processes that gives one, "" without one."""
    until = time.monotonic() + SECONDS
    for pid in pids:
        port = port_of(reaper.process_file(pid, "environ"))
        if port and listens(pid, port):
            try:
                return _ask(port, until)
            except OSError:
                return ""
    return ""


def port_of(environ: bytes) -> int:
    """Return the port of NCCL_RAS_ADDR, such as localhost:28028; 0 where NCCL_RAS_ENABLE or that says that there is none."""
    variables = dict(each.partition(b"=")[::2] for each in environ.split(b"\0"))
    if variables.get(b"NCCL_RAS_ENABLE") == b"0":
        return 0
    address = variables.get(b"NCCL_RAS_ADDR", b"")
    text = address.rpartition(b":")[2] if address else b"%d" % PORT
    return int(text) if text.isdigit() and len(text) < 6 else 0


def _ask(port: int, until: float) -> str:
    with socket.create_connection(("localhost", port), timeout=SECONDS) as server:
        for request, answer in ((b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL "), (b"TIMEOUT %d\n" % PATIENCE, b"OK")):
            server.settimeout(max(0.01, until - time.monotonic()))
            server.sendall(request)
            if not server.recv(1024).startswith(answer):
                return ""
        server.sendall(b"VERBOSE STATUS\n")
        text = b""
        while len(text) < LARGEST:
            server.settimeout(max(0.01, until - time.monotonic()))
            data = server.recv(4096)
            if not data:
                break
            text += data
    return text[:LARGEST].decode("utf-8", "replace")
