"""Roles: programs of a job with a world of their own, and the order in which they start (`--role`, `--after`).

Pure. Programs that follow each other and have the same role, or none, form one world; `job.worlds` makes it. A role that
another one waits for serves it: it ends with the job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from mpilaunch.errors import UsageError
from mpilaunch.job.spec import App
from mpilaunch.job.worlds import World
from mpilaunch.text import did_you_mean, is_whole_number

MOST_PORT = 65_535


def parse_after(values: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the roles and ports of --after; raises UsageError."""
    conditions = []
    for value in values:
        role, _, port = value.rpartition(":")
        if not role or not is_whole_number(port, 5) or not 1 <= int(port) <= MOST_PORT:
            message = f"--after: '{value}' is not ROLE:PORT, with a port from 1 to {MOST_PORT:,}"
            raise UsageError("after", message, hint="write --after server:8000: rank 0 of 'server' listens on port 8000")
        conditions.append((role, int(port)))
    return tuple(conditions)


def check_roles(apps: Sequence[App]) -> None:
    """Raise UsageError unless each role has a name of its own, and can start after the roles that it waits for."""
    names = [name for name, _ in groupby(app.role for app in apps)]
    for number, name in enumerate(names):
        if name and not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name):
            hint = "a name has letters, digits, '_' and '-', and starts with a letter"
            raise UsageError("role", f"--role: '{name}' is not a name", hint=hint)
        if name in names[:number]:
            who = f"--role {name} is given twice" if name else "programs without --role stand in two places"
            raise UsageError("role", f"{who}, with another role between", hint="put the programs of a role next to each other")
    awaited = {name: {role for app in apps if app.role == name for role, _ in app.after} for name in names}
    for name, roles in awaited.items():
        for role in sorted(roles):
            others = [other for other in names if other and other != name]
            if role == name:
                raise UsageError("after", f"--after: the role '{name}' waits for itself", hint="name another role")
            if role not in others:
                hint = "name a program: --role " + role + " -np 1 ./server : --after " + role + ":PORT ./worker"
                message = f"--after: there is no other role '{role}'{did_you_mean(role, others)}"
                raise UsageError("after", message, hint=hint)
    for app in apps:
        if app.ends_with is not None and (app.ends_with == app.role or app.ends_with not in names):
            guess = did_you_mean(app.ends_with, [name for name in names if name and name != app.role])
            message = f"--ends-with: there is no other role '{app.ends_with}'{guess}"
            raise UsageError("role", message, hint="name a role of another program: --role server ... : --ends-with server ...")
    if all(app.ends_with is not None for app in apps):
        raise UsageError("role", "--ends-with: no program is left to wait for", hint="leave it out of one program")
    while ready := [name for name, roles in awaited.items() if not roles & awaited.keys()]:
        for name in ready:
            del awaited[name]
    if awaited:
        waiting = ", ".join(f"'{name}'" for name in awaited)
        raise UsageError("after", f"--after: the roles {waiting} wait for each other", hint="remove one --after")


def conditions(world: World) -> frozenset[tuple[str, int]]:
    """Return the roles and ports that a world waits for."""
    return frozenset(condition for app in world.apps for condition in app.after)


def followers(worlds: Sequence[World]) -> frozenset[int]:
    """Return the ranks that end with the others: those of worlds that serve, and of programs that end with a role."""
    serving = served(worlds)
    ranks: set[int] = set()
    for world in worlds:
        following = {number for number, app in enumerate(world.apps) if world.name in serving or app.ends_with is not None}
        if following:
            ranks.update(world.first + place.rank for place in world.job_map.placements if place.app in following)
    return frozenset(ranks)


def served(worlds: Sequence[World]) -> frozenset[str]:
    """Return the names of the worlds that serve others: those of awaited roles, and what they have spawned."""
    awaited = {role for world in worlds for role, _ in conditions(world)}
    names = {world.name for world in worlds if world.role and world.role in awaited}
    for world in worlds:
        if world.parent in names:
            names.add(world.name)
    return frozenset(names)


def world_of(worlds: Sequence[World], role: str) -> World:
    """Return the world of a role."""
    return next(world for world in worlds if world.role == role and not world.parent)
