"""What is known of pods and of kubectl: which pod a name means, the call of kubectl, and what its words tell.

It imports next to nothing, because `mpilaunch-rsh` starts once for each node and needs it too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DELIVERED = "/opt/kube/kubectl"
"""Where mpi-operator's init container puts kubectl."""

KUBECTL_MESSAGES = (
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
    pod: str, command: Sequence[str], *, namespace: str | None, container: str | None, context: str | None
) -> list[str]:
    """Return the call of kubectl that runs a command in a pod; what is None is left to kubectl.

    There is no `-q`: mpi-operator delivers a kubectl that does not know it.
    """
    return [kubectl_program(), "exec", "-i", pod, *_flags(namespace, container, context), "--", *command]


def list_argv(*, namespace: str | None, context: str | None, host: str = "") -> list[str]:
    """Return the call of kubectl that prints what `pod_of_host` reads; of one host, if it is named."""
    items = f'?(@.spec.hostname=="{host.partition(".")[0]}")' if host else "*"
    shown = " ".join(f"{{{field}}}" for field in (".metadata.name", ".status.phase", ".spec.hostname", ".spec.subdomain"))
    return [
        *(kubectl_program(), "get", "pods", *_flags(namespace, None, context)),
        f'--output=jsonpath={{range .items[{items}]}}{shown}{{"\\n"}}{{end}}',
    ]


def pod_of_host(host: str, listing: str) -> str | None:
    """Return the pod that has a host name, HOST or HOST.SUBDOMAIN[...]; None when no pod that lives or will has it.

    Pods of a JobSet or an Indexed Job, as Kubeflow's Trainer makes them, have a suffix that their host name has not.
    """
    name, _, rest = host.partition(".")
    subdomain = rest.partition(".")[0]
    fitting = {}
    for pod, phase, *where in map(str.split, listing.splitlines()):
        if where[:1] == [name] and subdomain in ("", *where[1:]):
            fitting[phase] = pod
    return fitting.get("Running") or fitting.get("Pending")


def _flags(namespace: str | None, container: str | None, context: str | None) -> list[str]:
    named = ("--namespace", namespace), ("--container", container), ("--context", context)
    return [f"{flag}={value}" for flag, value in named if value]


def classify_kubectl_message(text: str) -> str:
    """Return the cause that kubectl's words tell of, "" when they tell none."""
    import re  # 7 ms, and needed only when something is wrong

    return next((cause for cause, words in KUBECTL_MESSAGES if re.search(words, text)), "")


def last_line(text: str) -> str:
    """Return the last line that says something, at most 300 characters of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
