"""Variables by which other launchers are told the same as by options, where it is safe to act on them too.

Pure. They are weaker than any word of the user's to mpilaunch: an operator of a cluster or a container image set them for
another launcher. What would change how a job runs, and not where and how it is reached, is left alone; hostfiles and agents are
read by `operators`.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.options import BY_NAME, Setting
from mpilaunch.values import value_from_text

OPTIONS = {
    "I_MPI_HYDRA_HOSTS_GROUP": "host",
    "OMPI_MCA_plm_rsh_num_concurrent": "fanout",
    "PRTE_MCA_plm_ssh_num_concurrent": "fanout",
    "MPIEXEC_TIMEOUT": "timeout",
}
"""Variable, and the option that it says; of two for one option the first counts."""


def settings_from(environ: Mapping[str, str], layer: int) -> dict[str, Setting]:
    """Return what other launchers' variables say; raises UsageError for a value that makes no sense."""
    found: dict[str, Setting] = {}
    for variable, name in OPTIONS.items():
        text = environ.get(variable, "")
        if not text or name in found:
            continue
        option = BY_NAME[name]
        value = value_from_text(option, text, variable)
        found[name] = Setting((str(value),) if option.repeatable else value, variable, layer)
    return found
