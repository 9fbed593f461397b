"""What this node's environment and the configuration files of communication libraries say of the network to use.

A variable that mpilaunch sets would override such a file, so it must know. This module changes nothing. Sources: NCCL's
"Environment Variables" (NCCL_CONF_FILE), Open MPI's "Setting MCA parameters", UCX's src/ucs/config/parser.c.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST = 1 << 16
"""Bytes of a file that are read."""
NAMES = (
    *("NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN"),
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"),
    *("UCX_NET_DEVICES",),
)
"""The settings that are looked for."""
OPEN_MPI = "OMPI_MCA_"
"""Open MPI's files name a parameter without this prefix. Its variables do not count here: they are an outer job's."""


def find_settings(root: str, environ: Mapping[str, str]) -> list[str]:
    """Return those of NAMES that this node sets."""
    found = {name for name in NAMES if name in environ and not name.startswith(OPEN_MPI)}
    for path, prefix in _files(environ):
        found |= {prefix + name for name in _names_in(os.path.join(root, path.lstrip("/")))} & {*NAMES}
    return sorted(found)


def _files(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (path, prefix of its names) of the files that the libraries read."""
    home = environ.get("HOME", "")
    yield environ.get("NCCL_CONF_FILE") or home + "/.nccl.conf", ""
    yield "/etc/nccl.conf", ""
    yield home + "/.openmpi/mca-params.conf", OPEN_MPI
    yield environ.get("OPAL_PREFIX", "/usr/local") + "/etc/openmpi-mca-params.conf", OPEN_MPI
    yield "/etc/openmpi/openmpi-mca-params.conf", OPEN_MPI
    for directory in (home, environ.get("UCX_CONFIG_DIR", ""), "/etc/ucx"):
        yield directory + "/ucx.conf", ""


def _names_in(path: str) -> set[str]:
    """Return the names that a file of `NAME = VALUE` lines sets; none if it cannot be read."""
    try:
        # A FIFO in its place would block here for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
            text = (file.read(LONGEST) or b"").decode("utf-8", "replace")
    except OSError:
        return set()
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip() for name, equals, value in pairs if equals and value.strip()}
