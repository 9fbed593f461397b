"""Options of pdcp (pdsh 2.34), which copies files to all hosts; the hosts need no pdcp of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.rows import Dialect, InvalidArgument, Surroundings, Translation, part
from mpilaunch.cli.dialects.shells import pdsh, remote

_USAGE = "pdcp [OPTIONS] -w HOSTS FILE... TARGET"


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the hosts and how they are reached, and what the files are and where they come."""
    parts, hosts, local, notes = pdsh.reached(parts, around)
    *paths, target = words or [""]
    if not paths:
        raise InvalidArgument("pcp requires source and dest filenames", _USAGE)
    if local:
        raise InvalidArgument("pdcp with -R exec is not supported", "pdcp copies over ssh")
    for path in paths:
        if not os.path.exists(path):
            raise InvalidArgument(f"can't stat {path}", "name files of this machine")
        if os.path.isdir(path) and "r" not in parts:
            raise InvalidArgument(f"use -r to copy directories: {path}", _USAGE)
    if "q" in parts:
        return notes + Translation(text=listing(paths, target, parts, hosts, around)), [*words]
    copying, command = remote.copy(paths, target, preserve="p" in parts)
    return notes + pdsh.job(hosts, parts.get("l"), parts, name="pdcp") + pdsh.ssh_options(around.environ) + copying, command


def listing(
    paths: Sequence[str], target: str, parts: Mapping[str, str], hosts: Sequence[str], around: Surroundings
) -> str:
    """Return what -q prints."""
    about = f"""\
-- PCP-specific options --
Infile(s)		{", ".join(paths)}
Outfile			{target or "none"}
Recursive		{"Yes" if "r" in parts else "No"}
Preserve mod time/mode	{"Yes" if "p" in parts else "No"}"""
    program = parts.get("e") or around.environ.get("PDSH_REMOTE_PDCP_PATH", "")
    return pdsh.listing(about, parts, hosts, "ssh", program)


ROWS = (
    *pdsh.ROWS,
    part("r", "", "copy directories too"),
    part("p", "", "the files keep their modes and times"),
    part("e", "PATH", "only for -q: the hosts need no pdcp"),
)
"""Those of rpdcp too."""


DIALECT = Dialect(
    name="pdcp",
    title="pdcp",
    owner="pdcp's",
    rows=ROWS,
    getopt=True,
    usage=_USAGE,
    finish=finish,
)
