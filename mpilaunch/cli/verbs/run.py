"""`mpilaunch run`, or `mpilaunch` without a verb: build the job of a command line, then print its plan or launch it."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING

from mpilaunch.cli.advice import mistakes
from mpilaunch.cli.console import print_result
from mpilaunch.cli.verbs import Request
from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.text import numbered_ranks, printable, shell_line

if TYPE_CHECKING:
    from mpilaunch.agent import PrestartedAgent
    from mpilaunch.job.settings import Settings
    from mpilaunch.job.spec import JobSpec

SUMMARY = "start a program as N ranks (the default verb)"
USAGE = "mpilaunch [OPTIONS] PROGRAM [ARGUMENTS...]"
TOPICS = ()

NODE_OPTIONS = ("host", "hostfile", "slot-map", "agent")
"""Options that name nodes; without them a job most likely runs on this machine."""


def main(request: Request) -> int:
    """Print what the options ask for, or run the programs; return the exit code."""
    settings = request.settings
    if settings["json"] and not settings["dry-run"]:
        raise UsageError("option-conflict", "--json needs --dry-run", hint="--report FILE writes a report of a job as JSON")
    if settings["topology"] is not None and not settings["dry-run"]:
        message = "--topology needs --dry-run"
        raise UsageError("option-conflict", message, hint="a launch asks the nodes; --report-bindings tells what it does")
    if settings["show-config"]:
        from mpilaunch.job.plan import settings_as_text

        return print_result(settings_as_text(settings, [section.settings for section in request.sections]))
    if not request.sections[0].program:
        raise UsageError("no-program", "no program to run", hint="add the program after the options: mpilaunch -np 4 train.py")
    if settings["slurm"] is not None:
        from mpilaunch.cli.job import salloc

        if argv := salloc.command(settings, request.environ, sys.argv):
            if settings["dry-run"]:
                return print_result(shell_line(argv))
            salloc.replace_by(argv)
        with salloc.given_back(request.environ):
            return _start(request)
    return _start(request)


def _start(request: Request) -> int:
    settings = request.settings
    if settings["show-env"] is not None or settings["dry-run"]:
        job = _make(request)
        if settings["topology"] is None:
            return show_plan(job, settings)
        from mpilaunch.job.preparation.made_up import bound_on

        job, bindings = bound_on(settings["topology"], job)
        code = show_plan(job, settings)
        return code if settings["json"] or not bindings else print_result("\n".join(bindings))
    from mpilaunch.head.begin import local_agent

    named = {name for section in request.sections for name in section.settings}
    here = not settings["detach"] and not any(settings.layer(name) or name in named for name in NODE_OPTIONS)
    # This machine's daemon starts while the job is built.
    with local_agent(begin=here) as local:
        return launch(request, local)


def launch(request: Request, local: PrestartedAgent) -> int:
    """Build the job and launch it; return the exit code."""
    settings, console = request.settings, request.console
    job = _make(request)
    if settings["display-allocation"]:
        from mpilaunch.job.plan import allocation_as_text

        console.lines(allocation_as_text(job).splitlines())
    if job.pending:
        from mpilaunch.head.nodes.survey import map_by_topology

        request.report.job = job = map_by_topology(job, console)
    if settings["display-map"]:
        from mpilaunch.job.plan import map_as_text

        console.lines(map_as_text(job).splitlines())
    if job.part is not None:
        from mpilaunch.hosts.nodeset import name_ranks

        own = name_ranks([place.rank for place in job.global_map.placements])
        console.note(f"as node {job.part.node_rank} of {job.part.nodes}, this machine starts {own} of the job's {job.size}")
    elif all(node.here for node in job.allocation.nodes) and not any(settings.layer(name) for name in NODE_OPTIONS):
        from mpilaunch.hosts.kubernetes import pods_left_out

        if left_out := pods_left_out(request.environ):
            console.note(f"{left_out}; --host localhost says that only this pod is meant")
    if job.agent.insecure_host_keys:
        console.warn("--insecure-host-keys: host keys are not checked: an attacker on the network can change the job")
    programs = [section.program for section in request.sections]
    if job.stdin == "none" and settings["stdin"] == "auto":  # stdin is a terminal, or the job is detached
        from mpilaunch.cli.advice import hints

        reader = hints.stdin_reader(programs)
        end = f", so {reader} gets no input; --stdin 0 gives it to rank 0" if reader else " without --stdin"
        what = "with --detach, no rank reads stdin" if settings["detach"] else "stdin is a terminal, which no rank reads"
        console.note(f"{what}{end}", level=0 if reader else 1)
    if console.verbose and len(job.job_map.placements) > 1:
        from mpilaunch.cli.advice import hints

        if note := hints.profile_note(programs, job.profiles):
            console.note(note, level=1)
    if settings["stdin-archive"]:
        from mpilaunch.cli.archives.stdin import take_as_stdin

        take_as_stdin(settings["stdin-archive"])
    if settings["detach"]:
        from mpilaunch.cli.jobs import kept

        job, code = kept.detach(job, console)
        if code is not None:
            return code
        request.report.job, request.report.path = job, job.report_file
    if not settings["stdout-archive"]:
        return _run(request, job, local)
    from mpilaunch.cli.archives.stdout import Archives

    with Archives(settings["stdout-archive"]) as archives:
        request.report.job = job = archives.kept(job)
        code = 1
        try:
            code = _run(request, job, local)
        finally:  # hosts may be done when another ends the job
            for fault in archives.unpack(job):
                console.warn(fault)
                code = code or 1
    return code


def _run(request: Request, job: JobSpec, local: PrestartedAgent) -> int:
    """Run a job to its end; return the exit code."""
    from mpilaunch.head import begin

    settings, console = request.settings, request.console
    programs = [section.program for section in request.sections]
    try:
        verdict = begin.launch(job, console, local)
    except LaunchError as error:
        from mpilaunch.cli.advice import hints

        nodes = (job.allocation.nodes[index] for index in job.job_map.nodes)
        error.hint = hints.for_error(error, programs, [node.name for node in nodes if not node.here]) or error.hint
        raise
    if verdict.cause == "rank-failed" and verdict.hint is None:
        verdict = verdict._replace(hint=next(mistakes.misplaced_options(programs), None))
    console.verdict(verdict)
    if settings["exit-code"] == "first":
        return verdict.exit_code
    from mpilaunch.job.verdict import exit_code_of

    return exit_code_of(verdict, settings["exit-code"])


def _make(request: Request) -> JobSpec:
    """Build the job, and note what is hardly meant."""
    from mpilaunch.cli.job.make import make_job

    request.report.job = job = make_job(request.settings, request.sections, request.environ)
    programs = [section.program for section in request.sections]
    notes = (
        mistakes.misplaced_options(programs),
        mistakes.forgotten_template(request.sections, request.settings["template"]),
        mistakes.ports_as_slots(job.allocation.nodes),
        mistakes.unknown_variables(request.environ),
    )
    for note in chain.from_iterable(notes):
        request.console.note(note)
    if job.profiles or len(job.job_map.nodes) > 1:
        from mpilaunch.job.servers.serving import server_notes

        for note in server_notes(job, programs):
            request.console.note(note)
    return job


def show_plan(job: JobSpec, settings: Settings) -> int:
    """Print the plan or the environment of a job without starting it; return the exit code."""
    from mpilaunch.job import plan

    rank = settings["show-env"]
    if rank is not None:
        from mpilaunch.hosts.nodeset import name_ranks
        from mpilaunch.job.output.masking import mask_variables
        from mpilaunch.job.preparation.before_launch import environment_before_launch

        if job.pending:
            hint = "--display-map prints the map once the nodes have reported their topology, then starts the job"
            raise UsageError("option-value", "--show-env: the map of this job depends on the topology of its nodes", hint=hint)
        if rank >= job.size:
            raise UsageError("option-value", f"--show-env: there is no rank {rank}: the job has {numbered_ranks(job.size)}")
        if rank not in (ranks := [place.rank for place in job.global_map.placements]):
            raise UsageError("option-value", f"--show-env: this machine does not start rank {rank}, but {name_ranks(ranks)}")
        variables = environment_before_launch(job, rank)
        shown = variables if settings["show-secrets"] else mask_variables(variables)
        return print_result("\n".join(f"{name}={printable(value)}" for name, value in shown.items()))
    if settings["json"]:
        import json

        return print_result(json.dumps(plan.plan_as_json(job, settings), indent=2))
    return print_result(plan.plan_as_text(job))
