"""What options of other launchers mean that take more than other words: lists, patterns, launchers.

Pure. Each function takes the arguments of one option and gives words of ours, or raises `Wrong` with what would be right. The
rows of `dialects` name them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ReadFile = Callable[[str, str], str]


class Wrong(Exception):
    """An argument that the option does not take; `hint` says what it does."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Translation:
    """What an option means.

    Attributes:
        words: options of ours.
        notes: texts for the user, each with a level of verbosity.
        agent: parts of how nodes are reached, which several options name together; see `agent_template`.
        weak: flags among the words that give way to whatever else is said.
    """

    words: tuple[str, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    agent: Mapping[str, str] = field(default_factory=dict)
    weak: frozenset[str] = frozenset()

    def __add__(self, other: Translation) -> Translation:
        return Translation(
            self.words + other.words, self.notes + other.notes, {**self.agent, **other.agent}, self.weak | other.weak
        )


def words_of(template: str, values: Sequence[str] = ()) -> Translation:
    """Return the words of a template, with $1 and $2 replaced by the values."""
    return Translation(tuple(re.sub(r"\$([12])", lambda match: values[int(match[1]) - 1], word) for word in template.split()))


# The program and its environment


def only_these(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-envlist a,b: forward these variables and no others."""
    return Translation(("--forward", "none", *_each("--export", values[0])))


def none_of_these(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-envexcl a,b: the ranks do not have these variables."""
    return Translation(tuple(_each("--unset-env", values[0])))


def _each(flag: str, names: str) -> Iterator[str]:
    for name in names.split(","):
        if name.strip():
            yield from (flag, name.strip())


def prefix(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--prefix DIR: programs and libraries of the installation there come first."""
    folder = values[0].rstrip("/") or "/"
    return Translation(("--prepend-env", "PATH", f"{folder}/bin", "--prepend-env", "LD_LIBRARY_PATH", f"{folder}/lib"))


def stdin(values: Sequence[str], read_file: ReadFile) -> Translation:
    """Intel's -s all, -s 3: who gets standard input."""
    if values[0] != "all" and not values[0].isdecimal():
        raise Wrong(f"'{values[0]}' is neither all nor one rank", "standard input goes to one rank, to all or to none: --stdin")
    return Translation(("--stdin", values[0]))


def universe_size(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-usize N, SYSTEM or INFINITE."""
    text = values[0].upper()
    if text == "INFINITE":
        raise Wrong("there is no universe without end", "say a number: --universe-size N")
    return Translation() if text == "SYSTEM" else Translation(("--universe-size", values[0]))


def gpus_per_proc(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-gpus-per-proc N or AUTO."""
    return Translation() if values[0].upper() == "AUTO" else Translation(("--gpus-per-rank", values[0]))


def checkpoint_library(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-ckpointlib blcr: nothing can save a process from outside any more."""
    said = (
        f"-ckpointlib {values[0]}: BLCR is dead (its last release is of 2013, and no kernel of today loads it). The ranks save "
        "their own state instead, when --checkpoint-signal asks them; see docs/checkpoints.md"
    )
    return Translation(notes=((said, 0),))


# Output

_PATTERN_FIELDS = {"r": "{rank}", "h": "{host}", "p": "{node_rank}", "g": "0", "%": "%"}


def _fields(pattern: str, fields: Mapping[str, str]) -> str:
    """Return a template of ours for a pattern of Hydra's."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] in "{}":
            return match[0] * 2
        if match[1] not in fields:
            raise Wrong(f"'{match[0]}' in '{pattern}' is no field", "the fields are " + " ".join(f"%{name}" for name in fields))
        return fields[match[1]]

    return re.sub("%(.?)|[{}]", replaced, pattern)


def prepend_pattern(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-prepend-pattern '%r@%h ': put it before each line."""
    return Translation(("--tag", _fields(values[0], {**_PATTERN_FIELDS, "t": "{time}"})))


def outfile(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-outfile-pattern out.%r: stdout goes to files."""
    return Translation(("--output-file", _fields(values[0], _PATTERN_FIELDS)))


def errfile(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-errfile-pattern err.%r: stderr goes to files."""
    return Translation(("--error-file", _fields(values[0], _PATTERN_FIELDS)))


_OUTPUT = {
    "TAG": "--tag [1,{rank}]<{stream}>:_",
    "TAG-DETAILED": "--tag [1,{rank}][{host}]<{stream}>:_",
    "TAG-FULLNAME": "--tag [{job}@1,{rank}]<{stream}>:_",
    "RANK": "--tag [{rank}]<{stream}>:_",
    "TIMESTAMP": "--timestamp-output",
    "MERGE": "--merge-stderr-to-stdout",
    "MERGE-STDERR-TO-STDOUT": "--merge-stderr-to-stdout",
    "NOCOPY": "--no-copy",
    "COPY": "--copy",
}
"""An item of Open MPI 5's --output, and words of ours; "_" is a blank."""


def output(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--output TAG,DIR=d:COPY,...: how output looks and where it goes."""
    found: list[str] = []
    files: list[str] = []
    copied = False
    for item in _items(values[0]):
        key, equals, text = item.partition("=")
        key = key.upper()
        if key in ("DIR", "DIRECTORY") and text:
            files += ["--output-filename", text]
        elif key in ("FILE", "FILENAME") and text:
            path = _fields(text, {}).replace("%", "%%")
            files += ["--output-file", f"{path}.{{rank}}.out", "--error-file", f"{path}.{{rank}}.err"]
        elif key in _OUTPUT and not equals:
            copied = copied or key == "COPY"
            found += [word.replace("_", " ") for word in _OUTPUT[key].split()]
        elif key == "XML":
            raise Wrong("XML is not written", "--report FILE writes what the job did as JSON; --tag marks the lines")
        elif key not in ("RAW", "PATTERN"):
            raise Wrong(f"'{item}' is no item", "the items are " + ", ".join([*_OUTPUT, "DIR=...", "FILE=..."]))
    if files and not copied:
        files.append("--no-copy")  # Open MPI 5 prints what it writes to files only where COPY is said
    return Translation((*found, *files))


def _items(text: str) -> list[str]:
    """Return the items of a list, and the modifiers behind them, which a colon begins."""
    return [item for item in re.split(r",|:(?![/\\])", text) if item]


# Looking and running


def display(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--display MAP,ALLOCATION,BINDINGS: what is told before the ranks start."""
    known = {"MAP": "map", "MAP-DEVEL": "map", "ALLOCATION": "allocation", "ALLOC": "allocation", "BINDINGS": "bindings"}
    found = Translation()
    for item in _items(values[0]):
        key = item.partition("=")[0].upper()
        if key in ("TOPO", "CPUS", "PARSEABLE", "PARSABLE", "PHYSICAL"):
            told = f"--display {item} changes nothing: --report FILE tells each node's CPUs and GPUs"
            found += Translation(notes=((told, 0),))
        elif key in known:
            found += Translation(("--report-bindings" if key == "BINDINGS" else f"--display-{known[key]}",))
        else:
            raise Wrong(f"'{item}' is nothing to display", "display MAP, ALLOCATION or BINDINGS")
    return found


_RUNTIME = {
    "DONOTLAUNCH": "--dry-run",
    "TIMEOUT": "--timeout $1",
    "SPAWN-TIMEOUT": "--start-timeout $1",
    "FWD-ENVIRONMENT": "--forward all",
    "REPORT-STATE-ON-TIMEOUT": "",
    "SHOW-PROGRESS": "",
    "REPORT-CHILD-JOBS-SEPARATELY": "",
    "AGGREGATE-HELP-MESSAGES": "",
}
_NOT_RUNTIME = {
    **dict.fromkeys(("RECOVERABLE", "AUTORESTART", "CONTINUOUS", "MAX-RESTARTS"), "a rank that fails ends the job"),
    "NOTIFYERRORS": "a rank that fails ends the job",
    **dict.fromkeys(("STOP-ON-EXEC", "STOP-IN-INIT", "STOP-IN-APP"), "start the debugger as the program: gdb --args ./a"),
    **dict.fromkeys(("EXEC-AGENT", "DEFAULT-EXEC-AGENT"), "say the agent's program before the program: agent ./a"),
    "GET-STACK-TRACES": "the ranks get SIGTERM at the time limit; python -X faulthandler or py-spy show a stack",
}


def runtime_options(values: Sequence[str], read_file: ReadFile) -> Translation:
    """--runtime-options TIMEOUT=60,DONOTLAUNCH,...: each item is an option of ours."""
    found = Translation()
    for item in _items(values[0]):
        key, _, text = item.partition("=")
        key = key.upper()
        wanted = text.lower() not in ("0", "false", "no")
        if key == "ERROR-NONZERO-STATUS" and wanted:
            continue
        if key == "ERROR-NONZERO-STATUS":
            raise Wrong("a rank that exits with a failure ends the job", "'sh -c \"./a || true\"' never fails")
        if key in _NOT_RUNTIME and wanted:
            raise Wrong(f"'{item}' is not supported", _NOT_RUNTIME[key])
        if key not in _RUNTIME and key not in _NOT_RUNTIME:
            raise Wrong(f"'{item}' is no runtime option", "the options are " + ", ".join(_RUNTIME))
        if wanted and "$1" in _RUNTIME.get(key, "") and not text:
            raise Wrong(f"'{item}' has no value", f"write {key}=SECONDS")
        if wanted:
            found += words_of(_RUNTIME.get(key, ""), [text])
    return found


# Reaching the nodes

_BY_SSH = ("ssh", "user", "")
_SCHEDULERS = {
    "slurm": "'srun --nodes=1 --ntasks=1 --nodelist={host} --overlap sh -c {command}'",
    "srun": "'srun --nodes=1 --ntasks=1 --nodelist={host} --overlap sh -c {command}'",
    "lsf": "'blaunch {host} {command}'",
    "blaunch": "'blaunch {host} {command}'",
    "sge": "'qrsh -inherit {host} {command}'",
    "qrsh": "'qrsh -inherit {host} {command}'",
}


def launcher(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-launcher ssh, rsh, fork: how nodes are reached."""
    name = values[0].lower()
    if name in _BY_SSH:
        return Translation(agent={"launcher": "ssh"})
    if name in ("rsh", "fork"):
        return Translation(agent={"launcher": name})
    template = _SCHEDULERS.get(name)
    hint = f"ssh does without it; the batch system's own is --remote-agent {template}" if template else "use ssh, rsh or fork"
    raise Wrong(f"there is no launcher '{values[0]}' here", hint)


def launcher_exec(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-launcher-exec PATH: the program in ssh's place."""
    return Translation(agent={"program": shlex.quote(values[0]), "flags": "-x"})


def launcher_arguments(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-bootstrap-exec-args WORDS: what stands before the host."""
    return Translation(agent={"arguments": values[0], "flags": "-x"})


def with_x(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-enable-x: let the ranks open windows here."""
    return Translation(("--remote-agent", "openssh", "--ssh-option", "ForwardX11=yes"))


def resource_manager(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-rmk NAME: where hosts come from when nobody names them."""
    if values[0].lower() not in ("slurm", "lsf", "sge", "pbs", "user"):
        raise Wrong(f"'{values[0]}' is not known", "Slurm, PBS, LSF and Grid Engine are found by themselves; else name --hosts")
    return Translation(notes=((f"-rmk {values[0]} changes nothing: the batch system is found by itself", 1),))


def agent_template(parts: Mapping[str, str]) -> str | None:
    """Return the agent that the parts name together, None for the usual one.

    Args:
        parts: `launcher` ("ssh", "rsh" or "fork"), `program` in its place, `arguments` behind it, `flags` that its dialect puts
            before the host.
    """
    name = parts.get("launcher", "ssh")
    if name == "fork":
        return "local"
    program, arguments = parts.get("program", name), parts.get("arguments", "")
    if program == "ssh" and not arguments.strip():
        return None
    words = " ".join(word for word in (program, arguments, parts.get("flags", "") if name == "ssh" else "") if word)
    return words.replace("{", "{{").replace("}", "}}") + " {host} {command}"
