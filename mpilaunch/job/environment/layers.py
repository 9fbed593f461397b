"""The environment of a rank: what the head forwards, what a node drops, and what mpilaunch sets.

Pure: variables in, variables out; nothing here reads os.environ or opens a file. Five layers make the environment of a rank,
each laid over the one before: the node's own variables less the scrubbed ones and `defaults_if_unset`; `job_environment`;
`forwarded_environment`; `node_environment`; `rank_environment`. So what the user says wins over everything but the facts of
the job map, and those cannot be said (`RESERVED`). docs/environment.md lists every name; a test holds it to this module.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from mpilaunch.errors import UsageError
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment import env_file as envfile
from mpilaunch.job.environment.mpi import pmi_environment
from mpilaunch.placement.mapping import Placement
from mpilaunch.text import near

FORWARDED_PREFIXES = (
    *("NCCL_", "RCCL_", "HCCL_", "CCL_", "NVSHMEM_", "UCX_", "UCC_", "FI_", "GLOO_", "MV2_"),
    *("TORCH_", "PYTORCH_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_", "DS_", "DEEPSPEED_", "HOROVOD_"),
    *("JAX_", "XLA_", "TF_", "CUDA_", "OMP_", "KMP_", "MKL_"),
    *("HF_", "TRANSFORMERS_", "WANDB_", "MLFLOW_"),
)
"""The head's variables with these prefixes go to every rank, unless scrubbed or never forwarded."""

NEVER_FORWARDED = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR"),
    *("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES"),
    *("SDAA_VISIBLE_DEVICES", "SUPA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "TPU_VISIBLE_CHIPS"),
    *("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
    *("NVIDIA_DRIVER_CAPABILITIES", "HOSTNAME", "KUBERNETES_SERVICE_*", "KUBERNETES_PORT*", "K_MPI_JOB_ROLE"),
    *("OMPI_MCA_plm_*", "OMPI_MCA_orte_*", "PRTE_MCA_*"),
    *("NCCL_HOSTID", "CUDA_HOME", "CUDA_PATH", "TF_CLI_*", "TF_TOKEN_*", "TF_VAR_*"),
)
"""Devices, identity and paths of one machine, what Kubernetes and its operators tell a launcher's pod, and Terraform's
variables, which TensorFlow's prefix would take along: neither a prefix nor `-x 'PREFIX_*'` forwards them. Exact names, and
prefixes written `PREFIX*`."""

OF_THIS_MACHINE = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "HOST", "HOSTNAME", "MAIL", "TMPDIR"),
    *("TERM", "COLUMNS", "LINES", "TTY", "TMUX*", "STY", "WINDOWID", "LS_COLORS"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_*", "DBUS_*", "SSH_*", "GPG_*", "VSCODE_*", "KUBERNETES_*"),
)
"""What belongs to this machine, its terminal and its login: not even `--forward all` takes it to the nodes."""
MAY_BE_UNSET = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PATH", "PYTHONPATH")
"""What manifests and scripts name by habit after -x: none is as good as an empty one."""

SCRUBBED = (
    *("SLURM_*", "SLURMD_*", "PMI_*", "PMI2_*", "PMIX_*", "OMPI_*", "PRTE_*", "MPI_LOCAL*", "MV2_COMM_WORLD_*", "HYD*"),
    *("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "JSM_NAMESPACE_*", "TORCHELASTIC_*", "PET_*", "MPILAUNCH_*"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    *("HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_GLOO_RENDEZVOUS_*"),
    *("CCL_LOCAL_RANK", "CCL_LOCAL_SIZE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "TF_CONFIG"),
)
"""What a surrounding job leaves behind: exact names, and prefixes written `PREFIX*`. A rank that found them would take itself
for a part of that job."""

LONGEST_VARIABLE = 131_071
"""Bytes of NAME=VALUE: Linux's MAX_ARG_STRLEN, 32 pages of 4 KiB, less the final zero byte."""


# What mpilaunch sets


def job_environment(
    *,
    job_id: str,
    run_id: str = "",
    size: int,
    node_count: int,
    universe_size: int,
    master_addr: str,
    master_port: int,
    restart_count: int = 0,
    max_restarts: int = 0,
) -> dict[str, str]:
    """Return what is the same for every rank of the job.

    Args:
        run_id: what all attempts of the job share, where that is not its id.
        size: ranks in the job.
        node_count: nodes that run at least one rank.
        universe_size: slots in the allocation, whether used or not.
    """
    return {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "GROUP_WORLD_SIZE": str(node_count),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id or job_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_UNIVERSE_SIZE": str(universe_size),
        "MPILAUNCH_JOB_ID": job_id,
        "MPILAUNCH_RESTART_COUNT": str(restart_count),
        "MPILAUNCH_SIZE": str(size),
    }


def node_environment(*, node_rank: int, local_size: int) -> dict[str, str]:
    """Return what is the same for every rank of one node.

    Args:
        node_rank: place among the nodes that run at least one rank (in `JobMap.nodes`), not in the allocation.
        local_size: ranks of the job on this node.
    """
    return {
        "NODE_RANK": str(node_rank),
        "GROUP_RANK": str(node_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "MPILAUNCH_NODE_RANK": str(node_rank),
    }


def rank_environment(
    *, rank: int, local_rank: int, cross_rank: int, cross_size: int, error_file: str | None = None
) -> dict[str, str]:
    """Return what only one rank has; `cross_rank` and `cross_size` are from `cross_places`."""
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(rank),
        "CROSS_RANK": str(cross_rank),
        "CROSS_SIZE": str(cross_size),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),  # Open MPI's name for the place on the node, not for the node
        "MPILAUNCH_RANK": str(rank),
        "MPILAUNCH_LOCAL_RANK": str(local_rank),
    }
    if error_file is not None:
        environment["TORCHELASTIC_ERROR_FILE"] = error_file
    return environment


def cross_places(placements: Sequence[Placement]) -> list[tuple[int, int]]:
    """Return (CROSS_RANK, CROSS_SIZE) for each placement: its place among the nodes that have its local rank, and how many
    nodes have it (Horovod's rule for nodes with unequal numbers of ranks)."""
    sizes = Counter(placement.local_rank for placement in placements)
    seen: Counter[int] = Counter()
    places: dict[int, tuple[int, int]] = {}
    for placement in sorted(placements, key=lambda placement: placement.node):
        places[placement.rank] = (seen[placement.local_rank], sizes[placement.local_rank])
        seen[placement.local_rank] += 1
    return [places[placement.rank] for placement in placements]


def defaults_if_unset(local_size: int) -> dict[str, str]:
    """Return what a node sets where neither the node nor the user does, as torchrun would."""
    defaults = {"PYTHONUNBUFFERED": "1"}
    if local_size > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    return defaults


RESERVED = frozenset(
    {
        *("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE"),
        *("MPILAUNCH_JOB_ID", "MPILAUNCH_SIZE", "MPILAUNCH_RESTART_COUNT"),
        *("MPILAUNCH_CHECKPOINT_DIR", "MPILAUNCH_RESTART_DIR"),
        *node_environment(node_rank=0, local_size=0),
        *rank_environment(rank=0, local_rank=0, cross_rank=0, cross_size=0),
        *pmi_environment(rank=0, size=0, local_rank=0, local_size=0, spawned=True),
        *("PMI_PORT", "PMI_ID"),
    }
)
"""Facts of the job and its map, which the user chooses with -np, -N and --map-by: a value set by hand would be a lie."""


# What a node drops


def is_scrubbed(name: str) -> bool:
    """Tell whether the variable belongs to a surrounding job."""
    return _is_listed(name, SCRUBBED)


def _is_listed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def scrub_patterns() -> list[str]:
    """Return the names and `PREFIX*` patterns that a daemon drops from its node's own variables before it adds ours."""
    return list(SCRUBBED)


# What the head forwards


def forwarded_environment(
    environ: Mapping[str, str],
    exports: Sequence[str],
    env_files: Sequence[tuple[str, str]] = (),
    *,
    forward: str = "usual",
) -> dict[str, str]:
    """Return the variables that go from the head to every rank; raises UsageError.

    Of two values for one name the later wins: the default prefixes, then the env files in order, then the exports in order.

    Args:
        environ: the head's variables.
        exports: `NAME`, `NAME=VALUE` or `PREFIX_*`, as given with -x.
        env_files: name and text of each `--env-file`.
        forward: what goes unsaid: "usual" for `FORWARDED_PREFIXES`, "all" for all but `OF_THIS_MACHINE`, or "none".
    """
    forwarded: dict[str, str] = {}
    if forward != "none":
        names = _matching(environ, FORWARDED_PREFIXES if forward == "usual" else "")
        forwarded = {name: environ[name] for name in names if not is_scrubbed(name) and not _is_listed(name, OF_THIS_MACHINE)}
    for source, text in env_files:
        for where, name, value in envfile.read_env_file(source, text):
            _check_name(name, where)
            forwarded[name] = value
    for export in exports:
        forwarded.update(_exported(export, environ))
    for name, value in forwarded.items():
        _check_value(name, value)
    return forwarded


def _is_name(text: str) -> bool:
    """Say whether a text is a variable's name: ASCII letters, digits, `_`, and behind the first character `.` and `-`."""
    plain = text[:1] + text[1:].replace(".", "_").replace("-", "_")
    return text.isascii() and plain.isidentifier()


def _matching(environ: Mapping[str, str], prefixes: str | tuple[str, ...]) -> list[str]:
    """Return the names that a prefix may forward; shell functions (`BASH_FUNC_f%%`) are no names."""
    return [
        name
        for name in environ
        if name.startswith(prefixes)
        and _is_name(name)
        and name not in RESERVED
        and not _is_listed(name, NEVER_FORWARDED)
    ]


def _exported(export: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one -x; raises UsageError."""
    name, equals, value = export.partition("=")
    if equals:
        _check_name(name, f"-x {name}=...")
        return {name: value}
    if name.endswith("*"):
        prefix = name[:-1]
        if not prefix:
            raise UsageError(
                "export-name",
                "-x '*' would forward every variable of this machine, paths and all",
                hint="name the variables or their prefixes: -x PATH -x 'MY_*'",
            )
        _check_name(prefix, f"-x '{name}'")
        names = _matching(environ, prefix)
        if not names:
            raise UsageError("export-unset", f"-x '{name}': no variable that may be forwarded has this prefix")
        return {matched: environ[matched] for matched in names}
    _check_name(name, f"-x '{name}'")
    if name not in environ:
        if name in MAY_BE_UNSET:
            return {}
        similar = near(name, environ)
        hint = (f"did you mean '{similar}', or " if similar else "") + f"give it a value: -x {name}=VALUE"
        raise UsageError("export-unset", f"-x '{name}': this variable is not set", hint=hint)
    return {name: environ[name]}


def environment_edits(
    unset: Sequence[str], prepended: Sequence[str], appended: Sequence[str]
) -> tuple[tuple[str, str, str, str], ...]:
    """Return what is done on the node to the variables that its ranks would have: (verb, name, value, separator).

    Args:
        unset: of --unset-env: names, and prefixes written `PREFIX*`.
        prepended, appended: `NAME=VALUE` or `NAME[;]=VALUE`, of --prepend-env and --append-env.
    """
    edits = []
    for name in unset:
        _check_name(name.removesuffix("*"), f"--unset-env {name}")
        edits.append(("unset", name, "", ""))
    for verb, items in (("prepend", prepended), ("append", appended)):
        for item in items:
            said, _, value = item.partition("=")
            match = re.fullmatch(r"(.*?)(?:\[(.)\])?", said, re.DOTALL)
            name, separator = (match[1], match[2] or ":") if match else (said, ":")
            _check_name(name, f"--{verb}-env {said}")
            _check_value(name, value)
            edits.append((verb, name, value, separator))
    return tuple(edits)


def _check_name(name: str, where: str) -> None:
    """Raise UsageError unless a user may set a variable of this name."""
    if not _is_name(name):
        raise UsageError(
            "export-name",
            f"{where}: '{name}' is not a variable's name",
            hint="a name has letters, digits, '_', '.' and '-', and starts with a letter or '_'",
        )
    if name in RESERVED:
        raise UsageError(
            "export-reserved",
            f"{where}: '{name}' says where a rank is in the job, and mpilaunch sets it for every rank",
            hint="choose the ranks and their places with -np, -N, --map-by and --rank-by",
        )


def _check_value(name: str, value: str) -> None:
    """Raise UsageError unless the variable can be handed to a program; the value is never shown, it may be a secret."""
    try:
        size = len(f"{name}={value}".encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise UsageError("export-value", f"the value of '{name}' has a character that UTF-8 cannot write") from None
    if "\0" in value:
        raise UsageError("export-value", f"the value of '{name}' has a zero byte, which ends a variable")
    if size > LONGEST_VARIABLE:
        raise UsageError(
            "export-value",
            f"'{name}' has {size:,} bytes with its name, and Linux hands a program at most {LONGEST_VARIABLE:,} in one",
            hint="put the value into a file and forward its path",
        )


# Where rank 0 is


def choose_master_address(
    rank0_node_facts: NodeFacts, other_facts: Sequence[NodeFacts], rank0_is_head: bool, node_name: str
) -> str:
    """Return an address of rank 0's node that the other nodes reach.

    An address that has carried a connection of this launch comes before one that the node merely has, and IPv4 or IPv6 is
    whatever that connection used; among the node's own addresses IPv4 is first (`NodeFacts.addresses`). Loopback and
    link-local addresses mean something else on every node, so they are passed over.

    Args:
        other_facts: of the other nodes of the job.
        rank0_is_head: rank 0 runs on the head, so no connection led to its node, but connections led from it.
        node_name: of rank 0's node, as the user wrote it.
    """
    facts = rank0_node_facts
    elsewhere = [other for other in other_facts if (other.hostname, other.addresses) != (facts.hostname, facts.addresses)]
    if not elsewhere:
        return "127.0.0.1"
    candidates: list[str] = []
    if rank0_is_head:
        # Behind a jump host the nodes saw that host's address: one of the head's own is proof against it.
        seen = [_routable(other.ssh_connection[0]) for other in elsewhere if other.ssh_connection]
        own = set(facts.addresses)
        candidates += [address for address in seen if address in own or not own]
    elif facts.ssh_connection:
        candidates.append(_routable(facts.ssh_connection[2]))
    candidates += facts.addresses
    candidates.append(facts.hostname if rank0_is_head else node_name)
    return next(address for address in candidates if address)


def _routable(text: str) -> str:
    """Return the address without its zone (`%eth0`), or "" when it is no address that other nodes reach."""
    import ipaddress  # 3 ms, and a job on one machine needs none

    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return "" if address.is_loopback or address.is_link_local or address.is_unspecified else str(address)
