"""The table of options: each option is declared once, as a row.

Its flags, help, completion, config key, variable MPILAUNCH_NAME and value checks all derive from the row. This module never
implements an option, and never names those of other launchers (see `dialects`).
"""

from __future__ import annotations

from mpilaunch.cli import dialects
from mpilaunch.cli.types import FLAG, Number, OneOf, Option, Seconds, Text
from mpilaunch.placement.topology import OBJECTS

RANKS = "ranks"
PROGRAM = "program"
OUTPUT = "output"
DEVICES = "devices"
REACH = "nodes"
LIMITS = "limits"
SAVING = "checkpoints"
RESTARTS = "restarts"
LOOK = "look"
GROUPS = {
    RANKS: "Ranks and nodes",
    PROGRAM: "The program",
    OUTPUT: "Output",
    DEVICES: "GPUs and CPUs",
    REACH: "Reaching the nodes",
    LIMITS: "Time limits",
    SAVING: "Checkpoints",
    RESTARTS: "Restarts",
    LOOK: "Plans, settings and help",
}
"""The help topics and their headings."""
INPUT = Text(path="file", read=True)
FILE = Text(path="file")
DIRECTORY = Text(path="dir")
AGENTS = Text("ssh", "openssh", "kubectl", "local")

OPTIONS = (
    Option(
        "--np", "-n", "-c", "--n", group=RANKS, type=Number(min=1), metavar="N", local=True, basic=True,
        help="ranks to start; without it one per slot",
    ),
    Option(
        "--host", "-H", "--hosts", group=RANKS, metavar="HOSTS", multiple=True, local=True,
        basic="hosts and slots: a:2,b,node[01-16]:4",
        help="hosts and slots: a:2,b,node[01-16]:4; 'local' is this machine; with a hostfile, selects among its hosts",
    ),
    Option(
        "--hostfile", "-f", "--machinefile", group=RANKS, type=INPUT, metavar="FILE", multiple=True, local=True,
        basic="read hosts from a file: 'node01 slots=8'",
        help="read hosts from a file, in any common format: 'node01 slots=8' or 'node01:8'",
    ),
    Option(
        "--npernode", "-N", "--ppn", group=RANKS, type=Number(min=1), metavar="N", shorthands={"--pernode": "1"}, basic=True,
        help="exactly N ranks on each node",
    ),
    Option(
        "--map-by", group=RANKS, type=Text("slot", "node", *OBJECTS, "seq", "rankfile"), metavar="POLICY", default="slot",
        joins=True, basic="slot, node, socket, ppr:N:node, ...",
        help="fill each node in turn (slot), distribute ranks over nodes (node) or their sockets, cores, ..., or ppr:N:OBJECT",
    ),
    Option(
        "--rank-by", group=RANKS, type=Text("slot", "node", "fill", "span", *OBJECTS), metavar="POLICY",
        help="number the ranks by slot, by node, or by the objects of a node",
    ),
    Option(
        "--npersocket", group=RANKS, type=Number(min=1), metavar="N", shorthands={"--persocket": "1"},
        help="exactly N ranks on each socket",
    ),
    Option(
        "--rankmap", group=RANKS, metavar="MAP",
        help="the node of each rank, counted from 0: 0,0,1,1, or blocks (first node,nodes,ranks on each)",
    ),
    Option(
        "--rankfile", "--rf", group=RANKS, type=INPUT, metavar="FILE",
        help="read the host and the cores of each rank from a file",
    ),
    Option("--nolocal", "--skip-launch-node", group=RANKS, type=FLAG, help="start no rank on this machine"),
    Option(
        "--order-nodes", group=RANKS, type=Text("ascending", "descending"), metavar="ORDER",
        help="use the nodes in the order of their slots: ascending or descending",
    ),
    Option("--oversubscribe/--nooversubscribe", group=RANKS, type=FLAG, default=False, help="allow more ranks than slots"),
    Option(
        "--universe-size", group=RANKS, type=Number(min=1), metavar="N",
        help="MPI_UNIVERSE_SIZE; without it the number of slots",
    ),
    Option("--slot-map", group=RANKS, type=INPUT, metavar="FILE", help="read the GPUs and CPUs of each slot from a YAML file"),
    Option(
        "--app", group=PROGRAM, type=INPUT, metavar="FILE", configurable=False,
        help="read the programs of the job from a file: one on each line, after its options",
    ),
    Option(
        "--export", "-x", group=PROGRAM, metavar="NAME[=VALUE]", multiple=True, local=True, basic="give the ranks a variable",
        help="give the ranks a variable: NAME, NAME=VALUE or PREFIX_*",
    ),
    Option(
        "--env-file", group=PROGRAM, type=INPUT, metavar="FILE", multiple=True, local=True,
        help="give the ranks the NAME=VALUE lines of a file",
    ),
    Option(
        "--forward", group=PROGRAM, type=OneOf(["all", "usual", "none"]), default="usual", shorthands={"--no-forward": "none"},
        local=True,
        help="variables to forward to the ranks: all, those with common prefixes (usual), or only -x and --env-file (none)",
    ),
    Option(
        "--unset-env", group=PROGRAM, metavar="NAME", multiple=True, local=True,
        help="remove a variable from the ranks: NAME or PREFIX_*",
    ),
    Option(
        "--prepend-env", group=PROGRAM, metavar="NAME VALUE", multiple=True, words=2, local=True,
        help="put VALUE before a node's own value of a variable, separated by a colon; NAME[;] sets another separator",
    ),
    Option(
        "--append-env", group=PROGRAM, metavar="NAME VALUE", multiple=True, words=2, local=True,
        help="put VALUE after a node's own value",
    ),
    Option(
        "--mca", group=PROGRAM, metavar="KEY VALUE", multiple=True, words=2, local=True,
        help="set a parameter of Open MPI (OMPI_MCA_KEY)",
    ),
    Option(
        "--wdir", "--wd", group=PROGRAM, type=DIRECTORY, metavar="DIR", local=True, basic="working directory of the ranks",
        help="working directory of the ranks; without it the current one, if the node has it",
    ),
    Option("--python", group=PROGRAM, type=FILE, metavar="PATH", help="interpreter for scripts that are not executable"),
    Option(
        "--mpi", group=PROGRAM, type=OneOf(["auto", "pmi1", "pmi2", "pmix", "none"]), default="auto",
        help="the process management interface for MPI programs",
    ),
    Option(
        "--pmi-port", group=PROGRAM, type=FLAG,
        help="offer PMI on a port, for programs started through a wrapper that closes inherited descriptors",
    ),
    Option(
        "--pmix-library", group=PROGRAM, type=FILE, metavar="PATH",
        help="the libpmix that nodes load; without it the one closest to the program's library",
    ),
    Option(
        "--continue-on-error", "--disable-auto-cleanup", group=PROGRAM, type=FLAG,
        basic="let other ranks continue after a failure",
        help="let the other ranks continue when one fails, and report all failures at the end",
    ),
    Option(
        "--stdin", group=PROGRAM, type=Text("all", "none"), metavar="RANK", default="0",
        basic="the rank that reads stdin, or all, or none",
        help="the rank that reads standard input, or all, or none; a terminal is read only if this option is set",
    ),
    Option("--master-addr", group=PROGRAM, metavar="ADDR", help="MASTER_ADDR; without it an address of rank 0's node"),
    Option(
        "--master-port", group=PROGRAM, type=Number(min=1, max=65535), metavar="PORT",
        help="MASTER_PORT; without it a free one",
    ),
    Option(
        "--tag", group=OUTPUT, type=Text("rank", "host", "time", "ompi"), metavar="FORMAT", shorthands={"--tag-output": "ompi"},
        basic="prefix of each line: rank, host, '{host}: '",
        help="put a prefix before each line: rank, host, time, ompi, or a template such as '{host}:{rank:3} '",
    ),
    Option("--timestamp-output", group=OUTPUT, type=FLAG, help="put the time before each line"),
    Option(
        "--output-filename", group=OUTPUT, type=DIRECTORY, metavar="DIR", basic="also write each rank's output to files in DIR",
        help="also write each rank's output to DIR/rank-N.out and .err",
    ),
    Option("--copy/--no-copy", group=OUTPUT, type=FLAG, default=None, help="also print output that is written to files"),
    Option(
        "--output-file", group=OUTPUT, type=FILE, metavar="FILE",
        help="write the ranks' stdout to files instead, such as 'out.{rank}'",
    ),
    Option("--error-file", group=OUTPUT, type=FILE, metavar="FILE", help="write their stderr to files instead"),
    Option("--merge-stderr-to-stdout", group=OUTPUT, type=FLAG, help="send the ranks' stderr to their stdout"),
    Option("--fold", group=OUTPUT, type=FLAG, help="print identical output once, at the end, after the names of its nodes"),
    Option(
        "--report", group=OUTPUT, type=FILE, metavar="FILE",
        help="write the plan, bindings, times and exit codes of all ranks as JSON",
    ),
    Option("--quiet", "-q", group=OUTPUT, type=FLAG, help="print only the ranks' output, warnings and errors"),
    Option(
        "--verbose", "-v", group=OUTPUT, type=Number(max=2), default=0,
        shorthands={"-v": "1", "--verbose": "1", "-vv": "2", "-vvv": "2"}, basic=True,
        help="print each step of the launch; -vv prints more",
    ),
    Option("--gpus-per-rank", group=DEVICES, type=Number(), metavar="N", basic=True, help="GPUs of each rank"),
    Option(
        "--gpu-bind", group=DEVICES, type=OneOf(["slot", "virtual", "node", "none"]),
        help="GPUs a rank sees: of its slot (slot), the same from device 0 (virtual), of its node (node), or unchanged (none)",
    ),
    Option("--oversubscribe-gpus", group=DEVICES, type=FLAG, help="let ranks share a GPU"),
    Option(
        "--bind-to", group=DEVICES, type=Text("none", *OBJECTS, "cpu-list"), metavar="OBJECT", default="none",
        basic="bind each rank to a core, socket, numa, ...",
        help="bind each rank to a core, hwthread, l1cache, l2cache, l3cache, socket, numa, cpu-list, or to none",
    ),
    Option(
        "--cpu-set", "--cpu-list", group=DEVICES, metavar="LIST", help="use only these cores of each node, by logical number",
    ),
    Option("--use-hwthread-cpus", group=DEVICES, type=FLAG, help="count hardware threads as CPUs, not cores"),
    Option(
        "--cpus-per-rank", "--cpus-per-proc", group=DEVICES, type=Number(min=1), metavar="N", default=1,
        help="cores, or hardware threads, that each rank is bound to",
    ),
    Option("--report-bindings", group=DEVICES, type=FLAG, help="print what each rank is bound to"),
    Option(
        "--agent", group=REACH, type=AGENTS, metavar="AGENT", basic="ssh, openssh, kubectl, local, or a template",
        help="how to run commands on nodes: ssh, openssh, kubectl, local, or a template such as 'tsh ssh {host} {command}'",
    ),
    Option(
        "--remote-agent", group=REACH, type=AGENTS, metavar="AGENT", default="ssh",
        help="the agent for all nodes except this machine",
    ),
    Option(
        "--namespace", group=REACH, metavar="NAME",
        help="namespace of the pods; without it that of the context, or of this pod",
    ),
    Option("--container", group=REACH, metavar="NAME", help="container of the pods; without it their default"),
    Option("--context", group=REACH, metavar="NAME", help="context of the kubeconfig"),
    Option(
        "--call-back", group=REACH, type=OneOf(["auto", "always", "never"]), default="auto",
        help="let the daemons connect to this machine, for agents without stdin; auto does so for more than 32 pods",
    ),
    Option("--ssh-option", group=REACH, metavar="NAME=VALUE", multiple=True, help="a setting of ssh_config"),
    Option("--insecure-host-keys", group=REACH, type=FLAG, help="accept any host key"),
    Option("--up", group=REACH, type=FLAG, configurable=False, help="the same as: mpilaunch up"),
    Option("--down", group=REACH, type=FLAG, configurable=False, help="the same as: mpilaunch down"),
    Option(
        "--up-idle", group=REACH, type=Seconds(min=1), metavar="TIME", default=1800.0,
        help="end the standby daemons of 'up' after this time without a launch",
    ),
    Option(
        "--fanout", group=REACH, type=Number(min=1), metavar="N", default=64,
        help="number of nodes to contact at the same time",
    ),
    Option(
        "--connectors", group=REACH, type=Number(min=1), metavar="N",
        help="processes that share the ssh connections; by default only for many nodes",
    ),
    Option(
        "--timeout", group=LIMITS, type=Seconds(min=0.1), metavar="TIME", basic="end the job after this time: 90, 5m, 1h",
        help="end the job after this time; no limit without it",
    ),
    Option(
        "--mpi-init-timeout", group=LIMITS, type=Seconds(), metavar="TIME", default=600.0,
        help="how long ranks in MPI_Init wait for the others; 0 is no limit",
    ),
    Option("--grace", group=LIMITS, type=Seconds(), metavar="TIME", default=10.0, help="time between SIGTERM and SIGKILL"),
    Option(
        "--heartbeat", group=LIMITS, type=Seconds(min=0.5), metavar="TIME", default=30.0,
        help="silence after which a node counts as lost",
    ),
    Option(
        "--reconnect-timeout", group=LIMITS, type=Seconds(), metavar="TIME",
        help="how long ranks continue without a connection; default 10, with kubectl 60",
    ),
    Option(
        "--start-timeout", group=LIMITS, type=Seconds(min=0.1), metavar="TIME", default=60.0,
        help="time in which all nodes must answer",
    ),
    Option(
        "--checkpoint-prefix", group=SAVING, type=DIRECTORY, metavar="DIR",
        help="directory, shared by all nodes, in which ranks save their state",
    ),
    Option(
        "--checkpoint-interval", group=SAVING, type=Seconds(min=1), metavar="TIME",
        help="ask the ranks to save their state at this interval",
    ),
    Option(
        "--checkpoint-signal", group=SAVING, type=OneOf(["USR1", "USR2"]), default="USR1",
        help="the signal that asks the ranks to save their state",
    ),
    Option(
        "--max-restarts", group=RESTARTS, type=Number(max=1000), metavar="N", default=0,
        basic="restart a failed job, at most N times", help="restart a failed job, at most N times",
    ),
    Option(
        "--no-restart-codes", group=RESTARTS, metavar="CODES", help="do not restart after these exit codes of a rank: 2,64-78",
    ),
    Option(
        "--spares", group=RESTARTS, type=Number(max=100_000), metavar="K", default=0,
        help="keep K nodes idle, to replace lost nodes",
    ),
    Option(
        "--nnodes", group=RESTARTS, metavar="N|MIN:MAX", help="use N nodes, or as many as are available between MIN and MAX",
    ),
    Option(
        "--node-unit", group=RESTARTS, type=Number(min=1, max=100_000), metavar="N", default=1,
        help="with MIN:MAX, use a multiple of N nodes",
    ),
    Option(
        "--host-discovery-script", group=RESTARTS, metavar="COMMAND",
        help="a command that prints the available hosts ('host' or 'host:slots'); runs before each restart",
    ),
    Option("--dry-run", group=LOOK, type=FLAG, configurable=False, basic=True, help="print the plan and start nothing"),
    Option("--json", group=LOOK, type=FLAG, configurable=False, help="print the plan of --dry-run as JSON"),
    Option("--display-map", group=LOOK, type=FLAG, basic=True, help="print the node of each rank, then start"),
    Option("--display-allocation", group=LOOK, type=FLAG, help="print the nodes and their slots, then start"),
    Option(
        "--show-env", group=LOOK, type=Number(), metavar="RANK", configurable=False,
        help="print the environment of a rank and start nothing",
    ),
    Option("--show-secrets", group=LOOK, type=FLAG, configurable=False, help="do not mask passwords and tokens"),
    Option("--show-config", group=LOOK, type=FLAG, configurable=False, help="print the value of each option and its source"),
    Option(
        "--dialect", group=LOOK, type=OneOf(["auto", *dialects.NAMES]), default="auto", configurable=False,
        help="the launcher whose options follow, for options that mean different things to different launchers",
    ),
    Option("--config", group=LOOK, type=INPUT, metavar="FILE", basic=True, help="read options from a YAML file"),
    Option("--allow-run-as-root", group=LOOK, type=FLAG, help="accepted for compatibility; has no effect"),
    Option("--version", "-V", group=LOOK, type=FLAG, configurable=False, basic=True, help="print the version"),
    Option(
        "--help", "-h", group=LOOK, type=FLAG, configurable=False, basic="print this help",
        help="print the short help; --help all and --help TOPIC print more",
    ),
)
BY_NAME = {option.key: option for option in OPTIONS}
BY_FLAG = {flag: option for option in OPTIONS for flag in (*option.opts, *option.secondary_opts)}
