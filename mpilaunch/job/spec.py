"""JobSpec: the complete description of a job, decided before anything is started.

Pure and frozen: `cli` makes it, `--dry-run` prints it, `head.launch` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mpilaunch.agent import AgentOptions
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation
from mpilaunch.job import checkpoints
from mpilaunch.placement.binding import GpuPolicy
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.mapping import JobMap
from mpilaunch.placement.policy import MappingPolicy
from mpilaunch.placement.program_shares import Share


class OutputPolicy(NamedTuple):
    """The destinations and form of the ranks' output.

    Attributes:
        tag: template put before each line, with {rank} {local_rank} {node_rank} {host} {stream} {time} {job}; None for none.
        directory: per-rank files `rank-0007.out` and `.err` go here as well; None for none.
        stdout_file, stderr_file: templates of files, with the fields of a tag, that take this stream instead; None for none.
        copy: what goes to files is printed too; None: what goes to `directory` is, what goes to `stdout_file` is not.
        merge_stderr: a rank's stderr goes into its stdout on the node, in the order of writing.
        fold: print equal output once, at the end, behind the names of its nodes.
        quiet: say nothing but the ranks' output and errors.
        verbose: 0, 1 or 2.
    """

    tag: str | None = None
    directory: str | None = None
    stdout_file: str | None = None
    stderr_file: str | None = None
    copy: bool | None = None
    merge_stderr: bool = False
    fold: bool = False
    quiet: bool = False
    verbose: int = 0


class Deadlines(NamedTuple):
    """Seconds. `timeout`: the ranks' run (None: no limit); `mpi_init`: a rank's wait in MPI_Init for the others (0: no limit);
    `grace`: between SIGTERM and SIGKILL; `start`: until every node has reported; `heartbeat`: silence after which a node is
    lost; `drain`: for output held open by a process that its rank left behind; `reconnect`: for a lost connection to be made
    again (None: what suits the agent)."""

    timeout: float | None = None
    mpi_init: float = 600.0
    grace: float = 10.0
    start: float = 60.0
    heartbeat: float = 30.0
    drain: float = 1.0
    reconnect: float | None = None

    def reconnect_time(self, agent: str) -> float:
        """Return the seconds in which a lost connection of an agent is made again; a pipe is not lost before its reader."""
        if agent == "local":
            return 0.0
        if self.reconnect is not None:
            return self.reconnect
        # An API server takes longer to come back than an sshd, and takes all streams along.
        return 60.0 if agent == "kubectl" else 10.0


class CheckpointPolicy(NamedTuple):
    """How the ranks are asked to save their state; docs/checkpoints.md has what they answer.

    Attributes:
        prefix: directory of the sets, which the head and all nodes see.
        restart: path of the newest whole set, None where there is none.
        interval: seconds between two requests; None: only when mpilaunch itself gets the signal, or is to end.
        signal: the name of the signal without "SIG".
    """

    prefix: str
    restart: str | None = None
    interval: float | None = None
    signal: str = "USR1"


class Discovery(NamedTuple):
    """How the current hosts are discovered, and how nodes are made of them.

    Attributes:
        command: a shell command that prints a line per host, `host` or `host:slots`.
        agent, remote_agent, per_node, local_names: as `allocation.allocate` takes them.
    """

    command: str
    agent: str | None
    remote_agent: str
    per_node: int | None
    local_names: frozenset[str]


class RestartPolicy(NamedTuple):
    """How a job continues after losing ranks or nodes; see `restarts`.

    Attributes:
        limit: how often it may be started again.
        excluded_codes: exit codes of the rank that failed first after which it is not.
        spares: nodes that are kept idle.
        min_nodes, max_nodes: nodes that it may have; None where the map says how many it has.
        node_unit: the number of its nodes is a multiple of this.
        elastic: its ranks follow its nodes, and may become more or fewer.
        pool: all nodes with their slots, also those that an attempt leaves idle; None for those of the job.
        mapping: how ranks are mapped when the number of nodes changes.
    """

    limit: int = 0
    excluded_codes: frozenset[int] = frozenset()
    spares: int = 0
    min_nodes: int | None = None
    max_nodes: int | None = None
    node_unit: int = 1
    elastic: bool = False
    pool: Allocation | None = None
    mapping: MappingPolicy = MappingPolicy()
    discovery: Discovery | None = None

    @property
    def may_restart(self) -> bool:
        """Return whether there may be more than one attempt, or other nodes than the first ones."""
        return bool(self.limit) or self.reserves_nodes

    @property
    def reserves_nodes(self) -> bool:
        """Return whether nodes that run no rank are left alone; else MPI_Comm_spawn may use them."""
        return bool(self.spares) or self.max_nodes is not None


class App(NamedTuple):
    """One program of the job; most jobs have one, MPMD jobs (`a : b`) several, which share one MPI_COMM_WORLD.

    Attributes:
        program: the program and its arguments, at least one item.
        environment: what only its ranks are given, over what all ranks are given.
        wdir: directory of its ranks, None for the job's.
        edits: what the node then does to its ranks' variables, see `environment.forward.environment_edits`.
    """

    program: tuple[str, ...]
    environment: Mapping[str, str] = {}
    wdir: str | None = None
    edits: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True)
class JobSpec:
    """One job.

    Attributes:
        job_id: 16 lower-case hexadecimal digits, new for each launch, and `-N` where it is started again for the N-th time;
            marks the job's processes.
        apps: the programs, at least one; a placement says which of them its rank runs.
        allocation, job_map: the nodes, and the ranks on them.
        pending: what the map is to be made by when the nodes have been asked what they are made of; `job_map` is empty then.
        environment: what is forwarded to every rank: chosen from the head's environment, `-x`, `--env-file`.
        python: interpreter for scripts that are not executable; None: the head's `python3` where a node has that path, else
            the node's own `python3`.
        wdir: directory of the ranks on the nodes, None for the head's current one where it exists, else the home directory.
        continue_on_error: a rank that fails, or a node that is lost, does not end the others.
        stdin: "all", "none" or a rank number as text; who gets the head's stdin.
        master_addr, master_port: fixed by the user, else None and chosen from the nodes' facts.
        fanout: nodes contacted at a time.
        patient: nodes that cannot be reached yet are tried again until `Deadlines.start`.
        mpi: what MPI programs are offered to find each other: "auto" (all there is), "pmi1", "pmi2", "pmix" or "none".
        pmi_port: ranks reach PMI by a port of their node and not by a descriptor.
        pmix_library: the libpmix that the nodes load, None for the one nearest to the program's.
        universe_size: MPI_UNIVERSE_SIZE as the user says it, None for the number of slots.
        checkpoints: how the ranks are asked to save their state, None for not at all.
        report_file: where `--report` writes, None for nowhere.
        show_secrets: what looks like a password or a token is shown in plan and report.
        report_bindings: say each rank's binding on stderr before it starts.
        restarts: what is done when it fails.
        restart: how often it has been started again; 0 for the first attempt.
        time_spent: seconds of `Deadlines.timeout` that earlier attempts have taken.
        last_port: MASTER_PORT of the attempt before, which this one does not use again unless the user says so.
    """

    job_id: str
    apps: tuple[App, ...]
    allocation: Allocation
    job_map: JobMap
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    wdir: str | None = None
    continue_on_error: bool = False
    stdin: str = "0"
    master_addr: str | None = None
    master_port: int | None = None
    gpu: GpuPolicy = field(default_factory=GpuPolicy)
    cpu: CpuPolicy = field(default_factory=CpuPolicy)
    output: OutputPolicy = field(default_factory=OutputPolicy)
    deadlines: Deadlines = field(default_factory=Deadlines)
    fanout: int = 64
    patient: bool = False
    agent: AgentOptions = field(default_factory=AgentOptions)
    mpi: str = "auto"
    pmix_library: str | None = None
    pmi_port: bool = False
    pending: tuple[Share, ...] = ()
    universe_size: int | None = None
    checkpoints: CheckpointPolicy | None = None
    report_file: str | None = None
    show_secrets: bool = False
    report_bindings: bool = False
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    restart: int = 0
    time_spent: float = 0.0
    last_port: int | None = None

    @property
    def run_id(self) -> str:
        """The id shared by all attempts of a job."""
        return self.job_id.partition("-")[0]

    @property
    def universe(self) -> int:
        """MPI_UNIVERSE_SIZE: how many ranks the job could have."""
        return self.universe_size or sum(len(node.slots) for node in self.allocation.nodes)

    @property
    def checkpoint_directory(self) -> str | None:
        """The directory in which the ranks save until the set is complete and numbered."""
        return None if self.checkpoints is None else checkpoints.unfinished(self.checkpoints.prefix, self.job_id)

    @property
    def checkpoint_environment(self) -> dict[str, str]:
        """The variables with the directory to save in and the set to restart from."""
        if self.checkpoints is None or self.checkpoint_directory is None:
            return {}
        restart = {"MPILAUNCH_RESTART_DIR": self.checkpoints.restart} if self.checkpoints.restart else {}
        return {"MPILAUNCH_CHECKPOINT_DIR": self.checkpoint_directory, **restart}

    def gets_stdin(self, rank: int) -> bool:
        """Return whether a rank gets the head's stdin."""
        return self.stdin == "all" or self.stdin == str(rank)


def check_stdin_rank(rank: str, ranks: int) -> None:
    """Raise UsageError unless a job of `ranks` ranks has the rank that receives stdin."""
    if int(rank) >= ranks:
        raise UsageError("stdin", f"--stdin: there is no rank {rank}: the job has ranks 0 to {ranks - 1}")
