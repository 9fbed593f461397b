"""Prepare and start ranks.

Preparing finds every reason why a rank could not start, and starts nothing. Starting uses posix_spawn: quick from a process
of any size, and an exec that fails is told with its errno. A rank gets a session of its own, default signals, an empty
signal mask, descriptors 0 to 2, its connection to PMI, and nothing else of ours.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import Any

from mpilaunch.wire.environment import app_layer, decode, encode, rank_layer

PROGRAM_MISSING = "program-missing"
PROGRAM_NOT_EXECUTABLE = "program-not-executable"
DIRECTORY_MISSING = "directory-missing"
INTERPRETER_MISSING = "interpreter-missing"
FILE_LIMIT = "file-limit"

OWN_FILES = 40
"""Descriptors that this process has beside those of its ranks, and those that it needs while it starts one."""


class Problem(Exception):
    """Why no rank can start on this node: a cause (a key that the head folds nodes by) and a detail for the user."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class App:
    """One program, ready to be started on this node; `note` is for the user, "" for none."""

    def __init__(
        self, path: bytes, arguments: list[bytes], directory: bytes, environment: dict[bytes, bytes], note: str
    ) -> None:
        self.path, self.arguments = path, arguments
        self.directory, self.environment, self.note = directory, environment, note


def prepare_app(message: dict[str, Any], environment: dict[bytes, bytes], pythons: list[str]) -> App:
    """Find all that an app of the `prepare` message needs on this node; raises Problem."""
    directory, note = choose_directory(message["directory"], message["directory_required"])
    environment = app_layer(message, environment)
    search_path = environment.get(b"PATH", os.defpath.encode())
    path, arguments = resolve_program(message["program"], search_path, directory, pythons)
    return App(path, arguments, directory, environment, note)


def check_file_limit(message: dict[str, Any], others: bool) -> None:
    """See that this process may open as many files as its ranks need, beside `others` that run; raises Problem."""
    descriptor = None if message["mpi"] is None else message["mpi"]["descriptor"]
    each = (1 if message["merge_stderr"] else 2) + (descriptor is not None)
    needed = OWN_FILES + sum(each + bool(spec["stdin"]) for spec in message["ranks"])
    if others:
        needed += len(os.listdir("/proc/self/fd"))
    if descriptor is not None:
        needed = max(needed, descriptor + OWN_FILES)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < needed:
        detail = "%d ranks need %d open files, the limit there is %d" % (len(message["ranks"]), needed, allowed)
        raise Problem(FILE_LIMIT, detail)


def choose_directory(wanted: str, required: bool) -> tuple[bytes, str]:
    """Return the directory that ranks start in, and a note when it is not the wanted one; raises Problem."""
    path = encode(wanted)
    if os.path.isdir(path) and os.access(path, os.X_OK):
        return path, ""
    if required:
        kind = "not a directory" if os.path.exists(path) else "no such directory"
        reason = "no permission to enter" if os.path.isdir(path) else kind
        raise Problem(DIRECTORY_MISSING, "%s: %s" % (wanted, reason))
    home = os.path.expanduser(b"~")
    return (home if os.path.isdir(home) else b"/"), "no %s here: ranks start in the home directory" % wanted


def resolve_program(
    program: list[str], search_path: bytes, directory: bytes, pythons: list[str]
) -> tuple[bytes, list[bytes]]:
    """Find what will be executed: its path and its argument list; raises Problem.

    A name without a slash is searched in `search_path` and then in `directory`, as mpirun does. A `.py` file that is not
    executable or has no `#!` line runs under the first of `pythons` that exists.
    """
    name = encode(program[0])
    arguments = [encode(argument) for argument in program]
    path = _find(name, search_path, directory)
    if path is None:
        where = "not found" if b"/" in name else "not found in PATH nor in %s" % decode(directory)
        raise Problem(PROGRAM_MISSING, "%s: %s" % (program[0], where))
    if os.path.isdir(path):
        raise Problem(PROGRAM_NOT_EXECUTABLE, "%s: is a directory" % program[0])
    interpreter = _interpreter(path)
    if path.endswith(b".py") and (interpreter is None or not os.access(path, os.X_OK)):
        python = _first_python(pythons, search_path, directory)
        return python, [python, path] + arguments[1:]
    if not os.access(path, os.X_OK):
        raise Problem(PROGRAM_NOT_EXECUTABLE, "%s: not executable" % decode(path))
    if interpreter is not None and not os.path.exists(interpreter):
        # The kernel's own words would be that the program is missing, which sends people looking at the wrong file.
        detail = "%s: its first line names %r, which is not there" % (decode(path), decode(interpreter))
        raise Problem(INTERPRETER_MISSING, detail)
    return path, arguments


def start(
    app: App,
    unset: list[str],
    variables: dict[str, str],
    cpus: list[int] | None,
    descriptors: dict[int, int],
) -> int:
    """Start one rank; return its process id; raises OSError when it cannot be executed.

    Args:
        unset, variables: what the rank lacks of the app's environment, and then has over it.
        cpus: the CPUs that it may use, None for all of ours.
        descriptors: which descriptor of ours each descriptor of the rank is; the lower numbers come first.
    """
    environment = rank_layer(unset, variables, app.environment)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in sorted(descriptors.items())]
    ours = os.sched_getaffinity(0) if cpus is not None else None
    # A spawned process begins with our affinity and limits, so they are the rank's for a moment; nothing else runs meanwhile.
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NODE_FILES, hard))
    try:
        os.chdir(app.directory)  # a spawned process begins in ours
        return os.posix_spawn(
            app.path, app.arguments, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESET_SIGNALS
        )
    except NotImplementedError:
        return _spawn_slowly(app, environment, descriptors)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if ours is not None:
            os.sched_setaffinity(0, ours)


def _spawn_slowly(app: App, environment: dict[bytes, bytes], descriptors: dict[int, int]) -> int:
    """Do the same where Python was built for a C library whose posix_spawn makes no session, glibc before 2.26."""
    import subprocess

    def begin() -> None:
        for number, descriptor in sorted(descriptors.items()):
            os.dup2(descriptor, number)
        for signal_number in _RESET_SIGNALS:
            try:
                signal.signal(signal_number, signal.SIG_DFL)
            except OSError:
                pass  # one of the C library's own
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    process = subprocess.Popen(
        app.arguments, executable=app.path, env=environment, close_fds=False, start_new_session=True, preexec_fn=begin
    )
    process.returncode = 0  # its end is the reaper's
    return process.pid


def raise_file_limit() -> None:
    """Let this process open as many files as the node allows: a rank takes four of ours. Ranks keep the node's own limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_NODE_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
# Python ignores SIGPIPE, and a nohup'ed agent SIGHUP; a rank must begin as if started from a shell.
_RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def _find(name: bytes, search_path: bytes, directory: bytes) -> bytes | None:
    if b"/" in name:
        path = os.path.join(directory, name)
        return path if os.path.exists(path) else None
    fallback = None
    for folder in search_path.split(b":"):
        path = os.path.join(directory, folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
        if fallback is None and folder and os.path.isfile(path):
            fallback = path
    here = os.path.join(directory, name)
    return here if os.path.exists(here) else fallback


def _interpreter(path: bytes) -> bytes | None:
    """Return the interpreter that a script's `#!` line names, None when it has no such line."""
    try:
        with open(path, "rb") as file:
            first = file.read(256)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    # As the kernel reads it: a carriage return is part of the name, and the commonest reason why it is not found.
    words = first[2:].split(b"\n")[0].replace(b"\t", b" ").strip(b" ").split(b" ")
    return words[0] or None


def _first_python(pythons: list[str], search_path: bytes, directory: bytes) -> bytes:
    for python in pythons:
        path = _find(encode(python), search_path, directory)
        if path is not None and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise Problem(INTERPRETER_MISSING, "no Python for scripts: tried %s" % ", ".join(pythons))
