"""The variables forwarded from the head to the ranks, and the user's edits of the ranks' variables.

Pure: nothing here reads os.environ or opens a file. What the user sets takes precedence over everything but the facts of the
job map (`contracts.FIXED`), which may only be set to the values that they have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from mpilaunch.errors import UsageError
from mpilaunch.job.environment.contracts import FIXED, SCRUBBED, is_listed
from mpilaunch.job.environment.env_file import read_env_file
from mpilaunch.text import closest

FORWARDED_PREFIXES = (
    *("NCCL_", "RCCL_", "HCCL_", "CCL_", "OFI_NCCL_", "NVSHMEM_", "UCX_", "UCC_", "FI_", "PSM2_", "GLOO_"),
    *("OMPI_MCA_", "PMIX_MCA_", "MV2_", "I_MPI_", "MPIR_CVAR_"),
    *("TORCH_", "PYTORCH_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_", "DS_", "DEEPSPEED_", "HOROVOD_"),
    *("PL_", "NVTE_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "VLLM_", "SGLANG_", "RAY_", "TLLM_"),
    *("JAX_", "XLA_", "TF_", "KERAS_", "CUDA_", "HSA_", "MIOPEN_", "NEURON_", "OMP_", "KMP_", "MKL_"),
    *("HF_", "TRANSFORMERS_", "WANDB_", "MLFLOW_"),
    *("SLURM_JOB_", "SLURM_ARRAY_", "SLURM_SUBMIT_"),
)
"""The head's variables with these prefixes go to every rank, unless scrubbed or never forwarded."""
OF_SLURM = ("SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_RESTART_COUNT", "SLURM_TMPDIR")
FORWARDED_NAMES = ("OPENBLAS_NUM_THREADS", "PYTHONFAULTHANDLER", "TOKENIZERS_PARALLELISM", *OF_SLURM)
"""So do the variables of these names."""
NOT_SCRUBBED = ("OMPI_MCA_", "PMIX_MCA_", "SLURM_JOB_", "SLURM_ARRAY_", "SLURM_SUBMIT_", *OF_SLURM)
"""How the names of a library's parameters and of a batch job begin: forwarded from the head, although nodes drop theirs, with
those of an outer job or a step."""

NEVER_FORWARDED = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR"),
    *("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES"),
    *("SDAA_VISIBLE_DEVICES", "SUPA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "TPU_VISIBLE_CHIPS"),
    *("HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
    *("NVIDIA_DRIVER_CAPABILITIES", "HOSTNAME", "KUBERNETES_SERVICE_*", "KUBERNETES_PORT*", "K_MPI_JOB_ROLE"),
    *("OMPI_MCA_plm*", "OMPI_MCA_pls*", "OMPI_MCA_ras*", "OMPI_MCA_rmaps*", "OMPI_MCA_odls*", "OMPI_MCA_hwloc_*"),
    *("OMPI_MCA_orte*", "OMPI_MCA_prte_*", "OMPI_MCA_ess*", "OMPI_MCA_schizo*", "OMPI_MCA_pmix", "OMPI_MCA_initial_wdir"),
    *("OMPI_MCA_mca_base_env_list*", "OMPI_MCA_mca_base_param_files", "OMPI_MCA_shmem_RUNTIME_QUERY_hint"),
    *("PRTE_MCA_*", "I_MPI_HYDRA_*", "I_MPI_PERHOST"),
    *("SLURM_JOB_GPUS", "SLURM_JOB_GRES", "NCCL_HOSTID", "VLLM_HOST_IP", "SGLANG_HOST_IP", "NEURON_PJRT_PROCESS_INDEX"),
    *("CUDA_HOME", "CUDA_PATH", "TF_CLI_*", "TF_TOKEN_*", "TF_VAR_*"),
)
"""Neither a prefix nor `-x 'PREFIX_*'` forwards these: devices, identity and paths of one machine, Kubernetes' variables of a
launcher's pod, and Terraform's, which begin like TensorFlow's. Exact names, and prefixes written `PREFIX*`."""

OF_THIS_MACHINE = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "HOST", "HOSTNAME", "MAIL", "TMPDIR"),
    *("TERM", "COLUMNS", "LINES", "TTY", "TMUX*", "STY", "WINDOWID", "LS_COLORS"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_*", "DBUS_*", "SSH_*", "GPG_*", "VSCODE_*", "KUBERNETES_*"),
)
"""Variables of this machine, its terminal and its login, which not even `--forward all` forwards."""
MAY_BE_UNSET = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PATH", "PYTHONPATH")
"""Manifests and scripts name these after -x by habit: it is no error if they are not set."""

LONGEST_STRING = 131_071
"""Bytes of NAME=VALUE or of one argument: Linux's MAX_ARG_STRLEN, 32 pages of 4 KiB, less the final zero byte."""


Facts = Callable[[str], Mapping[str, int]]
"""Given the name of a fact of the job map, returns its values, and the first rank that has each; none if they are not known."""


def _unknown(name: str) -> Mapping[str, int]:
    return {}


def forwarded_environment(
    environ: Mapping[str, str],
    exports: Sequence[str],
    env_files: Sequence[tuple[str, str]] = (),
    *,
    forward: str = "usual",
    facts: Facts = _unknown,
) -> dict[str, str]:
    """Return the variables that go from the head to every rank; raises UsageError.

    Of two values for one name the later wins: the default prefixes, then the env files in order, then the exports in order.

    Args:
        environ: the head's variables.
        exports: `NAME`, `NAME=VALUE` or `PREFIX_*`, as given with -x.
        env_files: name and text of each `--env-file`.
        forward: which variables go without -x: "usual": `FORWARDED_PREFIXES`, "all": all but `OF_THIS_MACHINE`, or "none".
        facts: the facts of the ranks concerned; one that the user sets to its own value is left out of the result.
    """
    forwarded: dict[str, str] = {}
    if forward != "none":
        names = _matching(environ, FORWARDED_PREFIXES if forward == "usual" else "")
        names += [name for name in FORWARDED_NAMES if name in environ]
        dropped = SCRUBBED + OF_THIS_MACHINE
        forwarded = {name: environ[name] for name in names if name.startswith(NOT_SCRUBBED) or not is_listed(name, dropped)}
    for where, name, value in _named(environ, exports, env_files):
        if name in FIXED:
            _check_fact(where, name, value, facts(name))
        else:
            forwarded[name] = value
    for name, value in forwarded.items():
        _check_value(name, value)
    return forwarded


def _named(
    environ: Mapping[str, str], exports: Sequence[str], env_files: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that the user names: where, name and value; raises UsageError for what is not a name."""
    for source, text in env_files:
        for where, name, value in read_env_file(source, text):
            _check_name(name, where)
            yield where, name, value
    for export in exports:
        for name, value in _exported(export, environ).items():
            yield f"-x {name}=...", name, value


def _is_name(text: str) -> bool:
    """Return whether a text is a variable's name: ASCII letters, digits, `_`, and behind the first character `.` and `-`."""
    plain = text[:1] + text[1:].replace(".", "_").replace("-", "_")
    return text.isascii() and plain.isidentifier()


def _matching(environ: Mapping[str, str], prefixes: str | tuple[str, ...]) -> list[str]:
    """Return the names that a prefix may forward; shell functions (`BASH_FUNC_f%%`) are no names."""
    names = [name for name in environ if name.startswith(prefixes) and _is_name(name)]
    return [name for name in names if name not in FIXED and not is_listed(name, NEVER_FORWARDED)]


def _exported(export: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one -x; raises UsageError."""
    name, equals, value = export.partition("=")
    if equals:
        _check_name(name, f"-x {name}=...")
        return {name: value}
    if name == "*":
        hint = "name the variables or their prefixes: -x PATH -x 'MY_*'"
        raise UsageError("export-name", "-x '*' would forward every variable of this machine, paths and all", hint=hint)
    if name.endswith("*"):
        _check_name(name[:-1], f"-x '{name}'")
        names = _matching(environ, name[:-1])
        if not names:
            raise UsageError("export-unset", f"-x '{name}': no variable that may be forwarded has this prefix")
        return {matched: environ[matched] for matched in names}
    _check_name(_without_value(name), f"-x '{_without_value(name)}'")
    if name not in environ:
        if name in MAY_BE_UNSET:
            return {}
        similar = closest(name, environ)
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
            target, _, value = item.partition("=")
            name, separator = target, ":"
            if match := re.fullmatch(r"(.*)\[(.)\]", target, re.DOTALL):
                name, separator = match.groups()
            _check_name(name, f"--{verb}-env {target}")
            if name in FIXED:
                _check_fact(f"--{verb}-env {target}", name, value, {})
            _check_value(name, value)
            edits.append((verb, name, value, separator))
    return tuple(edits)


def _check_name(name: str, where: str) -> None:
    """Raise UsageError unless a variable can have this name."""
    if not _is_name(name):
        hint = "a name has letters, digits, '_', '.' and '-', and starts with a letter or '_'"
        raise UsageError("export-name", f"{where}: '{name}' is not a variable's name", hint=hint)


def _check_fact(where: str, name: str, value: str, known: Mapping[str, int]) -> None:
    """Raise UsageError unless all ranks concerned have this value of a fact of the job map; `known` as from `Facts`."""
    others = [(other, rank) for other, rank in known.items() if other != value]
    if known and not others:
        return
    message = f"{where}: '{name}' says where a rank is in the job, and mpilaunch sets it for every rank"
    for other, rank in others[:1]:
        message += f": '{other}' for rank {rank}, not '{value[:40]}'"
    hint = "choose the ranks and their places with -np, -N, --map-by and --rank-by"
    raise UsageError("export-reserved", message, hint=hint)


def _without_value(name: str) -> str:
    """Return a name for a message, without a value that follows a space in place of `=`: it may be a secret."""
    first, *rest = name.split(None, 1) or [name]
    return f"{first} ..." if rest else name


def _check_value(name: str, value: str) -> None:
    """Raise UsageError unless the variable can be handed to a program; the value is never shown, it may be a secret."""
    try:
        size = _size(f"{name}={value}")
    except UnicodeEncodeError:
        raise UsageError("export-value", f"the value of '{name}' has a character that UTF-8 cannot write") from None
    if "\0" in value:
        raise UsageError("export-value", f"the value of '{name}' has a zero byte, which ends a variable")
    if size > LONGEST_STRING:
        message = f"'{name}' has {size:,} bytes with its name, and Linux hands a program at most {LONGEST_STRING:,} in one"
        raise UsageError("export-value", message, hint="put the value into a file and forward its path")


def explain_size(environment: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return which part of what a rank is given is too long for the kernel, and what to do about it."""
    sizes = {name: _size(f"{name}={value}") for name, value in environment.items()}
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    longest = max(map(_size, arguments), default=0)
    if sum(sizes.values()) < sum(map(_size, arguments)) or largest is None:
        if longest > LONGEST_STRING:
            return f"one argument has {longest:,} bytes, and the kernel allows {LONGEST_STRING:,}: write it to a file"
        return f"the arguments have {sum(map(_size, arguments)):,} bytes, more than the kernel allows: write them to a file"
    total = f"the environment is too long: the ranks are given {len(sizes):,} variables with {sum(sizes.values()):,} bytes"
    return f"{total}; the longest, {largest}, has {sizes[largest]:,}; --unset-env {largest} leaves it out"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
