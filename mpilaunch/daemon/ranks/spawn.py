"""Prepare and start ranks, and bind each to its CPUs.

Preparing reports every reason why a rank could not start, and starts none. Starting uses posix_spawn: it is quick from a
process of any size, and reports the errno of a failed exec. A rank gets a process group of its own, default signals, an empty
signal mask, descriptors 0 to 2, its connection to PMI, and nothing else of the daemon. It has a session of its own, as under
Hydra, or stays in the daemon's, as under mpirun. Linux schedules each session as a group (autogroup): a rank of Open MPI yields
when it waits, which lets no rank of another group run, but one of MPICH does not, and gets more in a group of its own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from mpilaunch.wire.environment import app_layer, decode, encode, rank_layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mpilaunch.wire.environment import Environment

PROGRAM_MISSING = "program-missing"
PROGRAM_NOT_EXECUTABLE = "program-not-executable"
DIRECTORY_MISSING = "directory-missing"
INTERPRETER_MISSING = "interpreter-missing"
FILE_LIMIT = "file-limit"

PYTHON = "python3"
"""The program that is the same Python as that of scripts, unless the job changes the ranks' PATH."""
STDBUF = (b"stdbuf", b"-oL")
"""Executes a program of C stdio that writes each line of its stdout at once; source: stdbuf(1)."""
OWN_FILES = 40
"""Descriptors that this process needs besides those of its ranks."""


class Problem(Exception):
    """The reason why ranks cannot start on this node: a cause, by which the head groups nodes, and a detail for the user."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class App:
    """A program that is ready to start on this node; `note` is a message to the user or "".

    Attributes:
        own: index of the first argument that the user wrote; those before it name the program.
        terminal: its stdout is a pseudo-terminal.
        through: the words of a program that executes it, empty for none.
    """

    def __init__(
        self,
        path: bytes,
        arguments: list[bytes],
        directory: bytes,
        environment: Environment,
        edits: list[list[str]],
        note: str,
        own: int,
    ) -> None:
        self.path, self.arguments, self.directory = path, arguments, directory
        self.environment, self.edits, self.note, self.own = environment, edits, note, own
        self.terminal = False
        self.through: list[bytes] = []


def prepare_app(message: dict[str, Any], environment: Environment, pythons: list[str], stdout: str) -> App:
    """Resolve an app of the `prepare` message on this node; raises Problem."""
    directory, note = choose_directory(message["directory"], message["directory_required"])
    environment = app_layer(message, environment)
    search_path = environment.get(b"PATH", os.defpath.encode())
    program = message["program"]
    try:
        if program[0] == PYTHON and environment.get(b"PATH") == os.environb.get(b"PATH"):
            path = _first_python(pythons, search_path, directory)
            # A Python finds its virtual environment by the name that it was started with.
            arguments = [path, *map(encode, program[1:])]
        else:
            path, arguments = resolve_program(program, search_path, directory, pythons)
    except Problem as problem:
        if problem.cause == PROGRAM_MISSING and note and not os.path.isabs(program[0]):
            names = problem.detail, message["directory"], decode(directory)
            problem.detail = "%s; the working directory %s is not there, and ranks would start in %s" % names
        raise
    under_python = arguments[0] == path != encode(program[0])
    if under_python and pythons[1:] and path != encode(pythons[0]):
        missing = "no %s here: Python programs run under %s" % (pythons[0], decode(path))
        note = "; ".join(filter(None, (note, missing)))
    app = App(path, arguments, directory, environment, message["edits"], note, len(arguments) - len(program) + 1)
    choose_stdout(app, stdout, search_path)
    return app


def choose_stdout(app: App, kind: str, search_path: bytes) -> None:
    """Prepare the stdout of an app: a "pipe", a "pty", a pipe by "line", or "auto" by its MPI library; raises Problem.

    Where no pseudo-terminal can be had, a note says so, and stdout is a pipe.
    """
    if kind == "auto":
        from mpilaunch.daemon.mpi.singletons import OPEN_MPI, linked_library  # for the command lines of mpirun

        library = linked_library(app.path)
        kind = "pty" if library is not None and library[1] == OPEN_MPI else "pipe"
    if kind == "pty":
        try:
            for descriptor in os.openpty():
                os.close(descriptor)
            app.terminal = True
        except OSError as error:
            missing = "no pseudo-terminal here, so stdout is a pipe: %s" % error.strerror
            app.note = "; ".join(filter(None, (app.note, missing)))
    elif kind == "line":
        stdbuf = _find(STDBUF[0], search_path, app.directory)
        if stdbuf is None:
            raise Problem(PROGRAM_MISSING, "stdbuf: not found in PATH; --stdout line needs it, which is of GNU coreutils")
        app.through = [stdbuf, *STDBUF[1:]]


def check_file_limit(message: dict[str, Any], others: bool) -> None:
    """Check the limit of open files for these ranks, and for `others` that run; raises Problem."""
    descriptor = None if message["mpi"] is None else message["mpi"]["descriptor"]
    each = (1 if message["merge_stderr"] else 2) + (descriptor is not None)
    needed = OWN_FILES + sum(each + bool(spec["stdin"]) for spec in message["ranks"])
    if others:
        needed += len(os.listdir("/proc/self/fd"))
    if descriptor is not None:
        needed = max(needed, descriptor + OWN_FILES)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < needed:
        count = len(message["ranks"])
        ranks = "1 rank needs" if count == 1 else "%d ranks need" % count
        raise Problem(FILE_LIMIT, "%s %d open files, the limit there is %d" % (ranks, needed, allowed))


def choose_directory(requested: str, required: bool) -> tuple[bytes, str]:
    """Return the directory that ranks start in, and a note if it is not the requested one; raises Problem.

    "" requests the home directory.
    """
    path = encode(requested)
    if os.path.isdir(path) and os.access(path, os.X_OK):
        return path, ""
    if required:
        kind = "not a directory" if os.path.exists(path) else "no such directory"
        reason = "no permission to enter" if os.path.isdir(path) else kind
        raise Problem(DIRECTORY_MISSING, "%s: %s" % (requested, reason))
    home = os.path.expanduser(b"~")
    note = "no %s here: ranks start in the home directory" % requested if requested else ""
    return (home if os.path.isdir(home) else b"/"), note


def resolve_program(program: list[str], search_path: bytes, directory: bytes, pythons: list[str]) -> tuple[bytes, list[bytes]]:
    """Return the path to execute and the argument list; raises Problem.

    A name without a slash is searched in `search_path` and then in `directory`, as by mpirun. A `.py` file that is not
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
        # The kernel would report the program itself as missing, which misleads.
        names = decode(path), decode(interpreter)
        raise Problem(INTERPRETER_MISSING, "%s: its first line names %r, which is not there" % names)
    return path, arguments


def start(
    app: App, spec: dict[str, Any], variables: dict[str, str], descriptors: dict[int, int], *, own_session: bool
) -> int:
    """Start one rank with changes to the app's environment; return its process id; raises OSError when it cannot be executed.

    Args:
        spec: of the rank in `prepare`: its CPUs, and the fields of the arguments where those are templates.
        descriptors: descriptor of the rank -> descriptor of this process.
    """
    environment = rank_layer(spec["unset"], variables, app.environment, app.edits)
    path, arguments, cpus = app.path, app.arguments, spec["cpus"]
    if spec["fields"] is not None:
        # The head has checked the templates, and filled in what is the same for all ranks.
        arguments = [*arguments[: app.own], *(encode(decode(word).format(**spec["fields"])) for word in arguments[app.own :])]
    if app.through:
        path, arguments = app.through[0], [*app.through, app.path, *arguments[1:]]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in sorted(descriptors.items())]
    own_cpus = os.sched_getaffinity(0) if cpus is not None else None
    # The rank inherits affinity, limit and directory: set them here for a moment. Nothing else runs meanwhile.
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NODE_FILES, hard))
    try:
        os.chdir(app.directory)
        if _hides_errno():
            return _spawn_slowly(path, arguments, environment, descriptors, own_session)
        own: dict[str, Any] = {"setsid": True} if own_session else {"setpgroup": 0}
        return os.posix_spawn(
            path, arguments, environment, file_actions=actions, setsigmask=(), setsigdef=_RESET_SIGNALS, **own
        )
    except NotImplementedError:  # setsid, in a Python that was built for glibc before 2.26
        return _spawn_slowly(path, arguments, environment, descriptors, own_session)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if own_cpus is not None:
            os.sched_setaffinity(0, own_cpus)


def _hides_errno() -> bool:
    """Return whether a failed exec is only an exit code of posix_spawn's child, as with glibc before 2.24 (spawni.c)."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except ValueError:
        return False  # another C library
    major, _, minor = version.partition(".")
    return name == "glibc" and minor.isdigit() and (int(major), int(minor)) < (2, 24)


def _spawn_slowly(
    path: bytes, arguments: list[bytes], environment: Environment, descriptors: dict[int, int], own_session: bool
) -> int:
    """Start a rank as posix_spawn would."""
    import subprocess

    def begin() -> None:
        if not own_session:
            os.setpgid(0, 0)
        for number, descriptor in sorted(descriptors.items()):
            os.dup2(descriptor, number)
        for signal_number in _RESET_SIGNALS:
            try:
                signal.signal(signal_number, signal.SIG_DFL)
            except OSError:
                pass  # a signal of the C library
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    process = subprocess.Popen(
        arguments, executable=path, env=environment, close_fds=False, start_new_session=own_session, preexec_fn=begin
    )
    process.returncode = 0  # the reaper collects it
    return process.pid


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit: it needs four for a rank. Ranks keep the node's limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < OWN_FILES:
        sys.exit("Too many open files: a node needs %d for itself, the limit there is %d" % (OWN_FILES, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_NODE_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
# Python ignores SIGPIPE, and an agent under nohup SIGHUP; a rank must start as from a shell.
_RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def _find(name: bytes, search_path: bytes, directory: bytes) -> bytes | None:
    if b"/" in name:
        path = os.path.join(directory, name)
        return path if os.path.exists(path) else None
    fallback = None
    for folder in search_path.split(b":"):
        path = os.path.join(directory, folder, name)
        if _is_executable(path):
            return path
        if fallback is None and folder and os.path.isfile(path):
            fallback = path
    here = os.path.join(directory, name)
    return here if os.path.exists(here) else fallback


def _is_executable(path: bytes) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _interpreter(path: bytes) -> bytes | None:
    """Return the interpreter that a script's `#!` line names, None when it has no such line."""
    # Parsed as by the kernel: a carriage return is part of the name, and a common reason why it does not exist.
    return script_line(path).replace(b"\t", b" ").strip(b" ").split(b" ")[0] or None


def script_line(path: bytes) -> bytes:
    """Return what follows `#!` in the first line of a script, b"" for another file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a named pipe
        try:
            start = os.read(descriptor, 256)
        finally:
            os.close(descriptor)
    except OSError:
        return b""
    return start[2:].partition(b"\n")[0] if start[:2] == b"#!" else b""


def _first_python(pythons: list[str], search_path: bytes, directory: bytes) -> bytes:
    for python in pythons:
        path = _find(encode(python), search_path, directory)
        if path is not None and _is_executable(path):
            return path
    raise Problem(INTERPRETER_MISSING, "no Python for scripts: tried %s" % ", ".join(pythons))
