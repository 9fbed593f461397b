"""Options of `accelerate launch` (accelerate/commands/launch.py, 1.0 to 1.15), and its config file.

accelerate passes most options on to the script as variables, and starts the ranks by torchrun, DeepSpeed's launcher or mpirun;
here mpilaunch starts them itself, with the same variables. This module never imports accelerate, and starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from mpilaunch.cli.dialects.frameworks import torchrun
from mpilaunch.cli.dialects.frameworks.accelerate_config import Config, read_config
from mpilaunch.cli.dialects.frameworks.accelerate_variables import GROUPS, check_choices, variables
from mpilaunch.cli.dialects.frameworks.common import ByHand, program
from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Row,
    Surroundings,
    Translation,
    acts,
    exports,
    ignored,
    needless,
    part,
    refused,
    weak,
    whole,
)
from mpilaunch.defaults import MASTER_PORT
from mpilaunch.text import is_whole_number

_PORT = str(MASTER_PORT)
_PARADIGMS = {
    "multi_gpu": frozenset({"dynamo"}),
    "use_fsdp": frozenset({"dynamo", "fsdp"}),
    "use_megatron_lm": frozenset({"dynamo", "megatron"}),
    "use_deepspeed": frozenset({"deepspeed", "clipping"}),
    "": frozenset({"dynamo"}),
}
"""The options of each paradigm, by the groups of their variables."""
_BY_HAND, _BY_HOSTFILE = ("standard", "nossh"), ("pdsh", "openmpi", "mvapich", "mpich", "slurm")
"""DeepSpeed's launchers: those that are run on each node, and those that start all nodes of a hostfile."""
_TEST = "test"
_TEST_MODULE = "accelerate.test_utils.scripts.test_script"
"""What `accelerate test` launches: by its name as a module, since the package is on the nodes."""
_OTHER_COMMANDS = frozenset({"config", "env", "estimate-memory", "merge-weights", "to-fsdp2", "tpu-config"})


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the ranks, nodes and variables that the options and the config file describe together, and the program."""
    if parts.get("started") == _TEST:
        parts, words = _test(parts, words)
    elif words and words[0] in _OTHER_COMMANDS and "started" not in parts:
        hint = "run the accelerate of your Python for it: python -m accelerate.commands.accelerate_cli " + words[0]
        raise InvalidArgument(f"accelerate {words[0]} starts no job", hint)
    given = {name: "True" if value == "yes" else value for name, value in parts.items()}
    config = read_config(parts.get("config_file"), around, cpu="cpu" in parts)
    values = {**config.values, **given}
    check_choices(values)
    paradigm = _paradigm(given, config)
    parallel = "use_parallelism_config" in parts or (
        paradigm == config.paradigm and any(name.startswith("parallelism_config_") for name in config.values)
    )
    groups = _groups(values, paradigm, parallel=parallel)
    output = torchrun.output({"log-dir" if name == "log_dir" else name: value for name, value in parts.items()}, around.environ)
    result = _ranks(values, paradigm, around) + output + _notes(parts, groups, config)
    fields = (*config.deepspeed_fields, *(("mixed_precision",) if "mixed_precision" in {*config.values} - {*parts} else ()))
    environment = _environment(values, paradigm, groups, fields, around.environ)
    if not paradigm:  # a single process is then started as a plain program
        result += weak("--bare-if-single")
        environment = {**_threads(values, around), **environment}
    return exports(environment) + result, program(parts, words, around.environ)


def _test(parts: Mapping[str, str], words: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return the parts and the program that `accelerate test` launches; raises InvalidArgument for more than its one option."""
    others = [*(f"--{name}" for name in parts if name not in ("started", "config_file")), *words]
    if others:
        raise InvalidArgument(f"accelerate test takes no {others[0]}", "its only option is --config_file FILE")
    return {**parts, "module": ""}, (_TEST_MODULE,)


def _true(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").lower() in ("true", "1", "yes", "y", "t", "on")


def _on_cpu(values: Mapping[str, str]) -> bool:
    return _true(values, "cpu") or _true(values, "use_cpu")


def _paradigm(given: Mapping[str, str], config: Config) -> str:
    """Return the option that names the paradigm, "" for none; raises InvalidArgument for several."""
    named = [name for name in _PARADIGMS if name in given]
    exclusive = [name for name in ("cpu", "multi_gpu", "use_deepspeed", "use_fsdp") if name in given]
    if len(exclusive) > 1 or len(named) > 1:
        first, second = (exclusive if len(exclusive) > 1 else named)[:2]
        raise InvalidArgument(f"--{first} and --{second} contradict each other", "leave one out")
    if "cpu" in given:
        return ""
    return named[0] if named else config.paradigm


def _groups(values: Mapping[str, str], paradigm: str, *, parallel: bool) -> frozenset[str]:
    """Return the groups of options that count; raises InvalidArgument for a paradigm that needs another."""
    groups = _PARADIGMS[paradigm]
    if parallel:
        if paradigm != "use_fsdp" or values.get("fsdp_version", "1") != "2":
            message = "--use_parallelism_config needs --use_fsdp and --fsdp_version 2"
            raise InvalidArgument(message, "add these, or leave --use_parallelism_config out")
        groups |= {"parallelism"}
    synchronized, lean = (
        values.get(f"fsdp_{name}", "true").lower() != "false" for name in ("sync_module_states", "cpu_ram_efficient_loading")
    )
    if paradigm == "use_fsdp" and lean and not synchronized:
        message = "--fsdp_cpu_ram_efficient_loading needs --fsdp_sync_module_states true"
        raise InvalidArgument(message, "set both to true, or both to false")
    return groups | {"fp8"} if values.get("mixed_precision", "no").lower() == "fp8" else groups


# Ranks and nodes


def _number(values: Mapping[str, str], name: str, least: int) -> int | None:
    text = values.get(name)
    if text is None or (name == "num_processes" and text == "-1"):
        return None
    return whole(text, f"--{name}", least)


def _ranks(values: Mapping[str, str], paradigm: str, around: Surroundings) -> Translation:
    """Return the ranks of each node, and the nodes: those that are named, this machine, or its part of the job."""
    hostfile, filters = values.get("mpirun_hostfile"), Translation()
    launcher = ""
    if paradigm == "use_deepspeed":
        launcher = values.get("deepspeed_multinode_launcher", "pdsh")
        if launcher not in (*_BY_HAND, *_BY_HOSTFILE):
            hint = "use " + ", ".join((*_BY_HAND, *_BY_HOSTFILE))
            raise InvalidArgument(f"--deepspeed_multinode_launcher: unknown launcher '{launcher}'", hint)
        hostfile = values.get("deepspeed_hostfile", hostfile)
        filters = _filters(values)
    if hostfile is not None:
        around = around._replace(names_hosts=True)
    machines = _number(values, "num_machines", 1) or 1
    rank = None if machines == 1 or launcher in _BY_HOSTFILE else values.get("machine_rank")
    if rank is not None:
        _number(values, "machine_rank", 0)
    result = filters + Translation(("--hostfile", hostfile) if hostfile is not None else ())
    if not filters.words:
        result += _each(values, paradigm, machines, named=around.names_hosts)
    address, port = values.get("main_process_ip"), values.get("main_process_port", _PORT)
    if rank is not None and not around.names_hosts and (address is None or port == "0"):
        needed = "--main_process_ip" if address is None else "a --main_process_port other than 0"
        hint = "give each machine the same ones, or run mpilaunch once, with --host or --hostfile"
        raise InvalidArgument(f"--machine_rank {rank} needs {needed}", hint)
    by_hand = ByHand(str(machines), rank, address or "", port, "--num_machines", "--machine_rank")
    nodes = by_hand.translation(around, given="num_machines" in values and machines > 1)
    result += Translation(notes=nodes.notes) if "--np" in result.words else nodes
    if address is not None and machines > 1:
        result += weak("--master-addr", address)
    return result + (weak("--master-port", port) if values.get("main_process_port", "0") != "0" else Translation())


def _filters(values: Mapping[str, str]) -> Translation:
    """Return the slots of a hostfile that DeepSpeed's launcher would use."""
    exclude, include = values.get("deepspeed_exclusion_filter"), values.get("deepspeed_inclusion_filter")
    flag, text = ("--exclude", exclude) if exclude else ("--include", include)
    return Translation((flag, text, "--gpu-bind", "ranks") if text else ())


def _each(values: Mapping[str, str], paradigm: str, machines: int, *, named: bool) -> Translation:
    """Return the number of ranks: in all on named hosts, else of each machine; one for each GPU where it is not given."""
    processes = _number(values, "num_processes", 1)
    if processes is None:
        return weak("--npernode", "1" if _on_cpu(values) else "gpu" if paradigm else "gpu-or-one")
    if paradigm == "multi_gpu" and processes < 2 and "multi_gpu" in values:
        raise InvalidArgument("--multi_gpu needs at least 2 processes", "leave --multi_gpu out")
    if processes % machines:
        hint = "mpilaunch starts the same number of ranks on each machine"
        raise InvalidArgument(f"--num_processes {processes} is not a multiple of --num_machines {machines}", hint)
    of_each = ("--npernode", str(processes // machines)) if not named or "num_machines" in values else ()
    return Translation((*(("--np", str(processes)) if named else ()), *of_each))


# Variables


def _environment(
    values: Mapping[str, str], paradigm: str, groups: frozenset[str], fields: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of the ranks; `fields` are the options of DeepSpeed that the config file sets."""
    on_cpu = _on_cpu(values)
    result = {"ACCELERATE_MIXED_PRECISION": values.get("mixed_precision", "no").lower(), **variables(groups, values)}
    if not paradigm:
        result["ACCELERATE_USE_CPU"] = str(on_cpu)
        if on_cpu:
            result |= {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    if paradigm == "use_deepspeed":
        result["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(fields).lower()
        result["PYTHONPATH"] = ":".join(filter(None, (environ.get("PYTHONPATH"), os.getcwd())))
    for name, variable, text in _SINGLE:
        if _true(values, name):
            result[variable] = text
    for name, variable in _GIVEN:
        if name in values:
            result[variable] = values[name]
    if values.get("gpu_ids", "all") != "all":
        result["CUDA_VISIBLE_DEVICES"] = values["gpu_ids"]
    return result


_SINGLE = (("debug", "ACCELERATE_DEBUG_MODE", "true"), ("enable_cpu_affinity", "ACCELERATE_CPU_AFFINITY", "1"))
_GIVEN = (("num_cpu_threads_per_process", "OMP_NUM_THREADS"), ("mpirun_ccl", "CCL_WORKER_COUNT"))


def _threads(values: Mapping[str, str], around: Surroundings) -> dict[str, str]:
    """Return OMP_NUM_THREADS as accelerate does: the head's, 1, or for CPUs this machine's cores divided by the ranks."""
    processes = _number(values, "num_processes", 1)
    own = around.environ.get("OMP_NUM_THREADS", "")
    if is_whole_number(own, 7) and int(own):
        return {"OMP_NUM_THREADS": own}
    if processes is None or not _on_cpu(values):
        return {"OMP_NUM_THREADS": "1"}
    if around.names_hosts or "mpirun_hostfile" in values or (_number(values, "num_machines", 1) or 1) > 1:
        return {}  # the cores of the nodes are not known here
    import psutil  # no other launcher needs it

    return {"OMP_NUM_THREADS": str(max(1, (psutil.cpu_count(logical=False) or 1) // processes))}


def _notes(parts: Mapping[str, str], groups: frozenset[str], config: Config) -> Translation:
    """Return notes about options and keys that have no effect, and the binding that --gpu_ids needs."""
    unused = ((name, group) for group in GROUPS if group not in groups for name, *_ in GROUPS[group].rows() if name in parts)
    notes = [(f"--{name} has no effect {_MISSING[group]}", 0) for name, group in unused]
    notes += [(f"{key} of the config file has no effect, as with accelerate", 0) for key in config.unknown]
    ids = parts.get("gpu_ids", config.values.get("gpu_ids", "all"))
    return Translation(notes=tuple(notes)) + (Translation() if ids == "all" else weak("--gpu-bind", "none"))


_MISSING = {
    "dynamo": "with --use_deepspeed",
    "fp8": "without --mixed_precision fp8",
    **dict.fromkeys(("deepspeed", "clipping"), "without --use_deepspeed"),
    "fsdp": "without --use_fsdp",
    "megatron": "without --use_megatron_lm",
    "parallelism": "without --use_parallelism_config",
}
"""Why options of a group have no effect."""

# Rows


def _passed_on() -> Iterator[Row]:
    """Yield the row of each option that is passed on to the script as a variable."""
    for group in GROUPS.values():
        for name, _, variable, _, is_flag in group.rows():
            yield part(name, "" if is_flag else "VALUE", f"`{variable}`")


_TPU = "start TPU programs by accelerate's own launch, or the ranks of a TPU pod as `mpilaunch -H HOSTS -N 1 python train.py`"
_AWS = "use accelerate's own launch for SageMaker"

_ROWS = (
    part("config_file", "FILE", "the values of options that the command line does not have; the default file counts too"),
    # Ranks and nodes
    part("num_processes", "N", "`-np N` on named hosts, else N ranks on `--num_machines`; without it one for each GPU"),
    part("num_machines", "N", "`--nnodes N`; 1, the default, is this machine, unless hosts are named"),
    part("machine_rank", "R", "`--node-rank R`, for this machine's ranks only; with named hosts, 0 has no effect"),
    part("main_process_ip", "ADDR", "`--master-addr ADDR`"),
    part("main_process_port", "PORT", "`--master-port PORT`; 0 is a free one"),
    part("mpirun_hostfile", "FILE", "`--hostfile FILE`; mpilaunch starts the ranks itself"),
    part("mpirun_ccl", "N", "`--export CCL_WORKER_COUNT=N`"),
    part("deepspeed_hostfile", "FILE", "`--hostfile FILE`"),
    part("deepspeed_inclusion_filter", "SLOTS", "`--include SLOTS --gpu-bind ranks`"),
    part("deepspeed_exclusion_filter", "SLOTS", "`--exclude SLOTS --gpu-bind ranks`"),
    part("deepspeed_multinode_launcher", "NAME", "standard and nossh stand on each machine, the others once for all"),
    needless("same_network", "", "mpilaunch chooses addresses that all nodes reach"),
    acts("rdzv_backend", "NAME", torchrun.rdzv_backend, "nothing: mpilaunch assigns the ranks itself"),
    ignored("rdzv_conf", "SETTINGS", "--start-timeout sets how long the nodes may take to start"),
    # The paradigm
    part("cpu", "", "`ACCELERATE_USE_CPU=True`; one rank without --num_processes"),
    part("multi_gpu", "", "ranks that use GPUs"),
    part("use_deepspeed", "", "`ACCELERATE_USE_DEEPSPEED=true`, and the options of DeepSpeed count"),
    part("use_fsdp", "", "`ACCELERATE_USE_FSDP=true`, and the options of FSDP count"),
    part("use_megatron_lm", "", "`ACCELERATE_USE_MEGATRON_LM=true`, and the options of Megatron-LM count"),
    part("use_parallelism_config", "", "`ACCELERATE_USE_PARALLELISM_CONFIG=true`, and its options count"),
    part("mixed_precision", "TYPE", "`ACCELERATE_MIXED_PRECISION`"),
    # The program
    part("module m", "", "the program is a module: `python -u -m MODULE`; without it, a script: `python -u SCRIPT`"),
    part("no_python", "", "the program is started as it is"),
    part("debug", "", "`ACCELERATE_DEBUG_MODE=true`"),
    acts("role", "NAME", torchrun.role, "`--export ROLE_NAME=NAME`, and the name in the prefix of --tee"),
    # Output
    part("tee t", "STREAMS", "0, 1, 2 or 3: tags lines with [ROLE RANK]:, and with --log_dir also writes files"),
    part("log_dir", "DIR", torchrun.LOG_DIR),
    # Devices
    part("gpu_ids", "LIST", "`--export CUDA_VISIBLE_DEVICES=LIST --gpu-bind none`; all is the default"),
    part("num_cpu_threads_per_process", "N", "`--export OMP_NUM_THREADS=N`"),
    part("enable_cpu_affinity", "", "`ACCELERATE_CPU_AFFINITY=1`"),
    # Ends
    acts("max_restarts", "N", "--max-restarts $1"),
    needless("monitor_interval", "SECONDS", "mpilaunch notices the end of a rank at once"),
    # Passed on to the script
    *_passed_on(),
    # Others
    refused("tpu tpu_cluster tpu_use_sudo downcast_bf16", "", _TPU),
    refused("vm env main_training_function", "VALUE", _TPU),
    needless("no_tpu_cluster", "", "accelerate itself adds it"),
    refused("aws_access_key_id aws_secret_access_key", "KEY", _AWS),
)

DIALECT = Dialect(
    name="accelerate",
    title="accelerate launch",
    owner="accelerate's",
    rows=_ROWS,
    defaults={"grace": ("30", "accelerate's default")},
    verbs=("launch", _TEST),
    modules=("accelerate.commands.launch",),
    finish=finish,
)
