"""Ask the real mpirun (Open MPI 4) and mpiexec (Hydra) where they put the ranks, on machines that are made up.

    python -m tests.support.placement.peers        asks them for every case of tests/golden/maps/{openmpi,hydra}.txt anew

It needs mpirun.openmpi, mpiexec.hydra and lstopo (hwloc-nox). Open MPI can simulate nodes with a topology of their own; Hydra
takes the topology of this machine from a file. tests/placement/test_mapping_peers.py compares their answers with mpilaunch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.paths import GOLDEN
from tests.support.placement.topologies import TOPOLOGIES, drawn, facts_of, logical

ERRORS = {
    "not enough slots": "not-enough-slots",
    "more processes than the ppr": "not-enough-slots",
    "binding more": "binding-overload",
    "cpus-per-proc was given": "map-by",
}
"""What Open MPI says when ranks do not fit, and our reference for that."""


def ask_openmpi(topologies: Sequence[str], hosts: str, options: str, folder: Path) -> str:
    """Return the map that Open MPI makes: simulated nodes nodeA0, nodeA1 of the first topology, or one node of each."""
    nodes = ["1"] * len(topologies) if len(topologies) > 1 else [str(hosts.count("node"))]
    simulator = {
        "ras": "simulator",
        "ras_simulator_topo_files": ",".join(str(folder / f"{name}.xml") for name in topologies),
        "ras_simulator_num_nodes": ",".join(nodes),
        "ras_simulator_slots": ",".join("4" for _ in nodes),  # --host says the real ones: the simulator's are at random
    }
    parameters = [word for pair in simulator.items() for word in ("--mca", *pair)]
    given = options.replace("--bind-to default", "").split()
    said = ["--do-not-launch", "--display-devel-map", "--host", hosts, *given, "true"]
    command = ["mpirun.openmpi", *parameters, *said]
    environ = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for attempt in range(40):
        # The simulator reads memory that nobody has set, and may crash; what is there depends on the environment's size.
        padding = {"PADDING": "x" * 37 * attempt}
        done = subprocess.run(command, capture_output=True, text=True, env={**environ, **padding}, timeout=60)
        if "Segmentation" not in done.stdout + done.stderr:
            break
    places: dict[int, tuple[str, list[int] | None]] = {}
    node, rank, locale = "", 0, ""
    for line in done.stdout.splitlines():
        if match := re.search(r"Data for node: (\S+)", line):
            node = match[1]
        elif match := re.search(r"Data for proc: \[\[\d+,1\],(\d+)\]", line):
            rank = int(match[1])
        elif match := re.search(r"Locale:\s+(.*)", line):
            locale = match[1]
        elif match := re.search(r"Binding: (.*)", line):
            # What is bound where it is mapped is shown as unbound with a locale.
            shown = locale if match[1] == "UNBOUND" else match[1]
            places[rank] = node, _bits(re.sub(r"[\[\]/ ]", "", shown).replace("B", "1")) if "[" in shown else None
    if places:
        return drawn(places)
    words = " ".join((done.stdout + done.stderr).split())
    return next((reference for text, reference in ERRORS.items() if text in words), f"? {words[:200]}")


def ask_hydra(topologies: Sequence[str], hosts: str, options: str, folder: Path) -> str:
    """Return the map that Hydra makes of this machine, which it takes for one with this topology."""
    environ = {**os.environ, "HYDRA_TOPO_DEBUG": "1", "HWLOC_XMLFILE": str(folder / f"{topologies[0]}.xml")}
    command = ["mpiexec.hydra", *options.split(), "true"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    shown = re.findall(r"process (\d+) binding: ([01]+)", done.stdout)
    if not shown:
        return f"? {done.stderr[:200]}"
    found, host = facts_of(topologies[0]), hosts.partition(":")[0]
    return drawn({int(rank): (host, logical(_bits(bits), found)) for rank, bits in shown})  # its digits are CPU numbers


def _bits(text: str) -> list[int]:
    return [place for place, bit in enumerate(text) if bit == "1"]


def ask_again(name: str, folder: Path) -> None:
    """Write what a peer says to each case of its file into the file."""
    ask = {"openmpi": ask_openmpi, "hydra": ask_hydra}[name]
    path = GOLDEN / "maps" / f"{name}.txt"
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            topologies, hosts, options, *rest = (cell.strip() for cell in line.split("|"))
            said = ask(topologies.split("+"), hosts, options, folder)
            line = " | ".join((topologies, hosts, options, said, *rest[1:]))
        lines.append(line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, description in TOPOLOGIES.items():
            file = f"{place}/{name}.xml"
            subprocess.run(["lstopo", "-i", description, "--of", "xml", "-f", file], check=True, stderr=subprocess.DEVNULL)
        for peer in sys.argv[1:] or ("openmpi", "hydra"):
            ask_again(peer, Path(place))
