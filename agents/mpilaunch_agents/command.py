"""The agent `command`: runs the program of a command template such as 'tsh ssh {host} {command}'.

The template is split into words like a shell command before its fields are replaced, so a value never becomes more than one
argument. No shell runs the result.
"""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Sequence
from string import Formatter

from mpilaunch.agent import AgentOptions, ChannelEnd, Node
from mpilaunch.errors import UsageError
from mpilaunch.text import closest, shell_line
from mpilaunch_agents.openssh import explain_ssh
from mpilaunch_agents.process import ProcessAgent

FIELDS = ("host", "user", "port", "command", "name")
SSH_PORT = 22

Word = list[tuple[str, "str | None"]]
"""One argument of the template: pairs of literal text and the name of the field that follows it."""


class CommandAgent(ProcessAgent):
    """Runs the template's program; raises UsageError for an invalid template.

    `{host}` and `{name}` are the node's name, `{user}` and `{port}` those of the node (default: the current user, 22), and `{{`
    is a brace. `{command}` is the command quoted for a shell, as one argument. A template without `{command}` gets the host
    (unless it already names it) and the command appended.
    """

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._words = parse(options.template or "")
        self._uses_user = any(field == "user" for word in self._words for _, field in word)

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        values = {
            "host": node.name,
            "name": node.name,
            "user": node.user or (_current_user() if self._uses_user else ""),
            "port": str(node.port or SSH_PORT),
            "command": shell_line(command),
        }
        return ["".join(text + (values[field] if field else "") for text, field in word) for word in self._words]

    def explain(self, exit_code: int, stderr: str) -> ChannelEnd:
        """Return the end as for ssh, which most templates run."""
        return explain_ssh(exit_code, stderr)


def _current_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        message = "{user}: this machine has no name for the user who runs this"
        raise UsageError("agent-template", message, hint="write USER@HOST, or set USER") from error


def parse(template: str) -> list[Word]:
    """Return the words of a template, with host and command appended where missing; raises UsageError."""
    try:
        words = [_parse_word(word, template) for word in shlex.split(template)]
    except ValueError as error:
        raise _invalid(template, str(error).lower(), "quote it as for a shell; a brace itself is {{ or }}") from error
    if not words:
        raise UsageError("agent-template", "the agent's command template is empty", hint="write 'tsh ssh {host} {command}'")
    fields = {field for word in words for _, field in word}
    if "command" not in fields:
        if not fields & {"host", "name"}:
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
            raise _invalid(template, f"unknown field '{field}'", hint)
        pairs.append((text, field))
    return pairs or [("", None)]


def _invalid(template: str, reason: str, hint: str) -> UsageError:
    return UsageError("agent-template", f"agent template '{template}': {reason}", hint=hint)
