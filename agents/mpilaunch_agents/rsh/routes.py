"""The ways of `mpilaunch-rsh` to a node: each makes a command of the node one of this machine, and explains its failure."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from mpilaunch.hosts.remote_names import name_problem
from mpilaunch_agents.pods import (
    DELIVERED,
    classify_kubectl_message,
    exec_argv,
    last_line,
    list_argv,
    pod_and_namespace,
    pod_of_host,
)
from mpilaunch_agents.rsh.command_line import NO_AGENT, BadCall, Call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def route_name(program: str, environ: Mapping[str, str]) -> str:
    """Return the name of the way: MPILAUNCH_AGENT, or what we are called by, or kubectl where an operator has put one."""
    if environ.get("MPILAUNCH_AGENT"):
        return environ["MPILAUNCH_AGENT"]
    name = os.path.basename(program)
    delivered = name not in ("ssh", "rsh") and os.access(DELIVERED, os.X_OK)
    return "kubectl" if name == "kubexec.sh" or delivered else "ssh"


def route_to(name: str, call: Call, environ: Mapping[str, str]) -> Route:
    """Return the way of this name to the node of a call; raises BadCall for names or a template that cannot be used."""
    for user in (call.user or None, *call.logins):
        refused = name_problem(call.host, user)
        if refused:
            raise BadCall(refused)
    if name == "kubectl":
        return KubectlRoute(call, environ)
    if name in ("ssh", "openssh"):
        return SshRoute(call, environ)
    if name == "local":
        return Route()
    return CommandRoute(name, call)


class Route:
    """The way to this machine itself, and what all ways do that do not say otherwise.

    Attributes:
        node_shell: the remote shell that nodes have for each other.
    """

    node_shell = NO_AGENT

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command on the node from here."""
        return list(command)

    def explain(self, code: int, words: str) -> tuple[str, str]:
        """Return why the command was not started, as a cause of `mpilaunch.agent.CAUSES`, and the line that says so."""
        from mpilaunch_agents.openssh import classify_ssh_message, line_with_cause

        cause = classify_ssh_message(words)
        return (cause, line_with_cause(words, cause)) if cause else ("agent-failed" if code else "", last_line(words))

    def search(self) -> list[str] | None:
        """Return what prints where the node may be found, if it was not found where it should be; None where nothing does."""
        return None

    def use_search_result(self, printed: str) -> None:
        """Take what was printed."""


class SshRoute(Route):
    """OpenSSH's ssh."""

    node_shell = "ssh"

    def __init__(self, call: Call, environ: Mapping[str, str]) -> None:
        options = [option for option in call.options if option not in ("-n", "-f")]
        for setting in environ.get("MPILAUNCH_SSH_OPTION", "").splitlines():
            options += ["-o", setting]
        host = f"{call.user}@{call.host}" if call.user else call.host
        self._ssh = [_other_program("ssh"), "-T", "-o", "BatchMode=yes", *options, "--", host]

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return the call of ssh, which has the node's shell read one word."""
        return [*self._ssh, " ".join(map(_quoted, command))]


class CommandRoute(Route):
    """A template, as the agent `command` has it."""

    def __init__(self, template: str, call: Call) -> None:
        from mpilaunch.agent import AgentOptions
        from mpilaunch.errors import UsageError
        from mpilaunch.hosts.allocation import Node
        from mpilaunch_agents.command import CommandAgent

        try:
            self._agent = CommandAgent(AgentOptions(template=template))
        except UsageError as error:
            raise BadCall(f"MPILAUNCH_AGENT: {error.message}; {error.hint}") from error
        self._node = Node(0, call.host, (), template, user=call.user or None)

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return the template's words."""
        return list(self._agent.argv(self._node, command))


class KubectlRoute(Route):
    """`kubectl exec`. A node is called as a pod is, or, where there is none so called, as the host of one is."""

    def __init__(self, call: Call, environ: Mapping[str, str]) -> None:
        self._host = call.host
        self._pod, own = pod_and_namespace(call.host)
        self._namespace = own or environ.get("MPILAUNCH_NAMESPACE")
        self._container, self._context = environ.get("MPILAUNCH_CONTAINER"), environ.get("MPILAUNCH_CONTEXT")

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return the call of kubectl."""
        return exec_argv(self._pod, command, namespace=self._namespace, container=self._container, context=self._context)

    def explain(self, code: int, words: str) -> tuple[str, str]:
        """Read kubectl's words."""
        return (classify_kubectl_message(words) or "agent-failed") if code else "", last_line(words)

    def search(self) -> list[str]:
        """Return the call of kubectl that lists the pods of the host's name."""
        return list_argv(namespace=self._namespace, context=self._context, host=self._host)

    def use_search_result(self, printed: str) -> None:
        """Go on with the pod that was found, if one was."""
        self._pod = pod_of_host(self._host, printed) or self._pod


def _other_program(name: str) -> str:
    """Return the program of this name in the PATH that is not this one under another name."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not (os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0])):
            return path
    return name


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"
