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
SECONDS = 2
HUNG = "no answer"


def main() -> None:
    """Take as JSON: library, port, folders, namespaces, mark (the file that a spawned program makes)."""
    wish = json.loads(sys.argv[1])
    library = pmix.load(wish["library"])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    attempts = {f"rank of {name!r}": be(as_rank, library, name, wish) for name in wish["namespaces"]}
    attempts["tool with a name"] = be(as_tool, library, "stranger", wish)
    attempts["tool without a name"] = be(as_tool, library, "", wish)
    for name in wish["namespaces"]:
        attempts[f"tool of {name!r}"] = be(as_tool, library, name, wish)
    print(json.dumps({"attempts": attempts, "seen": seen(wish["folders"])}))


def be(what, library, name, wish) -> str:  # type: ignore[no-untyped-def]
    """Try in a child, which may hang; return what came of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.dup2(writing, 2)
        os.environ["CLAIM"] = "0"  # from here on, for pretend.so
        os.write(writing, b"\n" + what(library, name, wish).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with open(reading, "rb") as file:
        words = file.read().decode(errors="replace")
    return words.rpartition("\n")[2] if status == 0 else HUNG


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
    items = [("pmix.srvr.uri", pmix.STRING, f"server.0;tcp4://127.0.0.1:{wish['port']}")]
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
