"""Options of horovodrun (horovod/runner/launch.py and common/util/config_parser.py, 0.28.1), without those of elastic training.

It never imports Horovod, and starts nothing: the settings of the library become HOROVOD_ variables of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Row,
    Surroundings,
    Translation,
    acts,
    exports,
    ignored,
    keep,
    needless,
    part,
    refused,
    weak,
    whole,
)


class _Knob(NamedTuple):
    """A setting of the library.

    Attributes:
        option: its option, without dashes.
        key: section and key of the config file.
        variable: its variable.
        kind: "N", a whole number; "X", any number; FILE; LEVEL; or "", a flag, whose option `--no-...` unsets it.
        inverse: the key states the opposite of the variable.
    """

    option: str
    key: str
    variable: str
    kind: str = "N"
    inverse: bool = False


_KNOBS = (
    _Knob("fusion-threshold-mb", "params.fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD"),
    _Knob("cycle-time-ms", "params.cycle_time_ms", "HOROVOD_CYCLE_TIME", "X"),
    _Knob("cache-capacity", "params.cache_capacity", "HOROVOD_CACHE_CAPACITY"),
    _Knob("hierarchical-allreduce", "params.hierarchical_allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", ""),
    _Knob("hierarchical-allgather", "params.hierarchical_allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", ""),
    _Knob("torus-allreduce", "params.torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", ""),
    _Knob("autotune", "autotune.enabled", "HOROVOD_AUTOTUNE", ""),
    _Knob("autotune-log-file", "autotune.log_file", "HOROVOD_AUTOTUNE_LOG", "FILE"),
    _Knob("autotune-warmup-samples", "autotune.warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"),
    _Knob("autotune-steps-per-sample", "autotune.steps_per_sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"),
    _Knob("autotune-bayes-opt-max-samples", "autotune.bayes_opt_max_samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"),
    _Knob("autotune-gaussian-process-noise", "autotune.gaussian_process_noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "X"),
    _Knob("timeline-filename", "timeline.filename", "HOROVOD_TIMELINE", "FILE"),
    _Knob("timeline-mark-cycles", "timeline.mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", ""),
    _Knob("no-stall-check", "stall_check.enabled", "HOROVOD_STALL_CHECK_DISABLE", "", inverse=True),
    _Knob("stall-check-warning-time-seconds", "stall_check.warning_time_seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    _Knob("stall-check-shutdown-time-seconds", "stall_check.shutdown_time_seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    _Knob("mpi-threads-disable", "library_options.mpi_threads_disable", "HOROVOD_MPI_THREADS_DISABLE", ""),
    _Knob("num-nccl-streams", "library_options.num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS"),
    _Knob("thread-affinity", "library_options.thread_affinity", "HOROVOD_THREAD_AFFINITY"),
    _Knob("gloo-timeout-seconds", "library_options.gloo_timeout_seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    _Knob("log-level", "logging.level", "HOROVOD_LOG_LEVEL", "LEVEL"),
    _Knob("log-without-timestamp log-hide-timestamp", "logging.with_timestamp", "HOROVOD_LOG_HIDE_TIME", "", inverse=True),
)
_OPPOSITES = {
    "no-stall-check": "stall-check",
    "log-without-timestamp log-hide-timestamp": "log-with-timestamp no-log-hide-timestamp",
}
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
_ONLY_WITH = {"HOROVOD_AUTOTUNE": "--autotune", "HOROVOD_TIMELINE": "--timeline-filename"}
"""Variables without which those that begin alike have no effect, and their options."""
_CONTROLLER, _OPERATIONS = "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"

# Functions of rows


def _number(kind: str, value: Any) -> float | None:
    """Return the number that a word or a value of YAML is, of the kind "N" or "X"; None if it is none."""
    try:
        number = int(value) if kind == "N" else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if isinstance(value, bool) or (isinstance(value, float) and number != value) else number


def _set(knob: _Knob, value: Any) -> Translation:
    """A setting of the library: keep the value of its variable for `finish`; raises InvalidArgument."""
    if not knob.kind:
        if not isinstance(value, bool):
            raise InvalidArgument(f"'{value}' is neither true nor false", "write true or false")
        text = str(int(value != knob.inverse))
    elif knob.kind in ("FILE", "LEVEL"):
        text = str(value)
        if knob.kind == "LEVEL" and text not in _LEVELS:
            raise InvalidArgument(f"'{text}' is not a log level", "use one of " + ", ".join(_LEVELS))
    else:
        number = _number(knob.kind, value)
        most, limits = (1.0, "0 to 1") if "noise" in knob.option else (1e300, "0 or more")
        if number is None or not 0 <= number <= most:
            wanted = "a whole number" if knob.kind == "N" else "a number"
            raise InvalidArgument(f"'{value}' is not {wanted}, {limits}", f"as in --{knob.option} 1")
        text = str(number * (1 << 20) if knob.option.endswith("-mb") else number)
    return Translation(parts={knob.variable: text})


def _rows_of(knob: _Knob) -> Iterator[Row]:
    if knob.kind:
        unit = "N * 1048576" if knob.option.endswith("-mb") else knob.kind
        yield acts(knob.option, knob.kind, partial(_set, knob), f"`-x {knob.variable}={unit}`")
    else:
        for names, value in ((knob.option, "1"), (_OPPOSITES.get(knob.option, f"no-{knob.option}"), "0")):
            yield acts(names, "", partial(keep, knob.variable, value), f"`-x {knob.variable}={value}`")


def ssh_port(port: str) -> Translation:
    """--ssh-port N: the port of sshd on all hosts."""
    if not port.isdecimal() or not 1 <= int(port[:6]) <= 65535:
        raise InvalidArgument(f"'{port}' is not a port", "a number from 1 to 65535")
    return Translation(("--ssh-option", f"Port={port}"))


# All options together


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the hosts, the controller and the variables that the options and the config file describe together."""
    settings = {**_config(parts, around), **parts}
    result = Translation()
    if least := parts.get("min-np"):
        if "np" in parts:
            result += Translation(notes=((f"--min-np has no effect: {_ALL_START}", 0),))
        else:
            parts = {**parts, "np": str(whole(least, "--min-np"))}
            result += weak("--np", least)
    if not around.names_hosts and "LSB_JOBID" not in around.environ:
        result += _this_machine(parts)
    if seconds := around.environ.get("HOROVOD_START_TIMEOUT"):
        result += weak("--start-timeout", seconds)
    controller = "gloo" if "gloo" in parts else "mpi" if "mpi" in parts else settings.get("controller")
    if "gloo" in parts and "mpi" in parts:
        raise InvalidArgument("--gloo and --mpi contradict each other", "leave one out")
    result += weak("--tag", "ompi" if controller == "mpi" else "[{rank}]<{stream}>:")
    if controller == "mpi":
        result += exports({_CONTROLLER: "mpi"})
    else:
        result += Translation(("--profile", "horovod"))
        if controller is None:
            # As built: with MPI if Horovod has it. What the user exports still counts.
            unset = [name for name in (_CONTROLLER, _OPERATIONS) if name not in around.environ]
            result += Translation(tuple(word for name in unset for word in ("--unset-env", name)))
        else:
            result += exports({_CONTROLLER: "gloo", _OPERATIONS: "gloo"})
    if names := list(dict.fromkeys(filter(None, parts.get("interfaces,", "").split(",")))):
        listed = dict.fromkeys(("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"), ",".join(names))
        result += exports({"HOROVOD_GLOO_IFACE": names[0], **listed})
    return result + _variables(settings), list(words)


def _this_machine(parts: Mapping[str, str]) -> Translation:
    """Return this machine as the only host, with a slot for each rank; `-np` may be set elsewhere."""
    if "np" in parts:
        return weak("--host", f"localhost:{parts['np']}")
    return weak("--host", "localhost") + weak("--oversubscribe")


def _variables(settings: Mapping[str, str]) -> Translation:
    """Return the variables of the library."""
    result = Translation()
    if settings.get("HOROVOD_AUTOTUNE") == "0":
        settings = {name: value for name, value in settings.items() if name != "HOROVOD_AUTOTUNE"}
    for knob in _KNOBS:
        value = settings.get(knob.variable)
        needed = next((name for name in _ONLY_WITH if knob.variable.startswith(name + "_")), knob.variable)
        if value is None:
            continue
        if needed not in settings:
            note = f"--{knob.option} has no effect without {_ONLY_WITH[needed]}"
            result += Translation(notes=((note, 0),))
        else:
            result += exports({knob.variable: value})
    return result


def _config(parts: Mapping[str, str], around: Surroundings) -> dict[str, str]:
    """Return the settings of --config-file; the command line overrides them."""
    if "config-file" not in parts:
        return {}
    from mpilaunch.cli.files import parse_yaml

    path = parts["config-file"]
    data, _ = parse_yaml(path, around.read_file(path, "config file of Horovod"))
    by_key = {knob.key: knob for knob in _KNOBS}
    # Until 0.21 the key was called as the option was, and had its sense.
    by_key["logging.hide_timestamp"] = by_key["logging.with_timestamp"]._replace(inverse=False)
    result: dict[str, str] = {}
    for section, values in (data if isinstance(data, dict) else {"": data}).items():
        if section == "controller" and str(values).lower() in ("gloo", "mpi"):
            result["controller"] = str(values).lower()
            continue
        for key, value in (values if isinstance(values, dict) else {"": values}).items():
            if f"{section}.{key}" not in by_key:
                hint = "controller (gloo or mpi), " + ", ".join(by_key)
                raise InvalidArgument(f"{path}: '{section}{key and f'.{key}'}' is not a setting of horovodrun", hint)
            if value is not None:
                try:
                    result |= _set(by_key[f"{section}.{key}"], value).parts
                except InvalidArgument as error:
                    raise InvalidArgument(f"{path}: {section}.{key}: {error.args[0]}", error.args[1]) from None
    return result


# Rows

_ELASTIC = (
    "mpilaunch has no elastic training; it restarts all ranks, on the hosts that are left: "
    "mpilaunch --profile horovod --nnodes MIN:MAX --max-restarts N"
)
_ALL_START = "all ranks of -np start; --max-restarts N starts them anew after a failure"
_MPIRUN = "give them to mpirun, by mpilaunch under its name: mpirun -np 4 -H a:2,b:2 ARGS PROGRAM"

_ROWS = (
    acts("np num-proc", "N", lambda number: Translation(("--np", number), parts={"np": number}), "`-np N`"),
    acts("v", "", "--version"),
    refused("check-build cb", "", "mpilaunch does not import Horovod; ask it: python -m horovod.runner.launch --check-build"),
    needless("disable-cache", "", "mpilaunch keeps no results of earlier checks"),
    part("network-interfaces network-interface", "NAMES",
        "`-x HOROVOD_GLOO_IFACE=FIRST -x NCCL_SOCKET_IFNAME=NAMES -x OMPI_MCA_btl_tcp_if_include=NAMES`", "interfaces,"),
    part("config-file", "FILE", "the settings of a YAML file, which options override"),
    acts("ssh-port p", "PORT", ssh_port, "`--ssh-option Port=PORT`"),
    acts("ssh-identity-file i", "FILE", "--ssh-option IdentityFile=$1"),
    part("gloo", "", "`--profile horovod`; without --gloo and --mpi the same, and Horovod uses MPI if it was built with it"),
    part("mpi", "", "`-x HOROVOD_CONTROLLER=mpi`"),
    refused("jsrun", "", "mpilaunch starts the ranks itself: leave it out"),
    refused("mpi-args binding-args", "ARGS", _MPIRUN),
    acts("tcp", "", "--export NCCL_IB_DISABLE=1"),
    acts("prefix-output-with-timestamp prefix-timestamp", "", "--timestamp-output"),
    *(row for knob in _KNOBS for row in _rows_of(knob)),
    part("min-np min-num-proc", "N", "`-np N` without -np, else nothing: " + _ALL_START),
    ignored("max-np max-num-proc", "N", _ALL_START),
    refused("slots-per-host slots elastic-timeout reset-limit", "N", _ELASTIC),
    refused("blacklist-cooldown-range", "MIN MAX", _ELASTIC),
    refused("host-discovery-script", "COMMAND", _ELASTIC),
)  # fmt: skip

DIALECT = Dialect(
    name="horovodrun",
    title="horovodrun",
    owner="horovodrun's",
    rows=_ROWS,
    defaults={"forward": ("all", "horovodrun's default")},
    modules=("horovod.runner.launch",),
    finish=finish,
)
