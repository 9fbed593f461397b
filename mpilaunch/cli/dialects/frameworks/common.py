"""What the launchers of frameworks share: the interpreter, and the nodes of a job that starts by hand.

It decides about words only, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpilaunch.cli.dialects.rows import InvalidArgument, Surroundings, Translation, weak
from mpilaunch.text import escape_braces


def program(
    parts: Mapping[str, str], words: Sequence[str], environ: Mapping[str, str], script: Sequence[str] = ()
) -> list[str]:
    """Return the program as a launcher of Python runs it: a script or a module by the interpreter, or as it is.

    Args:
        parts: `module`, `no_python`, and the interpreter, `python`; by default python3 of PATH here.
        script: arguments that come before those of the script.
    """
    if not words:
        return []
    words = [words[0], *script, *words[1:]]
    if "no_python" in parts:
        if "module" in parts:
            raise InvalidArgument("--no_python and --module contradict each other", "leave one out")
        return words
    import shutil

    python = parts.get("python") or shutil.which("python3", path=environ.get("PATH"))
    return [python or "python3", "-u", *(["-m"] if "module" in parts else []), *words]


LOCAL_RANK = "\0local_rank\0"
"""Stands for the local rank in an argument of a program, for `fill_local_rank`: no word of a command line has this text."""


def fill_local_rank(words: Sequence[str]) -> tuple[Translation, list[str]]:
    """Return a program as templates if one of its arguments has LOCAL_RANK, and the option for them; else as it is."""
    if not any(LOCAL_RANK in word for word in words):
        return Translation(), list(words)
    arguments = (escape_braces(word).replace(LOCAL_RANK, "{local_rank}") for word in words[1:])
    return Translation(("--template",)), [words[0], *arguments]


class ByHand(NamedTuple):
    """A command that may stand once for all nodes, or on each node with its number, and the names of its options.

    Attributes:
        nodes: the number of nodes, or MIN:MAX.
        rank: the number of this node, None if the command stands once.
        address, port: where the parts of the job meet.
        nodes_flag, rank_flag: the launcher's options for these.
    """

    nodes: str
    rank: str | None
    address: str
    port: str
    nodes_flag: str = "--nnodes"
    rank_flag: str = "--node-rank"

    def translation(self, around: Surroundings, *, given: bool) -> Translation:
        """Return the nodes: those that are named, this machine, or this machine as a part of the job.

        Args:
            given: the user has named the number of nodes.
        """
        least, _, most = self.nodes.partition(":")
        if (most or least) == "1":
            if self.rank not in (None, "0"):
                message = f"{self.rank_flag} {self.rank} needs {self.nodes_flag}"
                raise InvalidArgument(message, f"add {self.nodes_flag} N, the number of nodes")
            one = Translation(("--nnodes", "1") if given else ())
            return one if around.names_hosts else weak("--host", "localhost")
        result = Translation(("--nnodes", self.nodes))
        if self.rank is None:
            return result
        if around.names_hosts:
            if self.rank != "0":
                hint = f"run mpilaunch once, without {self.rank_flag}; or on each node, without --host and --hostfile"
                raise InvalidArgument(f"{self.rank_flag} {self.rank} and named hosts contradict each other", hint)
            note = f"{self.rank_flag} has no effect: one command starts the ranks on all named hosts"
            return result + Translation(notes=((note, 0),))
        if most and most != least:
            hint = f"give their number, {self.nodes_flag} {most}, or run mpilaunch once with --host or --hostfile"
            message = f"{self.rank_flag} {self.rank} needs a fixed number of nodes, not {self.nodes_flag} {self.nodes}"
            raise InvalidArgument(message, hint)
        master = weak("--master-addr", self.address) + weak("--master-port", self.port)
        return result + Translation(("--node-rank", self.rank)) + master
