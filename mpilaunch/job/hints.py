"""Why a rank failed, as far as its last words, its signal and its node tell: one hint for the report.

Pure: a table of what real programs say, each row with the source of its text. A hint is given only where the words leave
little doubt. A follow-on is what a rank says when *another* has gone: it is told as that, and never hides an earlier failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpilaunch.job.state import RankEnd, signal_name

LINES_READ = 60
"""So many of the last lines are looked at: an earlier one is rarely the reason."""
SMALL_SHM = 64 << 20
"""Bytes of /dev/shm that containers get when nobody says more."""


@dataclass(frozen=True)
class Row:
    """One known message of programs.

    Attributes:
        name: stable, for tests and docs.
        pattern: found in one line.
        hint: what to do; {name} stands for a group of the pattern.
        source: where the text comes from.
        follow_on: it says that another rank has gone.
    """

    name: str
    pattern: str
    hint: str
    source: str
    follow_on: bool = False


ANOTHER_FAILED = "this tells that another rank had gone: if that is none of the ranks named here, look at its output"

ROWS = (
    Row(
        "port-in-use",
        r"Address already in use|EADDRINUSE",
        "a port is taken on that node, perhaps by another job: leave --master-port out, and mpilaunch finds a free one",
        "errno 98 of Linux; torch's c10d server socket (torch/csrc/distributed/c10d/socket.cpp)",
    ),
    Row(
        "gpu-ordinal",
        r"invalid device ordinal",
        "the rank chose a GPU that it does not see: --report-bindings shows which it has, --gpu-bind how they are numbered",
        "cudaErrorInvalidDevice (CUDA runtime API, error 101)",
    ),
    Row(
        "gpu-memory",
        r"CUDA out of memory|CUDA error: out of memory|HIP out of memory|cudaErrorMemoryAllocation",
        "the GPU's memory is full: a smaller batch, or see with nvidia-smi on that node who else uses it",
        "torch.OutOfMemoryError; cudaErrorMemoryAllocation (CUDA runtime API, error 2)",
    ),
    Row(
        "gpu-missing",
        r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver version is insufficient"
        r"|not compiled with CUDA|Could not load library libcuda|No HIP GPUs are available",
        "the rank finds no GPU that it can use: compare nvidia-smi on that node with mpilaunch --report-bindings",
        "cudaErrorNoDevice, cudaErrorInsufficientDriver (CUDA runtime API); torch/cuda/__init__.py",
    ),
    Row(
        "nccl-duplicate-gpu",
        r"Duplicate GPU detected",
        "two ranks use the same GPU: take GPU number LOCAL_RANK, or let --gpus-per-rank 1 give each its own",
        "NCCL, src/init.cc",
    ),
    Row(
        "nccl-peer",
        r"ncclRemoteError|remote process exited or there was a network error|NCCL.*[Cc]onnection closed by remote peer"
        r"|Net : Connection closed by remote peer|Watchdog caught collective operation timeout",
        ANOTHER_FAILED,
        "ncclRemoteError (NCCL, src/include/nccl.h); torch ProcessGroupNCCL's watchdog",
        follow_on=True,
    ),
    Row(
        "nccl",
        r"\bnccl(UnhandledCuda|System|Internal|InvalidUsage)(Error)?\b|NCCL error",
        "-x NCCL_DEBUG=INFO lets NCCL tell more; on several nodes -x NCCL_SOCKET_IFNAME=NAME names the network to use",
        "ncclResult_t (NCCL, src/include/nccl.h); NCCL's environment variables",
    ),
    Row(
        "library-missing",
        r"(?P<library>\S+\.so\S*): cannot open shared object file",
        "{library} is not found on that node: forward the path with -x LD_LIBRARY_PATH, or install it there",
        "glibc's ld.so (elf/dl-load.c); Python's ImportError of dlopen",
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
        "an mpirun inside the rank said this: mpilaunch starts the ranks itself, so give it the program without mpirun",
        "Open MPI, orte/mca/rmaps/base/help-orte-rmaps-base.txt",
    ),
    Row(
        "worker-shm",
        r"killed by signal: Bus error|insufficient shared memory \(shm\)|out of shared memory",
        "/dev/shm of that node or container is too small for the data loader: give it more (docker run --shm-size)",
        "torch/utils/data/_utils/signal_handling.py",
    ),
    Row(
        "worker-memory",
        r"DataLoader worker .*killed by signal: Killed",
        "a data loader was killed, most likely because the node's memory was full: fewer workers, or smaller batches",
        "torch/utils/data/_utils/signal_handling.py",
    ),
    Row(
        "memory",
        r"Cannot allocate memory|std::bad_alloc|^MemoryError|DefaultCPUAllocator: can't allocate memory",
        "there is no more memory for the rank on that node, or a limit of it is reached (ulimit -v)",
        "errno 12 of Linux; libstdc++; CPython; torch's c10/core/impl/alloc_cpu.cpp",
    ),
    Row("disk-full", r"No space left on device", "a disk of that node is full: look with df there", "errno 28 of Linux"),
    Row(
        "files",
        r"Too many open files",
        "the limit of open files is reached: raise it on that node (ulimit -n, /etc/security/limits.conf)",
        "errno 24 of Linux",
    ),
    Row(
        "processes",
        r"(fork|pthread_create|thread).*Resource temporarily unavailable|can't start new thread|Cannot fork",
        "the limit of processes is reached: raise it on that node (ulimit -u, pids.max), or set OMP_NUM_THREADS lower",
        "errno 11 of Linux from fork and pthread_create; CPython; libgomp",
    ),
    Row(
        "thread-at-end",
        r"^terminate called without an active exception",
        "a thread was at work when its process ended: with torch, let go of the model, then dist.destroy_process_group()",
        "libstdc++, libsupc++/vterminate.cc: a std::thread that nobody joined, or one of gloo's that the end of CPython ends",
    ),
    Row(
        "peer-gone",
        r"Connection reset by peer|Broken pipe|Connection closed by peer|Socket closed|Transport endpoint is not connected",
        ANOTHER_FAILED,
        "errno 104, 32 and 107 of Linux; gloo/transport/tcp/pair.cc",
        follow_on=True,
    ),
    Row(
        "refused",
        r"Connection refused|ECONNREFUSED",
        "nobody listens there: the rank that should has gone, or had not begun; MASTER_ADDR and MASTER_PORT say where it is",
        "errno 111 of Linux",
        follow_on=True,
    ),
)
"""In this order where one line fits several rows."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
"""Put before each line of a traceback by torch from 2.3 on."""
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Finding:
    """A hint about a failure, and whether it is a consequence of another rank's failure."""

    hint: str
    follow_on: bool = False


def find_hint(end: RankEnd, lines: Sequence[bytes]) -> Finding | None:
    """Return the reason for a rank's failure from its end and the last lines of its stderr, None if unknown."""
    # A shell, too, exits with 128 + N for a child that signal N killed.
    by_signal = _BY_SIGNAL.get(signal_name(end.exit_code - 128))
    if by_signal is not None and (end.signal is not None or end.evidence.known):
        return by_signal(end)
    texts = _texts(lines)
    start = _exception(texts)
    findings = [found for text in reversed(texts[start or 0 :]) if (found := _finding(text)) is not None]
    # The reason itself, where something else than a lost peer was said.
    for found in sorted(findings, key=lambda one: one.follow_on):
        return found
    if start is not None and start < len(texts) - 1:
        return Finding(f"the exception that ended it: {texts[start].strip()}")
    return None


def decisive_failure(first: RankEnd, others: Sequence[RankEnd], lines_of: Callable[[int], Sequence[bytes]]) -> RankEnd:
    """Return the failure to report: the first, unless it was a consequence of another rank's failure.

    Args:
        others: the other ranks that failed by themselves.
        lines_of: the last lines of a rank's stderr.
    """
    found = find_hint(first, lines_of(first.rank))
    if found is None or not found.follow_on:
        return first
    for end in sorted(others, key=lambda end: (end.clock, end.rank)):
        found = find_hint(end, lines_of(end.rank))
        if found is None or not found.follow_on:
            return end
    return first


def find_exception(ranks: Sequence[int], lines_of: Callable[[int], Sequence[bytes]]) -> tuple[int, str] | None:
    """Return the first of the ranks that wrote an exception of its own, and that line; the rank may hang instead of ending."""
    for rank in ranks:
        texts = _texts(lines_of(rank))
        start = _exception(texts)
        if start is not None and not any(found.follow_on for text in texts[start:] if (found := _finding(text)) is not None):
            return rank, texts[start].strip()
    return None


def _texts(lines: Sequence[bytes]) -> list[str]:
    return [_RANK_PREFIX.sub("", line.decode("utf-8", "replace")) for line in lines[-LINES_READ:]]


def _finding(text: str) -> Finding | None:
    for row in ROWS:
        match = re.search(row.pattern, text)
        if match is not None:
            return Finding(row.hint.format(**match.groupdict()), row.follow_on)
    return None


def _exception(texts: Sequence[str]) -> int | None:
    """Return where the last Python traceback tells its exception; None when there is none."""
    starts = [place for place, text in enumerate(texts) if text.startswith(_TRACEBACK)]
    if not starts:
        return None
    # Frames and their source lines are indented.
    return next((place for place in range(starts[-1] + 1, len(texts)) if texts[place].strip() and texts[place][0] != " "), None)


def _killed(end: RankEnd) -> Finding:
    kernel = end.evidence.out_of_memory.partition(", file-rss")[0]
    if kernel:
        what = "the memory limit of its container" if kernel.startswith("Memory cgroup") else "the node's memory"
        return Finding(f"{what} was used up, and the kernel killed it: {kernel}")
    if end.evidence.memory_kills:
        return Finding("the memory of the node or container was used up: its kernel has killed for it while this job ran")
    return Finding("the kernel's out-of-memory killer is the usual cause of SIGKILL: look at dmesg on that node")


def _bus_error(end: RankEnd) -> Finding:
    free, size = end.evidence.shm_free, end.evidence.shm_size
    more = "give the container or node more shared memory (docker run --shm-size)"
    if size <= 0:
        return Finding(f"a full /dev/shm is the usual cause of SIGBUS: {more}")
    told = f"/dev/shm of that node has {_bytes(free)} free of {_bytes(size)}"
    if size <= SMALL_SHM or free * 20 < size:
        return Finding(f"{told}, which is the usual cause of SIGBUS: {more}")
    return Finding(f"a full /dev/shm is the usual cause of SIGBUS ({told} now), a file that shrank while mapped another")


def _illegal_instruction(end: RankEnd) -> Finding:
    return Finding("the usual cause of SIGILL is a program built for a newer CPU than that node's: build it there")


def _broken_pipe(end: RankEnd) -> Finding:
    return Finding(f"it wrote to somebody who had gone; {ANOTHER_FAILED}", follow_on=True)


_BY_SIGNAL: dict[str, Callable[[RankEnd], Finding]] = {
    "SIGKILL": _killed,
    "SIGBUS": _bus_error,
    "SIGILL": _illegal_instruction,
    "SIGPIPE": _broken_pipe,
}


def _bytes(number: int) -> str:
    """Return 1.5 GiB, 64.0 MiB, 0 bytes."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
