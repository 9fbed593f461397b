"""Options of Slurm's srun (srun(1) of 22.05 and 23.11). mpilaunch is no step of Slurm: it starts the ranks on the nodes itself.

Inside an allocation the tasks are placed on its nodes by their CPUs, as srun places them. Outside, -w or our own options name
the nodes; nothing here requests an allocation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from mpilaunch.cli.dialects.batch.multi_prog import programs_of
from mpilaunch.cli.dialects.batch.requests import asks, check
from mpilaunch.cli.dialects.batch.step import label, lay_out, levels, nodes_of, placed, request_of, without_allocation
from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    fill_pattern,
    ignored,
    needless,
    part,
    refused,
    weak,
    whole,
)
from mpilaunch.job.environment.contracts import is_listed
from mpilaunch.job.environment.contracts.batch_systems import OF_TASKS
from mpilaunch.text import escape_braces, is_whole_number

# Functions of rows


def kill_on_bad_exit(value: str = "1") -> Translation:
    """-K, -K0, -K1: whether a task that fails ends the others."""
    return Translation(("--no-continue-on-error" if whole(value, "--kill-on-bad-exit", 0) else "--continue-on-error",))


def wait(seconds: str) -> Translation:
    """-W SECONDS: end the tasks that outlive the first by this time; 0 is without limit."""
    if whole(seconds, "--wait", 0):
        raise InvalidArgument("tasks are not ended some time after the first one", "--timeout TIME ends the job after a time")
    return Translation()


_N = "([0-9]{1,9})"
_TIME = f"(?:{_N}-{_N}(?::{_N})?(?::{_N})?|(?:{_N}:)??{_N}(?::{_N})?)"


def time(text: str) -> Translation:
    """-t MINUTES, MM:SS, HH:MM:SS, DAYS-HH, DAYS-HH:MM or DAYS-HH:MM:SS: rounded up to minutes; 0 is without limit."""
    if (match := re.fullmatch(_TIME, text)) is None:
        hint = "write minutes, minutes:seconds, hours:minutes:seconds, or days-hours[:minutes[:seconds]]"
        raise InvalidArgument(f"'{text}' is not a time of Slurm", hint)
    days, hours, minutes, seconds, plain_hours, plain_minutes, plain_seconds = (int(group or 0) for group in match.groups())
    total = ((days * 24 + hours + plain_hours) * 60 + minutes + plain_minutes) * 60 + seconds + plain_seconds
    return Translation(("--timeout", f"{-(-total // 60)}m") if total else ())


_UNITS = {
    "none": "none",
    "no": "none",
    "cores": "core",
    "threads": "hwthread",
    "sockets": "socket",
    "ldoms": "numa",
    "rank": "rr",
}


def _repeated(items: str, number: str) -> list[str]:
    """Return Slurm's `0*2,3` as 0, 0, 3."""
    found = [re.fullmatch(rf"({number})(?:\*([0-9]{{1,5}}))?", item) for item in items.split(",")]
    if None in found:
        raise InvalidArgument(f"'{items}' is not a list", "write numbers between commas, like 0,2,4 or 0*2,3")
    return [match[1] for match in found if match for _ in range(int(match[2] or 1))]


def cpu_bind(text: str) -> Translation:
    """--cpu-bind [quiet|verbose,]TYPE."""
    first, _, rest = text.partition(",")
    if first in ("v", "verbose", "q", "quiet"):
        report = Translation(("--report-bindings",) if first.startswith("v") else ())
        return report + (_binding_of(rest) if rest else Translation())
    return _binding_of(text)


def _binding_of(text: str) -> Translation:
    kind, _, items = text.partition(":")
    if kind == "map_cpu" and items:
        lists = [
            str(int(item, 16 if item.startswith("0x") else 10)) for item in _repeated(items, "0x[0-9a-fA-F]{1,8}|[0-9]{1,9}")
        ]
    elif kind == "mask_cpu" and items:
        masks = [f"{int(item, 16):b}"[::-1] for item in _repeated(items, "(?:0x)?[0-9a-fA-F]+")]
        lists = ["+".join(str(cpu) for cpu, bit in enumerate(mask) if bit == "1") for mask in masks]
    elif text in _UNITS:
        return Translation(parts={"cpu-bind": _UNITS[text]})
    else:
        hint = "use none, cores, threads, sockets, ldoms, rank, map_cpu:LIST or mask_cpu:LIST, or --bind-to of mpilaunch"
        raise InvalidArgument(f"binding '{text}' is not supported", hint)
    return Translation(parts={"cpu-bind": f"user:{','.join(lists)}"})


def mem_bind(text: str) -> Translation:
    """--mem-bind none or local: what Linux does by itself."""
    if not {*text.split(",")} <= {"none", "no", "local", "q", "quiet", "nosort"}:
        raise InvalidArgument(f"memory binding '{text}' is not supported", "start the program as: numactl --membind=... ./a")
    return Translation(notes=(("--mem-bind has no effect: Linux takes memory near the CPU of a rank", 1),))


def gpus_per_task(text: str) -> Translation:
    """--gpus-per-task [TYPE:]N."""
    kind, _, number = text.rpartition(":")
    note = (f"--gpus-per-task: the type {kind} has no effect: mpilaunch takes the GPUs that a node has", 0)
    return Translation(("--gpus-per-rank", number), notes=(note,) if kind else ())


def gpu_bind(text: str) -> Translation:
    """--gpu-bind none, per_task:N or single:1."""
    kind, _, number = text.removeprefix("verbose,").partition(":")
    if kind == "none":
        return Translation(("--gpu-bind", "none"))
    if kind == "per_task" or text == "single:1":
        return Translation(("--gpus-per-rank", number))
    hint = "use --gpus-per-task N, and --cpu-bind ldoms for CPUs near the GPU; a slot map names the GPUs of each rank"
    raise InvalidArgument(f"binding '{text}' is not supported", hint)


def mpi(name: str) -> Translation:
    """--mpi none, pmi2, pmix or pmix_v4."""
    if name not in ("none", "pmi2") and not re.fullmatch(r"pmix(_v[0-9]+)?", name):
        hint = "leave it out: without it each MPI library finds PMI-1, PMI-2 and PMIx"
        raise InvalidArgument(f"'{name}' is not supported", hint)
    return Translation(("--mpi", name.partition("_")[0]))


_AS_CORES = ("nomultithread", "compute_bound")


def hint(text: str) -> Translation:
    """--hint nomultithread, compute_bound or multithread: whether CPUs are cores or hardware threads."""
    if text not in (*_AS_CORES, "multithread"):
        raise InvalidArgument(f"hint '{text}' is not supported", "use nomultithread, compute_bound, multithread, or --cpu-bind")
    return Translation(parts={"cores": "no" if text == "multithread" else "yes"})


def threads_per_core(number: str) -> Translation:
    """--threads-per-core 1: CPUs are cores."""
    return Translation(parts={"cores": "yes" if whole(number, "--threads-per-core") == 1 else "no"})


def open_mode(mode: str) -> Translation:
    """--open-mode truncate: what mpilaunch does."""
    if mode not in ("t", "truncate"):
        raise InvalidArgument(f"mode '{mode}' is not supported", "name another file: mpilaunch replaces what is in it")
    return Translation()


# All options together


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the nodes, tasks, files and variables that the options describe together, and the program."""
    environ = around.environ
    hosts = [] if around.names_hosts else nodes_of(parts, around)
    result = check(parts, "SLURM_JOB_ID" in environ, "run salloc or sbatch")
    result += _binding(parts, environ) + _output(parts, environ)
    result += _variables(parts.get("export", "ALL"), environ)
    if cpus := parts.get("cpus-per-task"):
        result += Translation(("--export", f"SLURM_CPUS_PER_TASK={cpus}"))
    if environ.get("SLURM_GPU_BIND") == "none":
        result += weak("--gpu-bind", "none")
    if around.programs > 1:
        return result + _program_of_several(parts), list(words)
    tasks = parts.get("ntasks") or environ.get("SLURM_NTASKS") or environ.get("SLURM_NPROCS")
    request = request_of(parts, around, hosts, whole(tasks, "--ntasks") if tasks else None)
    if not hosts:
        return result + without_allocation(parts, request, around.names_hosts), list(words)
    layout = lay_out(hosts, request)
    result += placed(layout, request.method) + label(parts, layout.tasks)
    if "multi-prog" in parts:
        result += Translation(programs=programs_of(words, layout.tasks, around))
    return result, list(words)


def _program_of_several(parts: Mapping[str, str]) -> Translation:
    """Return the options of one program of `a : b`: its tasks take the slots that the programs before it leave free."""
    alone = "nodes ntasks-per-node cpus-per-task nodelist nodefile exclude relative distribution multi-prog"
    if wrong := [f"--{name}" for name in alone.split() if name in parts]:
        hint = "leave it out: the programs take the slots of the allocation in turn; --host HOSTS:SLOTS limits the next program"
        raise InvalidArgument(f"{wrong[0]} is not supported for one of several programs", hint)
    return Translation(("--np", str(whole(parts.get("ntasks", "1"), "--ntasks")))) + label(parts)


def _binding(parts: Mapping[str, str], environ: Mapping[str, str]) -> Translation:
    """Return the CPUs of each task: hardware threads, unless they are to be cores."""
    bind, cpus = parts.get("cpu-bind"), whole(parts.get("cpus-per-task", "1"), "--cpus-per-task")
    if cpus > 1 and bind in (None, "core", "hwthread"):
        as_cores = _are_cores(parts, environ)
        threads = () if as_cores else ("--use-hwthread-cpus",)
        words = ("--cpus-per-rank", str(cpus), "--bind-to", "core" if as_cores else "hwthread", *threads)
    else:
        words = ("--bind-to", bind) if bind else ()
    spread = bool(words) and levels(parts)[1] == "cyclic"
    note = "--distribution: tasks take the CPUs of one socket after the other; --map-by socket spreads them"
    return Translation(words, notes=((note, 0),) if spread else ())


def _are_cores(parts: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return whether the CPUs of tasks are cores and not hardware threads, by an option, or by what sbatch was given."""
    if (said := parts.get("cores")) is not None:
        return said == "yes"
    return environ.get("SLURM_HINT") in _AS_CORES or environ.get("SLURM_THREADS_PER_CORE") == "1"


def _output(parts: Mapping[str, str], environ: Mapping[str, str]) -> Translation:
    """Return the destinations of stdout and stderr, and the source of stdin."""
    values = {"j": environ.get("SLURM_JOB_ID", ""), "u": environ.get("USER", "")}
    values |= {"x": parts.get("job-name", environ.get("SLURM_JOB_NAME", ""))}
    values |= {"A": environ.get("SLURM_ARRAY_JOB_ID", ""), "a": environ.get("SLURM_ARRAY_TASK_ID", "4294967294")}
    fields = {name: escape_braces(value) for name, value in values.items()}
    fields["j"] = fields["j"] or "{job}"
    fields |= {"A": fields["A"] or fields["j"], "J": f"{fields['j']}.{{job}}", "s": "{job}"}
    fields |= {"t": "{rank}", "n": "{node_rank}", "N": "{host}", "%": "%"}

    def file_of(stream: str, default: str) -> str:
        text = parts.get(stream, default)
        if is_whole_number(text, 9):
            raise InvalidArgument(f"--{stream} {text}: the output of one task", f"write it to files: --{stream} 'out.%t'")
        known = {"all": "", "none": "/dev/null"}
        return known[text] if text in known else fill_pattern(text, fields, widths=True)

    out = file_of("output", "all")
    error = file_of("error", parts.get("output", "all"))
    result = Translation(("--output-file", out) if out else ())
    if out and out == error:
        result += Translation(("--merge-stderr-to-stdout",))
    elif error:
        result += Translation(("--error-file", error))
    source = parts.get("input", "all")
    if source not in ("all", "none") and not is_whole_number(source, 9):
        raise InvalidArgument(f"--input {source}: no file is read for the tasks", f"redirect it: srun ... < {source}")
    if "label" in parts and (out or error):
        result += Translation(notes=(("--label has no effect on files: name them by task, with %t", 0),))
    return result + (Translation(("--stdin", source)) if "input" in parts else Translation())


def _variables(export: str, environ: Mapping[str, str]) -> Translation:
    """Return the variables of the tasks: those of --export, and Slurm's of the allocation."""
    own = (name for name in environ if name.startswith("SLURM_") and not is_listed(name, OF_TASKS))
    result = Translation((*chain.from_iterable(("--export", name) for name in own), "--profile", "slurm"))
    items = [item for item in export.split(",") if item]
    if "ALL" not in items:
        result += Translation(("--forward", "none"))
    for item in items:
        name, equals, _ = item.partition("=")
        if item in ("ALL", "NONE", "NIL") or ("ALL" in items and name in environ):
            continue  # with ALL, srun prefers the variable of its own environment
        if equals or name in environ:
            result += Translation(("--export", item))
        else:
            result += Translation(notes=((f"--export {name} has no effect: this variable is not set", 0),))
    return result


# Rows

_BROADCAST = "copy the program to the nodes first, for example with sbcast"
_AROUND = "start the program by a script that runs the one and the other"
_GPUS = "each rank sees the GPUs of its node; --gpus-per-task N gives each rank its own"
_MEMORY = "mpilaunch limits no memory of ranks; the allocation does"
_SHARED = "mpilaunch takes no CPUs from other commands in the allocation; --cpu-set LIST keeps commands apart"

_ROWS = (
    # Tasks and nodes
    part("ntasks n np", "N", "`--np N`; without it one rank on each node, or as the allocation says"),
    part("nodes N", "MIN[-MAX]", "the first nodes of the allocation; with `--host` or `--hostfile` `--nnodes`"),
    part("ntasks-per-node", "N", "N ranks on each node; of no effect where the number of ranks is given"),
    part("nodelist w", "HOSTS", "these nodes and, if more are asked for, others; a path with a slash is a file of them"),
    part("nodefile F", "FILE", "the same, from a file"),
    part("exclude x", "HOSTS", "all nodes but these, or those of a file whose path has a slash"),
    part("relative r", "N", "the nodes of the allocation from this one, counted from 0"),
    part("distribution m", "METHOD", "block, cyclic, plane=SIZE, arbitrary with SLURM_HOSTFILE, and Pack: the order of ranks"),
    part("overcommit O", "", "more ranks than CPUs"),
    part("multi-prog", "", "the program's word is a file of lines `RANKS PROGRAM ARGUMENTS` with %t and %o"),
    refused("het-group pack-group", "GROUPS", "separate the programs with ':'; they share the allocation of this shell"),
    refused("jobid", "ID", "run mpilaunch inside that job: srun --jobid=ID --overlap --pty bash, or from its batch script"),
    refused("test-only", "", "--dry-run prints the plan"),
    refused("no-allocate Z", "", "name nodes with -w, outside an allocation"),
    # CPUs and GPUs
    part("cpus-per-task c", "N", "`--cpus-per-rank N --bind-to hwthread`, and room for so many fewer ranks"),
    acts("cpu-bind", "TYPE", cpu_bind, "`--bind-to`: none, core, socket, hwthread for threads, numa for ldoms, rr, or lists"),
    acts("mem-bind", "TYPE", mem_bind, "nothing for none and local, as Linux does so; other types are errors"),
    acts("hint", "TYPE", hint, "nomultithread and compute_bound: CPUs are cores, not hardware threads"),
    acts("threads-per-core", "N", threads_per_core, "1: CPUs are cores, not hardware threads"),
    acts("gpus-per-task", "N", gpus_per_task, "`--gpus-per-rank N`; a type, as in a100:2, has no effect"),
    acts("gpu-bind tres-bind", "TYPE", gpu_bind, "none: `--gpu-bind none`; per_task:N and single:1: `--gpus-per-rank`"),
    refused("accel-bind", "TYPE", "--cpu-bind ldoms binds each rank near its GPU"),
    # Output
    part("label l", "", "`--tag '{rank}: '`, padded to the widest rank"),
    part("output o", "FILE", "all, none, or `--output-file` with %j %J %s %t %n %N %u %x %A %a; stderr too, without -e"),
    part("error e", "FILE", "all, none, or `--error-file` with the same fields"),
    part("input i", "SOURCE", "all, which is the default, none or a rank: `--stdin`"),
    acts("open-mode", "MODE", open_mode, "truncate, which mpilaunch does"),
    acts("quiet Q", "", "--quiet"),
    ignored("unbuffered u", "", "output goes through pipes, line by line; start a C program as: stdbuf -oL ./a"),
    ignored("slurmd-debug", "LEVEL", "-vv prints what the nodes do"),
    refused("pty", "", "use ssh -t, or Slurm's srun --pty"),
    refused("x11", "[WHERE]", "use ssh -X"),
    refused("usage", "", "--help lists the options"),
    # The program
    part("export", "NAMES", "`--forward all`, the default, or `--forward none` and `-x` for each name"),
    acts("chdir D", "DIR", "--wdir $1"),
    acts("mpi", "TYPE", mpi, "`--mpi`: none, pmi2 or pmix; by default each library finds what it needs"),
    part("job-name J", "NAME", "%x in names of files"),
    ignored("preserve-env E", "", "variables of the allocation reach the ranks, and the numbers of tasks are those of the job"),
    refused("bcast", "[PATH]", _BROADCAST),
    refused("send-libs compress", "[TYPE]", _BROADCAST),
    refused("bcast-exclude", "PATHS", _BROADCAST),
    refused("container", "PATH", "start the program as: apptainer exec IMAGE ./a"),
    refused("prolog epilog task-prolog task-epilog", "PROGRAM", _AROUND),
    # Ends
    acts("kill-on-bad-exit K", "[N]", kill_on_bad_exit, "0, the default: `--continue-on-error`; else a failure ends the job"),
    acts("wait W", "SECONDS", wait, "0: ranks may outlive the first that ends; other times are errors"),
    acts("time t", "TIME", time, "`--timeout TIME`, in Slurm's formats, rounded up to minutes"),
    needless("no-kill k", "[N]", "a lost node does not end the ranks of the others, unless -K is given"),
    needless("disable-status X quit-on-interrupt", "", "the first ^C ends the ranks"),
    acts("threads T", "N", "--fanout $1"),
    needless("msg-timeout", "SECONDS", "--start-timeout and --heartbeat have defaults that suffice"),
    # What an allocation has
    needless("overlap", "", "mpilaunch takes no CPUs from other commands in the allocation"),
    asks("exclusive", "[user]", _SHARED),
    asks("exact", "", _SHARED),
    asks("constraint C", "LIST", "-w and -x choose among the nodes of the allocation"),
    asks("mem mem-per-cpu mem-per-gpu", "SIZE", _MEMORY),
    asks("gpus G gpus-per-node gres", "NUMBER", _GPUS),
    asks("cpu-freq gpu-freq", "RANGE", "the frequency stays as it is"),
    asks("network", "TYPE", "the network is that of the allocation"),
    asks("resv-ports", "[N]", "MASTER_PORT is a free port"),
    asks("propagate", "[LIMITS]", "ranks have the limits of a login on their node; set others by sh -c 'ulimit ...; exec ./a'"),
    asks("profile power acctg-freq", "TYPE", "Slurm accounts for the allocation only"),
    asks(
        "account A bb bbf begin b clusters M cluster-constraint comment core-spec S cores-per-socket cpus-per-gpu deadline"
        " delay-boot dependency d extra-node-info B gid gpus-per-socket gres-flags licenses L mail-type mail-user mcs-label"
        " mincpus ntasks-per-core ntasks-per-gpu ntasks-per-socket partition p prefer priority qos q reservation signal"
        " sockets-per-node switches thread-spec time-min tmp uid wckey",
        "VALUE",
    ),
    asks("contiguous hold H oversubscribe s reboot spread-job use-min-nodes", ""),
    asks("immediate I nice", "[N]"),
)

DIALECT = Dialect(
    name="srun",
    title="Slurm's srun",
    owner="srun's",
    rows=_ROWS,
    defaults={
        name: (value, "srun's default")
        for name, value in (("forward", "all"), ("stdin", "all"), ("continue-on-error", "yes"), ("exit-code", "largest"))
    },
    variables={
        "SLURM_CPU_BIND": "--cpu-bind",
        "SLURM_DISTRIBUTION": "--distribution",
        "SLURM_EXPORT_ENV": "--export",
        "SRUN_EXPORT_ENV": "--export",
        "SLURM_GPUS_PER_TASK": "--gpus-per-task",
        "SLURM_KILL_BAD_EXIT": "--kill-on-bad-exit",
        "SLURM_LABELIO": "--label",
        "SLURM_MPI_TYPE": "--mpi",
        "SLURM_OVERCOMMIT": "--overcommit",
        "SLURM_STDERRMODE": "--error",
        "SLURM_STDINMODE": "--input",
        "SLURM_STDOUTMODE": "--output",
        "SLURM_THREADS": "--threads",
        "SLURM_TIMELIMIT": "--time",
        "SRUN_CPUS_PER_TASK": "--cpus-per-task",
    },
    getopt=True,
    colon=True,
    finish=finish,
)
