"""Read hostfiles and host lists of every dialect into the same entries, and print them back.

Pure: text in, entries out. It decides nothing about which hosts a job uses (`allocation` does) and opens no file.
Every error names the source, line, column and text, and what would be right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostEntry:
    """One host as one place of a hostfile or of `--host` names it; None means that nothing was said.

    Attributes:
        name: host name, IPv4 address, IPv6 address without brackets, or `local`; never shortened.
        slots: how many ranks may run there, 0 or more.
        max_slots: hard limit that `--oversubscribe` does not pass.
        user: login name for the agent.
        port: port for the agent, 1..65535.
        agent: name of the agent, or a command template.
        gpus: GPU indices ("0") or UUIDs ("GPU-...") in slot order; empty means no GPU at all.
        cpus: CPU numbers that the ranks of this host may use.
        origin: where it was said: "hosts.txt:3" or "--host".
    """

    name: str
    slots: int | None = None
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    agent: str | None = None
    gpus: tuple[str, ...] | None = None
    cpus: tuple[int, ...] | None = None
    origin: str = ""
