"""JobSpec: all that the command line, the config file and the environment decided, before anything is started.

Pure and frozen: `cli` makes it, `--dry-run` prints it, `head.launch` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mpilaunch.agent import AgentOptions
from mpilaunch.allocation import Allocation
from mpilaunch.binding import CpuPolicy, GpuPolicy
from mpilaunch.mapping import JobMap


@dataclass(frozen=True)
class OutputPolicy:
    """Where the ranks' output goes.

    Attributes:
        tag: template put before each line, with {rank} {local_rank} {node_rank} {host} {stream} {time} {job}; None for none.
        directory: per-rank files `rank-0007.out` and `.err` go here as well; None for none.
        merge_stderr: a rank's stderr goes into its stdout on the node, in the order of writing.
        fold: print equal output once, at the end, behind the names of its nodes.
        quiet: say nothing but the ranks' output and errors.
        verbose: 0, 1 or 2.
    """

    tag: str | None = None
    directory: str | None = None
    merge_stderr: bool = False
    fold: bool = False
    quiet: bool = False
    verbose: int = 0


@dataclass(frozen=True)
class Deadlines:
    """Seconds. `timeout`: the ranks' run (None: no limit); `grace`: between SIGTERM and SIGKILL; `start`: until every node has
    reported; `heartbeat`: silence after which a node is lost; `drain`: for output held open by a process that its rank left
    behind. `fanout`: nodes contacted at a time."""

    timeout: float | None = None
    grace: float = 10.0
    start: float = 60.0
    heartbeat: float = 30.0
    drain: float = 1.0
    fanout: int = 64


@dataclass(frozen=True)
class JobSpec:
    """One job.

    Attributes:
        job_id: 16 lower-case hexadecimal digits, new for each launch; marks the job's processes.
        program: the program and its arguments, at least one item.
        allocation, job_map: the nodes, and the ranks on them.
        environment: what is forwarded to every rank: chosen from the head's environment, `-x`, `--env-file`.
        python: interpreter for scripts that are not executable; None: the head's `python3` where a node has that path, else
            the node's own `python3`.
        wdir: directory of the ranks on the nodes, None for the head's current one where it exists, else the home directory.
        stdin: "all", "none" or a rank number as text; who gets the head's stdin.
        master_addr, master_port: fixed by the user, else None and chosen from the nodes' facts.
        mpi: what MPI programs are offered to find each other: "auto" (all there is), "pmi1" or "none".
        report_file: where `--report` writes, None for nowhere.
        report_bindings: say each rank's binding on stderr before it starts.
    """

    job_id: str
    program: tuple[str, ...]
    allocation: Allocation
    job_map: JobMap
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    wdir: str | None = None
    stdin: str = "0"
    master_addr: str | None = None
    master_port: int | None = None
    gpu: GpuPolicy = field(default_factory=GpuPolicy)
    cpu: CpuPolicy = field(default_factory=CpuPolicy)
    output: OutputPolicy = field(default_factory=OutputPolicy)
    deadlines: Deadlines = field(default_factory=Deadlines)
    agent: AgentOptions = field(default_factory=AgentOptions)
    mpi: str = "auto"
    report_file: str | None = None
    report_bindings: bool = False

    def gets_stdin(self, rank: int) -> bool:
        """Say whether a rank gets the head's stdin."""
        return self.stdin == "all" or self.stdin == str(rank)
