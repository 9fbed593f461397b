"""The agent `openssh`: the system's ssh program, one process per channel, with all that its configuration can do.

It never asks: batch mode holds, and the process has no terminal. ssh reports its own failures with exit code 255 and words on
stderr; `classify_ssh_message` is the one place that knows these words.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from mpilaunch.agent import ChannelEnd
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.process import ProcessAgent

SSH_FAILED = 255

SSH_MESSAGES = (
    ("host-key-changed", "REMOTE HOST IDENTIFICATION HAS CHANGED|Host key .*changed|HOST IDENTIFICATION .*CHANGED"),
    ("host-key-unknown", "Host key verification failed|No .* host key is known"),
    ("host-unknown", "Could not resolve hostname|Name or service not known|Temporary failure in name resolution"),
    ("host-unknown", "nodename nor servname provided|No address associated with hostname"),
    ("connection-refused", "Connection refused"),
    ("timeout", "timed out|Timeout, server .* not responding|Timeout before authentication"),
    ("unreachable", "No route to host|Network is unreachable|Network is down|Host is down"),
    ("key-refused", r"Permission denied (\(|for user)|Too many authentication failures|no more authentication methods"),
    ("connection-closed", "Exceeded MaxStartups|Not allowed at this time|(kex|ssh)_exchange_identification"),
    ("connection-closed", "Connection closed by|Connection reset by|Connection to .* closed|Broken pipe"),
    ("agent-failed", "Bad configuration option|no matching .* found|Bad owner or permissions|bad permissions"),
)
"""Cause and the words that ssh says for it, the more telling first: a refused key is also followed by a closed connection."""


class OpensshAgent(ProcessAgent):
    """Runs `ssh HOST COMMAND`. The user's `--ssh-option` come first, and with ssh the first word holds."""

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the call of ssh; the host cannot be taken for an option, and the command is one argument."""
        settings = list(self.options.ssh_options)
        settings += ["BatchMode=yes", f"ConnectTimeout={max(1, math.ceil(self.options.connect_timeout))}"]
        # A command or forwardings that the configuration asks for belong to the user's own logins.
        settings += ["RemoteCommand=none", "ClearAllForwardings=yes"]
        if self.options.insecure_host_keys:
            settings += ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        argv = ["ssh", "-T"]
        for setting in settings:
            argv += ["-o", setting]
        if node.port is not None:
            argv += ["-p", str(node.port)]
        if node.user is not None:
            argv += ["-l", node.user]
        return [*argv, "--", node.name, shlex.join(command)]

    def explain(self, exit_code: int, last_words: str) -> ChannelEnd:
        """Tell ssh's own failures from the command's exit codes."""
        return explain_ssh(exit_code, last_words)


def explain_ssh(exit_code: int, last_words: str) -> ChannelEnd:
    """Return how a channel ended whose process was, or called, ssh."""
    cause = classify_ssh_message(last_words) if exit_code == SSH_FAILED else ""
    return ChannelEnd(exit_code, line_with_cause(last_words, cause) if cause else "", cause)


def classify_ssh_message(text: str) -> str:
    """Return the cause (a key of `mpilaunch.agent.CAUSES`) that ssh's words tell of, "" when they tell none."""
    return next((cause for cause, words in SSH_MESSAGES if re.search(words, text, re.IGNORECASE)), "")


def line_with_cause(text: str, cause: str) -> str:
    """Return the last line that tells of the cause."""
    lines = [line.strip() for line in text.splitlines() if classify_ssh_message(line) == cause]
    return lines[-1].strip("@ ") if lines else ""
