"""Open MPI's MCA parameters: those that configure mpirun become our options, all others become OMPI_MCA_name for the ranks.

Pure. Serves -mca on the command line and the lines of --tune and -am files.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from mpilaunch.cli.dialects.rows import InvalidArgument, ReadFile, Translation, for_each, words_of
from mpilaunch.errors import UsageError

ACTING = (
    # names in Open MPI 1.x to 5, our options
    ("rmaps_base_mapping_policy rmaps_default_mapping_policy", "--map-by $1"),
    ("rmaps_base_ranking_policy rmaps_default_ranking_policy", "--rank-by $1"),
    ("hwloc_base_binding_policy hwloc_default_binding_policy", "--bind-to $1"),
    ("hwloc_base_cpu_set hwloc_base_cpu_list hwloc_default_cpu_list", "--cpu-set $1"),
    ("hwloc_base_use_hwthreads_as_cpus", "?--use-hwthread-cpus"),
    ("hwloc_base_report_bindings orte_report_bindings", "--report-bindings=$1"),
    ("rmaps_base_oversubscribe", "--oversubscribe=$1"),
    ("rmaps_base_no_oversubscribe", "?--nooversubscribe"),
    ("rmaps_base_cpus_per_rank rmaps_base_cpus_per_proc", "--cpus-per-rank $1"),
    ("rmaps_base_n_pernode rmaps_ppr_n_pernode", "--npernode $1"),
    ("rmaps_base_pernode rmaps_ppr_pernode", "?--npernode 1"),
    ("rmaps_ppr_pattern", "--map-by ppr:$1"),
    ("rmaps_rank_file_path orte_rankfile", "--rankfile $1"),
    ("rmaps_base_display_map", "--display-map=$1"),
    ("ras_base_display_alloc", "--display-allocation=$1"),
    ("orte_tag_output", "?--tag-output"),
    ("orte_timestamp_output", "--timestamp-output=$1"),
    ("orte_output_filename", "--output-filename $1"),
    ("odls_base_sigkill_timeout", "--grace $1"),
    ("plm_rsh_num_concurrent plm_ssh_num_concurrent", "--fanout $1"),
)
"""Parameters that configure mpirun, and our options; those after "?" apply if the value is true."""

WEAK = "orte_default_hostfile prte_default_hostfile"
"""Names of the default hostfile."""
AGENT = "plm_rsh_agent plm_ssh_agent orte_rsh_agent pls_rsh_agent"
AGENT_ARGUMENTS = "plm_rsh_args plm_ssh_args"
VARIABLES = "mca_base_env_list"
FILES = "mca_base_param_files"
_SPECIAL = frozenset(f"{WEAK} {AGENT} {AGENT_ARGUMENTS} {VARIABLES} {FILES}".split())

_WORDS = {name: words for names, words in ACTING for name in names.split()}
FAILURE_ENDS_JOB = ("a rank that exits with a failure ends the job", "'sh -c \"./a || true\"' never fails")


def parameter(name: str, value: str, read_file: ReadFile) -> Translation:
    """-mca KEY VALUE: one of our options, or a variable of the ranks."""
    acting = _acting(name, value, read_file)
    return Translation(("--export", f"OMPI_MCA_{name}={value}")) if acting is None else acting


def prrte_parameter(name: str, value: str, read_file: ReadFile) -> Translation:
    """--prtemca KEY VALUE: one of our options, or no effect, because no PRRTE daemon runs."""
    acting = _acting(name, value, read_file)
    note = (f"--prtemca {name} has no effect: mpilaunch runs no PRRTE daemons", 0)
    return Translation(notes=(note,)) if acting is None else acting


def exported(environ: Mapping[str, str], read_file: ReadFile) -> Iterator[tuple[str, Translation]]:
    """Yield the exported parameters that configure mpirun: the variable, and our options; raises UsageError.

    `hosts.kubernetes` reads those that name hostfiles and agents, under every launcher's name.
    """
    for variable, value in sorted(environ.items()):
        launcher, mca, name = variable.partition("_MCA_")
        if launcher not in ("OMPI", "PRTE") or not mca or not value or name in f"{WEAK} {AGENT} {AGENT_ARGUMENTS}".split():
            continue
        try:
            if (translation := _acting(name, value, read_file)) is not None:
                yield variable, translation
        except InvalidArgument as error:
            reason, hint = error.args
            raise UsageError("option-value", f"{variable}: {reason}", hint=hint) from None


def acts(name: str) -> bool:
    """Return whether a parameter configures mpirun, not the ranks."""
    return name in _WORDS or name in _SPECIAL


def _acting(name: str, value: str, read_file: ReadFile) -> Translation | None:
    """Return the translation of a parameter that configures mpirun, None for any other."""
    false = value.lower() in ("0", "false", "no", "off")
    if name in WEAK.split():
        return Translation(("--hostfile", value), weak=frozenset({"--hostfile"}))
    if name in AGENT.split():
        # A list of programs to try; users usually have the first.
        return Translation(agent={"program": value.split(":")[0].strip() or "ssh", "flags": ""})
    if name in AGENT_ARGUMENTS.split():
        return Translation(agent={"arguments": value})
    if name == VARIABLES:
        return Translation(tuple(for_each("--export", value, ";")))
    if name == FILES:
        return tune(value, read_file)
    if name == "rmaps" and value == "seq":
        return Translation(("--map-by", "seq"))
    if name == "orte_abort_on_non_zero_status" and false:
        raise InvalidArgument(*FAILURE_ENDS_JOB)
    if name not in _WORDS:
        return None
    words = _WORDS[name]
    if words.startswith("?"):
        return Translation() if false else words_of(words[1:])
    return words_of(words, [value])


def tune(paths: str, read_file: ReadFile) -> Translation:
    """--tune FILES: the options in files, as lines of options or `key = value`."""
    result = Translation()
    for path in paths.split(","):
        for number, line in enumerate(read_file(path, "parameter file").splitlines(), start=1):
            text = line.partition("#")[0].strip()
            if text.startswith("-"):
                result += _options_of(text, f"{path}:{number}", read_file)
            elif text:
                key, equals, value = (part.strip() for part in text.partition("="))
                if not equals or not key:
                    message = f"{path}:{number}: '{text}' is neither 'key = value' nor an option"
                    raise InvalidArgument(message, "write -mca KEY VALUE")
                _check_key(key, f"{path}:{number}")
                result += parameter(key, value, read_file)
    return result


def _options_of(text: str, where: str, read_file: ReadFile) -> Translation:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{where}: {str(error).lower()}", "quote words as in a shell") from None
    result = Translation()
    while words:
        flag = "-" + words.pop(0).lstrip("-")
        count = {"-x": 1, "-mca": 2, "-gmca": 2, "-omca": 2}.get(flag)
        if count is None or len(words) < count:
            hint = "such a file may have -x NAME=VALUE and -mca KEY VALUE"
            raise InvalidArgument(f"{where}: '{flag}' is not allowed here", hint)
        name = words.pop(0)
        _check_key(name, where)
        result += Translation(("--export", name)) if count == 1 else parameter(name, words.pop(0), read_file)
    return result


def _check_key(key: str, where: str) -> None:
    """Refuse a file of parameters that names others: it could name itself."""
    if key == FILES:
        raise InvalidArgument(f"{where}: '{key}' in a file is not supported", "name all files on the command line: --tune A,B")
