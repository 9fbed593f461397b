"""A second user of the machine: what he puts in the way, and what happens when he is the one who runs our code.

Tests run as root. `as_user` forks, so that nothing but the directory at hand need be open to that user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

USER, OTHER = 65534, 65533
"""Ids of two users that no process of the machine runs as."""


@contextlib.contextmanager
def shared_directory(mode: int) -> Iterator[Path]:
    """Give a directory in /tmp that every user can reach: 0o1777 has the sticky bit, 0o777 has not."""
    path = Path(tempfile.mkdtemp(prefix="mpilaunch-test-", dir="/tmp"))
    try:
        path.chmod(mode)
        yield path
    finally:
        shutil.rmtree(path)


def as_user(uid: int, work: Callable[[], str | None], directory: Path | None = None, limit: float = 20.0) -> str:
    """Run a function as another user, in a process and perhaps a directory of its own; return its text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _be(uid, work, directory, write)
    os.close(write)
    deadline = time.monotonic() + limit
    with open(read, "rb") as file:
        os.set_blocking(read, False)
        text = b""
        while (piece := file.read()) != b"":
            text += piece or b""
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError(f"not within {limit:g} s")
            time.sleep(0.005)
    assert os.waitpid(child, 0)[1] == 0, text.decode()
    return text.decode()


def _be(uid: int, work: Callable[[], str | None], directory: Path | None, write: int) -> None:
    code = 1
    try:
        if directory is not None:
            os.chdir(directory)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        os.write(write, (work() or "").encode())
        code = 0
    except BaseException:
        os.write(write, traceback.format_exc().encode())
    finally:
        os._exit(code)
