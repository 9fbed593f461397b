"""The job that a command line makes, without running it."""

from __future__ import annotations

from mpilaunch import config
from mpilaunch.job.spec import JobSpec
from mpilaunch.prepare import make_job
from mpilaunch.words import read_words


def job(words: str, **environ: str) -> JobSpec:
    """Return the job of the options `words` and the program `prog`, with only these variables in the environment."""
    variables = {"HOME": "/nowhere", **environ}
    settings, program = read_words([*words.split(), "prog"])
    return make_job(config.load_settings(settings, variables), program, variables)
