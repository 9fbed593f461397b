"""Parses a launcher's remote shell command line (options, host, command) and rewrites the command where a node needs it.

Pure, and cheap to import: `mpilaunch-rsh` starts once for each node. The launchers are Open MPI's and PRRTE's plm_rsh, Hydra,
Intel MPI and Horovod; as with ssh, the words of the command are joined by blanks and run by a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITH_VALUE = "bcDeEFiIJlLmoOpQRSwW"
"""Options of ssh that take a value, attached or as the next word; all others are flags, which may be combined."""

DAEMONS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
"""Launchers' daemons: they have a connection to the launcher and end with it, so a lost stream need not end them."""

AGENT_PARAMETERS = ("plm_rsh_agent", "plm_ssh_agent")
HOST_OPTIONS = ("--control-port", "--upstream-host")
"""Options of Hydra and Intel MPI whose value begins with the name of the launcher's host."""

NO_AGENT = "/bin/false"
"""The remote shell of nodes that cannot reach other nodes."""
TREE_RADIX = 64
"""Number of nodes that Open MPI starts itself; these start the others."""


class BadCall(Exception):
    """The command line or a setting is invalid; the message is for the user."""


class Call:
    """A parsed command line.

    Attributes:
        user: login name, "" for none.
        options: ssh options in order; a value is attached to its option or the next item.
        words: the words of the command, at least one.
    """

    def __init__(self, host: str, user: str, options: list[str], words: list[str]) -> None:
        self.host, self.user, self.options, self.words = host, user, options, words

    @property
    def command(self) -> str:
        """The command as a shell reads it."""
        return " ".join(self.words)

    @property
    def logins(self) -> list[str]:
        """The login names given by ssh's option -l, also when combined with flags."""
        names = []
        for index, word in enumerate(self.options):
            position = _option_with_value(word)
            if word.startswith("-") and word[position : position + 1] == "l":
                names.append(word[position + 1 :] or self.options[index + 1])
        return names

    @property
    def has_lifeline(self) -> bool:
        """Whether the command is a launcher's daemon, which detects the end of its launcher itself."""
        return any(word.strip(" \"'").rpartition("/")[2] in DAEMONS for word in self.command.split())


def parse(arguments: Sequence[str]) -> Call:
    """Parse the arguments; options may come before and after the host; raises BadCall."""
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
        if _option_with_value(word) == len(word) - 1:
            if not words:
                raise BadCall(f"the option {word} needs a value")
            options.append(words.pop(0))
    return words


def _option_with_value(word: str) -> int:
    """Return the position of the first option letter in a word that takes a value, 0 for none."""
    return next((position for position, letter in enumerate(word) if position and letter in WITH_VALUE), 0)


def rewrite(call: Call, agent: str, own_host: str, own_address: Callable[[], str]) -> None:
    """Change words of the command that would fail on the node; raises BadCall when the command cannot work there.

    Args:
        agent: the node's remote shell, which replaces the path of ours: Open MPI's daemon crashes if it cannot find its shell.
        own_host: this machine's name, which nodes may be unable to resolve.
        own_address: returns this machine's address, "" when it has none that nodes can reach.
    """
    words = call.words
    for index, word in enumerate(words[:-1], 1):
        if word in AGENT_PARAMETERS:
            words[index] = f'"{agent}"'
        elif word in HOST_OPTIONS:
            host, colon, port = words[index].partition(":")
            if host == own_host:
                words[index] = (own_address() or host) + colon + port
    nodes = words[words.index("ess_base_num_procs") + 1].strip('"') if "ess_base_num_procs" in words[:-1] else ""
    if agent == NO_AGENT and "--tree-spawn" in words and nodes.isdigit() and int(nodes) > TREE_RADIX + 1:
        raise BadCall(
            f"with more than {TREE_RADIX} nodes, nodes would start other nodes, which they cannot: "
            "set OMPI_MCA_plm_rsh_no_tree_spawn=1 (Open MPI 5: PRTE_MCA_plm_ssh_no_tree_spawn=1)"
        )
