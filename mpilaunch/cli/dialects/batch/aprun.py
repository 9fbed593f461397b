"""Options of Cray's aprun, the launcher of ALPS. Source: aprun(1), and HPE's guide to running applications (S-2496)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    ignored,
    needless,
    part,
    refused,
    whole,
)
from mpilaunch.hosts.nodeset import Span, parse_numbers

_BINDINGS = {"cpu": "core", "depth": "core", "numa_node": "numa", "none": "none"}


def cpu_binding(text: str) -> Translation:
    """-cc cpu, depth, numa_node, none, or a list of CPUs, in which ':' separates the lists of ranks."""
    if text in _BINDINGS:
        return Translation(("--bind-to", _BINDINGS[text]))
    if not text.replace(",", "").replace("-", "").replace(":", "").isdecimal():
        hint = "use cpu, depth, numa_node, none, or numbers: 0,2,4 or 0-3:4-7"
        raise InvalidArgument(f"binding '{text}' is not supported", hint)
    lists = [list(map(str, parse_numbers(Span.of(item, "-cc")))) for item in text.split(":")]
    users = ["+".join(numbers) for numbers in lists] if len(lists) > 1 else lists[0]
    return Translation(("--bind-to", f"user:{','.join(users)}"))


def cpus_per_unit(number: str) -> Translation:
    """-j N: the hardware threads of a core that ranks use: 1, or all of them."""
    return Translation(("--use-hwthread-cpus",) if whole(number, "-j", 0) > 1 else ())


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the ranks of a program, and where they are."""
    result = Translation(("--np", str(whole(parts.get("n", "1"), "-n"))))
    if around.programs > 1 and (wrong := [f"-{key}" for key in ("N", "S", "d") if key in parts]):
        hint = "leave it out: the programs take the slots in turn; --host HOSTS:SLOTS before a program limits it"
        raise InvalidArgument(f"{wrong[0]} is not supported for one of several programs", hint)
    if "N" in parts:
        result += Translation(("--npernode", str(whole(parts["N"], "-N"))))
    if "S" in parts:
        result += Translation(("--map-by", f"ppr:{whole(parts['S'], '-S')}:numa"))
    if (depth := whole(parts.get("d", "1"), "-d")) > 1:
        result += Translation(("--cpus-per-rank", str(depth)))
    return result, list(words)


_NODES = "mpilaunch knows nodes by name: use --host"

_ROWS = (
    part("n pes", "N", "`--np N`; 1 without it"),
    part("N pes-per-node", "N", "`--npernode N`"),
    part("S pes-per-numa-node", "N", "`--map-by ppr:N:numa`"),
    part("d cpus-per-pe", "N", "`--cpus-per-rank N`"),
    acts("cc cpu-binding", "TYPE", cpu_binding, "`--bind-to`: core for cpu and depth, numa for numa_node, none, or lists"),
    acts("j cpus-per-cu", "N", cpus_per_unit, "`--use-hwthread-cpus` if N is above 1"),
    acts("e environment-override", "NAME=VALUE", "--export $1"),
    acts("q quiet", "", "--quiet"),
    refused("cp cpu-binding-file", "FILE", "use --rankfile"),
    refused("L node-list", "LIST", _NODES),
    refused("l node-list-file E exclude-node-list X exclude-node-list-file", "LIST", _NODES),
    refused("sn numa-nodes-per-node sl numa-node-list", "LIST", "--cpu-set LIST names the cores to use"),
    ignored("ss strict-memory-containment", "", "start the program as: numactl --localalloc ./a"),
    ignored("m memory-per-pe", "SIZE", "mpilaunch limits no memory"),
    ignored("r specialized-cpus", "N", "--cpu-set LIST leaves cores to the system"),
    ignored("F access-mode p protection-domain", "VALUE", "the nodes are those of the batch job"),
    needless("b bypass-app-transfer", "", "the nodes start the program from its path"),
    needless("B batch-args", "", "without -n, -N and -d the batch job decides"),
    needless("T sync-output", "", "mpilaunch never mixes lines"),
    refused("C reconnect", "", "--max-restarts N restarts a job that lost a node"),
    refused("R relaunch", "N", "--max-restarts N restarts a job, with --nnodes MIN:MAX on fewer nodes"),
    ignored("D debug", "LEVEL", "-vv prints each step"),
    refused("t cpu-time-limit", "SECONDS", "start the program as: sh -c 'ulimit -t SECONDS; exec ./a'"),
    refused("a architecture", "NAME", "choose nodes with --host"),
    refused("z zone-sort", "", "no kernel of today has it"),
)

DIALECT = Dialect(
    name="aprun",
    title="Cray's aprun",
    owner="aprun's",
    rows=_ROWS,
    defaults={"forward": ("all", "aprun's default")},
    getopt=True,
    colon=True,
    finish=finish,
)
