"""Fold the failures of nodes that did not start into one LaunchError: a line per cause with its nodes, and hints.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpilaunch.agent import CAUSES
from mpilaunch.errors import LaunchError
from mpilaunch.hosts.nodeset import fold
from mpilaunch.text import plural

HINTS = {
    "host-unknown": "check the spelling, /etc/hosts and DNS on this machine",
    "connection-refused": "is sshd running there? give another port with port=N in the hostfile",
    "timeout": "is the node up and not behind a firewall? --start-timeout gives it more time",
    "unreachable": "check the network between this machine and the node",
    "host-key-unknown": "log in once with ssh, or add its key to known_hosts; --insecure-host-keys skips the check",
    "host-key-changed": "if the node was set up anew, remove its old key: ssh-keygen -R NAME; else somebody may be listening",
    "key-refused": "log in without a password first: ssh-copy-id, or load your key into ssh-agent; user=NAME in the hostfile; "
    "where a login asks for a code, keep a master connection: ControlPath in ssh_config(5)",
    "agent-missing": "install it, or choose another --agent",
    "python-missing": "install python3 there, or use --python /path/to/python3",
    "python-too-old": "use --python /path/to/a/newer/python3",
    "process-limit": "raise it: ulimit -u in the shell, /etc/security/limits.conf, or TasksMax of the service",
    "connection-closed": "a limit such as sshd's MaxStartups? try --fanout 8",
    "agent-failed": "run the agent's command by hand",
    "login-disabled": "log in as another user (user=NAME in the hostfile), or give the account a shell: chsh -s /bin/sh NAME",
    "user-unknown": "ssh needs your user id in /etc/passwd of this machine: where a container runs under any id, "
    "add one when it starts (or nss_wrapper), or use --agent kubectl",
    "no-stdin": "an agent such as `kubectl exec -i` forwards it; behind any other: --call-back always",
    "head-unreachable": "does a firewall or a NetworkPolicy stand between? --call-back never talks through the agent",
    "pod-unknown": "kubectl get pods lists them; --namespace says where they are; for one to be found by the name of its host, "
    "the Role needs `list` on pods",
    "pod-starting": "kubectl describe pod NAME says what it waits for; --start-timeout gives it more time",
    "pod-completed": "its program has ended: a worker's own command is `sleep infinity`",
    "container-unknown": "name one with --container; kubectl get pod NAME -o jsonpath='{.spec.containers[*].name}' lists them",
    "outside-job": "--slurm nodes=N asks Slurm for a job, as sbatch and salloc do; Grid Engine's qsub -pe NAME SLOTS",
    "job-ended": "squeue --me lists your jobs; in a shell that has outlived its job: unset SLURM_JOB_ID SLURM_JOB_NODELIST",
    "cluster-unreachable": "does `kubectl get pods` work here?",
    "cluster-login": "log in to the cluster, or give this pod a service account: docs/kubernetes.md",
    "cluster-forbidden": "kubectl create role mpilaunch --verb=get,create --resource=pods,pods/exec, and bind it to this pod's "
    "service account: kubectl create rolebinding mpilaunch --role=mpilaunch --serviceaccount=NAMESPACE:default",
    "stdin-taken": "give what asks or reads in .bashrc, .profile or /etc/profile a test such as `[ -t 0 ] &&`, or </dev/null",
    "daemon-failed": "this is a fault of mpilaunch: please report it with the lines above",
    "protocol": "is mpilaunch the same on all nodes? otherwise the node, or a machine in between, may be hostile",
    "program-missing": "the program must be on every node; give its path there, or --wdir, or -x PATH",
    "program-not-executable": "chmod +x it there, or name the interpreter: mpilaunch ... python3 FILE",
    "interpreter-missing": "install that interpreter, or name another: mpilaunch ... python3 FILE",
    "directory-missing": "create it there, or give another --wdir",
    "pmix-missing": "it takes libpmix2, or --pmix-library PATH, and a place to write, such as /tmp; --mpi auto does without",
    "file-limit": "raise it: ulimit -n in the shell, /etc/security/limits.conf, or LimitNOFILE of the service",
    "rendezvous-failed": "--master-addr sets its address, which must be IPv4; launch again for another port",
}
WORDS = {
    **CAUSES,
    "login-disabled": "the account has no login shell",
    "stdin-taken": "a script of the login shell has read from its stdin",
    "daemon-failed": "the daemon failed",
    "protocol": "the daemon broke the protocol",
    "program-missing": "program not found",
    "program-not-executable": "program cannot be executed",
    "interpreter-missing": "interpreter of the script not found",
    "directory-missing": "working directory not usable",
    "pmix-missing": "no PMIx there",
    "file-limit": "limit of open files too low",
    "rendezvous-failed": "Horovod's rendezvous store cannot listen",
}
"""Cause -> its description in a message."""

OF_LOGINS = (
    *("host-unknown", "connection-refused", "timeout", "unreachable", "host-key-unknown", "host-key-changed", "key-refused"),
    *("agent-missing", "connection-closed", "login-disabled", "user-unknown"),
)
"""Causes that a login to a node has."""
DETAILS_SHOWN = 3
LONGEST_LINE = 200
"""Characters of a node's output line that are shown: some agents repeat the whole command that they were to run."""
CONFIGURED = (
    *("program-missing", "program-not-executable", "interpreter-missing", "directory-missing"),
    *("pmix-missing", "file-limit", "rendezvous-failed", "protocol"),
)
"""Causes whose detail is shown in the message itself, since it says more than the cause."""


class NodeFailure(NamedTuple):
    """One node that did not start.

    Attributes:
        cause: a key of WORDS.
        detail: output of the node or the agent.
        seconds: since the start of the launch.
        node: its index in the allocation.
        command: a command line that reaches the node in the same way, "" when the agent has none.
    """

    name: str
    cause: str
    detail: str
    seconds: float
    node: int = 0
    command: str = ""


def fold_failures(failures: Sequence[NodeFailure], nodes: int, unused_agent: str = "") -> LaunchError:
    """Return one error for all nodes that did not start, of `nodes` in all; the most frequent cause comes first.

    Args:
        unused_agent: an agent of the surrounding batch job that might have reached them.
    """
    groups: dict[tuple[str, str], list[NodeFailure]] = {}
    for failure in failures:
        shown = failure.detail if failure.cause in CONFIGURED else ""
        groups.setdefault((failure.cause, shown), []).append(failure)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    lines, details = [], []
    for (cause, shown), members in ordered:
        description = f": {shown}" if shown else f" after {max(member.seconds for member in members):.1f} s"
        lines.append(f"{fold([member.name for member in members])}: {WORDS[cause]}{description}")
        details += output_of_nodes(members) if not shown else []
    details.append("no rank was started anywhere")
    failed_nodes = {failure.node: failure.name for failure in failures}
    failed = len({(failure.name, failure.node) for failure in failures})
    hints = [hint_of(cause, failures) for (cause, _), _ in ordered[:DETAILS_SHOWN]]
    if unused_agent and any(cause in OF_LOGINS for cause, _ in groups):
        hints.insert(0, f"--agent {unused_agent} reaches the nodes of this job without a login")
    hint = "; ".join(dict.fromkeys(hints))
    if len(lines) == 1:
        message = f"{failed} of {nodes} nodes: {lines[0]}" if nodes > 1 else lines[0]
        return LaunchError(f"start-{ordered[0][0][0]}", message, context=details, hint=hint, nodes=failed_nodes)
    message = f"{failed} of {plural(nodes, 'node')} did not start"
    return LaunchError("start-failed", message, context=[*lines, *details], hint=hint, nodes=failed_nodes)


def hint_of(cause: str, failures: Sequence[NodeFailure]) -> str:
    """Return the hint of a cause, with the command of the first node where the hint is to run it."""
    if cause != "agent-failed":
        return HINTS[cause]
    command = next((failure.command for failure in failures if failure.cause == cause and failure.command), "")
    return HINTS[cause] + (f": {command}" if command else "")


def output_of_nodes(members: Sequence[NodeFailure]) -> list[str]:
    """Return some of the nodes' own output lines; nodes with equal output share them."""
    names_of: dict[str, list[str]] = {}
    for member in members:
        if member.detail.strip():
            names_of.setdefault(member.detail.strip(), []).append(member.name)
    texts = [(fold(names), line) for text, names in names_of.items() for line in text.splitlines()[-4:]]
    return [f"{names}: {line[:LONGEST_LINE]}" for names, line in texts[: DETAILS_SHOWN * 4]]
