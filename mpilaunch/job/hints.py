"""Hints: the likely reason of a rank's failure, from its last lines of stderr, its signal and its node's evidence.

Pure: `ROWS` lists messages of real programs, each with its source, and `_BY_SIGNAL` the signals. A hint is given only where the
evidence leaves little doubt. A follow-on failure is the consequence of another rank's end; it never hides the original failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpilaunch.job.state import RankEnd, signal_name

LINES_READ = 60
"""Last lines of stderr that are searched: earlier ones are rarely the reason."""
SMALL_SHM = 64 << 20
"""Default size of /dev/shm in a container, in bytes."""


class Row(NamedTuple):
    """One known message of programs.

    Attributes:
        name: stable, for tests and docs.
        pattern: regular expression, searched in one line. A rank writes the line and may choose the worst one, so the time must
            be linear: an unlimited repetition begins behind a text that it cannot match itself, and `then` stands for `.*`.
        hint: reason and remedy; {name} is replaced by that group of the pattern.
        source: the software that writes the message.
        follow_on: it is the consequence of another rank's end.
        warns: programs write it also where they go on.
        then: a text that must follow, anywhere behind the first match.
    """

    name: str
    pattern: str
    hint: str
    source: str
    follow_on: bool = False
    warns: bool = False
    then: str = ""


_MANY_PROCESSES = "the limit of processes is reached: raise it on that node (ulimit -u, pids.max), or set OMP_NUM_THREADS lower"
ANOTHER_FAILED = "another rank had already ended: if it is not named here, look at its output"

ROWS = (
    Row(
        "port-in-use",
        r"Address already in use|EADDRINUSE",
        "a port is taken on that node, perhaps by another job: leave --master-port out, and mpilaunch finds a free one",
        "errno 98 of Linux; torch's c10d server socket (torch/csrc/distributed/c10d/socket.cpp)",
        warns=True,
    ),
    Row(
        "gpu-ordinal",
        r"invalid device ordinal",
        "the rank chose a GPU that it does not see: --report-bindings shows its GPUs, --gpu-bind sets which it sees",
        "cudaErrorInvalidDevice (CUDA runtime API, error 101)",
    ),
    Row(
        "gpu-memory",
        r"CUDA out of memory|CUDA error: out of memory|HIP out of memory|cudaErrorMemoryAllocation",
        "the GPU's memory is full: use a smaller batch, or look with nvidia-smi on that node for other processes",
        "torch.OutOfMemoryError; cudaErrorMemoryAllocation (CUDA runtime API, error 2)",
    ),
    Row(
        "gpu-missing",
        r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient"
        r"|not compiled with CUDA|Could not load library libcuda|No HIP GPUs are available",
        "the rank finds no usable GPU: compare nvidia-smi on that node with mpilaunch --report-bindings",
        "cudaErrorNoDevice, cudaErrorInsufficientDriver (CUDA runtime API); torch/cuda/__init__.py",
        warns=True,
    ),
    Row(
        "nccl-duplicate-gpu",
        r"Duplicate GPU detected",
        "two ranks use the same GPU: select GPU number LOCAL_RANK in the program, or use --gpus-per-rank 1",
        "NCCL, src/init.cc",
    ),
    Row(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout",
        "a collective did not finish in time: the ranks call different ones, or one of them hangs or is slow: "
        "--stack-on-failure shows what each does",
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    Row(
        "nccl-peer",
        r"ncclRemoteError|remote process exited or there was a network error|[Cc]onnection closed by remote peer",
        ANOTHER_FAILED,
        "ncclRemoteError (NCCL, src/include/nccl.h)",
        follow_on=True,
    ),
    Row(
        "nccl",
        r"\bnccl(UnhandledCuda|System|Internal|InvalidUsage)(Error)?\b|NCCL error",
        "-x NCCL_DEBUG=INFO makes NCCL log more; on several nodes, -x NCCL_SOCKET_IFNAME=NAME selects the network interface",
        "ncclResult_t (NCCL, src/include/nccl.h); NCCL's environment variables",
    ),
    Row(
        "profile-tf",
        r"Cluster spec must be non-empty in `tf\.distribute",
        "TensorFlow reads the other ranks from TF_CONFIG, which --profile tf sets",
        "tensorflow/python/distribute/parameter_server_strategy_v2.py",
    ),
    Row(
        "profile-lightning",
        r"You set `devices=\d+` and `num_nodes=\d+` in Lightning, but the product ",
        "leave devices and num_nodes out of the Trainer, and --profile lightning sets them to the job's",
        "lightning/fabric/plugins/environments/torchelastic.py",
        then=" does not match the world size",
    ),
    Row(
        "library-missing",
        r"(?<!\S)(?P<library>\S+): cannot open shared object file",
        "{library} is not found on that node: forward the path with -x LD_LIBRARY_PATH, or install it there",
        "glibc's ld.so (elf/dl-load.c); Python's ImportError of dlopen",
        warns=True,
    ),
    Row(
        "glibc-too-old",
        r"version [`'](?P<version>(GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",
        "the program was built on a newer system than that node's, which lacks {version}: build it on the oldest node",
        "glibc's ld.so (elf/dl-version.c)",
    ),
    Row(
        "module-missing",
        r"(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)'?",
        "the Python of that node has no module '{module}': name the right one with --python PATH, or -x PATH, -x PYTHONPATH",
        "CPython, Lib/importlib/_bootstrap.py",
    ),
    Row(
        "slots-of-mpirun",
        r"There are not enough slots available in the system|does not support recursive calls",
        "an mpirun inside the rank failed: mpilaunch starts the ranks itself, so give it the program without mpirun",
        "Open MPI, orte/mca/rmaps/base/help-orte-rmaps-base.txt",
    ),
    Row(
        "read-only",
        r"Read-only file system",
        "a file system there is read-only: Open MPI writes in /tmp, MPICH in /dev/shm; in a pod, mount emptyDir volumes there",
        "EROFS of errno(3); orte/util/session_dir.c; UCX, src/uct/sm/mm/posix/mm_posix.c",
        warns=True,
    ),
    Row(
        "worker-shm",
        r"killed by signal: Bus error|insufficient shared memory \(shm\)|dataloader's workers are out of shared memory",
        "/dev/shm of that node or container is too small for the data loader: give it more (docker run --shm-size)",
        "torch/utils/data/_utils/signal_handling.py",
    ),
    Row(
        "worker-memory",
        r"DataLoader worker ",
        "a data loader was killed, most likely because the node's memory was full: use fewer workers or smaller batches",
        "torch/utils/data/_utils/signal_handling.py",
        then="killed by signal: Killed",
    ),
    Row(
        "memory",
        r"Cannot allocate memory|std::bad_alloc|^MemoryError|DefaultCPUAllocator: can't allocate memory",
        "the rank could not get more memory: that node's memory is full, or a limit is reached (ulimit -v)",
        "errno 12 of Linux; libstdc++; CPython; torch's c10/core/impl/alloc_cpu.cpp",
        warns=True,
    ),
    Row("disk-full", r"No space left on device", "a disk of that node is full: run df there", "errno 28 of Linux", warns=True),
    Row(
        "files",
        r"Too many open files",
        "the limit of open files is reached: raise it on that node (ulimit -n, /etc/security/limits.conf)",
        "errno 24 of Linux",
        warns=True,
    ),
    Row(
        "processes",
        r"can't start new thread|Cannot fork",
        _MANY_PROCESSES,
        "CPython; dash",
        warns=True,
    ),
    Row(
        "processes-errno",
        r"\bfork:|fork failed|cannot fork|pthread_create|Thread creation failed",
        _MANY_PROCESSES,
        "errno 11 of Linux from fork and pthread_create; libgomp",
        warns=True,
        then="Resource temporarily unavailable",
    ),
    Row(
        "thread-at-end",
        r"^terminate called without an active exception",
        "a thread was still running when its process ended: with torch, delete the model, then destroy_process_group()",
        "libstdc++, libsupc++/vterminate.cc: a std::thread that nobody joined, or one of gloo's that the end of CPython ends",
    ),
    Row(
        "gloo-address",
        r"Gloo connectFullMesh failed",
        "Gloo gave other nodes 127.0.1.1, the address of the host's own name in /etc/hosts: leave --network to mpilaunch, or "
        "name the interface that they reach by -x GLOO_SOCKET_IFNAME=eth0",
        "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp; Debian writes this address (Debian Reference, 5.1.1)",
        follow_on=True,  # on one machine it is a peer that has ended
        then="remote=[127.0.1.1]",
    ),
    Row(
        "gloo-own-name",
        r"gloo/transport/tcp/pair\.cc",
        "Gloo gave other nodes 127.0.1.1, the address of the host's own name in /etc/hosts: correct it there, as no variable "
        "leads the Gloo of JAX, or process sets of Horovod, elsewhere",
        "gloo/transport/tcp/pair.cc in jaxlib and Horovod 0.28",
        follow_on=True,  # on one machine it is a peer that has ended
        then="[127.0.1.1]",
    ),
    Row(
        "peer-gone",
        r"Connection reset by peer|Broken pipe|Connection closed by peer|Socket closed|Transport endpoint is not connected",
        ANOTHER_FAILED,
        "errno 104, 32 and 107 of Linux; gloo/transport/tcp/pair.cc",
        follow_on=True,
        warns=True,
    ),
    Row(
        "refused",
        r"Connection refused|ECONNREFUSED",
        "nothing listens there: the other rank has ended or had not started yet; MASTER_ADDR and MASTER_PORT give its address",
        "errno 111 of Linux",
        follow_on=True,
        warns=True,
    ),
)
"""If a line matches several rows, the first one counts."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
"""torch from 2.3 on puts it before each line of a traceback."""
_TRACEBACK = "Traceback (most recent call last):"
_NOT_THE_END = ("Exception ignored ", "Exception in thread")
LONGEST_QUOTE = 100
"""Characters of a line that a hint quotes."""


class Finding(NamedTuple):
    """A hint about a failure.

    Attributes:
        follow_on: the line is the consequence of another rank's end.
        sure: it is what ended the rank, as far as its place tells; otherwise the hint names it.
    """

    hint: str
    follow_on: bool = False
    sure: bool = True


def find_hint(end: RankEnd, lines: Sequence[bytes]) -> Finding | None:
    """Return the likely reason of a rank's failure, None if unknown; `lines` are the last lines of its stderr."""
    # A shell also exits with 128 + N when signal N killed its child.
    by_signal = _BY_SIGNAL.get(signal_name(end.exit_code - 128))
    if by_signal is not None and (end.signal is not None or end.evidence.known):
        return by_signal(end)
    texts = _texts(lines)
    start = _exception(texts)
    if start is not None and end.code == 1:  # what Python exits with; another exception was handled, or is not all
        behind = next((index for index in range(start, len(texts)) if texts[index].startswith(_NOT_THE_END)), len(texts))
        if findings := _findings(texts[start:behind]):
            return _best(findings)
        return None if start == len(texts) - 1 else Finding(f"the last exception that it printed: {texts[start].strip()}")
    # A message before the last line may be a warning, and what an exception says that was handled: the rank went on.
    ended_by_itself = end.signal is None or signal_name(end.signal) == "SIGABRT"  # which follows a message
    last = len(texts) - 1 if ended_by_itself else len(texts)
    return _best(_findings(texts, sure_from=last, sure=start is None))


def _best(findings: Sequence[Finding]) -> Finding | None:
    """Return the last finding of the best kind."""
    return min(reversed(findings), key=lambda finding: (finding.follow_on, not finding.sure), default=None)


def asked_for_input(lines: Sequence[bytes]) -> bool:
    """Return whether Python's input() or debugger ended a rank, as at the end of stdin, or at a `quit` that a user gave it."""
    return any(line.startswith((b"bdb.BdbQuit", b"EOFError: EOF when reading a line")) for line in lines[-1:])


def likely_cause(first: RankEnd, others: Sequence[RankEnd], lines_of: Callable[[int], Sequence[bytes]]) -> RankEnd | None:
    """Return the failure, one of `others`, that the first one was a consequence of, None if that is unknown."""
    for end in (first, *sorted(others, key=lambda end: (end.clock, end.rank))):
        finding = find_hint(end, lines_of(end.rank))
        if finding is None or not finding.follow_on or (end == first and not finding.sure):
            return None if end == first else end
    return None


def find_exception(ranks: Sequence[int], lines_of: Callable[[int], Sequence[bytes]]) -> tuple[int, str] | None:
    """Return the first rank that wrote an exception that is not a follow-on, and its line; the rank may still be running."""
    for rank in ranks:
        texts = _texts(lines_of(rank))
        start = _exception(texts)
        if start is not None and not any(finding.follow_on for finding in _findings(texts[start:])):
            return rank, texts[start].strip()
    return None


def _texts(lines: Sequence[bytes]) -> list[str]:
    """Return the last lines as text, without blank ones at the end."""
    texts = [_RANK_PREFIX.sub("", line.decode("utf-8", "replace")) for line in lines[-LINES_READ:]]
    while texts and not texts[-1].strip():
        texts.pop()
    return texts


def _findings(texts: Sequence[str], sure_from: int = 0, *, sure: bool = False) -> list[Finding]:
    """Return the finding of each line that matches a row.

    Args:
        sure_from: index of the first line that surely tells how the rank ended.
        sure: so does any other line with a message that is no warning.
    """
    findings = []
    for index, text in enumerate(texts):
        for row in ROWS:
            if (match := re.search(row.pattern, text)) and text.find(row.then, match.end()) >= 0:
                hint = row.hint.format(**match.groupdict())
                if index >= sure_from or (sure and not row.warns):
                    findings.append(Finding(hint, row.follow_on))
                else:
                    quoted = text.strip()[:LONGEST_QUOTE]
                    findings.append(Finding(f"if '{quoted}' is the reason: {hint}", row.follow_on, sure=False))
                break
    return findings


def _exception(texts: Sequence[str]) -> int | None:
    """Return the index of the exception of the last Python traceback, or None; what ended no more than a thread is left out."""
    last = len(texts)
    for index, text in enumerate(texts):
        if text.startswith(_TRACEBACK) and not (index and texts[index - 1].startswith(_NOT_THE_END)):
            last = index
    # Frames and their source lines are indented.
    return next((index for index in range(last + 1, len(texts)) if texts[index].strip() and texts[index][0] != " "), None)


def _killed(end: RankEnd) -> Finding:
    kernel = end.evidence.out_of_memory.partition(", file-rss")[0]
    if kernel:
        memory = "the memory limit of its container" if kernel.startswith("Memory cgroup") else "the node's memory"
        return Finding(f"{memory} was used up, and the kernel killed it: {kernel}")
    if end.evidence.memory_kills:
        return Finding("the memory of the node or container was used up: the kernel killed processes while this job ran")
    return Finding("the kernel's out-of-memory killer is the usual cause of SIGKILL: look at dmesg on that node")


def _bus_error(end: RankEnd) -> Finding:
    free, size = end.evidence.shm_free, end.evidence.shm_size
    remedy = "give the container or node more shared memory (docker run --shm-size)"
    if size <= 0:
        return Finding(f"a full /dev/shm is the usual cause of SIGBUS: {remedy}")
    message = f"/dev/shm of that node has {_bytes(free)} free of {_bytes(size)}"
    if size <= SMALL_SHM or free * 20 < size:
        return Finding(f"{message}, which is the usual cause of SIGBUS: {remedy}")
    return Finding(f"a full /dev/shm is the usual cause of SIGBUS ({message} now); truncating a mapped file is another")


_OLD_CPU = "the usual cause of SIGILL is a program built for a newer CPU than that node's: build it there"
_BY_SIGNAL: dict[str, Callable[[RankEnd], Finding]] = {
    "SIGKILL": _killed,
    "SIGBUS": _bus_error,
    "SIGILL": lambda end: Finding(_OLD_CPU),
    "SIGPIPE": lambda end: Finding(f"it wrote to a process that had gone; {ANOTHER_FAILED}", follow_on=True),
}


def _bytes(number: int) -> str:
    """Return a size as text: 1.5 GiB, 64.0 MiB, 0 bytes."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
