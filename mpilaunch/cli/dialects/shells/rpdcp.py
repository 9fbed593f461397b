"""Options of rpdcp (pdsh 2.34), which copies files from all hosts to here; the hosts need no pdcp of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.rows import Dialect, InvalidArgument, Surroundings, Translation
from mpilaunch.cli.dialects.shells import pdcp, pdsh, remote

_USAGE = "rpdcp [OPTIONS] -w HOSTS FILE... DIR"


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the hosts and how they are reached, and what the files are and where they come."""
    parts, hosts, local, notes = pdsh.reached(parts, around)
    *paths, target = words or [""]
    if not paths:
        raise InvalidArgument("pcp requires source and dest filenames", _USAGE)
    if local:
        raise InvalidArgument("rpdcp with -R exec is not supported", "rpdcp copies over ssh")
    copying, command = remote.fetch(paths, target, recursive="r" in parts, preserve="p" in parts)
    if "q" in parts:
        return notes + Translation(text=pdcp.listing(paths, target, parts, hosts, around)), [*words]
    return notes + pdsh.job(hosts, parts.get("l"), parts, name="rpdcp") + pdsh.ssh_options(around.environ) + copying, command


DIALECT = Dialect(name="rpdcp", title="rpdcp", owner="rpdcp's", rows=pdcp.ROWS, getopt=True, usage=_USAGE, finish=finish)
