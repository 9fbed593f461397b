"""JobSpec: the complete description of a job, decided before anything starts.

Pure and frozen: `cli` makes it, `--dry-run` prints it, `head.launch` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from mpilaunch import defaults
from mpilaunch.agent import AgentOptions
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation
from mpilaunch.job import checkpoints
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.gpu_binding import GpuPolicy
from mpilaunch.placement.mapping import JobMap, MappingPolicy
from mpilaunch.placement.program_shares import Share
from mpilaunch.text import numbered_ranks

if TYPE_CHECKING:
    from mpilaunch.job.servers.ready import ReadyUrl

NOTICE_SECONDS = 30.0
"""Longest wait in MPI_Init before the user is told which ranks are absent."""
NODE_SILENCE = 4
"""Heartbeat limits without a byte after which a daemon takes the head for dead; the head must notice first."""
FROZEN = 1.5
"""Heartbeat limits after which a guard kills a daemon that hangs; the head must notice and report it first."""


class OutputPolicy(NamedTuple):
    """The destinations and form of the ranks' output.

    Attributes:
        tag: template of the text before each line, with the fields of `output.tags.FIELDS`.
        directory: output is also written to files `rank-0007.out` and `.err` here.
        stdout_file, stderr_file: templates of paths, with the fields of a tag; the stream is written there.
        stdout_ranks, stderr_ranks: the ranks of each node that have such a file; the others print the stream; None: all.
        copy: also print output that is written to files; None: print it with `directory`, but not with `stdout_file`.
        stdout: what a rank's stdout is: "pipe", "pty", "line" (a pipe, written by line) or "auto" (by its MPI library).
        merge_stderr: the node merges a rank's stderr into its stdout, in the order of writing.
        fold: print equal output once, at the end, after the names of its nodes: before each of its "lines", or
            stdout in "blocks"; or print stdout at the end, not merged, in the order of "hosts", or as "diff" to the most
            frequent one.
        local_ranks: print only the output of these ranks of each node; None: of all.
        host_failures: failed independent hosts are reported together at the "end", or each as it fails, as "clush" does it, or
            "pdsh:PROGRAM", "pdcp:PROGRAM" or "rpdcp:PROGRAM", which runs the commands by PROGRAM.
        recorded: print records of a detached job on stdout, with what is for stderr.
        quiet, verbose: print only the ranks' output and errors; 0, 1 or 2.
    """

    tag: str | None = None
    directory: str | None = None
    stdout_file: str | None = None
    stderr_file: str | None = None
    stdout_ranks: frozenset[int] | None = None
    stderr_ranks: frozenset[int] | None = None
    copy: bool | None = None
    stdout: str = "pipe"
    merge_stderr: bool = False
    fold: str | None = None
    local_ranks: frozenset[int] | None = None
    host_failures: str = "end"
    recorded: bool = False
    quiet: bool = False
    verbose: int = 0

    @property
    def has_files(self) -> bool:
        """Whether output of the ranks goes to files."""
        return (self.directory, self.stdout_file, self.stderr_file) != (None, None, None)

    def in_own_file(self, stream: str, local_rank: int) -> bool | None:
        """Return whether a stream, "stdout" or "stderr", of a local rank goes to its file; None without a template."""
        of_stdout = self.stdout_file, self.stdout_ranks
        template, ranks = of_stdout if stream == "stdout" else (self.stderr_file, self.stderr_ranks)
        return None if template is None else ranks is None or local_rank in ranks


class Deadlines(NamedTuple):
    """Time limits of a job, in seconds.

    Attributes:
        timeout: the run of the ranks; None: no limit.
        hang: silence of all ranks after which the job is ended; None: no limit.
        mpi_init: a rank's wait for the others in MPI_Init; 0: no limit.
        grace: from SIGTERM to SIGKILL.
        start: until every node has reported.
        heartbeat: silence after which a node is lost.
        drain: for output that an orphaned descendant of a rank holds open; 0: no limit.
        reconnect: to restore a lost connection; None: the agent's default.
    """

    timeout: float | None = None
    hang: float | None = None
    mpi_init: float = defaults.MPI_INIT_TIMEOUT
    grace: float = defaults.GRACE
    start: float = defaults.START_TIMEOUT
    heartbeat: float = defaults.HEARTBEAT
    drain: float = defaults.DRAIN
    reconnect: float | None = None

    def silence_limits(self) -> dict[str, float]:
        """Return how long a daemon waits for a byte of the head, and a guard for a sign of life of its daemon."""
        return {"silence": self.heartbeat * NODE_SILENCE, "pulse": self.heartbeat * FROZEN}

    @property
    def mpi_init_notice(self) -> float:
        """The seconds after which a node reports which of its ranks others wait for in MPI_Init."""
        return min(NOTICE_SECONDS, self.mpi_init / 2) if self.mpi_init else NOTICE_SECONDS


class CheckpointPolicy(NamedTuple):
    """How mpilaunch requests checkpoints from the ranks; docs/checkpoints.md describes the protocol.

    Attributes:
        prefix, restart: directory of the sets, shared by the head and all nodes; path of the newest complete set.
        interval: seconds between two requests; None: only when mpilaunch itself gets the signal, or is about to end the job.
        signal: the name of the signal without "SIG".
    """

    prefix: str
    restart: str | None = None
    interval: float | None = None
    signal: str = "USR1"


class RestartPolicy(NamedTuple):
    """How a job continues after losing ranks or nodes; see `restarts`.

    Attributes:
        limit, spares: the most restarts, and the number of nodes kept idle.
        excluded_codes: exit codes of the first failed rank after which the job is not restarted.
        min_nodes, max_nodes: limits of the number of nodes; None: the map fixes the number.
        node_unit: the number of nodes is a multiple of this.
        elastic: the number of ranks follows the number of nodes.
        pool: all nodes with their slots, including those that an attempt leaves idle; None: the nodes of the job.
        mapping: how ranks are mapped when the number of nodes changes.
        discovery: a shell command that prints one line per current host, `host` or `host:slots`.
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
    discovery: str | None = None

    @property
    def reserves_nodes(self) -> bool:
        """Whether nodes without ranks stay idle; otherwise MPI_Comm_spawn may use them."""
        return bool(self.spares) or self.max_nodes is not None


class Part(NamedTuple):
    """This machine's place in a job of equal parts, each started by hand on its own machine; the ranks meet at MASTER_ADDR."""

    node_rank: int
    nodes: int


class App(NamedTuple):
    """One program of the job; most jobs have one, MPMD jobs (`a : b`) several. Those of a role share one MPI_COMM_WORLD.

    Attributes:
        program: the program and its arguments, at least one item.
        environment, wdir: variables and working directory of its ranks, which override those of the job.
        edits: edits that the node then applies to its ranks' variables, see `environment.forwarded.environment_edits`.
        template: the arguments are templates.
        variables: the variables of `environment`, and of the job's, that are templates.
        role: its role, "" for none.
        after: roles with the port on which rank 0 of each must listen before this program's role starts.
        ends_with: the role with which it ends; "" with the other programs of its own, None: the job waits for it.
    """

    program: tuple[str, ...]
    environment: Mapping[str, str] = {}
    wdir: str | None = None
    edits: tuple[tuple[str, str, str, str], ...] = ()
    template: bool = False
    variables: Mapping[str, str] = {}
    role: str = ""
    after: tuple[tuple[str, int], ...] = ()
    ends_with: str | None = None


class JobSpec(NamedTuple):
    """One job.

    Attributes:
        job_id: 16 lower-case hexadecimal digits, new for each launch, and `-N` for the N-th restart; marks the job's processes.
        apps: the programs, at least one; each placement names the program of its rank.
        job_map: the ranks that this command starts, numbered from 0; `global_map` has the numbers that users are told.
        environment: variables forwarded to every rank: from the head's environment, `-x` and `--env-file`.
        python: interpreter for scripts that are not executable; None: `head_python` where a node has that path, else the node's
            own `python3`.
        head_python: path of the head's `python3`, None if it has none.
        directory: the head's current directory, to which the paths of working directories are relative.
        wdir: working directory of the ranks; None: `directory` where a node has it, else the home directory.
        stack_on_failure: tell what the other ranks do when the first one fails, with the stacks of Python.
        continue_on_error: a rank that fails, or a node that is lost, does not end the others.
        skip_unreachable: nodes that do not start are lost nodes, and the ranks of the others start.
        independent: each rank is a command by itself: no variables, no MPI, it starts when its node is ready, and it outlives
            the head. The limits of `Deadlines` count for each node.
        window: independent nodes at work at a time; None: no limit but that of contacts.
        first_interrupt: what the first interrupt of independent commands does: "end" them, or tell their "status".
        bare: the ranks get no variables of frameworks, and no MPI.
        bare_if_single: bare if the whole job has one rank; `settle_ranks` decides it.
        leave_running: what a rank leaves running is not ended with it.
        stdin: which ranks get the head's stdin: "all", "none", "first" of this command's, or a rank number as text.
        master_addr, master_port: fixed by the user; None: chosen from the nodes' facts.
        network: that the ranks use: `--network`.
        ready: where the job's server answers once it serves.
        fanout, patient: nodes contacted at a time; unreachable ones are retried until `Deadlines.start`.
        mpi: the process managers offered to MPI programs: "auto" (all available), "pmi1", "pmi2", "pmix" or "none".
        profiles: profiles of `environment.contracts` that apply.
        threads: OMP_NUM_THREADS unless the user sets it: a number as text, "none" to leave it unset, "auto": torchrun's rule.
        pmix_library: the libpmix that the nodes load; None: the one nearest to the program's.
        pending: shares to map when the topology of the nodes is known; `job_map` is empty until then.
        slots_by: what gives each node its slots once it has reported it: "gpu", "cpu", "auto", "gpu-or-one", or "cores" for
            those of `by_cores`; None: they are known.
        part: this machine's place in a job that is started by hand on each machine; None: this is the whole job.
        universe_size: MPI_UNIVERSE_SIZE set by the user; None: the number of slots over PMIx, as for Open MPI's mpirun,
            and no value over PMI, as for MPICH's mpiexec.
        show_secrets: do not mask likely secrets in the plan and the report.
        report_bindings: print each rank's binding on stderr before it starts.
        name: by which its user finds it beside its id, if any.
        restart: the number of restarts so far; 0 for the first attempt.
        time_spent: seconds of `Deadlines.timeout` that earlier attempts have used.
        last_port: MASTER_PORT of the previous attempt; this attempt chooses another unless the user fixed it.
    """

    job_id: str
    apps: tuple[App, ...]
    allocation: Allocation
    job_map: JobMap
    environment: Mapping[str, str] = {}
    python: str | None = None
    head_python: str | None = None
    directory: str = "."
    wdir: str | None = None
    stack_on_failure: bool = False
    continue_on_error: bool = False
    skip_unreachable: bool = False
    independent: bool = False
    window: int | None = None
    first_interrupt: str = "end"
    bare: bool = False
    bare_if_single: bool = False
    leave_running: bool = False
    stdin: str = "0"
    master_addr: str | None = None
    master_port: int | None = None
    network: str = "auto"
    ready: ReadyUrl | None = None
    gpu: GpuPolicy = GpuPolicy()
    cpu: CpuPolicy = CpuPolicy()
    output: OutputPolicy = OutputPolicy()
    deadlines: Deadlines = Deadlines()
    fanout: int = 64
    patient: bool = False
    agent: AgentOptions = AgentOptions()
    mpi: str = "auto"
    profiles: tuple[str, ...] = ()
    threads: str = "auto"
    pmix_library: str | None = None
    pmi_port: bool = False
    pending: tuple[Share, ...] = ()
    slots_by: str | None = None
    part: Part | None = None
    universe_size: int | None = None
    checkpoints: CheckpointPolicy | None = None
    report_file: str | None = None
    show_secrets: bool = False
    report_bindings: bool = False
    name: str | None = None
    restarts: RestartPolicy = RestartPolicy()
    restart: int = 0
    time_spent: float = 0.0
    last_port: int | None = None

    # A command that starts one machine's part of a job knows only its own ranks. These, and `World.first`, are all that turns
    # their numbers into those of the whole job, which messages, files and variables have.

    @property
    def size(self) -> int:
        """The number of ranks of the whole job."""
        return len(self.job_map.placements) * (1 if self.part is None else self.part.nodes)

    @property
    def first_node_rank(self) -> int:
        """The node rank of the first node of `job_map`."""
        return 0 if self.part is None else self.part.node_rank

    @property
    def first_rank(self) -> int:
        """The number in the whole job of rank 0 of `job_map`."""
        return len(self.job_map.placements) * self.first_node_rank

    @property
    def global_map(self) -> JobMap:
        """`job_map` with the ranks' numbers in the whole job."""
        if not (first := self.first_rank):
            return self.job_map
        return self.job_map._replace(placements=tuple(one._replace(rank=first + one.rank) for one in self.job_map.placements))

    @property
    def run_id(self) -> str:
        """The id shared by all attempts of a job."""
        return self.job_id.partition("-")[0]

    @property
    def universe(self) -> int:
        """MPI_UNIVERSE_SIZE over PMIx: the number of ranks that the job could have."""
        return self.universe_size or self.allocation.slot_count

    @property
    def checkpoint_directory(self) -> str | None:
        """The directory of the set that the ranks are saving."""
        return None if self.checkpoints is None else checkpoints.unfinished(self.checkpoints.prefix, self.job_id)

    @property
    def checkpoint_environment(self) -> dict[str, str]:
        """Variables that name the directory to save in and the set to restart from."""
        if self.checkpoints is None or self.checkpoint_directory is None:
            return {}
        restart = {"MPILAUNCH_RESTART_DIR": self.checkpoints.restart} if self.checkpoints.restart else {}
        return {"MPILAUNCH_CHECKPOINT_DIR": self.checkpoint_directory, **restart}

    def gets_stdin(self, rank: int) -> bool:
        """Return whether a rank of the whole job gets the head's stdin."""
        return self.stdin in ("all", str(rank)) or (self.stdin == "first" and rank == self.first_rank)


def settle_ranks(job: JobSpec) -> JobSpec:
    """Return the job, whose map is made, with what depends on its number of ranks.

    Raises UsageError for too many ranks, and where there is no rank of that number for stdin.
    """
    if job.size > MAX_SLOTS:
        raise UsageError("rank-count", f"{job.size:,} ranks asked for", hint=f"a job has {MAX_SLOTS:,} ranks at most")
    if job.stdin.isdecimal() and int(job.stdin) >= job.size:
        raise UsageError("stdin", f"--stdin: there is no rank {job.stdin}: the job has {numbered_ranks(job.size)}")
    if job.bare_if_single and job.size == 1 and job.mpi in ("auto", "none"):
        job = job._replace(bare=True, mpi="none")
    return job
