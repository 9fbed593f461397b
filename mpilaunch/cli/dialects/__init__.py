"""The options of other launchers: one module for each launcher, with a table of options and the functions it uses.

A new launcher is a new module with a `DIALECT`, and its line in `MODULES`. `table` looks options up.
"""

MODULES = {
    "openmpi": "mpi.openmpi",
    "hydra": "mpi.hydra",
    "intel": "mpi.intel",
    "pals": "mpi.pals",
    "torchrun": "frameworks.torchrun",
    "horovodrun": "frameworks.horovodrun",
    "deepspeed": "frameworks.deepspeed",
    "accelerate": "frameworks.accelerate",
    "srun": "batch.srun",
    "flux": "batch.flux",
    "pdsh": "shells.pdsh",
    "pdcp": "shells.pdcp",
    "rpdcp": "shells.rpdcp",
    "clush": "shells.clush",
}
"""The name of a dialect, for --dialect, to its module in this folder."""
NAMES = tuple(MODULES)
DETECTED = frozenset(name for name, module in MODULES.items() if module.startswith("mpi."))
"""Dialects that a command line may be in without naming one."""
SEPARATE = frozenset(NAMES) - DETECTED
"""Launchers that read the program differently: their options count only with --dialect or under the name of the dialect."""
NO_THREADS = frozenset(name for name, module in MODULES.items() if module.startswith("batch.")) | {"deepspeed", "horovodrun"}
"""Separate launchers that leave OMP_NUM_THREADS alone, as those of MPI do."""
USAGE_CODES = {"pdsh": 1, "pdcp": 1, "rpdcp": 1}
"""Exit codes after a mistake in the command line, under the names of launchers that have another one."""
ANY_MPI = "mpi"
"""The value of --dialect for one of several MPI launchers: which one, their own options tell."""
