"""Options of Open MPI's mpirun that are not spelled as ours: 4.1 (`mpirun --help all`) and 5.0 (PRRTE's schizo_ompi.c).

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mpilaunch.cli.dialects import mca
from mpilaunch.cli.dialects.rows import (
    Dialect,
    ReadFile,
    Translation,
    Wrong,
    acts,
    fill_pattern,
    ignored,
    needless,
    refused,
    words_of,
)

# Functions of rows

def prefix(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--prefix DIR: programs and libraries of the installation there come first."""
    folder = values[0].rstrip("/") or "/"
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
"""An item of Open MPI 5's --output, and words of ours; "_" is a blank."""


def output(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--output TAG,DIR=d:COPY,...: how output looks and where it goes."""
    words: list[str] = []
    files: list[str] = []
    copied = False
    for item in _items(values[0]):
        key, equals, text = item.partition("=")
        key = key.upper()
        if key in ("DIR", "DIRECTORY") and text:
            files += ["--output-filename", text]
        elif key in ("FILE", "FILENAME") and text:
            path = fill_pattern(text, {}).replace("%", "%%")
            files += ["--output-file", f"{path}.{{rank}}.out", "--error-file", f"{path}.{{rank}}.err"]
        elif key in _OUTPUT and not equals:
            copied = copied or key == "COPY"
            words += [word.replace("_", " ") for word in _OUTPUT[key].split()]
        elif key == "XML":
            raise Wrong("XML is not written", "--report FILE writes what the job did as JSON; --tag marks the lines")
        elif key not in ("RAW", "PATTERN"):
            raise Wrong(f"'{item}' is no item", "the items are " + ", ".join([*_OUTPUT, "DIR=...", "FILE=..."]))
    if files and not copied:
        files.append("--no-copy")  # Open MPI 5 prints what it writes to files only with COPY
    return Translation((*words, *files))


def _items(text: str) -> list[str]:
    """Return the items of a list, and the modifiers behind them, which a colon begins."""
    return [item for item in re.split(r",|:(?![/\\])", text) if item]


def display(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--display MAP,ALLOCATION,BINDINGS: what is printed before the ranks start."""
    known = {"MAP": "map", "MAP-DEVEL": "map", "ALLOCATION": "allocation", "ALLOC": "allocation", "BINDINGS": "bindings"}
    result = Translation()
    for item in _items(values[0]):
        key = item.partition("=")[0].upper()
        if key in ("TOPO", "CPUS", "PARSEABLE", "PARSABLE", "PHYSICAL"):
            note = f"--display {item} changes nothing: --report FILE tells each node's CPUs and GPUs"
            result += Translation(notes=((note, 0),))
        elif key in known:
            result += Translation(("--report-bindings" if key == "BINDINGS" else f"--display-{known[key]}",))
        else:
            raise Wrong(f"'{item}' is nothing to display", "display MAP, ALLOCATION or BINDINGS")
    return result


_RUNTIME = {
    "DONOTLAUNCH": "--dry-run",
    "TIMEOUT": "--timeout $1",
    "SPAWN-TIMEOUT": "--start-timeout $1",
    "FWD-ENVIRONMENT": "--forward all",
    "REPORT-STATE-ON-TIMEOUT": "",
    "SHOW-PROGRESS": "",
    "REPORT-CHILD-JOBS-SEPARATELY": "",
    "AGGREGATE-HELP-MESSAGES": "",
}
_NOT_RUNTIME = {
    **dict.fromkeys(("RECOVERABLE", "AUTORESTART", "CONTINUOUS", "MAX-RESTARTS"), "a rank that fails ends the job"),
    "NOTIFYERRORS": "a rank that fails ends the job",
    **dict.fromkeys(("STOP-ON-EXEC", "STOP-IN-INIT", "STOP-IN-APP"), "start the debugger as the program: gdb --args ./a"),
    **dict.fromkeys(("EXEC-AGENT", "DEFAULT-EXEC-AGENT"), "say the agent's program before the program: agent ./a"),
    "GET-STACK-TRACES": "the ranks get SIGTERM at the time limit; python -X faulthandler or py-spy show a stack",
}


def runtime_options(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--runtime-options TIMEOUT=60,DONOTLAUNCH,...: each item is an option of ours."""
    result = Translation()
    for item in _items(values[0]):
        key, _, text = item.partition("=")
        key = key.upper()
        wanted = text.lower() not in ("0", "false", "no")
        if key == "ERROR-NONZERO-STATUS" and wanted:
            continue
        if key == "ERROR-NONZERO-STATUS":
            raise Wrong("a rank that exits with a failure ends the job", "'sh -c \"./a || true\"' never fails")
        if key in _NOT_RUNTIME and wanted:
            raise Wrong(f"'{item}' is not supported", _NOT_RUNTIME[key])
        if key not in _RUNTIME and key not in _NOT_RUNTIME:
            raise Wrong(f"'{item}' is no runtime option", "the options are " + ", ".join(_RUNTIME))
        if wanted and "$1" in _RUNTIME.get(key, "") and not text:
            raise Wrong(f"'{item}' has no value", f"write {key}=SECONDS")
        if wanted:
            result += words_of(_RUNTIME.get(key, ""), [text])
    return result


# Rows

_DEBUGGER = "start the debugger as the program: xterm -e gdb --args ./a, or attach it to a running rank"
_FAILS = "a rank that fails ends the job; --max-restarts N starts all ranks again, see docs/restarts.md"
_STAGE = "put the files where the nodes see them, or copy them there first"
_DEBUG_DAEMONS = "the daemons' words come with -vv"

_ROWS = (
    # Ranks and nodes
    acts("ppr", "LIST", "--map-by ppr:$1"),
    acts("byslot", "", "--map-by slot"),
    acts("mapby", "POLICY", "--map-by $1"),
    acts("rankby", "POLICY", "--rank-by $1"),
    acts("bindto", "POLICY", "--bind-to $1"),
    acts("bynode", "", "--map-by node"),
    acts("bycore", "", "--map-by core"),
    acts("default-hostfile", "FILE", "--hostfile $1", "where nobody names other hosts", weak=True),
    acts("add-host", "HOSTS", "--host $1"),
    acts("add-hostfile", "FILE", "--hostfile $1"),
    refused("max-vm-size", "N", "choose hosts with --host"),
    needless("novm", "", "daemons run only on nodes that run ranks"),
    needless("do-not-resolve use-regexp fwd-mpirun-port enable-instant-on-support", "", "nothing of the kind is needed"),
    needless("hetero-nodes homogeneous", "", "every node tells its own topology"),
    refused("cf cartofile", "FILE", "devices and their NUMA nodes are found on the nodes; --slot-map names them by hand"),
    refused("dvm", "", "there is no standing virtual machine: the daemons live as long as their job"),
    refused("hnp ompi-server", "URI", "there is no server of others to join: publish and lookup work inside one job"),
    # Binding
    acts("bind-to-core", "", "--bind-to core"),
    acts("bind-to-socket", "", "--bind-to socket"),
    # The program
    acts("set-env", "NAME=VALUE", "--export $1"),
    acts("fwd-environment", "", "--forward all", everywhere=True),
    acts("mca omca", "KEY VALUE", mca.parameter, "see the parameters below", joined=True),
    acts("gmca gomca", "KEY VALUE", mca.parameter, "the same, for all programs", everywhere=True, joined=True),
    acts("prtemca", "KEY VALUE", mca.prrte_parameter, "the same; what does not act goes to nobody", joined=True),
    acts("pmixmca gpmixmca", "KEY VALUE", "--export PMIX_MCA_$1=$2", joined=True),
    acts("tune am amca", "FILES", mca.tune, "the `-x`, `-mca` and `key = value` lines of files"),
    acts("memory-alloc-kinds memory-allocation-kinds", "KINDS", "--export OMPI_MCA_mpi_memory_alloc_kinds=$1"),
    acts("initial-errhandler", "NAME", "--export OMPI_MCA_mpi_initial_errhandler=$1"),
    acts("display-comm", "", "--export OMPI_MCA_ompi_display_comm=mpi_init"),
    acts("display-comm-finalize", "", "--export OMPI_MCA_ompi_display_comm=mpi_finalize"),
    acts("stream-buffering", "N", "--export OMPI_MCA_ompi_stream_buffering=$1"),
    acts("prefix app-prefix", "DIR", prefix, "`--prepend-env PATH DIR/bin`, and `LD_LIBRARY_PATH DIR/lib`"),
    acts("path", "DIR", "--prepend-env PATH $1"),
    needless("noprefix no-app-prefix", "", "nothing is installed on the nodes that a prefix would be for"),
    ignored("pmix-prefix app-pmix-prefix", "DIR", "the ranks' own library path finds PMIx: --prefix DIR sets it"),
    refused("s preload-binary", "", _STAGE),
    refused("preload-files", "FILES", _STAGE),
    refused("set-cwd-to-session-dir", "", "name a directory with --wdir"),
    refused("index-argv-by-rank", "", "a rank finds its number in OMPI_COMM_WORLD_RANK"),
    needless("personality", "NAME", "every MPI is offered what it needs: --mpi"),
    needless("pset", "NAME", "no process set has a name here"),
    ignored("gpu-support", "YES", "the library decides by itself; say its own variable with -x"),
    refused("soft arch file", "VALUE", "say how many ranks with -np, and where with --host"),
    # Output
    acts("output", "LIST", output, "TAG, RANK, TIMESTAMP, MERGE, DIR=, FILE= as our options of output"),
    acts("output-directory", "DIR", "--output-filename $1"),
    refused("xml", "", "--report FILE writes what the job did as JSON; --tag marks the lines"),
    refused("xml-file", "FILE", "--report FILE writes what the job did as JSON; --output-filename the ranks' output"),
    refused("xterm", "RANKS", "start a terminal as the program: xterm -hold -e ./a"),
    ignored("p parseable parsable", "", "--json goes with --dry-run, --report FILE with a run"),
    # Looking
    acts("display-devel-map display-diffable-map", "", "--display-map"),
    acts("display-devel-allocation", "", "--display-allocation"),
    acts("display", "LIST", display, "MAP, ALLOCATION and BINDINGS, as the options of these names"),
    refused("display-topo", "", "--report FILE tells each node's CPUs and GPUs"),
    acts("do-not-launch", "", "--dry-run"),
    acts("d debug-devel debug-daemons debug-daemons-file", "", "-vv"),
    acts("rtos runtime-options", "LIST", runtime_options, "its items as the options of these names"),
    needless("show-progress", "", "a start that takes long shows its progress"),
    needless("leave-session-attached", "", _DEBUG_DAEMONS),
    needless("no-aggregate-help do-not-aggregate-help", "", "equal messages of nodes are one message"),
    refused("debug stop-on-exec stop-in-init stop-in-app", "", _DEBUGGER),
    refused("debugger", "NAME", _DEBUGGER),
    refused("tv", "", _DEBUGGER),
    ignored("report-events report-uri", "WHERE", "--report FILE tells node and times of each rank"),
    ignored("output-proctable", "", "--report FILE tells node and times of each rank"),
    ignored("report-pid", "WHERE", "a shell has it in $!"),
    # Reaching the nodes
    ignored("launch-agent", "COMMAND", "no orted is started; --python names another interpreter for the nodes"),
    needless("tmpdir", "DIR", "nothing is written to a node's disk"),
    # Ends
    acts("spawn-timeout", "SECONDS", "--start-timeout $1"),
    needless("report-state-on-timeout", "", "--report FILE has the state of every rank"),
    ignored("get-stack-traces", "", "the ranks get SIGTERM; python -X faulthandler or py-spy show a stack"),
    needless("disable-recovery report-child-jobs-separately enable-auto-cleanup", "", "it is so anyway"),
    refused("enable-recovery continuous", "", _FAILS),
    refused("with-ft", "KIND", _FAILS),
    ignored("forward-signals", "SIGNALS", "SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on"),
)

DIALECT = Dialect(
    name="openmpi",
    title="Open MPI's mpirun",
    owner="Open MPI's",
    rows=_ROWS,
    commands=("mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun"),
    variables={"OMPI_MCA_plm_rsh_num_concurrent": "fanout", "PRTE_MCA_plm_ssh_num_concurrent": "fanout"},
    marks=("-x", "-H", "-N", "--npernode", "--pernode", "--oversubscribe"),
)
