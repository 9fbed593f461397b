"""Templates in the arguments and variables of a program (`--template`): their fields, and the texts of each rank.

Pure. The head fills in what is the same for all ranks of a world, and a node fills in the arguments of each rank by str.format.
The programs of MPI_Comm_spawn are not templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mpilaunch.job.output.tags import parse_template
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.job.worlds import World, first_worlds

AT_LAUNCH = "<chosen at launch>"
"""Stands in plans for a value that is not known before a launch."""
OF_RANK = ("rank", "local_rank", "node_rank", "host", "user")
FIELDS = (*OF_RANK, "world_size", "nnodes", "master_addr", "master_port")
MASTER = ("master_addr", "master_port")

Fields = Mapping[str, int | str]


def role_fields(role: str, address: str, port: str) -> dict[str, str]:
    """Return the fields that say where rank 0 of a role is: `{ROLE.master_addr}` and `{ROLE.master_port}`."""
    return {f"{role}.{name}": value for name, value in zip(MASTER, (address, port), strict=True)} if role else {}


def check_templates(apps: Sequence[App]) -> None:
    """Raise UsageError for a template with an error, or with a field that does not exist."""
    known = [*FIELDS, *(name for app in apps for name in role_fields(app.role, "", ""))]
    for app in apps:
        for text in [*(app.program[1:] if app.template else ()), *app.variables.values()]:
            parse_template(text, "--template", list(dict.fromkeys(known)))


def variable_templates(exports: Sequence[str]) -> dict[str, str]:
    """Return the variables of -x whose values are templates; of two for one name the later counts."""
    given = {name: value for name, equals, value in (export.partition("=") for export in exports) if equals}
    return {name: value for name, value in given.items() if "{" in value or "}" in value}


def fields_of_world(job: JobSpec, world: World, app: App, master: tuple[str, str], roles: Fields) -> dict[str, int | str]:
    """Return the fields that all ranks of a program share; `master` is the world's MASTER_ADDR and MASTER_PORT."""
    nodes = 1 if job.part is None else job.part.nodes
    given = {**job.environment, **app.environment}
    address, port = (given.get(name.upper(), value) for name, value in zip(MASTER, master, strict=True))
    sizes = {"world_size": nodes * world.size, "nnodes": nodes * len(world.job_map.nodes)}
    return {**sizes, "master_addr": address, "master_port": port, **roles}


def fields_of_ranks(job: JobSpec, world: World) -> dict[int, dict[str, int | str]]:
    """Return the fields of each rank of a world."""
    ranks: dict[int, dict[str, int | str]] = {}
    for number, (index, places) in enumerate(world.job_map.by_node().items(), start=job.first_node_rank):
        node = job.allocation.nodes[index]
        for place in places:
            values = (job.first_rank + place.rank, place.local_rank, number, node.name, node.user or "")
            ranks[place.rank] = dict(zip(OF_RANK, values, strict=True))
    return ranks


def fill(text: str, fields: Fields) -> str:
    """Return a checked template with these fields filled in, for str.format with the others."""
    return parse_template(text, "--template", [*FIELDS, *fields]).fill(fields)


def arguments_of(app: App, fields: Fields) -> list[str]:
    """Return the program and its arguments, for str.format with the fields that are not given here."""
    return [app.program[0], *(fill(word, fields) for word in app.program[1:])] if app.template else list(app.program)


def variables_of(app: App, fields: Fields) -> dict[str, str]:
    """Return the variables of a rank that are templates, with all fields filled in."""
    return {name: fill(text, fields).format() for name, text in app.variables.items()}


def master_before_launch(job: JobSpec, world: World) -> tuple[str, str]:
    """Return MASTER_ADDR and MASTER_PORT of a world as far as they are known."""
    return job.master_addr or AT_LAUNCH, AT_LAUNCH if job.master_port is None else str(world.master_port(job.master_port))


def roles_before_launch(job: JobSpec) -> dict[str, str]:
    """Return the fields of all roles."""
    return {field: AT_LAUNCH for app in job.apps for field in role_fields(app.role, "", "")}


def programs_before_launch(job: JobSpec) -> Iterator[tuple[int, list[str]]]:
    """Yield each rank of a job with its program and arguments; what only a launch decides is AT_LAUNCH."""
    for world in first_worlds(job):
        common = master_before_launch(job, world), roles_before_launch(job)
        ranks = fields_of_ranks(job, world)
        for place in world.job_map.placements:
            app = world.apps[place.app]
            words = arguments_of(app, {**fields_of_world(job, world, app, *common), **ranks[place.rank]})
            yield world.first + place.rank, [words[0], *(word.format() if app.template else word for word in words[1:])]
