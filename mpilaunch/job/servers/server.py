"""A server that spans nodes: what `--profile` adds to its command line, and how its processes lie on the nodes.

Pure. Each module beside this one makes one `Server`. The words that are added are templates (`job.environment.templates`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mpilaunch.job.environment.contract import Contract

Words = tuple[str, ...]
NO_WORDS: Words = ()
NO_ALIASES: Mapping[str, str] = MappingProxyType({})


def _nothing(program: Sequence[str]) -> Words:
    return NO_WORDS


class Server(NamedTuple):
    """A server over several nodes.

    Attributes:
        before: returns the words that come before the user's program, after: those that come after it.
        follow: nobody asks the processes beyond the first node for anything: they are ended once it has ended.
        beyond: words that come last for these; it needs `follow`.
        one_per_node: it starts one process on each node, which uses all of the node's GPUs; else one on each slot.
        commands: beginnings of command lines that start it, by whose words it is known without its profile.
        variables: of its profile.
    """

    commands: tuple[Words, ...] = ()
    before: Callable[[Sequence[str]], Words] = _nothing
    after: Callable[[Sequence[str]], Words] = _nothing
    follow: bool = False
    beyond: Words = NO_WORDS
    one_per_node: bool = True
    variables: Contract = Contract()


def in_front(program: Sequence[str], *words: str) -> Words:
    """Return words for the front of a program; a script needs its interpreter there."""
    return (*words, "python3") if program[0].endswith(".py") else words


def unless_given(program: Sequence[str], *options: tuple[str, ...], aliases: Mapping[str, str] = NO_ALIASES) -> Words:
    """Return those options, each with its value, that the user's words do not have: what the user writes wins.

    Args:
        aliases: other names of options; the value of a short one may follow at once.
    """
    given = {word.partition("=")[0].replace("_", "-") for word in program if word.startswith("--")}
    given |= {aliases[name] for name in given & aliases.keys()}
    given |= {aliases[word[:2]] for word in program if word[:2] in aliases and not word[2:].strip("=0123456789")}
    return tuple(word for option in options if option[0] not in given for word in option)
