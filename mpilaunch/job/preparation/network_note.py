"""What the user reads of the network of a job: which one it is, where variables had to lead ranks there, or that there is none.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment.network_variables import Choices
from mpilaunch.placement.network import AUTO, MOST_SHOWN, ROUTED, Network, describe_interfaces
from mpilaunch.text import plural


def network_note(
    wanted: str, network: Network | None, choices: Choices, facts: Mapping[int, NodeFacts], names: Mapping[int, str]
) -> str:
    """Return the note, "" if there is nothing to say; `wanted` is the value of `--network`, `names` are those of the nodes."""
    if network is None:
        known = all(one.network.interfaces for one in facts.values())
        return _no_network(facts, names) if known and wanted == AUTO else ""
    if not choices.missed:
        return ""
    interfaces = list(dict.fromkeys(link.interface for link in network.links.values()))
    where = ", ".join(interfaces[:MOST_SHOWN]) + (", ..." if len(interfaces) > MOST_SHOWN else "")
    speed = f", {speed_text(network.speed)}" if network.speed else ""
    name = f"{network.name} ({where}{speed})" if network.name != ROUTED else f"{where}{speed}"
    return f"ranks use the network {name}, where libraries would not all find it: set {', '.join(choices.names)}"


def speed_text(megabits: int) -> str:
    """Return a speed as people say it: "100 Gb/s", "2.5 Gb/s", "100 Mb/s"."""
    return f"{megabits / 1000:g} Gb/s" if megabits >= 1000 else f"{megabits} Mb/s"


def _no_network(facts: Mapping[int, NodeFacts], names: Mapping[int, str]) -> str:
    shown = [f"{names[index]} has {describe_interfaces(one)}" for index, one in list(facts.items())[:MOST_SHOWN]]
    more = len(facts) - len(shown)
    rest = f"; and {plural(more, 'more node')}" if more else ""
    return f"these nodes share no network, ranks may not reach each other: {'; '.join(shown)}{rest}"
