"""The nodes of a genders file, for -a, -A, -g, -X and -i of pdsh, as the program nodeattr of genders reads it (nodeattr(1)).

Three attributes are pdsh's own: `altname` is the name by which a node is reached, unless -i asks for its other one,
`pdsh_all_skip` leaves it out of -a, and `pdsh_rcmd_type=[USER@][MODULE]` tells how it is reached.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from functools import cached_property

from mpilaunch.cli.dialects.rows import InvalidArgument

PROGRAM = "nodeattr"
_SECONDS = 30.0
"""Limit on the time of one query."""


class Genders:
    """One genders file: `path`, $PDSH_GENDERS_FILE or "genders", which lies in $PDSH_GENDERS_DIR or /etc unless it says where.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str | None, environ: Mapping[str, str]) -> None:
        path = path or environ.get("PDSH_GENDERS_FILE") or "genders"
        folder = environ.get("PDSH_GENDERS_DIR") or "/etc"
        self.path = path if path.startswith(("/", ".")) else os.path.join(folder, path)
        self._program = shutil.which(PROGRAM, path=environ.get("PATH"))

    def is_there(self) -> bool:
        """Return whether there is such a file, and the program."""
        return self._program is not None and os.path.isfile(self.path)

    def all(self) -> list[str]:
        """Return all nodes; raises InvalidArgument."""
        return list(self._attributes)

    def query(self, queries: str) -> list[str]:
        """Return the nodes that each of some queries, such as "compute&&~gpu,login", selects; raises InvalidArgument."""
        return [name for query in queries.split(",") for name in self._run("-n", "--", query)]

    def with_other_names(self, nodes: Iterable[str]) -> set[str]:
        """Return the nodes under both of their names."""
        nodes = list(nodes)
        return {*nodes, *map(self.other_name, nodes)}

    def other_name(self, name: str) -> str:
        """Return the altname of a node, or the node of an altname; a name without another is returned as it is."""
        if name in self._attributes:
            return self._attributes[name].get("altname") or name
        return self._by_altname.get(name, name)

    def reached_by(self, name: str) -> tuple[str, str]:
        """Return the user and the module of pdsh with which a node is reached, "" where the file does not say."""
        node = name if name in self._attributes else self._by_altname.get(name, "")
        user, _, module = self._attributes.get(node, {}).get("pdsh_rcmd_type", "").rpartition("@")
        return user, module

    @cached_property
    def _attributes(self) -> dict[str, dict[str, str]]:
        """The attributes of each node with their values."""
        found: dict[str, dict[str, str]] = {}
        for line in self._run("--expand"):
            node, _, attributes = line.partition(" ")
            pairs = (each.partition("=") for each in attributes.strip().split(",") if each)
            found.setdefault(node, {}).update({name: value for name, _, value in pairs})
        return found

    @cached_property
    def _by_altname(self) -> dict[str, str]:
        return {own["altname"]: node for node, own in self._attributes.items() if own.get("altname")}

    def _run(self, *words: str) -> list[str]:
        """Return the lines that nodeattr prints; raises InvalidArgument with its reason."""
        hint = "genders(5) describes the file, -F names another; or name the hosts with -w"
        if self._program is None:
            raise InvalidArgument(f"the program {PROGRAM} of genders is not installed here", hint)
        try:
            done = subprocess.run(
                [self._program, "-f", self.path, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise InvalidArgument(f"{self.path}: {PROGRAM}: {error}", hint) from None
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().removeprefix(f"{PROGRAM}: ")
            raise InvalidArgument(f"{PROGRAM}: {reason or f'exit code {done.returncode}'}", hint)
        return done.stdout.decode(errors="replace").splitlines()
