"""The agent `command`: any program that runs a command on a node, by a template such as 'tsh ssh {host} {command}'.

The template is split into words as a shell would, before anything is put into it: a name or a command can never become more
than one argument. No shell runs it.
"""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Sequence
from string import Formatter

from mpilaunch.agent import AgentOptions, ChannelEnd
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Node
from mpilaunch.text import closest
from mpilaunch_agents.openssh import explain_ssh
from mpilaunch_agents.process import ProcessAgent

FIELDS = ("host", "user", "port", "command", "name")
SSH_PORT = 22

Word = list[tuple[str, "str | None"]]
"""One argument of the template: pairs of literal text and the field behind it."""


class CommandAgent(ProcessAgent):
    """Runs the template's program; raises UsageError for a template that makes no sense.

    `{host}` and `{name}` are the node's name, `{user}` and `{port}` the node's or else one's own login name and 22, `{{` is a
    brace. `{command}` is the command quoted for a shell, as one argument. Where `{command}` is missing, the host (unless it
    has been named) and the command are appended.
    """

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._words = parse(options.template or "")
        self._names_user = any(field == "user" for word in self._words for _, field in word)

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the template's words with the fields filled in."""
        values = {
            "host": node.name,
            "name": node.name,
            "user": node.user or (_own_name() if self._names_user else ""),
            "port": str(node.port or SSH_PORT),
            "command": shlex.join(command),
        }
        return ["".join(text + (values[field] if field else "") for text, field in word) for word in self._words]

    def explain(self, exit_code: int, last_words: str) -> ChannelEnd:
        """Read ssh's words: most templates end in one."""
        return explain_ssh(exit_code, last_words)


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        told = "{user}: this machine has no name for the user who runs this"
        raise UsageError("agent-template", told, hint="say USER@HOST, or set USER") from error


def parse(template: str) -> list[Word]:
    """Return the words of a template, completed with host and command; raises UsageError."""
    try:
        words = [_parse_word(word, template) for word in shlex.split(template)]
    except ValueError as error:
        raise _wrong(template, str(error).lower(), "quote it as for a shell; a brace itself is {{ or }}") from error
    if not words:
        raise UsageError("agent-template", "the agent's command template is empty", hint="write 'tsh ssh {host} {command}'")
    named = {field for word in words for _, field in word}
    if "command" not in named:
        if not named & {"host", "name"}:
            words.append([("", "host")])
        words.append([("", "command")])
    return words


def _parse_word(word: str, template: str) -> Word:
    pairs: Word = []
    for text, field, form, conversion in Formatter().parse(word):
        if field is not None and (field not in FIELDS or form or conversion):
            guess = closest(field, FIELDS)
            known = ", ".join(f"{{{name}}}" for name in FIELDS)
            hint = f"did you mean {{{guess}}}?" if guess and guess != field else f"the fields are {known}"
            raise _wrong(template, f"unknown field '{field}'", hint)
        pairs.append((text, field))
    return pairs or [("", None)]


def _wrong(template: str, what: str, hint: str) -> UsageError:
    return UsageError("agent-template", f"agent template '{template}': {what}", hint=hint)
