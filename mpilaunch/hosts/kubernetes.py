"""Read what a Kubernetes operator has put into this pod for an MPI launcher: hosts, slots, and how to reach the hosts.

Pure: the environment and the looking at files are arguments. Sources are rows of tables, and the first that says anything wins.
mpi-operator, training-operator and Trainer speak to Open MPI, Hydra and Intel MPI by their variables and a file; Volcano has
variables of its own. Outside of pods the same variables mean the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile

HOSTFILE_VARIABLES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
HOSTFILE = "/etc/mpi/hostfile"
"""Where mpi-operator, training-operator and Trainer put the hostfile."""

SLOTS_VARIABLES = ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots", "I_MPI_PERHOST")
"""Slots of a host about which nothing is said."""

KUBECTL = "/opt/kube/kubectl"
"""Where the operators that reach workers by kubectl put it."""

VOLCANO = "/etc/volcano"
"""Where Volcano's svc plugin puts `TASK.host` files, one host a line."""

AGENT_VARIABLES = (
    # the agent, its arguments
    ("OMPI_MCA_plm_rsh_agent", ("OMPI_MCA_plm_rsh_args",)),
    ("PRTE_MCA_plm_ssh_agent", ("PRTE_MCA_plm_ssh_args",)),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",)),
    # The second is a slip of mpi-operator's, which Hydra itself does not read.
    ("HYDRA_LAUNCHER_EXEC", ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS")),
)

LAUNCHER_VARIABLES = {
    "I_MPI_HYDRA_BOOTSTRAP_EXEC": ("I_MPI_HYDRA_BOOTSTRAP",),
    "HYDRA_LAUNCHER_EXEC": ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
}
"""What says of which kind an agent is: a batch system's own (slurm, lsf) cannot run a command on a host."""

SSH_SETTINGS = {"-p": "Port", "-l": "User", "-i": "IdentityFile", "-J": "ProxyJump"}
"""ssh's options with a value, as settings of ssh_config; `-o` says a setting itself, `-F` is left to ssh."""

OURS_ANYWAY = ("connectionattempts", "batchmode", "loglevel")
"""Settings that are not handed on: what cannot be reached yet is tried again until --start-timeout."""

ReadText = Callable[[str], str]


class FoundAgent(NamedTuple):
    """How to reach the hosts.

    Attributes:
        name: of an agent, or a template.
        source: the variable that says so.
        ssh_options: `Name=value`.
        container: the container of the pods that a kubexec.sh names.
    """

    name: str
    source: str
    ssh_options: tuple[str, ...] = ()
    container: str | None = None


def in_pod(environ: Mapping[str, str]) -> bool:
    """Tell whether this is a pod: then hosts may not be there yet, and are waited for."""
    return "KUBERNETES_SERVICE_HOST" in environ


def find_hosts(
    environ: Mapping[str, str], read_text: ReadText, list_names: Callable[[str], Sequence[str]]
) -> tuple[list[HostEntry], str] | None:
    """Return the hosts that an operator names, and where; None when none does; raises UsageError.

    Args:
        environ: the head's environment.
        read_text: returns the text of a file, or raises OSError.
        list_names: returns the names in a folder, or raises OSError.
    """
    for variable in HOSTFILE_VARIABLES:
        path = environ.get(variable, "none")
        if path not in ("", "none"):
            found = _hostfile(path, f"{path} ({variable})", environ, read_text, variable)
            if found is not None:
                return found
    return _hostfile(HOSTFILE, HOSTFILE, environ, read_text, None) or _volcano(environ, read_text, list_names)


def find_agent(environ: Mapping[str, str], read_text: ReadText, is_program: Callable[[str], bool]) -> FoundAgent | None:
    """Return how an operator wants the hosts to be reached, None when none says.

    Args:
        environ: the head's environment.
        read_text: returns the text of a file, or raises OSError.
        is_program: tells whether a word is a program that can be run here.
    """
    rows = [(agent, next((name for name in arguments if environ.get(name)), "")) for agent, arguments in AGENT_VARIABLES]
    for agent, arguments in rows:
        kinds = [environ.get(name) or "ssh" for name in LAUNCHER_VARIABLES.get(agent, ())]
        if environ.get(agent) and set(kinds) <= {"ssh", "rsh"}:
            words = _agent_words(environ[agent], is_program) + _split(environ.get(arguments, ""))
            return _agent(words, agent, read_text, is_program)
    for _, arguments in rows:
        if arguments:
            return _agent(["ssh", *_split(environ[arguments])], arguments, read_text, is_program)
    return None


def own_names(hostname: str, etc_hosts: str) -> frozenset[str]:
    """Return the names of this pod as other pods write them, from its /etc/hosts: `pod`, `pod.service`, and so on."""
    names = set()
    for line in etc_hosts.splitlines():
        for name in line.partition("#")[0].split()[1:]:
            labels = name.split(".")
            if labels[0] == hostname:
                names |= {".".join(labels[:count]) for count in range(1, len(labels) + 1)}
    return frozenset(names)


# Hosts


def _hostfile(
    path: str, source: str, environ: Mapping[str, str], read_text: ReadText, variable: str | None
) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of a file; None when it names none, or when nobody but us thinks that it is there."""
    try:
        entries = parse_hostfile(read_text(path), path)
    except (OSError, UnicodeDecodeError) as error:
        if variable is None:
            return None
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError("operator-hosts", f"{variable}='{path}' cannot be read: {reason}", hint=_INSTEAD) from error
    except UsageError as error:
        # Elsewhere an empty default hostfile is a distribution's, and means this machine.
        if error.reference == "hostfile-empty" and not in_pod(environ):
            return None
        raise
    return _with_slots(entries, environ), source


def _with_slots(entries: list[HostEntry], environ: Mapping[str, str]) -> list[HostEntry]:
    """Give the hosts about whose slots nothing is said what a variable says; one that stands several times is counted."""
    for variable in SLOTS_VARIABLES:
        if re.fullmatch("[1-9][0-9]{0,5}", environ.get(variable, ""), re.ASCII):
            names = [entry.name for entry in entries]
            slots = int(environ[variable])
            return [
                entry._replace(slots=slots) if entry.slots is None and names.count(entry.name) == 1 else entry
                for entry in entries
            ]
    return entries


def _volcano(
    environ: Mapping[str, str], read_text: ReadText, list_names: Callable[[str], Sequence[str]]
) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of Volcano's job: MPI_HOST, or the one task of workers, of the variables or of the files."""
    if "VC_TASK_INDEX" not in environ and "VK_TASK_INDEX" not in environ:
        return None
    if environ.get("MPI_HOST"):
        return _with_slots(parse_host_list(environ["MPI_HOST"], "MPI_HOST"), environ), "MPI_HOST"
    variables = [name for name in sorted(environ) if re.fullmatch("VC_.+_HOSTS", name) and environ[name]]
    if variables:
        chosen = _task_of_workers(variables)
        return _with_slots(parse_host_list(environ[chosen], chosen), environ), chosen
    try:
        files = [name for name in sorted(list_names(VOLCANO)) if name.endswith(".host")]
    except OSError:
        files = []
    if not files:
        return None
    path = f"{VOLCANO}/{_task_of_workers(files)}"
    return _hostfile(path, path, environ, read_text, VOLCANO)


def _task_of_workers(names: Sequence[str]) -> str:
    workers = [name for name in names if "worker" in name.lower()]
    for candidates in (workers, names):
        if len(candidates) == 1:
            return candidates[0]
    raise UsageError(
        "operator-hosts",
        f"Volcano names the hosts of several tasks: {', '.join(names)}",
        hint=f"choose: --hostfile {VOLCANO}/TASK.host",
    )


_INSTEAD = "name the hosts with --host or --hostfile instead"

# Agents


def _agent_words(value: str, is_program: Callable[[str], bool]) -> list[str]:
    """Return the words of the first alternative of `a args : b` that is a program here, else of the first."""
    alternatives = [words for text in value.split(":") if (words := text.split())]
    return next((words for words in alternatives if is_program(words[0])), alternatives[0] if alternatives else ["ssh"])


def _agent(words: list[str], source: str, read_text: ReadText, is_program: Callable[[str], bool]) -> FoundAgent:
    """Return the agent that is meant by a program and its arguments."""
    program = words[0].rpartition("/")[2]
    braces = [word.replace("{", "{{").replace("}", "}}") for word in words]
    template = shlex.join([*braces, "{host}", "{command}"])
    if program in ("ssh", "rsh"):
        settings, left = _ssh_settings(words[1:])
        if left:
            return FoundAgent(template, source)
        return FoundAgent("openssh" if settings else "ssh", source, tuple(settings))
    try:
        script = read_text(words[0])
    except (OSError, UnicodeDecodeError):
        script = ""
    if program == "mpilaunch-rsh" or "mpilaunch_agents" in script:
        delivered = program == "kubexec.sh" or is_program(KUBECTL)
        return FoundAgent("kubectl" if delivered else "ssh", source)
    if re.search(r"kubectl\S*\s+exec", script):
        # It would hand on no stdin, which is our wire; what it does is ours to do.
        container = re.search(r"\s(?:--container|-c)[= ]([a-z0-9-]+)(?=.*\s--\s)", script)
        return FoundAgent("kubectl", source, container=container[1] if container else None)
    return FoundAgent(template, source)


def _ssh_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """Return ssh's options as settings of ssh_config, and those that are none."""
    settings, left, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-x", "-q", "-n", "-T"):
            continue
        flag, value = word[:2], word[2:]
        if flag in ("-o", *SSH_SETTINGS) and (value or rest):
            value = value or rest.pop(0)
            name, _, value = (
                re.sub("[= ]+", "=", value, count=1).partition("=") if flag == "-o" else (SSH_SETTINGS[flag], "", value)
            )
            if name.lower() not in OURS_ANYWAY:
                settings.append(f"{name}={value}")
        else:
            left.append(word)
    return settings, left


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
