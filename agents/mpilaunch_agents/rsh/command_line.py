"""What a launcher's call of its remote shell means: options, host, command, and what in the command must be changed.

Pure, and light: `mpilaunch-rsh` starts once for each node. The calls are those of Open MPI's and PRRTE's plm_rsh, Hydra, Intel
MPI and Horovod; their words are joined by one blank and given to a shell, as ssh does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITH_VALUE = "bcDeEFiIJlLmoOpQRSwW"
"""ssh's options that take a value, glued to them or as the next word; all others are flags, which may be glued together."""

DAEMONS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
"""Programs with a connection of their own to the launcher: they end when it does, and a lost stream need not end them."""

AGENT_PARAMETERS = ("plm_rsh_agent", "plm_ssh_agent")
HOST_OPTIONS = ("--control-port", "--upstream-host")
"""What Hydra and Intel MPI say before the name of the launcher's host."""

TREE_RADIX = 64
"""Nodes that Open MPI starts itself; those start the others."""


class BadCall(Exception):
    """The words cannot be followed; the text says why."""


class Call:
    """One call.

    Attributes:
        host: without user.
        user: login name, "" when none is given.
        options: ssh's, in order, each with its value glued to it or as the next item.
        words: the command, at least one.
    """

    def __init__(self, host: str, user: str, options: list[str], words: list[str]) -> None:
        self.host = host
        self.user = user
        self.options = options
        self.words = words

    @property
    def command(self) -> str:
        """The command for a shell."""
        return " ".join(self.words)

    @property
    def logins(self) -> list[str]:
        """The login names that ssh's option -l gives, alone or behind flags of the same word."""
        names = []
        for place, word in enumerate(self.options):
            letter = next((at for at, letter in enumerate(word) if at and letter in WITH_VALUE), 0)
            if word.startswith("-") and word[letter : letter + 1] == "l":
                names.append(word[letter + 1 :] or self.options[place + 1])
        return names

    @property
    def has_lifeline(self) -> bool:
        """The command is a launcher's daemon, which sees by itself that the launcher has gone."""
        return any(word.strip(" \"'").rpartition("/")[2] in DAEMONS for word in self.command.split())


def parse(arguments: Sequence[str]) -> Call:
    """Return what the arguments ask for; options may stand before and after the host; raises BadCall."""
    options: list[str] = []
    rest = _take_options(list(arguments), options)
    if not rest:
        raise BadCall("no host; usage: mpilaunch-rsh [ssh's options] [USER@]HOST COMMAND...")
    user, _, host = rest[0].rpartition("@")
    words = _take_options(rest[1:], options)
    if not host or host.startswith("-"):
        raise BadCall(f"'{rest[0]}' is not a host")
    if not words:
        raise BadCall(f"no command for {host}: there are no logins here")
    return Call(host, user, options, words)


def _take_options(words: list[str], options: list[str]) -> list[str]:
    """Move the options at the start of the words to `options`; return the rest."""
    while words and len(words[0]) > 1 and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        options.append(word)
        place = next((place for place, letter in enumerate(word) if place and letter in WITH_VALUE), None)
        if place == len(word) - 1:
            if not words:
                raise BadCall(f"the option {word} needs a value")
            options.append(words.pop(0))
    return words


def rewrite(call: Call, agent: str, own_host: str, own_address: Callable[[], str]) -> None:
    """Change what would not work on the node; raises BadCall where nothing can be changed.

    Args:
        agent: the remote shell that a node has, for the words that name ours: a node that looks for it and finds none crashes.
        own_host: this machine's name, which nodes need not be able to resolve.
        own_address: returns its address, "" when it has none that others reach.
    """
    words = call.words
    for place in range(len(words) - 1):
        if words[place] in AGENT_PARAMETERS:
            words[place + 1] = f'"{agent}"'
        elif words[place] in HOST_OPTIONS:
            host, colon, port = words[place + 1].partition(":")
            if host == own_host:
                words[place + 1] = (own_address() or host) + colon + port
    nodes = _after(words, "ess_base_num_procs").strip('"')
    if agent == NO_AGENT and "--tree-spawn" in words and nodes.isdigit() and int(nodes) > TREE_RADIX + 1:
        raise BadCall(
            f"with more than {TREE_RADIX} nodes, nodes would start other nodes, which they cannot: "
            "set OMPI_MCA_plm_rsh_no_tree_spawn=1 (Open MPI 5: PRTE_MCA_plm_ssh_no_tree_spawn=1)"
        )


NO_AGENT = "/bin/false"
"""Stands for the remote shell of nodes that reach no other node."""


def _after(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words[:-1] else ""
