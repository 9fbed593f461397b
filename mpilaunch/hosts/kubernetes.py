"""Reader of the hosts, slots and agent that a Kubernetes operator gives an MPI launcher in its pod.

Pure: the environment and the functions that read files are arguments. The first source of a table that is present wins.
mpi-operator, training-operator and Trainer use a hostfile and the variables of Open MPI, Hydra and Intel MPI, which mean the
same outside of pods; Volcano and LeaderWorkerSet have variables of their own.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile
from mpilaunch.hosts.nodeset import MAX_ITEMS
from mpilaunch.hosts.schedulers.reader import ReadText, file_text
from mpilaunch.text import escape_braces, is_whole_number

HOSTFILE_VARIABLES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
HOSTFILE = "/etc/mpi/hostfile"
"""The hostfile of mpi-operator, training-operator and Trainer."""

SLOTS_VARIABLES = ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots", "I_MPI_PERHOST")
"""Slots of a host without a slot count."""

LEADER = "LWS_LEADER_ADDRESS"
"""The leader of a LeaderWorkerSet's group, `SET-GROUP.SUBDOMAIN.NAMESPACE`; worker N is the pod `SET-GROUP-N`, from 1 on. All
pods have it, the group's size with the leader, and their number in it (kubernetes-sigs/lws, pkg/utils/pod/pod_utils.go)."""
GROUP_SIZE, GROUP_INDEX = "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"

KUBECTL = "/opt/kube/kubectl"
"""The kubectl of operators that reach workers by it."""

VOLCANO = "/etc/volcano"
"""The folder in which Volcano's svc plugin puts `TASK.host` files, one host per line."""

AGENT_VARIABLES = (
    # variable of the agent, variables of its arguments, variables of its kind
    ("OMPI_MCA_plm_rsh_agent", ("OMPI_MCA_plm_rsh_args",), ()),
    ("PRTE_MCA_plm_ssh_agent", ("PRTE_MCA_plm_ssh_args",), ()),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",), ("I_MPI_HYDRA_BOOTSTRAP",)),
    # HYDRA_LAUNCH_EXTRA_ARGS is a misspelling of mpi-operator's, which Hydra does not read.
    ("HYDRA_LAUNCHER_EXEC", ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS"), ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP")),
)
"""An agent of another kind than ssh and rsh, that of a batch system (slurm, lsf), cannot run a command on a host."""

SSH_SETTINGS = {"-p": "Port", "-l": "User", "-i": "IdentityFile", "-J": "ProxyJump"}
"""ssh's options with a value, as settings of ssh_config; `-o` has a setting as its value, `-F` is left to ssh."""

IGNORED_SETTINGS = ("connectionattempts", "batchmode", "loglevel")
"""Settings of ssh_config that mpilaunch chooses itself: it retries unreachable hosts until --start-timeout."""


class FoundAgent(NamedTuple):
    """The agent that an operator configured: its name or command template, and the variable that names it.

    Attributes:
        ssh_options: settings of ssh_config, `Name=value`.
        container: the container of the pods, if a kubexec.sh names one.
    """

    name: str
    source: str
    ssh_options: tuple[str, ...] = ()
    container: str | None = None


def in_pod(environ: Mapping[str, str]) -> bool:
    """Return whether this is a pod, whose hosts may start later than the launcher."""
    return "KUBERNETES_SERVICE_HOST" in environ


def find_hosts(
    environ: Mapping[str, str], read_text: ReadText, list_names: Callable[[str], Sequence[str]]
) -> tuple[list[HostEntry], str] | None:
    """Return the hosts that an operator names and their source, None without an operator; raises UsageError.

    `list_names` returns the names in a folder, or raises OSError.
    """
    for variable in HOSTFILE_VARIABLES:
        path = environ.get(variable, "none")
        if path not in ("", "none"):
            hosts = _hostfile(path, f"{path} ({variable})", environ, read_text, variable)
            if hosts is not None:
                return hosts
    found = _hostfile(HOSTFILE, HOSTFILE, environ, read_text, None) or _volcano(environ, read_text, list_names)
    return found or _leader_worker_set(environ)


def pods_left_out(environ: Mapping[str, str]) -> str:
    """Return which other pods of this one's group a job leaves out that uses this pod only; "" for none."""
    size, index = environ.get(GROUP_SIZE, ""), environ.get(GROUP_INDEX, "")
    if LEADER in environ and _more_than_one(size):
        return f"this pod is number {index} of {size} of a LeaderWorkerSet's group; the leader, 0, starts jobs in all"
    if in_pod(environ) and _more_than_one(nodes := environ.get("PET_NNODES", "")):
        advice = "mpilaunch --dialect torchrun in each starts one job in all"
        return f"this pod is one of {nodes} nodes of its job (PET_NNODES); {advice}"
    return ""


def _more_than_one(count: str) -> bool:
    return is_whole_number(count, 6) and 1 < int(count) <= MAX_ITEMS


def find_agent(environ: Mapping[str, str], read_text: ReadText, is_program: Callable[[str], bool]) -> FoundAgent | None:
    """Return the agent that an operator configured, or None; `is_program` returns whether a word names a program here."""
    given = [next((name for name in names if environ.get(name)), "") for _, names, _ in AGENT_VARIABLES]
    for (agent, _, kinds), arguments in zip(AGENT_VARIABLES, given, strict=True):
        if environ.get(agent) and all(environ.get(kind) in (None, "", "ssh", "rsh") for kind in kinds):
            words = _agent_words(environ[agent], is_program) + _split(environ.get(arguments, ""))
            return _agent(words, agent, read_text, is_program)
    for arguments in filter(None, given):
        return _agent(["ssh", *_split(environ[arguments])], arguments, read_text, is_program)
    if LEADER in environ and (is_program("kubectl") or is_program(KUBECTL)):
        return FoundAgent("kubectl", LEADER)  # its pods have no sshd of their own accord
    return None


# Hosts


def _hostfile(
    path: str, source: str, environ: Mapping[str, str], read_text: ReadText, variable: str | None
) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of a file, None if it names none, or cannot be read and no variable names it."""
    try:
        text = file_text(path, variable, read_text, "operator-hosts") if variable else read_text(path)
        entries = parse_hostfile(text, path)
    except (OSError, UnicodeDecodeError):
        return None
    except UsageError as error:
        # Outside of pods an empty default hostfile is part of a distribution, and means this machine.
        if error.reference == "hostfile-empty" and not in_pod(environ):
            return None
        raise
    return _with_slots(entries, environ), source


def _with_slots(entries: list[HostEntry], environ: Mapping[str, str]) -> list[HostEntry]:
    """Give hosts without slots the number in a variable, unless they are repeated: repeats count slots."""
    for variable in SLOTS_VARIABLES:
        if re.fullmatch("[1-9][0-9]{0,5}", environ.get(variable, ""), re.ASCII):
            mentions = Counter(entry.name for entry in entries)
            slots = int(environ[variable])
            return [
                entry._replace(slots=slots) if entry.slots is None and mentions[entry.name] == 1 else entry
                for entry in entries
            ]
    return entries


def _volcano(
    environ: Mapping[str, str], read_text: ReadText, list_names: Callable[[str], Sequence[str]]
) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of Volcano's job: those of MPI_HOST, or of its one worker task by variables or files.

    Its plugin mpi gives MPI_HOST to the task that starts the job; its plugin env gives every pod an index, without which the
    names of tasks are those of any job, whose pods may each start ranks of their own.
    """
    has_index = "VC_TASK_INDEX" in environ or "VK_TASK_INDEX" in environ
    if environ.get("MPI_HOST") and (has_index or in_pod(environ)):
        return _with_slots(parse_host_list(environ["MPI_HOST"], "MPI_HOST"), environ), "MPI_HOST"
    if not has_index:
        return None
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


def _leader_worker_set(environ: Mapping[str, str]) -> tuple[list[HostEntry], str] | None:
    """Return the pods of a LeaderWorkerSet's group, if this is its leader."""
    leader, _, domain = environ.get(LEADER, "").partition(".")
    if environ.get(GROUP_INDEX) != "0" or not _more_than_one(environ.get(GROUP_SIZE, "")) or leader.isdigit() or not domain:
        return None
    names = [leader, *(f"{leader}-{number}" for number in range(1, int(environ[GROUP_SIZE])))]
    return [HostEntry(f"{name}.{domain}", origin=LEADER) for name in names], LEADER


def _task_of_workers(names: Sequence[str]) -> str:
    """Return the only name of a worker task, else the only name; raises UsageError if there are several."""
    workers = [name for name in names if "worker" in name.lower()]
    for candidates in (workers, names):
        if len(candidates) == 1:
            return candidates[0]
    message = f"Volcano names the hosts of several tasks: {', '.join(names)}"
    raise UsageError("operator-hosts", message, hint=f"choose: --hostfile {VOLCANO}/TASK.host")


# Agents


def _agent_words(value: str, is_program: Callable[[str], bool]) -> list[str]:
    """Return the words of the first alternative of `a args : b` that is a program here, else of the first one."""
    alternatives = [words for text in value.split(":") if (words := text.split())]
    return next((words for words in alternatives if is_program(words[0])), alternatives[0] if alternatives else ["ssh"])


def _agent(words: list[str], source: str, read_text: ReadText, is_program: Callable[[str], bool]) -> FoundAgent:
    """Return the agent for the words of a remote shell command."""
    program = words[0].rpartition("/")[2]
    template = shlex.join([*map(escape_braces, words), "{host}", "{command}"])
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
        # The script does not forward stdin, which carries the wire protocol: the agent kubectl replaces it.
        container = re.search(r"\s(?:--container|-c)[= ]([a-z0-9-]+)(?=.*\s--\s)", script)
        return FoundAgent("kubectl", source, container=container[1] if container else None)
    return FoundAgent(template, source)


def _ssh_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """Return ssh's options as settings of ssh_config, and the words that cannot be translated."""
    settings, left, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-x", "-q", "-n", "-T"):
            continue
        flag, value = word[:2], word[2:]
        if flag in ("-o", *SSH_SETTINGS) and (value or rest):
            value = value or rest.pop(0)
            setting = re.sub("[= ]+", "=", value, count=1) if flag == "-o" else f"{SSH_SETTINGS[flag]}={value}"
            name, _, value = setting.partition("=")
            if name.lower() not in IGNORED_SETTINGS:
                settings.append(f"{name}={value}")
        else:
            left.append(word)
    return settings, left


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
