"""Which process of a place plays which part in a job: pure, from the list of its processes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.places import Process


def find(processes: Sequence[Process], role: str) -> list[Process]:
    """Return the processes that can be the target of a fault, oldest first; `role` as in `plan.Fault.target`."""
    nodes = {process.pid: process for process in processes if "mpilaunch.daemon" in " ".join(process.argv)}
    guards = {pid for pid, process in nodes.items() if process.parent not in nodes}
    daemons = {pid for pid, process in nodes.items() if process.parent in guards}

    def has(process: Process) -> bool:
        if role == "guard":
            return process.pid in guards
        if role == "daemon":
            return process.pid in daemons
        if role == "helper":
            return process.pid in nodes and process.parent in daemons
        if role == "rank":
            return process.name == "rank" and process.parent in daemons
        if role == "child":
            return process.name == "chaos-child"
        if role == "session":
            return process.name.startswith("sshd")
        if role == "client":
            return process.argv[:1] == ("ssh",)
        return role == "proxy" and any(word.endswith("chaos/proxy.py") for word in process.argv)

    return sorted(filter(has, processes), key=lambda process: int(process.started))
