"""The agent `openssh`: runs the system's ssh program, one process per channel, with all of its configuration.

It never prompts: batch mode is on and the process has no terminal. ssh reports its own failures by exit code 255 and a message
on stderr; only `classify_ssh_message` interprets these messages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from mpilaunch.agent import ChannelEnd, Node
from mpilaunch.text import shell_line
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
    ("user-unknown", "No user exists for uid"),
    ("key-refused", r"Permission denied (\(|for user)|Too many authentication failures|no more authentication methods"),
    ("connection-closed", "Exceeded MaxStartups|Not allowed at this time|(kex|ssh)_exchange_identification"),
    ("connection-closed", "Connection closed by|Connection reset by|Connection to .* closed|Broken pipe"),
    ("agent-failed", "Bad configuration option|no matching .* found|Bad owner or permissions|bad permissions"),
)
"""Cause and the pattern of ssh's messages for it, the more specific first: after a refused key, ssh also reports a close."""


class OpensshAgent(ProcessAgent):
    """Runs `ssh HOST COMMAND`. The user's `--ssh-option` come first, because ssh uses the first value of an option."""

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the ssh command line; `--` keeps the host from being read as an option, and the command is one argument."""
        settings = list(self.options.ssh_options)
        settings += ["BatchMode=yes", f"ConnectTimeout={max(1, math.ceil(self.options.connect_timeout))}"]
        # RemoteCommand and forwardings in the configuration are meant for the user's interactive logins.
        # A master connection that the user's ssh keeps is used; a process of ours would stay as a new one's master.
        settings += ["RemoteCommand=none", "ClearAllForwardings=yes", "ControlMaster=no"]
        if self.options.insecure_host_keys:
            settings += ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        argv = ["ssh", "-T"]
        for setting in settings:
            argv += ["-o", setting]
        if node.port is not None:
            argv += ["-p", str(node.port)]
        if node.user is not None:
            argv += ["-l", node.user]
        return [*argv, "--", node.name, shell_line(command)]

    def explain(self, exit_code: int, stderr: str) -> ChannelEnd:
        return explain_ssh(exit_code, stderr)


def explain_ssh(exit_code: int, stderr: str) -> ChannelEnd:
    """Return the end of a channel whose process was ssh or ran ssh."""
    cause = classify_ssh_message(stderr) if exit_code == SSH_FAILED else ""
    return ChannelEnd(exit_code, line_with_cause(stderr, cause) if cause else "", cause)


def classify_ssh_message(text: str) -> str:
    """Return the cause (a key of `mpilaunch.agent.CAUSES`) that a message of ssh indicates, "" for none."""
    return next((cause for cause, pattern in SSH_MESSAGES if re.search(pattern, text, re.IGNORECASE)), "")


def line_with_cause(text: str, cause: str) -> str:
    """Return the last line that indicates the cause."""
    lines = [line.strip() for line in text.splitlines() if classify_ssh_message(line) == cause]
    return lines[-1].strip("@ ") if lines else ""
