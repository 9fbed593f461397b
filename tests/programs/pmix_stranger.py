"""Another user of the node who would like to be a rank: it knows all but the name of a world in PMIx.

Runs as root, lowers itself to another user, and tries; its process claims to be the user that CLAIM names, as a hostile libpmix
would. Prints as JSON what it could read of the node, and what each attempt came to.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from ctypes import byref, c_int, c_size_t
from pathlib import Path

from mpilaunch.daemon.pmix import library as pmix

NOBODY = 65534
RANK_SECONDS, TOOL_SECONDS = 20, 2
"""Time of an attempt. The server answers a rank at once; a tool is never answered."""
HUNG = "no answer"


def main() -> None:
    """Take as JSON: library, port, folders, namespaces, mark (the file that a spawned program makes)."""
    wish = json.loads(sys.argv[1])
    library = pmix.load(wish["library"])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    attempts = {}
    for name in wish["namespaces"]:
        attempts[f"rank of {name!r}"] = Attempt(RANK_SECONDS, as_rank, library, name, wish).result()
    tools = {"tool with a name": "stranger", "tool without a name": ""}
    tools |= {f"tool of {name!r}": name for name in wish["namespaces"]}
    running = {title: Attempt(TOOL_SECONDS, as_tool, library, name, wish) for title, name in tools.items()}
    attempts |= {title: attempt.result() for title, attempt in running.items()}
    print(json.dumps({"attempts": attempts, "seen": seen(wish["folders"])}))


class Attempt:
    """An attempt in a child process, which may hang."""

    def __init__(self, seconds, connect, library, name, wish) -> None:  # type: ignore[no-untyped-def]
        self._reading, writing = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            signal.alarm(seconds)
            os.dup2(writing, 2)
            os.environ["CLAIM"] = "0"  # from here on, for pretend.so
            os.write(writing, b"\n" + connect(library, name, wish).encode())
            os._exit(0)
        os.close(writing)

    def result(self) -> str:
        """Wait for the end, and return the result."""
        _, status = os.waitpid(self._child, 0)
        with open(self._reading, "rb") as file:
            text = file.read().decode(errors="replace")
        return text.rpartition("\n")[2] if status == 0 else HUNG


def as_rank(library, name, wish) -> str:  # type: ignore[no-untyped-def]
    """Be rank 0 of a namespace."""
    uri = f"server.0;tcp4://127.0.0.1:{wish['port']}"
    for variable in ("URI", "URI2", "URI21", "URI3", "URI4", "URI41"):
        os.environ[f"PMIX_SERVER_{variable}"] = uri
    os.environ |= {
        "PMIX_NAMESPACE": name,
        "PMIX_RANK": "0",
        "PMIX_SECURITY_MODE": "native",
        "PMIX_GDS_MODULE": "hash",
        "PMIX_BFROP_BUFFER_TYPE": "PMIX_BFROP_BUFFER_NON_DESC",
        "PMIX_MCA_ptl_base_max_retries": "1",
    }
    proc = pmix.Proc()
    status = library.PMIx_Init(byref(proc), None, c_size_t(0))
    return f"refused: {status}" if status else f"a rank; {spawned(library, wish)}"


def as_tool(library, name, wish) -> str:  # type: ignore[no-untyped-def]
    """Be a tool, with a name or without."""
    items: list[tuple[str, int, object]] = [("pmix.srvr.uri", pmix.STRING, f"server.0;tcp4://127.0.0.1:{wish['port']}")]
    if name:
        items += [("pmix.tool.nspace", pmix.STRING, name), ("pmix.tool.rank", pmix.PROC_RANK, 0)]
    infos = pmix.Infos(items)
    proc = pmix.Proc()
    status = library.PMIx_tool_init(byref(proc), infos.array, c_size_t(infos.count))
    return f"refused: {status}" if status else f"a tool; {spawned(library, wish)}"


def spawned(library, wish) -> str:  # type: ignore[no-untyped-def]
    """Start a program by PMIx_Spawn."""
    words = (ctypes.c_char_p * 3)(b"touch", wish["mark"].encode(), None)
    app = pmix.App(b"touch", words, None, None, 1, None, 0)
    name = ctypes.create_string_buffer(pmix.LONGEST_NAMESPACE + 1)
    status = library.PMIx_Spawn(None, c_size_t(0), byref(app), c_size_t(1), name)
    return f"spawn: {c_int(status).value}"


def seen(folders: list[str]) -> str:
    """Return all text that this user can read: processes, sockets, and names and contents of files in some folders."""
    texts = []
    places = [f"/proc/{pid}/{file}" for pid in os.listdir("/proc") if pid.isdigit() for file in ("cmdline", "environ", "maps")]
    places += ["/proc/net/tcp", "/proc/net/unix", "/proc/mounts", "/proc/locks"]
    for folder in folders:
        for parent, inner, files in os.walk(folder):
            texts += [parent, *inner, *files]
            places += [os.path.join(parent, name) for name in files]
    for place in places:
        try:
            if os.path.getsize(place) < 1 << 20:
                texts.append(Path(place).read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


if __name__ == "__main__":
    main()
