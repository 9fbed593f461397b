"""The options: each one declared once, as a row of a table.

Pure. Flags, help, config key, the variable MPILAUNCH_NAME, the checks of a value (`values`) and its provenance all derive
from the row. What other launchers call their options is in `dialects`.
Every long option is also understood with one dash (`-np`, `-hostfile`), as mpirun's users write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = bool | int | float | str | tuple[str, ...] | None

RANKS = "Ranks and nodes"
PROGRAM = "The program"
OUTPUT = "Output"
DEVICES = "GPUs and CPUs"
REACH = "Reaching the nodes"
LIMITS = "Time limits"
SAVING = "Checkpoints"
RESTARTS = "Keeping going"
LOOK = "Look before you launch"
GROUPS = (RANKS, PROGRAM, OUTPUT, DEVICES, REACH, LIMITS, SAVING, RESTARTS, LOOK)


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: its long flag without dashes, and its config key.
        group: the topic of the help it stands under.
        help: a phrase without full stop; the default and the choices are added to it.
        kind: "flag", "number", "seconds", "text" or "file": a file to read, which a config file names relative to itself.
        metavar: stands for its argument in the help.
        default: its value when nobody says one; in an option that may be repeated always the empty tuple.
        choices: the texts that are allowed; empty for any text.
        least: the smallest number, or number of seconds, that is allowed.
        most: the largest.
        short: one-letter flags.
        aliases: other long flags.
        shorthands: flags without an argument, and the value that each says.
        repeatable: each use adds one value.
        words: how many arguments one use takes; two are joined by "=".
        configurable: it may stand in a config file and in the environment.
        local: in a job of several programs it belongs to the program that it stands before.
    """

    name: str
    group: str
    help: str
    kind: str = "text"
    metavar: str = ""
    default: Value = None
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float | None = None
    short: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    shorthands: Mapping[str, Value] = field(default_factory=dict)
    repeatable: bool = False
    words: int = 1
    configurable: bool = True
    local: bool = False

    @property
    def flag(self) -> str:
        """Its long flag: the name it has in messages."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "MPILAUNCH_" + self.name.replace("-", "_").upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag of it in the order of the help, without the one-dash spellings of the long ones."""
        return tuple(dict.fromkeys((*self.short, self.flag, *self.aliases, *self.shorthands)))

    def said_by(self, flag: str) -> Value:
        """Return the value that the flag says by itself; None when it takes an argument."""
        return self.shorthands.get(flag, True if self.kind == "flag" else None)


@dataclass(frozen=True)
class Setting:
    """The value of an option and who said it: "--np", "MPILAUNCH_NP", "jobs.yaml:3" or "default".

    `layer` orders them: 0 default, 1 other launchers' habits and variables, 2 config file, 3 environment, 4 command line.
    """

    value: Value
    provenance: str = "default"
    layer: int = 0


@dataclass(frozen=True)
class Settings:
    """The setting of every option, by name; `settings["np"]` is the value."""

    by_name: Mapping[str, Setting]

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name].value

    def provenance(self, name: str) -> str:
        """Return who said the value."""
        return self.by_name[name].provenance

    def layer(self, name: str) -> int:
        """Return the layer that said the value."""
        return self.by_name[name].layer


OPTIONS = (
    Option(
        "np", RANKS, "ranks to start; without it one per slot",
        "number", "N", least=1, short=("-n", "-c"), aliases=("--n",), local=True,
    ),
    Option(
        "host",
        RANKS,
        "where to run: a:2,b,node[01-16]:4 (name:slots; 'local' is this machine); with a hostfile, which of its hosts",
        metavar="HOSTS",
        default=(),
        short=("-H",),
        aliases=("--hosts",),
        repeatable=True,
        local=True,
    ),
    Option(
        "hostfile",
        RANKS,
        "read hosts from a file: 'node01 slots=8', 'node01:8' and all other dialects",
        kind="file",
        metavar="FILE",
        default=(),
        short=("-f",),
        aliases=("--machinefile",),
        repeatable=True,
        local=True,
    ),
    Option(
        "npernode",
        RANKS,
        "exactly N ranks on each node",
        "number",
        "N",
        least=1,
        short=("-N",),
        aliases=("--ppn",),
        shorthands={"--pernode": 1},
    ),
    Option(
        "map-by",
        RANKS,
        "fill a node before the next (slot), deal the ranks out (node, or core, socket, numa... inside a node), ppr:N:OBJECT",
        metavar="POLICY",
        default="slot",
    ),
    Option("rank-by", RANKS, "number the ranks by slot, node, or the objects of a node in turn", metavar="POLICY"),
    Option("npersocket", RANKS, "exactly N ranks on each socket", "number", "N", least=1, shorthands={"--persocket": 1}),
    Option("rankmap", RANKS, "the node of each rank, from 0: 0,0,1,1, or blocks (first,nodes,ranks on each)", metavar="MAP"),
    Option("rankfile", RANKS, "read the host and the cores of each rank from a file", "file", "FILE", aliases=("--rf",)),
    Option("nolocal", RANKS, "start no rank on this machine", "flag", default=False, aliases=("--skip-launch-node",)),
    Option("order-nodes", RANKS, "use the nodes in the order of their slots: ascending or descending", metavar="ORDER"),
    Option(
        "oversubscribe",
        RANKS,
        "allow more ranks than slots",
        "flag",
        default=False,
        shorthands={"--nooversubscribe": False},
    ),
    Option("universe-size", RANKS, "MPI_UNIVERSE_SIZE; without it the number of slots", "number", "N", least=1),
    Option("slot-map", RANKS, "read the GPUs and CPUs of each slot from a YAML file", "file", "FILE"),
    Option(
        "app", PROGRAM, "read programs, each with the options before it, from the lines of a file",
        "file", "FILE", configurable=False,
    ),
    Option(
        "export",
        PROGRAM,
        "give the ranks a variable: NAME, NAME=VALUE or PREFIX_*",
        metavar="NAME[=VALUE]",
        default=(),
        short=("-x",),
        repeatable=True,
        local=True,
    ),
    Option(
        "env-file",
        PROGRAM,
        "give the ranks the NAME=VALUE lines of a file",
        kind="file",
        metavar="FILE",
        default=(),
        repeatable=True,
        local=True,
    ),
    Option(
        "forward",
        PROGRAM,
        "which variables of this machine the ranks get: all, usual prefixes, or those of -x and --env-file",
        default="usual",
        choices=("all", "usual", "none"),
        shorthands={"--no-forward": "none"},
        local=True,
    ),
    Option(
        "unset-env", PROGRAM, "take a variable from the ranks: NAME or PREFIX_*",
        metavar="NAME", default=(), repeatable=True, local=True,
    ),
    Option(
        "prepend-env",
        PROGRAM,
        "put this before what a node's variable says, with a colon between; NAME[;] for another sign",
        metavar="NAME VALUE",
        default=(),
        repeatable=True,
        words=2,
        local=True,
    ),
    Option("append-env", PROGRAM, "put this behind it", metavar="NAME VALUE", default=(), repeatable=True, words=2, local=True),
    Option(
        "mca",
        PROGRAM,
        "set a parameter of Open MPI (OMPI_MCA_KEY)",
        metavar="KEY VALUE",
        default=(),
        repeatable=True,
        words=2,
        local=True,
    ),
    Option(
        "wdir", PROGRAM, "directory of the ranks; without it this one, where it exists",
        metavar="DIR", aliases=("--wd",), local=True,
    ),
    Option("python", PROGRAM, "interpreter for scripts that are not executable", metavar="PATH"),
    Option(
        "mpi",
        PROGRAM,
        "what MPI programs are offered to find each other",
        default="auto",
        choices=("auto", "pmi1", "pmi2", "pmix", "none"),
    ),
    Option(
        "pmi-port",
        PROGRAM,
        "offer PMI by a port, where descriptors do not survive the way to the program",
        "flag",
        default=False,
    ),
    Option(
        "pmix-library",
        PROGRAM,
        "the libpmix that nodes load; without it the one nearest to the program's",
        metavar="PATH",
    ),
    Option(
        "continue-on-error",
        PROGRAM,
        "let the other ranks go on when one fails, and report every failure at the end",
        "flag",
        default=False,
        aliases=("--disable-auto-cleanup",),
    ),
    Option("stdin", PROGRAM, "who gets standard input: a rank's number, all or none", "text", "WHO", "0"),
    Option("master-addr", PROGRAM, "MASTER_ADDR; without it an address of rank 0's node", metavar="ADDR"),
    Option("master-port", PROGRAM, "MASTER_PORT; without it a free one", "number", "PORT", least=1, most=65535),
    Option(
        "tag",
        OUTPUT,
        "put this before each line: rank, host, time, ompi, or a template like '{host}:{rank:3} '",
        metavar="FORMAT",
        shorthands={"--tag-output": "ompi"},
    ),
    Option("timestamp-output", OUTPUT, "put the time before each line", "flag", default=False),
    Option("output-filename", OUTPUT, "write each rank's output to DIR/rank-N.out and .err too", metavar="DIR"),
    Option("copy", OUTPUT, "print what goes to files, too", "flag", shorthands={"--no-copy": False}),
    Option("output-file", OUTPUT, "write the ranks' stdout to files instead, like 'out.{rank}'", metavar="FILE"),
    Option("error-file", OUTPUT, "write their stderr to files instead", metavar="FILE"),
    Option("merge-stderr-to-stdout", OUTPUT, "send the ranks' stderr to their stdout", "flag", default=False),
    Option("fold", OUTPUT, "print equal output once, at the end, behind the names of its nodes", "flag", default=False),
    Option("report", OUTPUT, "write plan, bindings, times and exits of all ranks as JSON", metavar="FILE"),
    Option("quiet", OUTPUT, "say nothing but the ranks' output and errors", "flag", default=False, short=("-q",)),
    Option(
        "verbose",
        OUTPUT,
        "tell what happens; -vv more",
        "number",
        default=0,
        most=2,
        short=("-v",),
        shorthands={"-v": 1, "--verbose": 1, "-vv": 2},
    ),
    Option("gpus-per-rank", DEVICES, "GPUs of each rank", "number", "N"),
    Option(
        "gpu-bind",
        DEVICES,
        "a rank sees its slot's GPUs, the same as device 0, all GPUs of its node, or whatever it finds",
        choices=("slot", "virtual", "node", "none"),
    ),
    Option("oversubscribe-gpus", DEVICES, "let ranks share a GPU", "flag", default=False),
    Option(
        "bind-to",
        DEVICES,
        "bind each rank to a core, hwthread, l1cache, l2cache, l3cache, socket, numa, cpu-list, or to none",
        metavar="OBJECT",
        default="none",
    ),
    Option("cpu-set", DEVICES, "use only these cores of each node, by logical number", metavar="LIST", aliases=("--cpu-list",)),
    Option("use-hwthread-cpus", DEVICES, "count hardware threads as CPUs, not cores", "flag", default=False),
    Option(
        "cpus-per-rank",
        DEVICES,
        "cores, or hardware threads, that each rank is bound to",
        "number",
        "N",
        1,
        least=1,
        aliases=("--cpus-per-proc",),
    ),
    Option("report-bindings", DEVICES, "say what each rank is bound to", "flag", default=False),
    Option(
        "agent",
        REACH,
        "how to run a command on every node: ssh, openssh, kubectl, local, or a template like 'tsh ssh {host} {command}'",
        metavar="AGENT",
    ),
    Option("remote-agent", REACH, "the same for all nodes but this machine", metavar="AGENT", default="ssh"),
    Option("namespace", REACH, "namespace of pods; without it that of the context, or of this pod", metavar="NAME"),
    Option("container", REACH, "container of pods; without it their default", metavar="NAME"),
    Option("context", REACH, "context of the kubeconfig", metavar="NAME"),
    Option(
        "call-back",
        REACH,
        "let the daemons call this machine, for agents without stdin; auto: those of more than 32 pods",
        default="auto",
        choices=("auto", "always", "never"),
    ),
    Option("ssh-option", REACH, "a setting of ssh_config", metavar="NAME=VALUE", default=(), repeatable=True),
    Option("insecure-host-keys", REACH, "accept any host key", "flag", default=False),
    Option("up", REACH, "keep a daemon ready on every node for launches to come", "flag", default=False, configurable=False),
    Option("down", REACH, "end what --up keeps", "flag", default=False, configurable=False),
    Option("up-idle", REACH, "--up ends when nobody has launched for so long", "seconds", "TIME", 1800.0, least=1),
    Option("fanout", REACH, "nodes contacted at a time", "number", "N", 64, least=1),
    Option("connectors", REACH, "processes that share the ssh connections; unsaid, for many nodes", "number", "N", least=1),
    Option("timeout", LIMITS, "end the job after this time; no limit without it", "seconds", "TIME", least=0.1),
    Option("mpi-init-timeout", LIMITS, "ranks in MPI_Init wait so long for others; 0: no limit", "seconds", "TIME", 600.0),
    Option("grace", LIMITS, "between SIGTERM and SIGKILL", "seconds", "TIME", 10.0),
    Option("heartbeat", LIMITS, "silence after which a node counts as lost", "seconds", "TIME", 30.0, least=0.5),
    Option("reconnect-timeout", LIMITS, "ranks outlive a lost connection so long; 10, by kubectl 60", "seconds", "TIME"),
    Option("start-timeout", LIMITS, "until every node has answered", "seconds", "TIME", 60.0, least=0.1),
    Option("checkpoint-prefix", SAVING, "directory that all nodes see, where ranks save their state", metavar="DIR"),
    Option(
        "checkpoint-interval", SAVING, "ask the ranks to save each time that so long has passed",
        "seconds", "TIME", least=1,
    ),
    Option("checkpoint-signal", SAVING, "the signal that asks them", default="USR1", choices=("USR1", "USR2")),
    Option("max-restarts", RESTARTS, "when the job fails, start it again, so often at most", "number", "N", 0, most=1000),
    Option("no-restart-codes", RESTARTS, "not after a rank's exit codes like these: 2,64-78", metavar="CODES"),
    Option("spares", RESTARTS, "keep K nodes idle, to take the place of nodes that are lost", "number", "K", 0, most=100_000),
    Option("nnodes", RESTARTS, "use N nodes, or as many as there are from MIN to MAX", metavar="N|MIN:MAX"),
    Option("node-unit", RESTARTS, "with MIN:MAX, use a multiple of N nodes", "number", "N", 1, least=1, most=100_000),
    Option(
        "host-discovery-script",
        RESTARTS,
        "a command that prints the hosts that there are ('host' or 'host:slots'), asked before each restart",
        metavar="COMMAND",
    ),
    Option("dry-run", LOOK, "print the plan and start nothing", "flag", default=False, configurable=False),
    Option("json", LOOK, "with --dry-run, as JSON", "flag", default=False, configurable=False),
    Option("display-map", LOOK, "print where each rank goes, then start", "flag", default=False),
    Option("display-allocation", LOOK, "print the nodes and their slots, then start", "flag", default=False),
    Option("show-env", LOOK, "print the environment of a rank and start nothing", "number", "RANK", configurable=False),
    Option("show-secrets", LOOK, "do not mask passwords and tokens", "flag", default=False, configurable=False),
    Option("show-config", LOOK, "print each option's value and who said it", "flag", default=False, configurable=False),
    Option(
        "dialect", LOOK, "whose options these are, where a spelling has several meanings",
        default="auto", choices=("auto", "openmpi", "hydra", "intel"), configurable=False,
    ),
    Option("config", LOOK, "read options from this YAML file", "file", "FILE"),
    Option("allow-run-as-root", LOOK, "accepted and not needed", "flag", default=False),
    Option("version", LOOK, "print the version", "flag", default=False, short=("-V",), configurable=False),
    Option("help", LOOK, "print this help", "flag", default=False, short=("-h",), configurable=False),
)
BY_NAME = {option.name: option for option in OPTIONS}
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
DEFAULTS = {option.name: Setting(option.default) for option in OPTIONS}
