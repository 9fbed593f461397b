"""How a test gets what a command line asks for, in an environment of its own."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Mapping, Sequence
from unittest import mock

from mpilaunch.cli import command
from mpilaunch.cli.console import Console
from mpilaunch.cli.job.make import make_job
from mpilaunch.cli.verbs import Request
from mpilaunch.cli.verbs.error_report import ErrorReport
from mpilaunch.job.settings import Settings
from mpilaunch.job.spec import JobSpec


def request(words: Sequence[str], environ: Mapping[str, str] | None = None, name: str = "mpilaunch") -> Request:
    """Return what a command line asks for; raises UsageError."""
    environ = {"HOME": "/nowhere"} if environ is None else environ
    with mock.patch.dict(os.environ, environ, clear=True):
        return command.read(words, command.Invocation(environ, Console(io.StringIO(), environ), ErrorReport(), name))


def settings(words: str = "", environ: Mapping[str, str] | None = None, name: str = "mpilaunch") -> Settings:
    """Return the settings of the words before a program."""
    return request(words.split(), environ, name).settings


def job(words: str, **environ: str) -> JobSpec:
    """Return the job of the options `words` and the program `prog`, with only these variables in the environment."""
    asked = request([*words.split(), "prog"], {"HOME": "/nowhere", **environ})
    return make_job(asked.settings, asked.sections, asked.environ)


def job_of(line: str) -> JobSpec:
    """Return the job of a whole command line, with its programs."""
    asked = request(shlex.split(line))
    return make_job(asked.settings, asked.sections, asked.environ)
