"""The options: each one declared once, as a row of this table.

Flags, help, completion, config key, the variable MPILAUNCH_NAME and the checks of a value all derive from the row. Nothing here
says what an option does, or what other launchers call it (`dialects`).
"""

from __future__ import annotations

from mpilaunch.cli import dialects
from mpilaunch.cli.types import FLAG, Number, OneOf, Option, Path, Seconds, Text
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
    RESTARTS: "Keeping going",
    LOOK: "Look before you launch",
}
"""The topics of the help, and their headings."""
INPUT = Path(read=True)
AGENTS = Text("ssh", "openssh", "kubectl", "local")

OPTIONS = (
    Option(
        "--np", "-n", "-c", "--n", group=RANKS, type=Number(min=1), metavar="N", local=True,
        basic="ranks to start; without it one per slot", help="ranks to start; without it one per slot",
    ),
    Option(
        "--host", "-H", "--hosts", group=RANKS, metavar="HOSTS", multiple=True, local=True,
        basic="where: a:2,b,node[01-16]:4 (name:slots)",
        help="hosts and slots: a:2,b,node[01-16]:4; 'local' is this machine; with a hostfile, which of its hosts",
    ),
    Option(
        "--hostfile", "-f", "--machinefile", group=RANKS, type=INPUT, metavar="FILE", multiple=True, local=True,
        basic="read hosts from a file: 'node01 slots=8'",
        help="read hosts from a file: 'node01 slots=8', 'node01:8' and all other dialects",
    ),
    Option(
        "--npernode", "-N", "--ppn", group=RANKS, type=Number(min=1), metavar="N", shorthands={"--pernode": "1"},
        basic="exactly N ranks on each node", help="exactly N ranks on each node",
    ),
    Option(
        "--map-by", group=RANKS, type=Text("slot", "node", *OBJECTS, "seq", "rankfile"), metavar="POLICY", default="slot",
        joins=True,
        basic="slot, node, socket, ppr:N:node, ...",
        help="fill a node before the next (slot), deal ranks to nodes (node) or to core, socket, numa... in them, ppr:N:OBJECT",
    ),
    Option(
        "--rank-by", group=RANKS, type=Text("slot", "node", "fill", "span", *OBJECTS), metavar="POLICY",
        help="number the ranks by slot, node, or the objects of a node in turn",
    ),
    Option(
        "--npersocket", group=RANKS, type=Number(min=1), metavar="N", shorthands={"--persocket": "1"},
        help="exactly N ranks on each socket",
    ),
    Option(
        "--rankmap", group=RANKS, metavar="MAP",
        help="the node of each rank, from 0: 0,0,1,1, or blocks (first,nodes,ranks on each)",
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
        help="read programs, each with the options before it, from the lines of a file",
    ),
    Option(
        "--export", "-x", group=PROGRAM, metavar="NAME[=VALUE]", multiple=True, local=True,
        basic="give the ranks a variable", help="give the ranks a variable: NAME, NAME=VALUE or PREFIX_*",
    ),
    Option(
        "--env-file", group=PROGRAM, type=INPUT, metavar="FILE", multiple=True, local=True,
        help="give the ranks the NAME=VALUE lines of a file",
    ),
    Option(
        "--forward", group=PROGRAM, type=OneOf(["all", "usual", "none"]), default="usual", shorthands={"--no-forward": "none"},
        local=True,
        help="which variables of this machine the ranks get: all, usual prefixes, or those of -x and --env-file",
    ),
    Option(
        "--unset-env", group=PROGRAM, metavar="NAME", multiple=True, local=True,
        help="take a variable from the ranks: NAME or PREFIX_*",
    ),
    Option(
        "--prepend-env", group=PROGRAM, metavar="NAME VALUE", multiple=True, words=2, local=True,
        help="put this before what a node's variable says, with a colon between; NAME[;] for another sign",
    ),
    Option("--append-env", group=PROGRAM, metavar="NAME VALUE", multiple=True, words=2, local=True, help="put this behind it"),
    Option(
        "--mca", group=PROGRAM, metavar="KEY VALUE", multiple=True, words=2, local=True,
        help="set a parameter of Open MPI (OMPI_MCA_KEY)",
    ),
    Option(
        "--wdir", "--wd", group=PROGRAM, type=Path("dir"), metavar="DIR", local=True,
        basic="directory of the ranks", help="directory of the ranks; without it this one, where it exists",
    ),
    Option("--python", group=PROGRAM, type=Path(), metavar="PATH", help="interpreter for scripts that are not executable"),
    Option(
        "--mpi", group=PROGRAM, type=OneOf(["auto", "pmi1", "pmi2", "pmix", "none"]), default="auto",
        help="what MPI programs are offered to find each other",
    ),
    Option(
        "--pmi-port", group=PROGRAM, type=FLAG,
        help="offer PMI by a port, where descriptors do not survive the way to the program",
    ),
    Option(
        "--pmix-library", group=PROGRAM, type=Path(), metavar="PATH",
        help="the libpmix that nodes load; without it the one nearest to the program's",
    ),
    Option(
        "--continue-on-error", "--disable-auto-cleanup", group=PROGRAM, type=FLAG,
        basic="let the other ranks go on when one fails",
        help="let the other ranks go on when one fails, and report every failure at the end",
    ),
    Option(
        "--stdin", group=PROGRAM, type=Text("all", "none"), metavar="WHO", default="0",
        basic="who reads standard input: a rank, all or none",
        help="the rank that reads standard input, all or none; a terminal is read only when this is set",
    ),
    Option("--master-addr", group=PROGRAM, metavar="ADDR", help="MASTER_ADDR; without it an address of rank 0's node"),
    Option(
        "--master-port", group=PROGRAM, type=Number(min=1, max=65535), metavar="PORT",
        help="MASTER_PORT; without it a free one",
    ),
    Option(
        "--tag", group=OUTPUT, type=Text("rank", "host", "time", "ompi"), metavar="FORMAT", shorthands={"--tag-output": "ompi"},
        basic="before each line: rank, host, time, '{host}: '",
        help="put this before each line: rank, host, time, ompi, or a template like '{host}:{rank:3} '",
    ),
    Option("--timestamp-output", group=OUTPUT, type=FLAG, help="put the time before each line"),
    Option(
        "--output-filename", group=OUTPUT, type=Path("dir"), metavar="DIR",
        basic="write each rank's output to files in DIR too", help="write each rank's output to DIR/rank-N.out and .err too",
    ),
    Option("--copy/--no-copy", group=OUTPUT, type=FLAG, default=None, help="print what goes to files, too"),
    Option(
        "--output-file", group=OUTPUT, type=Path(), metavar="FILE",
        help="write the ranks' stdout to files instead, like 'out.{rank}'",
    ),
    Option("--error-file", group=OUTPUT, type=Path(), metavar="FILE", help="write their stderr to files instead"),
    Option("--merge-stderr-to-stdout", group=OUTPUT, type=FLAG, help="send the ranks' stderr to their stdout"),
    Option("--fold", group=OUTPUT, type=FLAG, help="print equal output once, at the end, behind the names of its nodes"),
    Option(
        "--report", group=OUTPUT, type=Path(), metavar="FILE",
        help="write plan, bindings, times and exits of all ranks as JSON",
    ),
    Option("--quiet", "-q", group=OUTPUT, type=FLAG, help="print nothing but the ranks' output and errors"),
    Option(
        "--verbose", "-v", group=OUTPUT, type=Number(max=2), default=0, shorthands={"-v": "1", "--verbose": "1", "-vv": "2"},
        basic="print what happens; -vv prints more", help="print what happens; -vv prints more",
    ),
    Option("--gpus-per-rank", group=DEVICES, type=Number(), metavar="N", basic="GPUs of each rank", help="GPUs of each rank"),
    Option(
        "--gpu-bind", group=DEVICES, type=OneOf(["slot", "virtual", "node", "none"]),
        help="a rank sees its slot's GPUs, the same as device 0, all GPUs of its node, or whatever it finds",
    ),
    Option("--oversubscribe-gpus", group=DEVICES, type=FLAG, help="let ranks share a GPU"),
    Option(
        "--bind-to", group=DEVICES, type=Text("none", *OBJECTS, "cpu-list"), metavar="OBJECT", default="none",
        basic="bind each rank to a core, socket, numa, ...",
        help="bind each rank to a core, hwthread, l1cache, l2cache, l3cache, socket, numa, cpu-list, or to none",
    ),
    Option(
        "--cpu-set", "--cpu-list", group=DEVICES, metavar="LIST",
        help="use only these cores of each node, by logical number",
    ),
    Option("--use-hwthread-cpus", group=DEVICES, type=FLAG, help="count hardware threads as CPUs, not cores"),
    Option(
        "--cpus-per-rank", "--cpus-per-proc", group=DEVICES, type=Number(min=1), metavar="N", default=1,
        help="cores, or hardware threads, that each rank is bound to",
    ),
    Option("--report-bindings", group=DEVICES, type=FLAG, help="print what each rank is bound to"),
    Option(
        "--agent", group=REACH, type=AGENTS, metavar="AGENT",
        basic="ssh, openssh, kubectl, local, or a template",
        help="how to run a command on every node: ssh, openssh, kubectl, local, or a template like 'tsh ssh {host} {command}'",
    ),
    Option(
        "--remote-agent", group=REACH, type=AGENTS, metavar="AGENT", default="ssh",
        help="the same for all nodes but this machine",
    ),
    Option(
        "--namespace", group=REACH, metavar="NAME",
        help="namespace of pods; without it that of the context, or of this pod",
    ),
    Option("--container", group=REACH, metavar="NAME", help="container of pods; without it their default"),
    Option("--context", group=REACH, metavar="NAME", help="context of the kubeconfig"),
    Option(
        "--call-back", group=REACH, type=OneOf(["auto", "always", "never"]), default="auto",
        help="let the daemons call this machine, for agents without stdin; auto: those of more than 32 pods",
    ),
    Option("--ssh-option", group=REACH, metavar="NAME=VALUE", multiple=True, help="a setting of ssh_config"),
    Option("--insecure-host-keys", group=REACH, type=FLAG, help="accept any host key"),
    Option("--up", group=REACH, type=FLAG, configurable=False, help="the same as: mpilaunch up"),
    Option("--down", group=REACH, type=FLAG, configurable=False, help="the same as: mpilaunch down"),
    Option(
        "--up-idle", group=REACH, type=Seconds(min=1), metavar="TIME", default=1800.0,
        help="end what 'up' keeps after this time without a launch",
    ),
    Option("--fanout", group=REACH, type=Number(min=1), metavar="N", default=64, help="nodes contacted at a time"),
    Option(
        "--connectors", group=REACH, type=Number(min=1), metavar="N",
        help="processes that share the ssh connections; by default only for many nodes",
    ),
    Option(
        "--timeout", group=LIMITS, type=Seconds(min=0.1), metavar="TIME",
        basic="end the job after this time: 90, 5m, 1h", help="end the job after this time; no limit without it",
    ),
    Option(
        "--mpi-init-timeout", group=LIMITS, type=Seconds(), metavar="TIME", default=600.0,
        help="ranks in MPI_Init wait so long for others; 0: no limit",
    ),
    Option("--grace", group=LIMITS, type=Seconds(), metavar="TIME", default=10.0, help="between SIGTERM and SIGKILL"),
    Option(
        "--heartbeat", group=LIMITS, type=Seconds(min=0.5), metavar="TIME", default=30.0,
        help="silence after which a node counts as lost",
    ),
    Option(
        "--reconnect-timeout", group=LIMITS, type=Seconds(), metavar="TIME",
        help="ranks outlive a lost connection so long; 10, by kubectl 60",
    ),
    Option(
        "--start-timeout", group=LIMITS, type=Seconds(min=0.1), metavar="TIME", default=60.0,
        help="until every node has answered",
    ),
    Option(
        "--checkpoint-prefix", group=SAVING, type=Path("dir"), metavar="DIR",
        help="directory that all nodes see, where ranks save their state",
    ),
    Option(
        "--checkpoint-interval", group=SAVING, type=Seconds(min=1), metavar="TIME",
        help="ask the ranks to save each time that so long has passed",
    ),
    Option("--checkpoint-signal", group=SAVING, type=OneOf(["USR1", "USR2"]), default="USR1", help="the signal that asks them"),
    Option(
        "--max-restarts", group=RESTARTS, type=Number(max=1000), metavar="N", default=0,
        basic="start a job that fails again, at most N times", help="when the job fails, start it again, at most N times",
    ),
    Option(
        "--no-restart-codes", group=RESTARTS, metavar="CODES",
        help="do not restart after these exit codes of a rank: 2,64-78",
    ),
    Option(
        "--spares", group=RESTARTS, type=Number(max=100_000), metavar="K", default=0,
        help="keep K nodes idle, to take the place of nodes that are lost",
    ),
    Option("--nnodes", group=RESTARTS, metavar="N|MIN:MAX", help="use N nodes, or as many as there are from MIN to MAX"),
    Option(
        "--node-unit", group=RESTARTS, type=Number(min=1, max=100_000), metavar="N", default=1,
        help="with MIN:MAX, use a multiple of N nodes",
    ),
    Option(
        "--host-discovery-script", group=RESTARTS, metavar="COMMAND",
        help="a command that prints the hosts that there are ('host' or 'host:slots'), asked before each restart",
    ),
    Option(
        "--dry-run", group=LOOK, type=FLAG, configurable=False,
        basic="print the plan and start nothing", help="print the plan and start nothing",
    ),
    Option("--json", group=LOOK, type=FLAG, configurable=False, help="with --dry-run, as JSON"),
    Option(
        "--display-map", group=LOOK, type=FLAG,
        basic="print where each rank goes, then start", help="print where each rank goes, then start",
    ),
    Option("--display-allocation", group=LOOK, type=FLAG, help="print the nodes and their slots, then start"),
    Option(
        "--show-env", group=LOOK, type=Number(), metavar="RANK", configurable=False,
        help="print the environment of a rank and start nothing",
    ),
    Option("--show-secrets", group=LOOK, type=FLAG, configurable=False, help="do not mask passwords and tokens"),
    Option(
        "--show-config", group=LOOK, type=FLAG, configurable=False,
        help="print each option's value and where it comes from",
    ),
    Option(
        "--dialect", group=LOOK, type=OneOf(["auto", *dialects.NAMES]), default="auto", configurable=False,
        help="the launcher whose options these are, where a spelling has several meanings",
    ),
    Option(
        "--config", group=LOOK, type=INPUT, metavar="FILE",
        basic="read options from a YAML file", help="read options from this YAML file",
    ),
    Option("--allow-run-as-root", group=LOOK, type=FLAG, help="accepted and not needed"),
    Option("--version", "-V", group=LOOK, type=FLAG, configurable=False, basic="print the version", help="print the version"),
    Option(
        "--help", "-h", group=LOOK, type=FLAG, configurable=False,
        basic="print this help", help="print the short help; --help all, --help TOPIC",
    ),
)
BY_NAME = {option.key: option for option in OPTIONS}
BY_FLAG = {flag: option for option in OPTIONS for flag in (*option.opts, *option.secondary_opts)}
