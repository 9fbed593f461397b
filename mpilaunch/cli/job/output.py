"""Where the output of the ranks goes, and how its lines look. Pure."""

from __future__ import annotations

from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import Span, parse_numbers
from mpilaunch.job.output.tags import parse_tag, tag_template
from mpilaunch.job.settings import Settings
from mpilaunch.job.spec import OutputPolicy


def output_policy(settings: Settings) -> OutputPolicy:
    """Return the policy that the settings ask for; raises UsageError."""
    _check_conflicts(settings)
    directory, copied = _directory(settings["output-filename"])
    return OutputPolicy(
        tag=tag_template(settings["tag"], timestamp=settings["timestamp-output"]),
        directory=directory,
        stdout_file=_file_template(settings, "output-file"),
        stderr_file=_file_template(settings, "error-file"),
        stdout_ranks=_local_ranks(settings, "output-file-ranks"),
        stderr_ranks=_local_ranks(settings, "error-file-ranks"),
        copy=copied if settings["copy"] is None else settings["copy"],
        merge_stderr=settings["merge-stderr-to-stdout"],
        local_ranks=_local_ranks(settings, "print-local-ranks"),
        fold=settings["fold-style"] if settings["fold"] else None,
        recorded=settings["detach"],
        **settings.fields("stdout", "host-failures", "quiet", "verbose"),
    )


def _check_conflicts(settings: Settings) -> None:
    """Refuse options that contradict each other, or need another one.

    Output that is printed once for several ranks, at the end, has no time before each line.
    """
    for name in ("output-file", "error-file"):
        if settings[f"{name}-ranks"] is not None and settings[name] is None:
            raise UsageError("option-conflict", f"--{name}-ranks needs --{name}", hint=f"add --{name} FILE, or leave it out")
    if settings["stdout-archive"] is not None:
        if not settings["independent"]:
            raise UsageError("option-conflict", "--stdout-archive needs --independent", hint="add it, or use --output-file")
        text = ("detach", "fold", "merge-stderr-to-stdout", "output-file", "output-filename", "stdout")
        for name in text:
            if settings[name] not in (None, False, "pipe"):
                message = f"--stdout-archive and --{name} cannot be used together: stdout is no text"
                raise UsageError("option-conflict", message, hint="leave one out")
    timed = "--timestamp-output" if settings["timestamp-output"] else ""
    if any(field == "time" for field, _ in parse_tag(settings["tag"] or "").pieces):
        timed = timed or "--tag with {time}"
    if settings["fold"] and timed:
        message = f"--fold and {timed} cannot be used together: equal lines of several ranks have no common time"
        raise UsageError("option-conflict", message, hint="leave one out; --output-filename DIR keeps each rank's output apart")


def _directory(text: str | None) -> tuple[str | None, bool | None]:
    """Return the directory of --output-filename, and whether its output is also printed (mpirun's DIR:copy, DIR:nocopy)."""
    path, colon, modifiers = (text or "").partition(":")
    words = set(modifiers.lower().replace(":", ",").split(","))
    if not colon or words - {"nocopy", "copy", "nojobid", "raw"}:
        return text, None
    return path, True if "copy" in words else False if "nocopy" in words else None


def _file_template(settings: Settings, name: str) -> str | None:
    """Return the template of --output-file or --error-file; raises UsageError for a field that file names cannot have."""
    text: str | None = settings[name]
    if text is not None and any(field in ("time", "stream") for field, _ in parse_tag(text, f"--{name}").pieces):
        message = f"--{name}: '{text}': a file name cannot contain {{time}} or {{stream}}"
        raise UsageError("tag-format", message, hint="use {rank}, {local_rank}, {node_rank}, {host}, {job}, {run} or {restart}")
    return text


def _local_ranks(settings: Settings, name: str) -> frozenset[int] | None:
    text = settings[name]
    return None if text is None else frozenset(parse_numbers(Span.of(text, settings.source(name))))
