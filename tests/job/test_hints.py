"""Hints: what real programs say when they fail, as they wrote it, and what the report makes of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpilaunch.job.hints import ROWS, Finding, find_exception, find_hint, likely_cause
from mpilaunch.job.state import Evidence, RankEnd
from tests.support import goldens
from tests.support.failures import REASONS, proves
from tests.support.launching import environment, launch, sh
from tests.support.paths import TESTS

FRAME = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'

SAID = {path.stem: path.read_text(encoding="utf-8") for path in sorted((TESTS / "said").iterdir())}
"""What was said, by row and tool; of tracebacks the frames are cut."""

FAILED = RankEnd(3, code=1)


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines()


def row(name: str) -> str:
    return name.partition(".")[0]


def test_what_programs_say_becomes_a_hint() -> None:
    hints = {name: found.hint if (found := find_hint(FAILED, lines(text))) else "" for name, text in SAID.items()}
    goldens.check("hints.txt", "".join(f"{name}: {hint}\n" for name, hint in hints.items()))


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_every_row_has_a_text_of_a_real_program_and_a_source(one: object) -> None:
    texts = [text for name, text in SAID.items() if row(name) == one.name]  # type: ignore[attr-defined]
    assert texts and one.source  # type: ignore[attr-defined]
    for text in texts:
        found = find_hint(FAILED, lines(text))
        assert found is not None and found.follow_on is one.follow_on  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: loss is nan",
        "INFO: connection pool refused by policy\nloading\ndone",
        FRAME + "ValueError: x",
        "pthread pool made, fork join model",
        "WARNING: port 1 busy\n" + "step\n" * 100,
    ],
)
def test_no_hint_where_nothing_is_known(text: str) -> None:
    assert find_hint(FAILED, lines(text)) is None


def test_the_last_exception_counts_and_not_what_was_said_before() -> None:
    text = FRAME + "ConnectionResetError: [Errno 104] Connection reset by peer\n\n"
    text += "During handling of the above exception, another exception occurred:\n\n" + FRAME + "ValueError: gave up"
    assert find_hint(FAILED, lines(text)) is None
    assert find_hint(FAILED, lines("bind: Address already in use\n" + FRAME + "KeyError: 'a'")) is None


HANDLED = FRAME + "ValueError: handled\n"
OUT_OF_MEMORY = FRAME + "torch.OutOfMemoryError: CUDA out of memory.\n"


@pytest.mark.parametrize(
    ("text", "end", "begins"),
    [
        ("wandb: retrying: Connection refused\nbad lr", {"code": 2}, "if 'wandb: retrying: Connection refused' is the"),
        ("Connection reset by peer, retrying\nbad lr", {"code": 1}, "if 'Connection reset by peer, retrying' is the"),
        ("x.so.7: cannot open shared object file", {"signal": 11}, "if 'x.so.7: cannot open shared object file' is the"),
        ("no CUDA-capable device is detected\ngave up", {"code": 3}, "if 'no CUDA-capable device is detected' is the"),
        ("gave up\nbind: Address already in use\n\n", {"code": 3}, "a port is taken"),
        (f"{OUT_OF_MEMORY}Exception ignored in: <x>\n{FRAME}ValueError: p\n", {"code": 1}, "the GPU's memory is full"),
        (f"{HANDLED}Exception in thread T:\n{FRAME}KeyError: 1\nb\n", {"code": 1}, "the last exception that it printed: V"),
        (f"{HANDLED}Exception ignored in: <x>\n{FRAME}BrokenPipeError: [Errno 32] Broken pipe\n", {"code": 1}, "the last"),
        ("terminate called\n  what():  std::bad_alloc\n", {"signal": 6}, "the rank could not get more memory"),
        (f"{HANDLED}going on\n", {"code": 3}, None),
        (f"{HANDLED}going on\n", {"signal": 11}, None),
        (f"{OUT_OF_MEMORY}half the batch\n", {"code": 3}, "if 'torch.OutOfMemoryError: CUDA out of memory.' is the"),
        ("psycopg2.errors.OutOfMemory: out of shared memory", {"code": 1}, None),
        ('thread main: Os { message: "Resource temporarily unavailable" }', {"code": 1}, None),
    ],
)
def test_a_message_is_no_reason_by_itself(text: str, end: dict[str, int], begins: str | None) -> None:
    """Programs print warnings, and exceptions that they handle: what is not the last word is no more than a possible reason."""
    found = find_hint(RankEnd(3, **end), lines(text))  # type: ignore[arg-type]
    assert (None if found is None else found.hint[: len(begins or "")]) == begins
    if found is not None and found.hint.startswith("if "):
        assert not found.sure
        assert likely_cause(RankEnd(3, **end), [RankEnd(4, code=1)], lambda rank: lines(text)) is None  # type: ignore[arg-type]


def test_an_exception_that_other_lines_hide_is_named() -> None:
    text = FRAME + "ValueError: loss is nan\n[W] process group has not been destroyed\n" * 3
    assert find_hint(FAILED, lines(text)) == Finding("the last exception that it printed: ValueError: loss is nan")


def test_a_reason_counts_before_a_lost_peer() -> None:
    found = find_hint(FAILED, lines("OSError: [Errno 28] No space left on device\nsend: Broken pipe"))
    assert found is not None and "disk" in found.hint and not found.follow_on


KERNEL = "out of memory: Killed process 5385 (python3) total-vm:221356kB, anon-rss:50944kB, file-rss:6612kB, UID:0"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (RankEnd(0, signal=9), "the kernel's out-of-memory killer is the usual cause of SIGKILL"),
        (RankEnd(0, signal=9, evidence=Evidence(f"Memory cgroup {KERNEL}", 1)), "the memory limit of its container"),
        (RankEnd(0, signal=9, evidence=Evidence(f"O{KERNEL[1:]}")), "the node's memory was used up, and the kernel"),
        (RankEnd(0, signal=9, evidence=Evidence("", 2)), "the kernel killed processes while this job ran"),
        (RankEnd(0, code=137, evidence=Evidence("", 1)), "the kernel killed processes while this job ran"),
        (RankEnd(0, signal=7), "a full /dev/shm is the usual cause of SIGBUS: give"),
        (RankEnd(0, signal=7, evidence=Evidence(shm_free=0, shm_size=64 << 20)), "0 bytes free of 64.0 MiB"),
        (RankEnd(0, signal=7, evidence=Evidence(shm_free=20 << 30, shm_size=24 << 30)), "20.0 GiB free of 24.0 GiB now"),
        (RankEnd(0, signal=4), "built for a newer CPU"),
        (RankEnd(0, signal=13), "had gone"),
    ],
)
def test_what_the_signal_and_the_node_tell(end: RankEnd, words: str) -> None:
    found = find_hint(end, ())
    assert found is not None and words in found.hint
    assert find_hint(RankEnd(0, signal=11), ()) is None and find_hint(RankEnd(0, code=137), ()) is None


# The failure that counts


def test_a_follow_on_never_hides_the_failure_that_it_followed_from() -> None:
    said = {0: lines(SAID["peer-gone.python"]), 1: lines(SAID["nccl-peer.torch"]), 2: [], 3: lines(SAID["disk-full.python"])}
    first, again = RankEnd(0, code=1, clock=1.0), RankEnd(1, code=1, clock=1.1)
    for cause in (RankEnd(2, signal=11, clock=1.2), RankEnd(3, code=1, clock=1.2)):
        assert likely_cause(first, (again, cause), said.__getitem__) == cause
    assert likely_cause(first, (again,), said.__getitem__) is None
    assert likely_cause(RankEnd(2, code=1), (first, again), said.__getitem__) is None


def test_a_rank_that_hangs_behind_its_exception_is_found() -> None:
    said = {0: [], 1: lines(SAID["peer-gone.python"]), 2: lines(FRAME + "KeyError: 'loss'")}
    assert find_exception([0, 1, 2], said.__getitem__) == (2, "KeyError: 'loss'")
    assert find_exception([0, 1], said.__getitem__) is None


# Real programs, real launches

STAY = "[ $RANK = 1 ] || exec sleep 100; "


def hint_of(*program: str, folder: Path | None = None) -> str:
    """Launch two ranks of which rank 1 fails; return the hint."""
    done = launch("-np", "2", *program, cwd=folder)
    assert "error[rank-failed]: rank 1 on localhost" in done.words
    return done.words.partition("\nhint: ")[2].rstrip("\n")


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, time\nif os.environ['RANK'] == '0': time.sleep(100)\n{text}")


@proves(
    "port", REASONS, "a port is taken", finder="its last lines",
    says="`hint: a port is taken on that node, perhaps by another job: leave --master-port out`", code="the rank's",
    within=10,
)  # fmt: skip
def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hint = hint_of(*python(f"import socket\nsocket.create_server(('127.0.0.1', {port}))"))
    assert hint.startswith("a port is taken on that node")


@proves(
    "module", REASONS, "a Python module is missing", finder="its last lines",
    says="`hint: the Python of that node has no module 'torch'`", code="1", within=10,
)  # fmt: skip
def test_a_module_that_is_missing() -> None:
    assert "has no module 'no_such_module'" in hint_of(*python("import no_such_module.part"))


@pytest.mark.needs("gcc")
@proves(
    "library", REASONS, "a shared library is missing", finder="its last lines",
    says="`hint: libmpi.so.40 is not found on that node`", code="127", within=10,
)  # fmt: skip
def test_a_library_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "lib.c").write_text("int f(void) { return 0; }\n")
    (tmp_path / "main.c").write_text("int f(void);\nint main(void) { return f(); }\n")
    subprocess.run(["gcc", "-shared", "-o", "libsolve.so.1", "lib.c"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-o", "main", "main.c", "./libsolve.so.1"], cwd=tmp_path, check=True)
    (tmp_path / "libsolve.so.1").unlink()
    assert hint_of(*sh(f"{STAY}exec ./main"), folder=tmp_path).startswith("./libsolve.so.1 is not found on that node")


@pytest.mark.needs("gcc")
def test_an_instruction_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int main(void) { __builtin_trap(); }\n")
    subprocess.run(["gcc", "-o", "main", "main.c"], cwd=tmp_path, check=True)
    done = launch("-np", "2", *sh(f"ulimit -c 0; {STAY}exec ./main"), cwd=tmp_path)
    assert "killed by SIGILL (signal 4)" in done.words and "built for a newer CPU" in done.words


def test_memory_that_a_limit_denies() -> None:
    limit = 1 << 30
    text = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({limit}, {resource.RLIM_INFINITY}))\n"
    assert "could not get more memory" in hint_of(*python(f"{text}bytearray({2 * limit})"))


def test_a_thread_that_is_at_work_when_its_process_ends() -> None:
    # What C++ calls then: the gcc that the other tests need has no C++ beside it.
    text = "import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    hint = hint_of(*python(f"{text}ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()"))
    assert hint.startswith("a thread was still running when its process ended")


@proves(
    "bus-error", REASONS, "a rank dies of SIGBUS", finder="its daemon: how much of /dev/shm is free",
    says="`hint: ... SIGBUS (/dev/shm of that node has 0 bytes free of 64.0 MiB now)`", code="135", within=10,
)  # fmt: skip
def test_a_data_file_that_shrank_is_a_bus_error(tmp_path: Path) -> None:
    text = "import mmap\nwith open('data', 'w+b') as file:\n  file.truncate(8192)\n  data = mmap.mmap(file.fileno(), 8192)\n"
    hint = hint_of(*python(text + "  file.truncate(0)\n  data[5000]"), folder=tmp_path)
    assert "/dev/shm of that node has " in hint and "SIGBUS" in hint


@proves(
    "follow-on", REASONS, "a rank fails because another had failed, and ends before it",
    finder="its last lines, and the other's",
    says="`hint: this may have followed from rank 1 on localhost, which had not ended but printed: KeyError: 'loss'`",
    code="the rank's", within=10,
)  # fmt: skip
def test_a_rank_that_lost_its_peer_does_not_hide_it() -> None:
    # Rank 1 has failed, but a thread of it goes on: rank 0 ends first.
    program = """
        import os, socket, threading, time
        if os.environ["RANK"] == "0":
            time.sleep(0.5)
            raise ConnectionResetError(104, "Connection reset by peer")
        threading.Thread(target=time.sleep, args=(100,)).start()
        raise KeyError("loss")
    """
    done = launch("-np", "2", sys.executable, "-c", textwrap.dedent(program))
    assert "rank 0 on localhost exited with code 1" in done.words
    assert "hint: this may have followed from rank 1 on localhost, which had not ended but printed: KeyError: 'l" in done.words


def test_what_ranks_say_changes_neither_the_first_failure_nor_the_code(tmp_path: Path) -> None:
    program = """
        import os, sys, time
        if os.environ["RANK"] == "1":
            print("ncclRemoteError: A call failed possibly due to a network error", file=sys.stderr)
            sys.exit(7)
        time.sleep(0.5)
        print("OSError: [Errno 28] No space left on device", file=sys.stderr)
        sys.exit(9)
    """
    words = ("-np", "2", "--continue-on-error", "--report", "report.json", sys.executable, "-c", textwrap.dedent(program))
    done = launch(*words, cwd=tmp_path)
    assert done.code == 7 and "error[rank-failed]: rank 1 on localhost exited with code 7" in done.words
    assert "hint: likely cause: rank 0 on localhost, which exited with code 9: a disk of that node is full" in done.words
    assert "    the last lines of rank 0 on stderr:\n    | OSError: [Errno 28] No space left on device\n" in done.words
    verdict = json.loads((tmp_path / "report.json").read_text())["verdict"]
    assert (verdict["first_rank"], verdict["exit_code"], verdict["likely_cause"]["rank"]) == (1, 7, 0)


# Killed by the kernel for memory


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Give a control group of 100 MiB; needs root and a kernel whose groups may be written."""
    groups = Path("/sys/fs/cgroup")
    version_1 = (groups / "memory").is_dir()
    group = (groups / "memory" if version_1 else groups) / f"mpilaunch-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text("100M")
        yield group
    finally:
        group.rmdir()


EAT = f"{sys.executable} -c 'x = bytearray(300 << 20)'"


@pytest.mark.testbed
@proves(
    "memory", REASONS, "the kernel kills a rank for memory",
    finder="its daemon: the kernel's log, else the counter of the control group",
    says="`hint: the memory limit of its container was used up, and the kernel killed it: Memory cgroup out of memory: ...`",
    code="137", within=10,
)  # fmt: skip
def test_a_rank_that_the_kernel_kills_for_memory(small_group: Path) -> None:
    hint = hint_of(*sh(f"{STAY}echo $$ > {small_group}/cgroup.procs; exec {EAT}"))
    # In a container the kernel's words are not about our process ids, and the counters tell.
    by_log = "the memory limit of its container was used up, and the kernel killed it: Memory cgroup out of memory: Killed"
    assert hint.startswith((by_log, "the memory of the node or container was used up"))


@pytest.mark.testbed
def test_the_group_of_the_node_tells_where_the_log_does_not(small_group: Path) -> None:
    # As in a container: all of the job is in the group, and process ids are the container's own.
    own_space = f"exec unshare --pid --fork --mount-proc {sys.executable}"
    command = f"echo $$ > {small_group}/cgroup.procs; {own_space} -m mpilaunch -np 2 "
    script = f'{STAY}sleep 0.2; exec python3 -I -S -c "x = []\nwhile True: x.append(bytearray(1 << 20))"'
    done = subprocess.run(
        ["sh", "-c", command + '"$@"', "sh", "sh", "-c", script], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 137, done.stderr
    assert "hint: the memory of the node or container was used up: the kernel killed processes" in done.stderr


def test_a_rank_that_somebody_else_killed_was_not_killed_for_memory() -> None:
    hint = hint_of(*sh(f"{STAY}kill -{int(signal.SIGKILL)} $$"))
    assert hint.startswith("the kernel's out-of-memory killer is the usual cause of SIGKILL")
