"""Makes one server of the processes of a job: adds the words of its profile to the programs of a mapped job.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mpilaunch.errors import UsageError
from mpilaunch.job.servers.server import Server
from mpilaunch.job.servers.table import SERVERS
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.text import escape_braces, plural, shell_line


def server_profile(profiles: Collection[str]) -> str:
    """Return the name among these profiles that is a server's, "" if none is; raises UsageError for several."""
    named = [name for name in profiles if name in SERVERS]
    if len(named) > 1:
        message = f"--profile {','.join(named)}: a job is one server"
        raise UsageError("option-conflict", message, hint="name one of them; vllm serve on Ray needs --profile ray alone")
    return named[0] if named else ""


def is_one_per_node(profiles: Collection[str], programs: Sequence[Sequence[str]]) -> bool:
    """Return whether a job is a server that starts one process on each node, and nothing else; raises UsageError."""
    profile = server_profile(profiles)
    return SERVERS[profile].one_per_node and all(_of_server(profile, programs))


def as_server(job: JobSpec) -> JobSpec:
    """Return a job whose programs have the words of its server's profile; raises UsageError.

    Where ranks beyond the first node follow it, each program becomes two: the map names the second for the ranks there.
    """
    profile = server_profile(job.profiles)
    server, ours = SERVERS[profile], _of_server(profile, [app.program for app in job.apps])
    if not server.follow:
        apps = [_with_words(app, server) if own else app for app, own in zip(job.apps, ours, strict=True)]
        return job._replace(apps=tuple(apps))
    if job.pending or job.restarts.reserves_nodes:
        message = f"--profile {profile} needs a map that is known from the start, and that no restart changes"
        raise UsageError("option-conflict", message, hint="leave out --spares, --nnodes and maps by the nodes' topology")
    first_nodes: dict[str, int] = {}
    for place in job.job_map.placements:
        first_nodes.setdefault(job.apps[place.app].role, place.node)
    alone = job.first_node_rank == 0  # else this machine is beyond the first of a job that is started by hand
    numbers: dict[tuple[int, bool], int] = {}  # of a program on the first node, and of it beyond that
    placements = []
    for place in job.job_map.placements:
        beyond = ours[place.app] and not (alone and place.node == first_nodes[job.apps[place.app].role])
        placements.append(place._replace(app=numbers.setdefault((place.app, beyond), len(numbers))))
    apps = [_with_words(job.apps[app], server, beyond) if ours[app] else job.apps[app] for app, beyond in numbers]
    return job._replace(apps=tuple(apps), job_map=job.job_map._replace(placements=tuple(placements)))


def server_notes(job: JobSpec, programs: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield what a profile adds to each program, or that a server on several nodes has none."""
    profile = server_profile(job.profiles)
    notes = []
    ours = _of_server(profile, programs) if profile else [False] * len(programs)
    for number, program in enumerate(programs):
        nodes = len({place.node for place in job.job_map.placements if place.app == number})
        if ours[number] and (added := _added_words(program, SERVERS[profile])):
            notes.append(f"--profile {profile} adds to {program[0]}: {added}")
        elif nodes > 1 and not profile and (known := _server_of(program)):
            each = f"{shell_line(program[:1])} on {plural(nodes, 'node')}: each process is a server by itself"
            notes.append(f"{each}; --profile {known} makes them one")
    yield from dict.fromkeys(notes)


def _of_server(profile: str, programs: Sequence[Sequence[str]]) -> list[bool]:
    """Return which programs of a job are the server's: those that are known to start it, or all if none is."""
    known = [_starts(SERVERS[profile], program) for program in programs]
    return known if any(known) else [True] * len(known)


def _added_words(program: Sequence[str], server: Server) -> str:
    parts = (
        (" ".join(server.before(program)), "before it"),
        (" ".join(server.after(program)), "after it"),
        (" ".join(server.beyond), "beyond the first node"),
    )
    return ", ".join(f"{words} {where}" for words, where in parts if words)


def _server_of(program: Sequence[str]) -> str:
    """Return the profile of a server that is started as if it were alone, "" for other programs."""
    if any(word.replace("_", "-").startswith(("--nnodes", "--node-rank")) for word in program):
        return ""
    return next((name for name, server in SERVERS.items() if _starts(server, program)), "")


def _starts(server: Server, program: Sequence[str]) -> bool:
    """Return whether a program is known to start a server."""
    words = (_plain(program[0]), *program[1:])
    return any(words[: len(known)] == known for known in server.commands)


def _plain(program: str) -> str:
    """Return the name of a program; every Python is `python`."""
    name = program.rpartition("/")[2]
    return "python" if name.startswith("python") else name


def _with_words(app: App, server: Server, beyond: bool = False) -> App:
    """Return a program with what the profile adds; the user's own words stay as they are."""
    program = app.program
    own = program if app.template else tuple(map(escape_braces, program))
    before, after = server.before(program), server.after(program)
    first = own[0] if before else program[0]  # the first word of all is no template
    ends_with = app.role if beyond and app.ends_with is None else app.ends_with  # nobody asks them for anything then
    last = [word for word in server.beyond if beyond and word not in program]
    words = (*before, first, *own[1:], *after, *last)
    return app._replace(program=words, template=True, ends_with=ends_with)
