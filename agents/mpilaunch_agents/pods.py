"""What is known of pods and of kubectl: which pod a name means, the call of kubectl, and what its words tell.

It imports next to nothing, because `mpilaunch-rsh` starts once for each node and needs it too.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DELIVERED = "/opt/kube/kubectl"
"""Where mpi-operator's init container puts kubectl."""

KUBECTL_WORDS = (
    ("cluster-forbidden", r"\(Forbidden\)|is forbidden: "),
    ("cluster-login", r"Unauthorized|must be logged in|asked for the client to provide credentials"),
    ("agent-failed", r"x509: |error loading config|invalid configuration|context .* does not exist|unknown (flag|shorthand)"),
    ("pod-completed", r"in a completed pod"),
    ("container-unknown", r"container \S+ is not valid for pod|container \S+ not found in pod"),
    ("pod-starting", r"container not found|does not have a host assigned|waiting to start|ContainerCreating"),
    ("python-missing", r'exec: "[^"]*python[^"]*": .*(not found|no such file)|python\S*: (not found|No such file)'),
    ("agent-failed", r'exec: "[^"]*": .*(not found|no such file|permission denied)'),
    ("pod-unknown", r'pods "[^"]*" not found|\(NotFound\)'),
    ("connection-closed", r"error dialing backend|error reading from error stream"),
    ("cluster-unreachable", r"Unable to connect to the server|connection to the server|TLS handshake timeout|dial tcp"),
    ("cluster-unreachable", r"no such host|ServiceUnavailable|TooManyRequests|Timeout\)"),
    (
        "connection-closed",
        r"unable to upgrade connection|Internal error occurred|InternalError|EOF|connection reset|i/o timeout",
    ),
)
"""Cause (a key of `mpilaunch.agent.CAUSES`) and the words that kubectl says for it, the more telling first."""

REMOTE_EXIT = "command terminated with exit code "
"""What kubectl says on stderr when its exit code is the command's and not its own."""


def kubectl_program() -> str:
    """Return the kubectl to run: MPILAUNCH_KUBECTL, what an init container has delivered, or that of the PATH."""
    named = os.environ.get("MPILAUNCH_KUBECTL")
    return named or (DELIVERED if os.access(DELIVERED, os.X_OK) else "kubectl")


def pod_and_namespace(host: str) -> tuple[str, str | None]:
    """Return the pod, and the namespace where the name tells it: POD, POD.SERVICE, POD.SERVICE.NAMESPACE.svc[.DOMAIN]."""
    labels = host.split(".")
    if labels[0].isdigit():
        return host, None
    return labels[0], labels[2] if len(labels) > 3 and labels[3] == "svc" else None


def exec_argv(
    host: str, command: Sequence[str], *, namespace: str | None, container: str | None, context: str | None
) -> list[str]:
    """Return the call of kubectl that runs a command in a pod; what is None is left to kubectl.

    A namespace in the host's name comes first. There is no `-q`: mpi-operator delivers a kubectl that does not know it.
    """
    pod, own = pod_and_namespace(host)
    argv = [kubectl_program(), "exec", "-i", pod]
    for flag, value in (("--namespace", own or namespace), ("--container", container), ("--context", context)):
        if value:
            argv.append(f"{flag}={value}")
    return [*argv, "--", *command]


def classify_kubectl_words(text: str) -> str:
    """Return the cause that kubectl's words tell of, "" when they tell none."""
    import re  # 7 ms, and needed only when something is wrong

    return next((cause for cause, words in KUBECTL_WORDS if re.search(words, text)), "")


def last_line(text: str) -> str:
    """Return the last line that says something, at most 300 characters of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
