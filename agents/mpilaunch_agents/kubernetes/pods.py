"""Pods and kubectl: which pod a host name denotes, kubectl's command lines, and the causes of its messages.

It imports almost nothing, because `mpilaunch-rsh`, which starts once for each node, uses it too.
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
    ("connection-closed", r"unable to upgrade connection|Internal error occurred|InternalError"),
    ("connection-closed", r"EOF|connection reset|i/o timeout"),
)
"""Cause (a key of `mpilaunch.agent.CAUSES`) and the pattern of kubectl's messages for it, the more specific first."""

REMOTE_EXIT = "command terminated with exit code "
"""kubectl's message on stderr when its exit code is the command's and not its own."""


def kubectl_program() -> str:
    """Return the kubectl to run: MPILAUNCH_KUBECTL, the one that an init container delivered, or the one in PATH."""
    return os.environ.get("MPILAUNCH_KUBECTL") or (DELIVERED if os.access(DELIVERED, os.X_OK) else "kubectl")


def pod_and_namespace(host: str) -> tuple[str, str | None]:
    """Return the pod and, where the name has it, the namespace: POD, POD.SERVICE, POD.SERVICE.NAMESPACE.svc[.DOMAIN]."""
    labels = host.split(".")
    if labels[0].isdigit():
        return host, None
    return labels[0], labels[2] if len(labels) > 3 and labels[3] == "svc" else None


def exec_argv(
    pod: str, command: Sequence[str], *, namespace: str | None, container: str | None, context: str | None
) -> list[str]:
    """Return the command line that runs a command in a pod; kubectl chooses what is None.

    `-q` is left out because the kubectl that mpi-operator delivers does not support it.
    """
    return [kubectl_program(), "exec", "-i", pod, *_flags(namespace, container, context), "--", *command]


def list_argv(*, namespace: str | None, context: str | None, host: str = "") -> list[str]:
    """Return the command line that lists pods for `pod_of_host`, limited to one host if given."""
    items = f'?(@.spec.hostname=="{host.partition(".")[0]}")' if host else "*"
    fields = " ".join(f"{{{field}}}" for field in (".metadata.name", ".status.phase", ".spec.hostname", ".spec.subdomain"))
    return [
        *(kubectl_program(), "get", "pods", *_flags(namespace, None, context)),
        f'--output=jsonpath={{range .items[{items}]}}{fields}{{"\\n"}}{{end}}',
    ]


def pod_of_host(host: str, listing: str) -> str | None:
    """Return the running or pending pod with a host name HOST or HOST.SUBDOMAIN[...], None when there is none.

    The name of a pod of a JobSet or Indexed Job (Kubeflow's Trainer makes them) is its host name with a random suffix.
    """
    name, _, rest = host.partition(".")
    subdomain = rest.partition(".")[0]
    by_phase = {}
    for pod, phase, *pod_host in map(str.split, listing.splitlines()):
        if pod_host[:1] == [name] and subdomain in ("", *pod_host[1:]):
            by_phase[phase] = pod
    return by_phase.get("Running") or by_phase.get("Pending")


def _flags(namespace: str | None, container: str | None, context: str | None) -> list[str]:
    flags = ("--namespace", namespace), ("--container", container), ("--context", context)
    return [f"{flag}={value}" for flag, value in flags if value]


def classify_kubectl_message(text: str) -> str:
    """Return the cause that a message of kubectl indicates, "" for none."""
    import re  # takes 7 ms; needed only after a failure

    return next((cause for cause, pattern in KUBECTL_MESSAGES if re.search(pattern, text)), "")
