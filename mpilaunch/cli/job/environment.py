"""The variables that are forwarded to the ranks: those of all, and those of each program. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from mpilaunch.cli.job.inputs import Inputs
from mpilaunch.errors import UsageError
from mpilaunch.job.environment.forwarded import environment_edits, forwarded_environment
from mpilaunch.job.environment.templates import variable_templates
from mpilaunch.job.settings import Section, Settings
from mpilaunch.job.spec import App, JobSpec


def forwarded_variables(
    inputs: Inputs, settings: Settings, sections: Sequence[Section], of_each: Sequence[Settings], job: JobSpec
) -> tuple[dict[str, str], tuple[App, ...]]:
    """Return the variables of all ranks, and the programs of a job with those of their ranks; raises UsageError."""
    environ, (files, *files_of_each) = inputs.environ, inputs.env_files
    facts = _facts(job)
    # If any program has its own --forward, the variables to forward are chosen for each program.
    apart = any("forward" in section.settings for section in sections)
    exports = [*_parameters(settings["mca"], settings.source("mca")), *settings["export"]]
    forward = "none" if apart else settings["forward"]
    forwarded = forwarded_environment(environ, exports, files, forward=forward, facts=partial(facts, None))
    apps = []
    for number, (section, own) in enumerate(zip(sections, of_each, strict=True)):
        usual = forwarded_environment(environ, [], forward=own["forward"]) if apart else {}
        of_app = partial(facts, number)
        from_files = files_of_each[number]
        named = forwarded_environment(environ, section.values("export"), from_files, forward="none", facts=of_app)
        variables = {**{name: value for name, value in usual.items() if name not in forwarded}, **named}
        app = job.apps[number]._replace(
            environment=variables,
            wdir=own["wdir"] if "wdir" in section.settings else None,
            edits=environment_edits(own["unset-env"], own["prepend-env"], own["append-env"]),
        )
        if app.template:
            app = app._replace(variables=variable_templates([*settings["export"], *section.values("export")]))
        apps.append(app)
    return forwarded, tuple(apps)


def _facts(job: JobSpec) -> Callable[[int | None, str], Mapping[str, int]]:
    """Return a function of a program, None for all, and a variable's name: its values, each with the first of the ranks."""

    @cache
    def variables() -> dict[int, dict[str, str]]:
        from mpilaunch.job.preparation.before_launch import variables_before_launch

        return variables_before_launch(job)

    def facts(app: int | None, name: str) -> Mapping[str, int]:
        ranks = [place.rank for place in job.global_map.placements if app in (None, place.app)]
        known = all(name in variables()[rank] for rank in ranks)
        return {variables()[rank][name]: rank for rank in reversed(ranks)} if known else {}

    return facts


def _parameters(items: Sequence[str], source: str) -> list[str]:
    """Return the MCA parameters of a config file or of the environment as exports."""
    if items:
        from mpilaunch.cli.dialects.mpi import mca

        for item in items:
            if mca.acts(item.partition("=")[0]):
                message = f"{source}: mca parameter '{item}' configures mpirun, and is supported only on the command line"
                hint = "use an option of mpilaunch instead, see docs/dialect-options.md"
                raise UsageError("mca-parameter", message, hint=hint)
    return [f"OMPI_MCA_{item}" for item in items]
