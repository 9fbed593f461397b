"""Options of jsrun, the launcher of IBM's Job Step Manager in LSF. Source: its man page, and OLCF's user guide of Summit.

A resource set (RS) is a part of a host: CPUs, GPUs and the ranks that share them. mpilaunch starts the ranks of all sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    fill_pattern,
    ignored,
    part,
    refused,
    whole,
)

_FIELDS = {"t": "{rank}", "h": "{host}", "j": "{job}", "%": "%"}


def file_pattern(flag: str, pattern: str) -> Translation:
    """--stdio_stdout out.%t: write a stream to files."""
    return Translation((flag, fill_pattern(pattern, _FIELDS)))


def stdio_mode(mode: str) -> Translation:
    """--stdio_mode collected or prepended: all output here, in the latter case after the rank."""
    if mode not in ("collected", "prepended"):
        raise InvalidArgument(f"mode '{mode}' is not supported", "write files: --stdio_stdout 'out.%t' --stdio_stderr 'err.%t'")
    return Translation(("--tag", "{rank}: ") if mode == "prepended" else ())


def exit_on_error(value: str) -> Translation:
    """--exit_on_error 0 or 1: whether a failed rank ends the job."""
    return Translation(("--no-continue-on-error" if whole(value, "--exit_on_error", 0) else "--continue-on-error",))


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the ranks of the resource sets, with their CPUs and GPUs."""
    sets, per_host = (whole(parts[key], f"--{key}") if key in parts else None for key in ("nrs", "rs_per_host"))
    ranks = whole(parts["np"], "--np") if "np" in parts else None
    each = whole(parts["tasks_per_rs"], "--tasks_per_rs") if "tasks_per_rs" in parts else None
    if each is None:
        each = ranks // sets if ranks and sets and ranks % sets == 0 else 1
    if ranks and sets and ranks != sets * each:
        hint = f"leave --np out: {sets} resource sets with {each} ranks are {sets * each}"
        raise InvalidArgument(f"--np {ranks} ranks do not fill {sets} resource sets equally", hint)
    several = sets != 1 and {"cpu_per_rs", "gpu_per_rs"} & parts.keys()
    if per_host is None and several and parts.get("cpu_per_rs", "1") != "1":
        raise InvalidArgument("how many resource sets fit on a host is not known", "add --rs_per_host N, -rN, their number")
    result = Translation(("--npernode", str(each * per_host)) if per_host else ())
    if sets or ranks:
        result += Translation(("--np", str(ranks or (sets or 1) * each)))
    distribution = parts.get("launch_distribution", "packed")
    if distribution != "packed" and each > 1 and sets != 1 and distribution != f"plane:{each}":
        hint = "use packed, the default; --map-by and --rank-by of mpilaunch number ranks otherwise"
        raise InvalidArgument(f"--launch_distribution {distribution} of several ranks in a set is not supported", hint)
    return result + _binding(parts, each) + _gpus(parts, each, sets == 1 or per_host == 1), list(words)


def _binding(parts: Mapping[str, str], each: int) -> Translation:
    bind, cpus = parts.get("bind", "packed:1"), parts.get("cpu_per_rs", "1")
    if bind == "none":
        return Translation(("--bind-to", "none"))
    if bind == "rs" and each == 1 and cpus != "ALL_CPUS":
        bind = f"packed:{cpus}"
    if (match := re.fullmatch(r"(?:proportional-)?packed:([0-9]+)", bind)) is None:
        raise InvalidArgument(f"--bind {bind} is not supported", "use none, packed:N, or rs with one rank in a resource set")
    return Translation(("--bind-to", "core", "--cpus-per-rank", match[1]) if "bind" in parts else ())


def _gpus(parts: Mapping[str, str], each: int, whole_host: bool) -> Translation:
    gpus = parts.get("gpu_per_rs", "0")
    if gpus == "0":
        return Translation()
    if gpus != "ALL_GPUS" and each == 1:
        return Translation(("--gpus-per-rank", gpus))
    if whole_host:
        return Translation(("--gpu-bind", "node"))
    hint = "give each rank a resource set of its own, -a1, or have one resource set on each host, -r1"
    raise InvalidArgument("several ranks that share the GPUs of a part of a host are not supported", hint)


_ROWS = (
    part("nrs n", "N", "`--np` of N resource sets"),
    part("tasks_per_rs a", "N", "ranks of a resource set, 1 without it"),
    part("np p", "N", "`--np N`"),
    part("rs_per_host r", "N", "`--npernode` of N resource sets"),
    part("cpu_per_rs c", "N", "the cores of a resource set, for --bind rs"),
    part("gpu_per_rs g", "N", "`--gpus-per-rank N` with one rank in a set, `--gpu-bind node` with one set on a host"),
    part("bind b", "POLICY", "none, rs, or packed:N: `--bind-to core --cpus-per-rank N`; without it ranks are not bound"),
    part("launch_distribution d", "POLICY", "packed; others are errors where a set has several ranks"),
    ignored("latency_priority l", "POLICY", "ranks are bound near their GPU with --bind-to numa"),
    refused("rs_per_socket K", "N", "use --rs_per_host"),
    ignored("memory_per_rs m", "SIZE", "mpilaunch limits no memory"),
    acts("env E", "NAME[=VALUE]", "--export $1"),
    refused("env_eval F", "NAME=VALUE", "use --env; the shell evaluates before"),
    acts("env_no_propagate D", "", "--forward none"),
    acts("chdir h", "DIR", "--wdir $1"),
    ignored("smpiargs M", "ARGUMENTS", "they are for Spectrum MPI; -E OMPI_MCA_NAME=VALUE sets a parameter of Open MPI"),
    acts("stdio_stdout o", "FILE", partial(file_pattern, "--output-file"), "`--output-file` with %t, %h and %j"),
    acts("stdio_stderr k", "FILE", partial(file_pattern, "--error-file"), "`--error-file` with the same fields"),
    refused("stdio_input t", "FILE", "redirect it: jsrun ... < FILE"),
    acts("stdio_mode e", "MODE", stdio_mode, "collected, the default, or prepended: `--tag '{rank}: '`"),
    acts("exit_on_error X", "N", exit_on_error, "0: `--continue-on-error`; 1, the default here: a failure ends the job"),
    refused("appfile f", "FILE", "--app FILE has a program on each line"),
    refused("erf_input U", "FILE", "use --rankfile, or a slot map"),
    refused("erf_output S", "FILE", "--dry-run --json prints the plan"),
    refused("pre_post_exec P", "PROGRAM", "start the program by a script that runs the others"),
    refused("immediate i", "", "put the command into the background: jsrun ... &"),
    refused("allocate_only A", "FILE", "mpilaunch reserves nothing"),
    ignored("use_spindle L", "ON", "copy libraries to the nodes first"),
)

DIALECT = Dialect(
    name="jsrun",
    title="LSF's jsrun",
    owner="jsrun's",
    rows=_ROWS,
    defaults={"forward": ("all", "jsrun's default")},
    getopt=True,
    finish=finish,
)
