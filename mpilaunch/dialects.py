"""The options of Open MPI's mpirun, of Hydra's and of Intel's mpiexec that are not spelled as ours: one row each.

Pure, and loaded only when a command line needs it. A row says who knows the option, how many words it takes, and what it
means here: words of ours, a function of `foreign` that finds them, nothing (because it is so anyway, or is not to be had), or a
refusal with what to use instead. docs/dialects.md is made from this table.

Open MPI is 4.1 (`mpirun --help all`) and 5.0 (PRRTE's schizo_ompi.c), Hydra is MPICH 3.4 to 5 (mpiexec/options.c), Intel MPI
is 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mpilaunch import foreign, mca
from mpilaunch.errors import UsageError
from mpilaunch.foreign import ReadFile, Translation, words_of

__all__ = ["ROWS", "Row", "Translation", "find", "flags", "translate"]

ACTS, NEEDLESS, IGNORED, REFUSED = "acts", "needless", "ignored", "refused"

O, H, I = frozenset({"openmpi"}), frozenset({"hydra"}), frozenset({"intel"})  # noqa: E741
HI = H | I
ALL = O | HI

Means = str | Callable[[Sequence[str], ReadFile], Translation]


@dataclass(frozen=True)
class Row:
    """One option of other launchers.

    Attributes:
        names: its spellings without dashes; it is understood with one dash and, but for single letters, with two.
        dialects: who knows it.
        metavar: a word for each of its arguments.
        kind: ACTS, NEEDLESS (what it asks for is so anyway), IGNORED (it is not done, which the user is told) or REFUSED.
        means: words of ours, with $1 and $2 for the arguments, or the function that finds them.
        text: what it means where that is not words of ours, why it changes nothing, or what to use instead.
        everywhere: it speaks for all programs of the job, though what it says would be for one.
        weak: everything else that is said wins over it.
        joined: two arguments may be one, with "=" between them.
    """

    names: tuple[str, ...]
    dialects: frozenset[str]
    metavar: str
    kind: str
    means: Means = ""
    text: str = ""
    everywhere: bool = False
    weak: bool = False
    joined: bool = False

    @property
    def words(self) -> int:
        """How many arguments it takes."""
        return len(self.metavar.split())


def _acts(names: str, dialects: frozenset[str], metavar: str, means: Means, text: str = "", **more: bool) -> Row:
    return Row(tuple(names.split()), dialects, metavar, ACTS, means, text, **more)


def _needless(names: str, dialects: frozenset[str], metavar: str, why: str) -> Row:
    return Row(tuple(names.split()), dialects, metavar, NEEDLESS, "", why)


def _ignored(names: str, dialects: frozenset[str], metavar: str, why: str) -> Row:
    return Row(tuple(names.split()), dialects, metavar, IGNORED, "", why)


def _refused(names: str, dialects: frozenset[str], metavar: str, instead: str) -> Row:
    return Row(tuple(names.split()), dialects, metavar, REFUSED, "", instead)


_DEBUGGER = "start the debugger as the program: xterm -e gdb --args ./a, or attach it to a running rank"
_FAILS = "a rank that fails ends the job; --max-restarts N starts all ranks again, see docs/restarts.md"
_STAGE = "put the files where the nodes see them, or copy them there first"
_DEBUG_DAEMONS = "the daemons' words come with -vv"

ROWS: tuple[Row, ...] = (
    # Ranks and nodes
    _acts("perhost grr", I, "N", "--npernode $1"),
    _acts("rr", I, "", "--map-by node"),
    _acts("ppr", O, "LIST", "--map-by ppr:$1"),
    _acts("byslot", O, "", "--map-by slot"),
    _acts("mapby", O, "POLICY", "--map-by $1"),
    _acts("rankby", O, "POLICY", "--rank-by $1"),
    _acts("bindto", O, "POLICY", "--bind-to $1"),
    _acts("bynode", O, "", "--map-by node"),
    _acts("bycore", O, "", "--map-by core"),
    _acts("default-hostfile", O, "FILE", "--hostfile $1", "where nobody names other hosts", weak=True),
    _acts("add-host", O, "HOSTS", "--host $1"),
    _acts("add-hostfile", O, "FILE", "--hostfile $1"),
    _acts("machine machines machinelist hostlist", HI, "HOSTS", "--host $1"),
    _acts("hosts-group", I, "GROUPS", "--host $1"),
    _acts("usize", HI, "SIZE", foreign.universe_size, "`--universe-size`; SYSTEM is the number of slots, as without it"),
    _needless("localhost", HI, "NAME", "this machine is known by all of its names; 'local' in --host is always this one"),
    _refused("max-vm-size", O, "N", "choose hosts with --host"),
    _needless("novm", O, "", "daemons run only on nodes that run ranks"),
    _needless("do-not-resolve use-regexp fwd-mpirun-port enable-instant-on-support", O, "", "nothing of the kind is needed"),
    _needless("hetero-nodes homogeneous", O, "", "every node tells its own topology"),
    _refused("cf cartofile", O, "FILE", "devices and their NUMA nodes are found on the nodes; --slot-map names them by hand"),
    _refused("dvm", O, "", "there is no standing virtual machine: the daemons live as long as their job"),
    _refused("hnp ompi-server", O, "URI", "there is no server of others to join: publish and lookup work inside one job"),
    _refused("nameserver", HI, "HOST:PORT", "there is no server of others to join: publish and lookup work inside one job"),
    # Binding
    _acts("bind-to-core", O, "", "--bind-to core"),
    _acts("bind-to-socket", O, "", "--bind-to socket"),
    _acts("binding", H, "POLICY", "--bind-to $1"),
    _refused("binding cpu-bind", I, "POLICY", "--bind-to core, --bind-to numa or --map-by slot:PE=N"),
    _refused("membind", HI, "POLICY", "start the program as: numactl --membind=... ./a"),
    _needless("topolib bindlib", HI, "LIBRARY", "the nodes' topology is read from the kernel"),
    _acts("g gpus-per-proc", H, "N", foreign.gpus_per_proc, "`--gpus-per-rank N`; AUTO is as without it"),
    _refused("gpu-subdevs-per-proc", H, "N", "say ZE_FLAT_DEVICE_HIERARCHY and ZE_AFFINITY_MASK with -x"),
    # The program
    _acts("configfile", HI, "FILE", "--app $1"),
    _acts("genv", HI, "NAME VALUE", "--export $1=$2", everywhere=True, joined=True),
    _acts("env", HI, "NAME VALUE", "--export $1=$2", joined=True),
    _acts("genvlist", HI, "NAMES", foreign.only_these, "`--forward none` and `-x` for each name", everywhere=True),
    _acts("envlist", HI, "NAMES", foreign.only_these, "`--forward none` and `-x` for each name"),
    _acts("genvall", HI, "", "--forward all", everywhere=True),
    _acts("envall", HI, "", "--forward all"),
    _acts("genvnone", HI, "", "--forward none", everywhere=True),
    _acts("envnone", HI, "", "--forward none"),
    _acts("genvexcl", I, "NAMES", foreign.none_of_these, "`--unset-env` for each name", everywhere=True),
    _acts("envexcl", I, "NAMES", foreign.none_of_these, "`--unset-env` for each name"),
    _acts("set-env", O, "NAME=VALUE", "--export $1"),
    _acts("fwd-environment", O, "", "--forward all", everywhere=True),
    _acts("mca omca", O, "KEY VALUE", mca.parameter, "see the parameters below", joined=True),
    _acts("gmca gomca", O, "KEY VALUE", mca.parameter, "the same, for all programs", everywhere=True, joined=True),
    _acts("prtemca", O, "KEY VALUE", mca.prrte_parameter, "the same; what does not act goes to nobody", joined=True),
    _acts("pmixmca gpmixmca", O, "KEY VALUE", "--export PMIX_MCA_$1=$2", joined=True),
    _acts("tune am amca", O, "FILES", mca.tune, "the `-x`, `-mca` and `key = value` lines of files"),
    _acts("memory-alloc-kinds memory-allocation-kinds", O, "KINDS", "--export OMPI_MCA_mpi_memory_alloc_kinds=$1"),
    _ignored("memory-alloc-kinds", H, "KINDS", "a program asks for them by the info key mpi_memory_alloc_kinds"),
    _acts("initial-errhandler", O, "NAME", "--export OMPI_MCA_mpi_initial_errhandler=$1"),
    _acts("display-comm", O, "", "--export OMPI_MCA_ompi_display_comm=mpi_init"),
    _acts("display-comm-finalize", O, "", "--export OMPI_MCA_ompi_display_comm=mpi_finalize"),
    _acts("stream-buffering", O, "N", "--export OMPI_MCA_ompi_stream_buffering=$1"),
    _acts("prefix app-prefix", O, "DIR", foreign.prefix, "`--prepend-env PATH DIR/bin`, and `LD_LIBRARY_PATH DIR/lib`"),
    _acts("path", ALL, "DIR", "--prepend-env PATH $1"),
    _needless("noprefix no-app-prefix", O, "", "nothing is installed on the nodes that a prefix would be for"),
    _ignored("pmix-prefix app-pmix-prefix", O, "DIR", "the ranks' own library path finds PMIx: --prefix DIR sets it"),
    _refused("s preload-binary", O, "", _STAGE),
    _refused("preload-files", O, "FILES", _STAGE),
    _refused("set-cwd-to-session-dir", O, "", "name a directory with --wdir"),
    _refused("index-argv-by-rank", O, "", "a rank finds its number in OMPI_COMM_WORLD_RANK"),
    _needless("personality", O, "NAME", "every MPI is offered what it needs: --mpi"),
    _needless("pset", O, "NAME", "no process set has a name here"),
    _ignored("gpu-support", O, "YES", "the library decides by itself; say its own variable with -x"),
    _acts("s", I, "WHO", foreign.stdin, "`--stdin all` or one rank"),
    _ignored("iface", HI, "NAME", "mpilaunch opens no port; libraries have variables: -x UCX_NET_DEVICES, FI_TCP_IFACE"),
    _acts("tune", I, "FILE", "--export I_MPI_TUNING_BIN=$1"),
    _refused("umask", I, "MASK", "start the program as: sh -c 'umask MASK; exec ./a'"),
    _ignored("prot", I, "", "the library tells it with -genv I_MPI_DEBUG 4"),
    _refused("soft arch file", O, "VALUE", "say how many ranks with -np, and where with --host"),
    # Output
    _acts("prepend-rank l", HI, "", "--tag rank"),
    _acts("prepend-pattern", HI, "PATTERN", foreign.prepend_pattern, "`--tag` with the same fields"),
    _acts("prepend-timestamp", I, "", "--timestamp-output"),
    _acts("outfile-pattern outfile", HI, "PATTERN", foreign.outfile, "`--output-file` with the same fields"),
    _acts("errfile-pattern errfile", HI, "PATTERN", foreign.errfile, "`--error-file` with the same fields"),
    _acts("output", O, "LIST", foreign.output, "TAG, RANK, TIMESTAMP, MERGE, DIR=, FILE= as our options of output"),
    _acts("output-directory", O, "DIR", "--output-filename $1"),
    _refused("output-from", H, "RANK", "--output-file names a file for each rank"),
    _refused("xml", O, "", "--report FILE writes what the job did as JSON; --tag marks the lines"),
    _refused("xml-file", O, "FILE", "--report FILE writes what the job did as JSON; --output-filename the ranks' output"),
    _refused("xterm", O, "RANKS", "start a terminal as the program: xterm -hold -e ./a"),
    _needless("ordered-output", I, "", "lines stay whole"),
    _ignored("p parseable parsable", O, "", "--json goes with --dry-run, --report FILE with a run"),
    # Looking
    _acts("print-rank-map", I, "", "--display-map"),
    _acts("display-devel-map display-diffable-map", O, "", "--display-map"),
    _acts("display-devel-allocation", O, "", "--display-allocation"),
    _acts("display", O, "LIST", foreign.display, "MAP, ALLOCATION and BINDINGS, as the options of these names"),
    _refused("display-topo", O, "", "--report FILE tells each node's CPUs and GPUs"),
    _acts("do-not-launch", O, "", "--dry-run"),
    _acts("d debug-devel debug-daemons debug-daemons-file", O, "", "-vv"),
    _acts("debug", H, "", "-vv"),
    _acts("rtos runtime-options", O, "LIST", foreign.runtime_options, "its items as the options of these names"),
    _needless("show-progress", O, "", "a start that takes long shows its progress"),
    _needless("leave-session-attached", O, "", _DEBUG_DAEMONS),
    _needless("no-aggregate-help do-not-aggregate-help", O, "", "equal messages of nodes are one message"),
    _acts("info", HI, "", "--version"),
    _refused("debug stop-on-exec stop-in-init stop-in-app", O, "", _DEBUGGER),
    _refused("debugger", O, "NAME", _DEBUGGER),
    _refused("tv", O | I, "", _DEBUGGER),
    _refused("gdb gdba gdb-ia tva", I, "", _DEBUGGER),
    _refused("gtool gtoolfile gdb-args", I, "TOOLS", "start the tool as the program: tool ./a"),
    _refused("aps mps check_mpi t", I, "", "start the tool as the program, or set its LD_PRELOAD with -x"),
    _refused("trace trace-collectives trace-imbalance trace-pt2pt", I, "", "set the tool's LD_PRELOAD with -x"),
    _refused("profile", HI, "", "--report FILE has the times of a launch"),
    _ignored("report-events report-uri", O, "WHERE", "--report FILE tells node and times of each rank"),
    _ignored("output-proctable", O, "", "--report FILE tells node and times of each rank"),
    _ignored("report-pid", O, "WHERE", "a shell has it in $!"),
    _ignored("print-all-exitcodes", HI, "", "the first failure is told by itself; --report FILE has every rank's exit code"),
    _needless("silent-abort", I, "", "the first failure is told once"),
    _needless("noconf", I, "", "no configuration of Intel MPI is read"),
    # Reaching the nodes
    _acts("launcher bootstrap rmi", HI, "NAME", foreign.launcher, "`--remote-agent`: ssh, local for fork, a template for rsh"),
    _acts("launcher-exec bootstrap-exec", HI, "PATH", foreign.launcher_exec, "`--remote-agent 'PATH -x {host} {command}'`"),
    _acts("bootstrap-exec-args", I, "WORDS", foreign.launcher_arguments, "the same, with these words before the host"),
    _acts("rmk", HI, "NAME", foreign.resource_manager, "nothing: the batch system is found by itself"),
    _acts("enable-x", HI, "", foreign.with_x, "`--remote-agent openssh --ssh-option ForwardX11=yes`"),
    _needless("disable-x", HI, "", "X is not forwarded"),
    _ignored("launch-agent", O, "COMMAND", "no orted is started; --python names another interpreter for the nodes"),
    _needless("tmpdir", O | I, "DIR", "nothing is written to a node's disk"),
    _needless("demux branch-count branch", HI, "VALUE", "one loop and one connection for each node"),
    _needless("pmi-aggregate pmi-noaggregate pmi-connect", HI, "", "the ranks' connections are private to the user"),
    _needless(
        "disable-hostname-propagation enable-hostname-propagation hybrid-hosts",
        HI,
        "",
        "a node is known by its place, not by its name",
    ),
    _refused("pmi_args", HI, "PORT IFACE KEY PID", "a program that runs alone cannot ask for a launcher afterwards"),
    # Ends
    _acts("spawn-timeout", O, "SECONDS", "--start-timeout $1"),
    _needless("report-state-on-timeout", O, "", "--report FILE has the state of every rank"),
    _ignored("get-stack-traces", O, "", "the ranks get SIGTERM; python -X faulthandler or py-spy show a stack"),
    _needless("disable-recovery report-child-jobs-separately enable-auto-cleanup", ALL, "", "it is so anyway"),
    _refused("enable-recovery continuous", O, "", _FAILS),
    _refused("with-ft", O, "KIND", _FAILS),
    _ignored("forward-signals", O, "SIGNALS", "SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on"),
    # Checkpoints
    _acts("ckpointlib", HI, "LIBRARY", foreign.checkpoint_library, "nothing: BLCR is dead; ranks save their own state"),
    _acts("ckpoint-prefix", HI, "DIR", "--checkpoint-prefix $1"),
    _acts("ckpoint-interval", HI, "TIME", "--checkpoint-interval $1"),
    _refused("ckpoint-num", HI, "N", "a restart takes the newest whole set; delete the newer ones to go further back"),
)


def _index() -> Mapping[str, tuple[Row, ...]]:
    found: dict[str, tuple[Row, ...]] = {}
    for row in ROWS:
        for name in row.names:
            for flag in ("-" + name, "--" + name) if len(name) > 1 else ("-" + name,):
                found[flag] = (*found.get(flag, ()), row)
    return found


_BY_FLAG = _index()


def flags(dialects: frozenset[str]) -> list[str]:
    """Return the long flags that the dialects know beside ours."""
    return [flag for flag, rows in _BY_FLAG.items() if flag.startswith("--") and any(row.dialects & dialects for row in rows)]


def find(flag: str, dialects: frozenset[str], *, named: bool) -> Row | None:
    """Return the row of a flag, None where nobody knows it; raises UsageError when it depends on who is meant.

    Args:
        dialects: those that are possible after what has been read.
        named: the user has named the dialect, so that options of others are none of it.
    """
    rows = _BY_FLAG.get(flag, ())
    possible = [row for row in rows if row.dialects & dialects]
    if rows and not possible and named:
        told = f"option {flag} is {_people(rows)}, and --dialect names another launcher"
        raise UsageError("option-dialect", told, hint="leave --dialect out to use options of all launchers")
    possible = possible or list(rows)
    if len(possible) > 1 and flag.startswith("--"):
        # Two dashes are how Open MPI's documents spell an option, and nobody else's.
        possible = [row for row in possible if row.dialects & O] or possible
    if len(possible) > 1:
        readings = [f"{_people([row])}: {flag} {row.metavar}".rstrip() for row in possible]
        told = f"option {flag} means different things to different launchers"
        hint = "say whose it is before it: --dialect openmpi, hydra or intel"
        raise UsageError("option-dialect", told, context=readings, hint=hint)
    return possible[0] if possible else None


_OWNERS = {"openmpi": "Open MPI's", "hydra": "Hydra's", "intel": "Intel MPI's"}


def _people(rows: Sequence[Row]) -> str:
    return " or ".join(owner for name, owner in _OWNERS.items() if any(name in row.dialects for row in rows))


def translate(row: Row, flag: str, values: Sequence[str], read_file: ReadFile) -> Translation:
    """Return the words of ours that an option with its arguments means; raises UsageError."""
    if row.joined and len(values) < row.words:
        values = values[0].split("=", 1)
    if row.kind == REFUSED:
        raise UsageError("option-refused", f"option {flag} is not supported", hint=row.text)
    if row.kind in (NEEDLESS, IGNORED):
        return Translation(notes=((f"{flag} changes nothing: {row.text}", 1 if row.kind == NEEDLESS else 0),))
    if isinstance(row.means, str):
        return words_of(row.means, values)
    try:
        return row.means(values, read_file)
    except foreign.Wrong as error:
        raise UsageError("option-value", f"{flag}: {error}", hint=error.hint) from None


def spelling(row: Row) -> str:
    """Return an option with its arguments, as for a help: "-genv NAME VALUE"."""
    return f"{' '.join('-' + name for name in row.names)} {row.metavar}".rstrip()


def meaning(row: Row) -> str:
    """Return what an option does here, as one line."""
    if row.kind == ACTS:
        words = row.means if isinstance(row.means, str) else ""
        for place, name in enumerate(row.metavar.split(), start=1):
            words = words.replace(f"${place}", name)
        shown = f"`{words}`" if words else ""
        everywhere = "for all programs" if row.everywhere and words else ""
        return ", ".join(part for part in (shown, row.text, everywhere) if part)
    return {NEEDLESS: "not needed: ", IGNORED: "does nothing: ", REFUSED: "not supported: "}[row.kind] + row.text
