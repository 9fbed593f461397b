"""Options of Open MPI's mpirun that are not the same as ours: 4.1 (`mpirun --help all`) and 5.0 (PRRTE's schizo_ompi.c).

Pure. Options of the same name and meaning, such as -np, -x and --map-by, are in the table of `cli.options`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from mpilaunch.cli.dialects.mpi import mca
from mpilaunch.cli.dialects.rows import (
    DEBUGGER,
    MPI,
    STAGE,
    Dialect,
    InvalidArgument,
    Translation,
    acts,
    fill_pattern,
    ignored,
    needless,
    refused,
    words_of,
)

# Functions of rows


def prefix(folder: str) -> Translation:
    """--prefix DIR: search the installation in DIR first for programs and libraries."""
    folder = folder.rstrip("/") or "/"
    return Translation(("--prepend-env", "PATH", f"{folder}/bin", "--prepend-env", "LD_LIBRARY_PATH", f"{folder}/lib"))


_OUTPUT = {
    "TAG": "--tag [1,{rank}]<{stream}>:_",
    "TAG-DETAILED": "--tag [1,{rank}][{host}]<{stream}>:_",
    "TAG-FULLNAME": "--tag [{job}@1,{rank}]<{stream}>:_",
    "RANK": "--tag [{rank}]<{stream}>:_",
    "TIMESTAMP": "--timestamp-output",
    "MERGE": "--merge-stderr-to-stdout",
    "MERGE-STDERR-TO-STDOUT": "--merge-stderr-to-stdout",
    "NOCOPY": "--no-copy",
    "COPY": "--copy",
}
"""Items of Open MPI 5's --output, and our options; "_" is a space."""
_OTHER_OUTPUT = ("DIR", "DIRECTORY", "FILE", "FILENAME", "XML", "RAW", "PATTERN")


def output(items: str) -> Translation:
    """--output TAG,DIR=d:COPY,...: the format and the destination of output."""
    words: list[str] = []
    files: list[str] = []
    copied = False
    for item, key, text in _items(items, (*_OUTPUT, *_OTHER_OUTPUT)):
        if key in ("DIR", "DIRECTORY") and text:
            files += ["--output-filename", text]
        elif key in ("FILE", "FILENAME") and text:
            path = fill_pattern(text, {}).replace("%", "%%")
            files += ["--output-file", f"{path}.{{rank}}.out", "--error-file", f"{path}.{{rank}}.err"]
        elif key in _OUTPUT and "=" not in item:
            copied = copied or key == "COPY"
            words += [word.replace("_", " ") for word in _OUTPUT[key].split()]
        elif key == "XML":
            raise InvalidArgument("XML is not supported", "--report FILE writes a report of the job as JSON; --tag marks lines")
        elif key not in ("RAW", "PATTERN"):
            known = ", ".join([*_OUTPUT, "DIR=...", "FILE=..."])
            raise InvalidArgument(f"unknown item '{item}'", f"the items are {known}")
    if files and not copied:
        files.append("--no-copy")  # Open MPI 5 prints what it writes to files only with COPY
    return Translation((*words, *files))


def _items(text: str, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the items of a list and their modifiers, which follow a colon: each as written, its key, and its value.

    As in PRRTE, a key may be shortened: `bind` for BINDINGS.
    """
    for item in re.split(r",|:(?![/\\])", text):
        if item:
            key, _, value = item.partition("=")
            longer = [name for name in known if name.startswith(key.upper())]
            yield item, longer[0] if len(longer) == 1 else key.upper(), value


_DISPLAY = {
    **dict.fromkeys(("MAP", "MAP-DEVEL"), "--display-map"),
    **dict.fromkeys(("ALLOCATION", "ALLOC"), "--display-allocation"),
    "BINDINGS": "--report-bindings",
}
_NOT_DISPLAYED = ("TOPO", "CPUS", "PARSEABLE", "PARSABLE", "PHYSICAL")


def display(items: str) -> Translation:
    """--display MAP,ALLOCATION,BINDINGS: what to print before the ranks start."""
    result = Translation()
    for item, key, _ in _items(items, (*_DISPLAY, *_NOT_DISPLAYED)):
        if key in _DISPLAY:
            result += Translation((_DISPLAY[key],))
        elif key in _NOT_DISPLAYED:
            note = f"--display {item} has no effect: --report FILE lists the CPUs and GPUs of each node"
            result += Translation(notes=((note, 0),))
        else:
            raise InvalidArgument(f"unknown item '{item}'", "the items are MAP, ALLOCATION and BINDINGS")
    return result


_FAILURE = "a rank that fails ends the job"
_RUNTIME = {
    "DONOTLAUNCH": "--dry-run",
    "TIMEOUT": "--timeout $1",
    "SPAWN-TIMEOUT": "--start-timeout $1",
    "FWD-ENVIRONMENT": "--forward all",
    **dict.fromkeys(("REPORT-STATE-ON-TIMEOUT", "GET-STACK-TRACES", "SHOW-PROGRESS"), ""),
    **dict.fromkeys(("REPORT-CHILD-JOBS-SEPARATELY", "AGGREGATE-HELP-MESSAGES"), ""),
}
_NOT_RUNTIME = {
    **dict.fromkeys(("RECOVERABLE", "AUTORESTART", "CONTINUOUS", "MAX-RESTARTS", "NOTIFYERRORS"), _FAILURE),
    **dict.fromkeys(("STOP-ON-EXEC", "STOP-IN-INIT", "STOP-IN-APP"), "start the debugger as the program: gdb --args ./a"),
    **dict.fromkeys(("EXEC-AGENT", "DEFAULT-EXEC-AGENT"), "start the agent as the program: agent ./a"),
}


def runtime_options(items: str) -> Translation:
    """--runtime-options TIMEOUT=60,DONOTLAUNCH,...: each item is one of our options."""
    result = Translation()
    for item, key, text in _items(items, ("ERROR-NONZERO-STATUS", *_RUNTIME, *_NOT_RUNTIME)):
        wanted = text.lower() not in ("0", "false", "no")
        if key == "ERROR-NONZERO-STATUS":
            if not wanted:
                raise InvalidArgument(*mca.FAILURE_ENDS_JOB)
        elif key in _NOT_RUNTIME:
            if wanted:
                raise InvalidArgument(f"'{item}' is not supported", _NOT_RUNTIME[key])
        elif key not in _RUNTIME:
            raise InvalidArgument(f"unknown runtime option '{item}'", "the options are " + ", ".join(_RUNTIME))
        elif wanted:
            if "$1" in _RUNTIME[key] and not text:
                raise InvalidArgument(f"'{item}' has no value", f"write {key}=SECONDS")
            result += words_of(_RUNTIME[key], [text])
    return result


# Rows

_FAILS = f"{_FAILURE}; --max-restarts N restarts all ranks, see docs/restarts.md"

_ROWS = (
    # Ranks and nodes
    acts("ppr", "LIST", "--map-by ppr:$1"),
    acts("byslot", "", "--map-by slot"),
    acts("mapby", "POLICY", "--map-by $1"),
    acts("rankby", "POLICY", "--rank-by $1"),
    acts("bindto", "POLICY", "--bind-to $1"),
    acts("bynode", "", "--map-by node"),
    acts("bycore", "", "--map-by core"),
    acts("default-hostfile", "FILE", "--hostfile $1", "unless the user names other hosts", weak=True),
    acts("add-host", "HOSTS", "--host $1"),
    acts("add-hostfile", "FILE", "--hostfile $1"),
    refused("max-vm-size", "N", "choose hosts with --host"),
    needless("novm", "", "daemons run only on nodes that run ranks"),
    needless("do-not-resolve use-regexp fwd-mpirun-port enable-instant-on-support", "", "mpilaunch does not need it"),
    needless("hetero-nodes homogeneous", "", "every node reports its own topology"),
    refused("cf cartofile", "FILE", "mpilaunch detects devices and their NUMA nodes; --slot-map overrides them"),
    refused("dvm", "", "mpilaunch has no DVM; 'mpilaunch up' keeps daemons between jobs"),
    refused("hnp ompi-server", "URI", "mpilaunch joins no external server: publish and lookup work within one job"),
    # Binding
    acts("bind-to-core", "", "--bind-to core"),
    acts("bind-to-socket", "", "--bind-to socket"),
    # The program
    acts("set-env", "NAME=VALUE", "--export $1"),
    acts("fwd-environment", "", "--forward all", everywhere=True),
    acts("mca omca", "KEY VALUE", mca.parameter, "see the parameters below", joined=True, reads=True),
    acts("gmca gomca", "KEY VALUE", mca.parameter, "the same, for all programs", everywhere=True, joined=True, reads=True),
    acts("prtemca", "KEY VALUE", mca.prrte_parameter, "the same; all other parameters have no effect", joined=True, reads=True),
    acts("pmixmca gpmixmca", "KEY VALUE", "--export PMIX_MCA_$1=$2", joined=True),
    acts("tune am amca", "FILES", mca.tune, "the `-x`, `-mca` and `key = value` lines of files", reads=True),
    acts("memory-alloc-kinds memory-allocation-kinds", "KINDS", "--export OMPI_MCA_mpi_memory_alloc_kinds=$1"),
    acts("initial-errhandler", "NAME", "--export OMPI_MCA_mpi_initial_errhandler=$1"),
    acts("display-comm", "", "--export OMPI_MCA_ompi_display_comm=mpi_init"),
    acts("display-comm-finalize", "", "--export OMPI_MCA_ompi_display_comm=mpi_finalize"),
    acts("stream-buffering", "N", "--export OMPI_MCA_ompi_stream_buffering=$1"),
    acts("prefix app-prefix", "DIR", prefix, "`--prepend-env PATH DIR/bin`, and `LD_LIBRARY_PATH DIR/lib`"),
    acts("path", "DIR", "--prepend-env PATH $1"),
    needless("noprefix no-app-prefix", "", "mpilaunch needs no installation on the nodes"),
    ignored("pmix-prefix app-pmix-prefix", "DIR", "ranks find PMIx by their library path, which --prefix DIR sets"),
    refused("s preload-binary", "", STAGE),
    refused("preload-files", "FILES", STAGE),
    refused("set-cwd-to-session-dir", "", "choose a directory with --wdir"),
    refused("index-argv-by-rank", "", "each rank has its number in OMPI_COMM_WORLD_RANK"),
    needless("personality", "NAME", "mpilaunch supports every MPI; see --mpi"),
    needless("pset", "NAME", "mpilaunch has no named process sets"),
    ignored("gpu-support", "YES", "the library decides; set its own variable with -x"),
    refused("soft arch file", "VALUE", "choose the number of ranks with -np, and the nodes with --host"),
    # Output
    acts("output", "LIST", output, "TAG, RANK, TIMESTAMP, MERGE, DIR=, FILE= as our output options"),
    acts("output-directory", "DIR", "--output-filename $1"),
    refused("xml", "", "--report FILE writes a report of the job as JSON; --tag marks lines"),
    refused("xml-file", "FILE", "--report FILE writes a report of the job as JSON; --output-filename writes the ranks' output"),
    refused("xterm", "RANKS", "start a terminal as the program: xterm -hold -e ./a"),
    ignored("p parseable parsable", "", "use --dry-run --json for a plan, --report FILE for a job"),
    # Looking
    acts("display-devel-map display-diffable-map", "", "--display-map"),
    acts("display-devel-allocation", "", "--display-allocation"),
    acts("display", "LIST", display, "MAP, ALLOCATION and BINDINGS, as our options of these names"),
    refused("display-topo", "", "--report FILE lists the CPUs and GPUs of each node"),
    acts("do-not-launch", "", "--dry-run"),
    acts("d debug-devel debug-daemons debug-daemons-file", "", "-vv"),
    acts("rtos runtime-options", "LIST", runtime_options, "its items, as our options of these names"),
    needless("show-progress", "", "mpilaunch shows the progress of a slow start"),
    needless("leave-session-attached", "", "-vv prints the daemons' messages"),
    needless("no-aggregate-help do-not-aggregate-help", "", "mpilaunch merges equal messages of nodes"),
    refused("debug stop-on-exec stop-in-init stop-in-app", "", DEBUGGER),
    refused("debugger", "NAME", DEBUGGER),
    refused("tv", "", DEBUGGER),
    ignored("report-events report-uri", "WHERE", "--report FILE has the node and times of each rank"),
    ignored("output-proctable", "", "--report FILE has the node and times of each rank"),
    ignored("report-pid", "WHERE", "the shell has it in $!"),
    # Reaching the nodes
    ignored("launch-agent", "COMMAND", "mpilaunch starts no orted; --python sets the interpreter on the nodes"),
    needless("tmpdir", "DIR", "mpilaunch writes nothing to a node's disk"),
    # Ends
    acts("spawn-timeout", "SECONDS", "--start-timeout $1"),
    needless("report-state-on-timeout", "", "--report FILE has the state of every rank"),
    needless("get-stack-traces", "", "--timeout prints the stacks of Python and tells of each rank where it is"),
    needless("disable-recovery report-child-jobs-separately enable-auto-cleanup", "", "mpilaunch always behaves so"),
    refused("enable-recovery continuous", "", _FAILS),
    refused("with-ft", "KIND", _FAILS),
    ignored("forward-signals", "SIGNALS", "mpilaunch forwards SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT"),
)

DIALECT = Dialect(
    name="openmpi",
    title="Open MPI's mpirun",
    owner="Open MPI's",
    rows=_ROWS,
    commands=("mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun"),
    variables={"OMPI_MCA_plm_rsh_num_concurrent": "fanout", "PRTE_MCA_plm_ssh_num_concurrent": "fanout"},
    defaults={**MPI, "stdout": ("pty", "Open MPI's default")},
    marks=("-x", "-H", "-N", "--npernode", "--pernode", "--oversubscribe"),
)
