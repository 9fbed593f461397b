"""Stacks as faulthandler of each Python writes them, and the line of the user's code that they are in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mpilaunch.job.hangs.stacks import Frame, Process, Stack, as_text, last_lines, place_of, stacks_in
from tests.support.pythons import found_pythons

PROGRAM = """\
import faulthandler, os, queue, signal, threading
faulthandler.enable()
def load_batch():
    os.kill(os.getpid(), signal.SIGABRT)
waits = queue.Queue()
thread = threading.Thread(target=waits.get, name="loader", daemon=True)
thread.start()
while not waits.not_empty._waiters: pass
load_batch()
"""


@pytest.mark.parametrize("version", sorted(found_pythons()), ids=str)
def test_stacks_of_each_python_are_read(version: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = subprocess.run([found_pythons()[version], tmp_path / "train.py"], capture_output=True, text=True, timeout=60)
    loader, main = stacks_in("before\n" + done.stderr + "after\n")
    file = f"{tmp_path}/train.py"
    assert main == Stack(True, main.name, (Frame(file, 4, "load_batch"), Frame(file, 9, "<module>")))
    assert main.place == "load_batch (train.py:4)"
    assert not loader.current and [frame.function for frame in loader.frames][:2] == ["wait", "get"]
    assert not any(frame.is_users for frame in loader.frames)


def test_a_call_of_a_library_is_reported_by_the_users_line() -> None:
    text = '''Fatal Python error: Aborted

Current thread 0x00007f7cf80bb040 [python3] (most recent call first):
  File "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/ann/train.py", line 88 in step
  File "<frozen runpy>", line 88 in _run_code

Extension modules: torch._C (total: 1)
'''
    (stack,) = stacks_in(text)
    assert (stack.place, stack.name, len(stack.frames)) == ("all_reduce (train.py:88)", "python3", 4)


@pytest.mark.parametrize(
    ("inner", "outer", "place"),
    [
        ("/shared/packages/torch/autograd/graph.py", "/home/ann/train.py", "callee (train.py:7)"),
        ("/home/ann/torch/data.py", "/home/ann/torch/train.py", "callee (train.py:7)"),
        ("/usr/lib/python3.11/threading.py", "<frozen runpy>", "callee (threading.py:3)"),
    ],
)
def test_a_framework_is_known_by_its_name_where_it_is_not_installed(inner: str, outer: str, place: str) -> None:
    assert Stack(True, "", (Frame(inner, 3, "callee"), Frame(outer, 7, "caller"))).place == place


@pytest.mark.parametrize(
    "text",
    ["", "Current thread 0x1 (most recent call first):\n  <no Python frame>\n", "Thread 0xz (most recent call first):\n"],
)
def test_what_is_no_stack_has_no_place(text: str) -> None:
    assert not any(stack.place for stack in stacks_in(text))


def test_a_dump_of_stacks_leaves_the_reason_before_it() -> None:
    reason = [b"terminate called after throwing an instance of 'std::runtime_error'", b"  what():  the reason", b""]
    thread = [b"Thread 0x1 (most recent call first):", *[b'  File "a"'] * 9, b""]
    frames = [b'  File "train.py", line %d in f' % number for number in range(40)]
    dump = [b"Fatal Python error: Aborted", b"", *thread * 5, b"Current thread 0x9 (most recent call first):", *frames]
    shown = last_lines([*[b"early"] * 50, *reason, *dump], 12)
    assert shown == (*[b"early"] * 3, *reason, dump[0], b"Current thread 0x9 (most recent call first):", *frames[:4])
    assert last_lines(reason, 12) == tuple(reason)
    assert last_lines([*reason, *dump[:2]], 2) == (b"", b"Fatal Python error: Aborted"), "one that broke off"
    assert len(last_lines([*[b"early"] * 50, *dump[:20]], 12)) == 12


def test_the_stacks_of_a_rank_as_text() -> None:
    def process(pid: int, *threads: str) -> Process:
        outer = ["/home/ann/\x1b[2J.py", 0, "<module>"]
        stacks = [[["/home/ann/train.py", 8, name], outer] for name in threads]
        return Process.of({"pid": pid, "steady": True, "threads": stacks})

    rank = [process(1, "step", "pool", "other", "pool"), process(2, "load"), process(3, "load")]
    assert [Process.of(each.as_data()) for each in rank] == rank
    assert place_of(rank) == "step (train.py:8); a worker process in load (train.py:8)"
    module = '  File "/home/ann/\\x1b[2J.py", line ??? in <module>'
    titles = ["Main thread", "2 threads", "Thread", "2 worker processes: main thread"]
    assert as_text(rank).splitlines() == [
        text
        for title, name in zip(titles, ["step", "pool", "other", "load"], strict=True)
        for text in (f"{title} (most recent call first):", f'  File "/home/ann/train.py", line 8 in {name}', module)
    ]
    assert (place_of([]), as_text([])) == ("", "")
    told = {"pid": 1, "steady": True, "threads": [[], [["/home/ann/a.py", 3, "poll"]]], "of a newer daemon": 1}
    embedded = [Process.of(told), process(2, "load")]
    assert place_of(embedded) == ""
    assert as_text(embedded).startswith('Thread (most recent call first):\n  File "/home/ann/a.py"')
