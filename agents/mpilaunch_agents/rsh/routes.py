"""The routes of `mpilaunch-rsh` to a node: each builds the local command line for a command there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from mpilaunch.hosts.remote_names import name_problem
from mpilaunch.text import last_line, shell_line
from mpilaunch_agents.kubernetes import pods
from mpilaunch_agents.rsh.command_line import NO_AGENT, BadCall, Call

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence


def route_name(program: str, environ: Mapping[str, str]) -> str:
    """Return the route's name: MPILAUNCH_AGENT, or by the program's name, or kubectl if an operator delivered it."""
    if environ.get("MPILAUNCH_AGENT"):
        return environ["MPILAUNCH_AGENT"]
    name = os.path.basename(program)
    delivered = name not in ("ssh", "rsh") and os.access(pods.DELIVERED, os.X_OK)
    return "kubectl" if name == "kubexec.sh" or delivered else "ssh"


def route_to(name: str, call: Call, environ: Mapping[str, str], own: Container[str] = ()) -> Route:
    """Return the named route to the node of a call; raises BadCall for an invalid name or template.

    A launcher that is a worker too (mpi-operator's `runLauncherAsWorker`) may not know its own pod by the name in the hostfile:
    for the names `own` the command runs here, unless a login name is given.
    """
    for user in (call.user or None, *call.logins):
        refused = name_problem(call.host, user)
        if refused:
            raise BadCall(refused)
    if name in ("kubectl", "ssh", "openssh") and call.host in own and not (call.user or call.logins):
        return Route()
    if name == "kubectl":
        return KubectlRoute(call, environ)
    if name in ("ssh", "openssh"):
        return SshRoute(call, environ)
    if name == "local":
        return Route()
    return CommandRoute(name, call)


class Route:
    """The route to this machine, and the base of all others."""

    node_shell = NO_AGENT
    """The remote shell with which nodes reach each other."""

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return the local command line that runs a command on the node."""
        return list(command)

    def explain(self, code: int, message: str) -> tuple[str, str]:
        """Return why the command did not start: a cause of `mpilaunch.agent.CAUSES`, and the line that indicates it."""
        from mpilaunch_agents.openssh import classify_ssh_message, line_with_cause

        cause = classify_ssh_message(message)
        return (cause, line_with_cause(message, cause)) if cause else ("agent-failed" if code else "", last_line(message))

    def search(self) -> list[str]:
        """Return the command line that looks an unknown node up, empty for none."""
        return []

    def use_search_result(self, listing: str) -> None:
        """Use the output of the search."""


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
        return [*self._ssh, shell_line(command)]


class CommandRoute(Route):
    """A command template, as for the agent `command`."""

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
        return list(self._agent.argv(self._node, command))


class KubectlRoute(Route):
    """`kubectl exec`. A node's name is that of a pod or, if there is no such pod, of a pod's host."""

    def __init__(self, call: Call, environ: Mapping[str, str]) -> None:
        self._host = call.host
        self._pod, own = pods.pod_and_namespace(call.host)
        self._namespace = own or environ.get("MPILAUNCH_NAMESPACE")
        self._container, self._context = environ.get("MPILAUNCH_CONTAINER"), environ.get("MPILAUNCH_CONTEXT")

    def argv(self, command: Sequence[str]) -> list[str]:
        return pods.exec_argv(self._pod, command, namespace=self._namespace, container=self._container, context=self._context)

    def explain(self, code: int, message: str) -> tuple[str, str]:
        return (pods.classify_kubectl_message(message) or "agent-failed") if code else "", last_line(message)

    def search(self) -> list[str]:
        return pods.list_argv(namespace=self._namespace, context=self._context, host=self._host)

    def use_search_result(self, listing: str) -> None:
        self._pod = pods.pod_of_host(self._host, listing) or self._pod


def _other_program(name: str) -> str:
    """Return the first program of this name in PATH that is not mpilaunch-rsh itself."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not (os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0])):
            return path
    return name
