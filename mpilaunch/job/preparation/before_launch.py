"""The environment of ranks that have not been started, for `--show-env` and for references between variables.

Pure: the values that only a launch decides are AT_LAUNCH.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import PMI, mpi_offer
from mpilaunch.job.environment.contracts.openmpi import pmix_defaults
from mpilaunch.job.environment.network_variables import VARIABLES
from mpilaunch.job.environment.templates import AT_LAUNCH, master_before_launch, roles_before_launch
from mpilaunch.job.preparation.messages import common_preparation, preparations
from mpilaunch.job.preparation.world_facts import WorldFacts, second_port
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import World, first_worlds
from mpilaunch.placement.network import NONE
from mpilaunch.wire.environment import decode, encode, rank_environment

IF_NEEDED = "<chosen at launch, or unset>"
"""Printed by `--show-env` for a variable that is set only if the network of the nodes needs it."""
OF_THE_NODE = "<the node's>"
"""Printed by `--show-env` for a value that an edit extends."""


def variables_before_launch(job: JobSpec) -> dict[int, dict[str, str]]:
    """Return the variables that mpilaunch sets, by rank; values that only a launch decides are AT_LAUNCH."""
    variables: dict[int, dict[str, str]] = {}
    shown = job._replace(job_id=AT_LAUNCH)
    for world in first_worlds(job):
        for _, message in preparations(shown, world, _facts_before_launch(job, world), {}):
            variables |= {spec["rank"]: {**message["environment"], **spec["environment"]} for spec in message["ranks"]}
    return variables


def environment_before_launch(job: JobSpec, rank: int) -> dict[str, str]:
    """Return the environment that a rank will get, in name order, for `--show-env`.

    Values that only a launch decides are AT_LAUNCH, and a node's own value that an edit extends is OF_THE_NODE. The node's
    other variables, those of a binding and those that libpmix sets are left out.
    """
    world = next(world for world in reversed(first_worlds(job)) if world.first <= rank)
    known = _facts_before_launch(job, world)
    place = world.job_map.placements[rank - world.first]
    shown = job._replace(job_id=AT_LAUNCH)
    app = world.apps[place.app]
    extended = {name for verb, name, _, _ in app.edits if verb != "unset"}
    own = {encode(name): encode(OF_THE_NODE) for name in extended}
    message = dict(preparations(shown, world, known, {}))[place.node]
    given = {*job.environment, *app.environment, *extended}
    of_node = {name: value for name, value in pmix_defaults(job.mpi, known.one_machine).items() if name not in given}
    if job.pmi_port and PMI in mpi_offer(job.mpi):
        of_node |= {"PMI_PORT": AT_LAUNCH, "PMI_ID": AT_LAUNCH}
    variables = rank_environment({**message, **common_preparation(shown, world, known, window=0)}, rank, own, of_node)
    return {decode(name): decode(variables[name]) for name in sorted(variables)}


def _facts_before_launch(job: JobSpec, world: World) -> WorldFacts:
    several = len({-1 if job.allocation.nodes[index].here else index for index in job.job_map.nodes}) > 1
    addresses = dict.fromkeys(world.job_map.nodes, AT_LAUNCH) if several else {}
    address, port = master_before_launch(job, world)
    second = AT_LAUNCH if job.master_port is None else str(second_port(int(port)))
    possible = dict.fromkeys(VARIABLES, IF_NEEDED) if job.network != NONE and not job.bare else {}
    variables = dict.fromkeys(addresses, possible)
    return WorldFacts(address, port, second, addresses=addresses, roles=roles_before_launch(job), variables=variables)
