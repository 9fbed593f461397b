"""Command lines of other launchers: a hundred real ones and what they are planned as, and the tables behind them."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.cli.advice.mistakes import unlike_open_mpi
from mpilaunch.cli.dialects import NAMES, SEPARATE, rows
from mpilaunch.cli.dialects import table as dialects
from mpilaunch.cli.dialects.mpi import mca
from mpilaunch.cli.dialects.rows import Row
from mpilaunch.cli.dialects.table import meaning, of_name, rows_of, spelling
from mpilaunch.cli.job import inputs
from mpilaunch.cli.job.make import make_job
from mpilaunch.cli.main import main
from mpilaunch.cli.options import BY_FLAG
from mpilaunch.cli.parser import MCA, CommandLine, read_command
from mpilaunch.cli.verbs import Request
from mpilaunch.errors import UsageError
from mpilaunch.hosts import kubernetes
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.job.environment.forwarded import forwarded_environment
from tests.support import goldens
from tests.support.command_line import request, settings
from tests.support.paths import DOCS, GOLDEN, ROOT

ROWS = rows_of(map(of_name, NAMES))
TABLE = yaml.safe_load((GOLDEN / "commands.yaml").read_text(encoding="utf-8"))
PLANS = GOLDEN / "commands.json"

OF_MAPPING: set[str] = set()


def commands() -> list[tuple[str, dict[str, Any]]]:
    """The lines of the table as (name, entry); a line that stands twice with other surroundings has these in its name."""
    found = []
    for entries in TABLE["commands"].values():
        for entry in entries:
            entry = {"run": entry} if isinstance(entry, str) else entry
            surroundings = [entry["slurm"]] if "slurm" in entry else []
            surroundings += [f"{name}={value}" for name, value in entry.get("env", {}).items()]
            found.append((" ".join([*(f"[{one}]" for one in surroundings), entry["run"]]), entry))
    return found


COMMANDS = commands()
UNSAID = ("NCCL_DEBUG", "HOROVOD_CYCLE_TIME")
"""Variables of the table that are forwarded without a word, in nearly every line."""
KEYS = ("wdir", "environment", "edits", "role", "after")
ROOT_USER = pwd.getpwuid(0)
"""Who types the lines, whoever runs the tests."""
KEPT = ("PYTEST", "TESTS_OF_")
"""What marks the tests' own processes."""


def planned(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Plan a line through the command itself; return the essential parts, or the error with its hint."""
    environ = {**TABLE["environment"], **entry.get("env", {})}
    if "slurm" in entry:
        nodes, tasks = entry["slurm"].split()
        numbers = re.search(r"\[(\d+)-(\d+)\]", nodes)
        count = int(numbers[2]) - int(numbers[1]) + 1 if numbers else 1
        environ |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": f"{tasks}(x{count})"}
    for name in list(os.environ):
        if not name.startswith(KEPT):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(TABLE["cpus"])))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: ROOT_USER)
    monkeypatch.setattr(inputs, "find_program", lambda name, path: f"/usr/bin/{name}")  # Slurm is installed or not
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", "6", "", "x86_64")))
    name, *words = shlex.split(entry["run"])
    monkeypatch.setattr(sys, "argv", [name])
    code = main(["--dry-run", "--json", *words])
    out, err = capsys.readouterr()
    notes = err.replace(os.getcwd(), ".").splitlines()
    if code:
        assert not out
        return {"exit code": code, "error": notes}
    plan = json.loads(out)
    options = {
        option: [said["value"], said["provenance"]]
        for option, said in plan["options"].items()
        if said["provenance"] not in ("default", rows.MPI["dialect"][1]) and option not in ("dry-run", "json", "export", "host")
    }
    for app in plan["apps"]:
        app["environment"] = [name for name in app["environment"] if not name.startswith(KEPT)]
    return {
        "apps": [
            {"program": shlex.join(app["program"]), **{key: app[key] for key in KEYS if app.get(key)}} for app in plan["apps"]
        ],
        "ranks": {
            f"{node['name']}, slots {len(node['slots'])}, {node['agent']}": fold_numbers(node["ranks"])
            for node in plan["nodes"]
        },
        **({"ranks of apps": ranks_of_apps(plan)} if len(plan["apps"]) > 1 else {}),
        **{f"rank {rank['rank']}": shlex.join(rank["program"]) for rank in plan["ranks"] if "program" in rank},
        "environment": [name for name in plan["environment"] if name not in UNSAID and not name.startswith(KEPT)],
        "options": options,
        **({"notes": notes} if notes else {}),
    }


def ranks_of_apps(plan: dict[str, Any]) -> list[str]:
    return [fold_numbers(place["rank"] for place in plan["ranks"] if place["app"] == app) for app in range(len(plan["apps"]))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory with the files of the table, which no plan changes."""
    folder = tmp_path_factory.mktemp("dialects")
    for path, text in TABLE["files"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def here(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(files)
    return files


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    """Give the plan of each command line, by its name."""
    return json.loads(PLANS.read_text(encoding="utf-8")) if PLANS.exists() else {}


def test_there_are_enough_lines_and_none_twice() -> None:
    names = [name for name, _ in COMMANDS]
    assert len(names) == len(set(names)) >= 140


@pytest.mark.parametrize(("name", "entry"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_real_command_line_is_planned_as_before(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plans: dict[str, Any],
    name: str,
    entry: dict[str, Any],
) -> None:
    plan = planned(entry, monkeypatch, capsys)
    if goldens.UPDATE:
        plans[name] = plan
        known = {other: plans[other] for other, _ in COMMANDS if other in plans}
        # A line for each command, so that a difference shows which commands changed.
        lines = [json.dumps({other: one}, ensure_ascii=False)[1:-1] for other, one in known.items()]
        PLANS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    assert plan == plans[name]


def test_the_plans_are_those_of_the_table() -> None:
    assert list(json.loads(PLANS.read_text(encoding="utf-8"))) == [name for name, _ in COMMANDS]


# The tables


def launcher_options() -> list[tuple[str, str, int]]:
    lines = (GOLDEN / "launcher_options.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(": ") for line in lines if not line.startswith("#")]
    return [(launcher, flag, int(words)) for launcher, flags, words in rows for flag in flags.split()]


@pytest.mark.parametrize(("launcher", "flag", "words"), launcher_options())
def test_every_option_of_the_others_is_known_with_its_arguments(launcher: str, flag: str, words: int) -> None:
    dialect = launcher.partition("-")[0]
    long = flag if flag.startswith("--") or len(flag) == 2 else "-" + flag
    own = None if dialect in SEPARATE and dialects.of_name(dialect).has(flag) else BY_FLAG.get(flag) or BY_FLAG.get(long)
    if own is not None:
        takes = own.words if own.fixed_value(flag if flag in BY_FLAG else long) is None else 0
        # Hydra's -profile is refused: no profile has the name of what follows it.
        assert words == takes or own.key in ("help", "profile")
    elif long not in OF_MAPPING:
        row = dialects.find(flag, frozenset({dialect}), named=True)
        assert row is not None, f"{launcher} {flag}"
        assert dialect in row.dialects and (row.words == words or row.kind == rows.REFUSED)


@pytest.mark.parametrize("row", ROWS, ids=spelling)
def test_every_row_is_whole(row: Row) -> None:
    assert row.dialects and row.dialects <= set(NAMES)
    if row.kind == rows.ACTS:
        assert row.means and (row.text or isinstance(row.means, str))
        if isinstance(row.means, str):
            assert {f"${place + 1}" for place in range(row.words)} == set(re.findall(r"\$\d", row.means))
    else:
        assert row.text and not row.means and not row.everywhere and not row.weak
    assert "  " not in meaning(row) and not row.text.endswith(".")
    for name in row.names:
        flag = f"-{name}" if len(name) == 1 else f"--{name}"
        shadowed = flag in BY_FLAG and flag not in OF_MAPPING and name != MCA and not row.dialects <= SEPARATE
        assert not shadowed, f"{flag} is an option of ours: the row is never asked"


def test_rows_say_options_that_there_are() -> None:
    words = [word.lstrip("?") for _, words in mca.ACTING for word in words.split()]
    words += [word for row in ROWS if isinstance(row.means, str) for word in row.means.split()]
    assert {word.partition("=")[0] for word in words if word.startswith("-")} - set(BY_FLAG) <= OF_MAPPING


def test_no_dialect_has_an_option_twice() -> None:
    for dialect in NAMES:
        names = [name for row in ROWS if dialect in row.dialects for name in row.names]
        assert len(names) == len(set(names))


def test_the_page_is_the_table() -> None:
    """docs/dialect-options.md is written from the tables; MPILAUNCH_UPDATE_GOLDEN=1 writes it anew."""
    page = DOCS / "dialect-options.md"
    head = page.read_text(encoding="utf-8").split("<!-- the tables -->\n")[0]
    text = head + "<!-- the tables -->\n" + tables()
    if goldens.UPDATE:
        page.write_text(text, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text


def tables() -> str:
    lines = []
    for dialect in map(of_name, NAMES):
        lines += ["", f"## {dialect.title}", "", "| option | here |", "| --- | --- |"]
        for row in dialect.rows:
            dashes = "--" if dialect.name in SEPARATE else "-"
            spelled = " ".join(f"`{dashes if len(name) > 1 else '-'}{name}`" for name in row.names)
            lines.append(f"| {spelled} {row.metavar}".rstrip() + f" | {meaning(row)} |")
    lines += ["", "## MCA parameters that act", "", "| parameter | here |", "| --- | --- |"]
    special = (
        (mca.WEAK, "`--hostfile VALUE`, unless other hosts are named"),
        (mca.AGENT, "`--remote-agent 'VALUE {host} {command}'`"),
        (mca.AGENT_ARGUMENTS, "the same, with `VALUE` before the host"),
        (mca.VARIABLES, "`-x` for each item between semicolons"),
        (mca.FILES, "`--tune VALUE`"),
    )
    for names, words in (*mca.ACTING, *special):
        shown = words if "`" in words else f"`{words.lstrip('?').replace('$1', 'VALUE')}`" + ", if true" * words.startswith("?")
        lines.append(f"| {' '.join(f'`{name}`' for name in names.split())} | {shown} |")
    lines += ["", "## Variables of other launchers that count", "", "| variable | sets |", "| --- | --- |"]
    variables = {variable: name for dialect in dialects.MPI for variable, name in dialect.variables.items()}
    lines += [f"| `{variable}` | `--{name}` |" for variable, name in variables.items()]
    lines += [f"| `{variable}` | `--hostfile` |" for variable in kubernetes.HOSTFILE_VARIABLES]
    for agent, arguments, _ in kubernetes.AGENT_VARIABLES:
        lines.append(f"| `{agent}`, {', '.join(f'`{name}`' for name in arguments)} | `--remote-agent` |")
    return "\n".join([*lines, ""])


# Words


def asked(words: str, name: str = "mpirun") -> Request:
    return request(shlex.split(words), name=name)


@pytest.mark.parametrize(
    ("words", "programs", "own"),
    [
        ("-np 1 a x : -np 2 b y", [["a", "x"], ["b", "y"]], [{"np": 1}, {"np": 2}]),
        ("-np 1 a : b", [["a"], ["b"]], [{"np": 1}, {}]),
        ("--timeout 5 a : --grace 2 b", [["a"], ["b"]], [{}, {}]),
        ("--tag : -np 1 a : -np 1 b", [["a"], ["b"]], [{"np": 1}, {"np": 1}]),
        ("-np 1 a : -np 1 -- b : c", [["a"], ["b", ":", "c"]], [{"np": 1}, {"np": 1}]),
        ("-genv A 1 -env B 2 a : -env C 3 b", [["a"], ["b"]], [{"export": ("B=2",)}, {"export": ("C=3",)}]),
        ("-genvnone a : -envall b", [["a"], ["b"]], [{}, {"forward": "all"}]),
    ],
)
def test_programs_and_the_options_of_each(words: str, programs: list[list[str]], own: list[dict[str, Any]]) -> None:
    sections = asked(words).sections
    assert [section.program for section in sections] == programs
    assert [{name: setting.value for name, setting in section.settings.items()} for section in sections] == own


def test_one_program_takes_all_options_and_a_colon_after_two_dashes() -> None:
    command = asked("-genv A 1 -env A 2 -np 2 -- echo a : b")
    assert command.settings["export"] == ("A=1", "A=2")
    assert command.settings.source("export") == "-env"
    assert [section.program for section in command.sections] == [["echo", "a", ":", "b"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--map-by core --map-by :OVERSUBSCRIBE", "core:OVERSUBSCRIBE"),
        ("--map-by slot:PE=2 --map-by node", "node"),
    ],
)
def test_modifiers_add_to_a_policy(words: str, expected: str) -> None:
    assert asked(f"{words} prog").settings["map-by"] == expected


@pytest.mark.parametrize(
    ("name", "words", "hydra"),
    [
        ("mpilaunch", "-n 2", False),
        ("mpiexec.hydra", "-n 2", True),
        ("mpirun.openmpi", "-n 2", False),
        ("mpirun", "-n 2", False),
        ("mpirun", "-ppn 2", True),
        ("mpilaunch", "-ppn 2", False),
        ("mpilaunch", "-genv A 1", True),
        ("mpilaunch", "--dialect hydra", True),
        ("mpiexec.hydra", "--dialect openmpi", False),
        ("mpirun", "-x A=1 -ppn 2", False),
    ],
)
def test_hydra_is_found_by_its_name_or_its_options(name: str, words: str, hydra: bool) -> None:
    assert asked(f"{words} prog", name).settings["cycle"] == hydra


@pytest.mark.parametrize(
    ("name", "words", "option", "value"),
    [
        ("mpiexec", "-np 4 -ppn 2 -d 4", "cpus-per-rank", 4),
        ("mpiexec", "--depth 4 -np 4 -d 2", "cpus-per-rank", 2),
        ("mpirun", "-x A=1 -d", "verbose", 2),
        ("mpiexec", "-ppn 2 --cpu-bind verbose,thread", "bind-to", "hwthread"),
        ("mpiexec", "-ppn 2 --cpu-bind verbose,thread", "report-bindings", True),
        ("mpirun", "--output time,merge-std", "merge-stderr-to-stdout", True),
        ("mpirun", "--runtime-options timeo=9", "timeout", 9.0),
    ],
)
def test_options_that_need_the_launcher_or_are_shortened(name: str, words: str, option: str, value: Any) -> None:
    assert asked(f"{words} prog", name).settings[option] == value


@pytest.mark.parametrize(
    ("words", "words_of_ours"),
    [
        ("-tune f.dat -genv A 1", "error"),
        ("-genv A 1 -rr -tune f.dat", ("I_MPI_TUNING_BIN=f.dat",)),
        ("--dialect intel -tune f.dat", ("I_MPI_TUNING_BIN=f.dat",)),
    ],
)
def test_a_spelling_of_several_meanings_is_decided_by_what_stands_before(words: str, words_of_ours: Any) -> None:
    if words_of_ours == "error":
        with pytest.raises(UsageError, match="means different things"):
            asked(f"{words} prog", "mpilaunch")
    else:
        assert asked(f"{words} prog", "mpilaunch").settings["export"][-1:] == words_of_ours


@pytest.mark.parametrize(
    ("parts", "template"),
    [
        ({"launcher": "ssh"}, None),
        ({"program": "ssh", "flags": ""}, None),
        ({"launcher": "fork"}, "local"),
        ({"launcher": "rsh"}, "rsh {host} {command}"),
        ({"launcher": "rsh", "program": "/x/rsh", "flags": "-x"}, "/x/rsh {host} {command}"),
        ({"program": "/x/ssh", "arguments": "-p 22", "flags": "-x"}, "/x/ssh -p 22 -x {host} {command}"),
        ({"program": "a{b}", "flags": ""}, "a{{b}} {host} {command}"),
    ],
)
def test_how_nodes_are_reached_is_put_together(parts: dict[str, str], template: str | None) -> None:
    assert rows.agent_template(parts) == template


def test_an_explicit_agent_wins_and_order_does_not_matter() -> None:
    assert asked("-launcher-exec /x -launcher ssh -hosts a prog").settings["remote-agent"] == "/x -x {host} {command}"
    assert asked("--remote-agent openssh -launcher-exec /x prog").settings["remote-agent"] == "openssh"


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi"])
def test_a_link_of_another_name_is_the_command(tmp_path: Path, name: str) -> None:
    command = tmp_path / "mpilaunch"
    command.write_text(f"#!{sys.executable}\nfrom mpilaunch.__main__ import entry\nentry()\n", encoding="utf-8")
    command.chmod(0o755)
    (tmp_path / name).symlink_to(command)
    root = ROOT
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": f"{root}{os.pathsep}{root / 'agents'}"}
    done = subprocess.run([tmp_path / name, "-n", "2", "echo", "hi"], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\nhi\n", "")


@pytest.mark.parametrize("words", ["-np 2 -H a -x A=1 --tag rank prog", "-n 1 -f h prog", "--dry-run prog"])
def test_a_plain_command_line_loads_no_table(words: str) -> None:
    code = f"import sys; from mpilaunch.cli.parser import read_command; read_command({words.split()!r}); print(*sys.modules)"
    environ = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    loaded = {name for name in done.stdout.split() if name.startswith("mpilaunch.")}
    assert "mpilaunch.cli.parser" in loaded
    assert not {name for name in loaded if name.startswith("mpilaunch.cli.dialects.")}


FLAGS = [flag for flag, option in BY_FLAG.items() if option.key not in ("help", "version")]
FLAGS += sorted({f"-{name}" for row in ROWS for name in row.names} - {"-info"})  # -info prints the version
VALUES = ["1", "2", "", "x", "a:2", "a=b", ":", "--", "-", "5m", "yes", "no", "ssh", ":PE=2", "none", "\0", "=", "-1", "9" * 20]


WORDS = st.sampled_from(FLAGS) | st.sampled_from(VALUES)


@given(st.lists(WORDS | st.builds("{}={}".format, st.sampled_from(FLAGS), st.sampled_from(VALUES))))
def test_any_command_line_is_read_or_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        request(words, name="mpirun")


@given(st.lists(st.sampled_from(["-genv", "A", "1", ":", "--", "-mca", "-s", "-l", "x=1", "-env", "-launcher", "rsh", "p"])))
def test_any_words_of_others_are_read_or_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError):
        line: CommandLine = read_command(words, "mpirun")
        assert all(program.words for program in line.programs) or len(line.programs) == 1


@pytest.mark.parametrize("words", ["--cpu-bind map_cpu:ff", f"--cpu-bind map_cpu:{'9' * 5000}", f"-t {'9' * 5000}"])
def test_numbers_that_srun_cannot_take_are_usage_errors(words: str) -> None:
    with pytest.raises(UsageError):
        request([*words.split(), "./a"], name="srun")


# Variables


def test_variables_of_others_are_weaker_than_any_word_to_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("timeout: 30\n", encoding="utf-8")
    environ = {"HOME": "/nowhere", "MPIEXEC_TIMEOUT": "9", "OMPI_MCA_btl": "tcp"}
    inherits = settings("", environ)
    assert (inherits["timeout"], inherits.source("timeout")) == (9.0, "MPIEXEC_TIMEOUT")
    assert settings("", {**environ, "MPILAUNCH_TIMEOUT": "8"})["timeout"] == 8.0
    assert settings("", {**environ, "MPILAUNCH_CONFIG": "c.yaml"})["timeout"] == 30.0
    assert dialects.inherited({"I_MPI_PERHOST": "allcores"}) == {}


OF_MPIRUN = {
    "OMPI_MCA_rmaps_ppr_n_pernode": "1",
    "OMPI_MCA_hwloc_base_use_hwthreads_as_cpus": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "node:PE=2",
    "OMPI_MCA_rmaps_base_oversubscribe": "true",
    "OMPI_MCA_mca_base_env_list": "A=1;B=2",
    "OMPI_MCA_btl": "tcp",
}


@pytest.mark.parametrize(
    ("words", "name", "acts"),
    [
        ("--dialect openmpi -np 2 prog", "mpilaunch", True),
        ("-np 2 prog", "mpirun.openmpi", True),
        ("-np 2 -x A=3 prog", "mpirun", True),
        ("-np 2 --mca btl tcp prog", "mpilaunch", True),
        ("-np 2 prog", "mpirun", False),
        ("-np 2 -x A=3 prog", "mpilaunch", False),
        ("-np 2 prog", "mpiexec.hydra", False),
    ],
)
def test_exported_parameters_of_mpirun_act_for_its_users(words: str, name: str, acts: bool) -> None:
    made = request(words.split(), {"HOME": "/nowhere", **OF_MPIRUN}, name).settings
    values = [made[option] for option in ("npernode", "use-hwthread-cpus", "map-by")]
    assert values == ([1, True, "node:PE=2"] if acts else [None, False, "slot"])
    assert made.source("npernode") == ("OMPI_MCA_rmaps_ppr_n_pernode" if acts else "default")
    assert made["export"][:2] == ("A=1", "B=2") if acts else "A=1" not in made["export"]
    assert made["export"][-1:] == ("A=3",) or "A=3" not in words


def test_every_setting_overrides_an_exported_parameter(tmp_path: Path) -> None:
    def of(words: str, **environ: str) -> Any:
        return request(words.split(), {"HOME": "/nowhere", **OF_MPIRUN, **environ}, "orterun").settings["npernode"]

    (tmp_path / "c.yaml").write_text("npernode: 5\n", encoding="utf-8")
    assert of("-N 2 prog") == of("--mca rmaps_ppr_n_pernode 2 prog") == of("prog", MPILAUNCH_NPERNODE="2") == 2
    assert of(f"--config {tmp_path}/c.yaml prog") == 5


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OMPI_MCA_rmaps_ppr_n_pernode", "x", "OMPI_MCA_rmaps_ppr_n_pernode: 'x' is not a whole number"),
        ("OMPI_MCA_orte_abort_on_non_zero_status", "0", "OMPI_MCA_orte_abort_on_non_zero_status: a rank that exits"),
        ("PRTE_MCA_mca_base_param_files", "/no/such", "cannot read parameter file '/no/such'"),
    ],
)
def test_an_exported_parameter_that_cannot_act_is_an_error(variable: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        request(["-np", "2", "prog"], {"HOME": "/nowhere", variable: value}, "orterun")


def test_no_parameter_that_acts_reaches_the_ranks_by_its_prefix() -> None:
    names = " ".join([*(names for names, _ in mca.ACTING), mca.WEAK, mca.AGENT, mca.AGENT_ARGUMENTS, mca.FILES, mca.VARIABLES])
    environ = {f"{prefix}_MCA_{name}": "1" for prefix in ("OMPI", "PRTE") for name in [*names.split(), "ess_base_jobid", "plm"]}
    assert forwarded_environment({**environ, "OMPI_MCA_btl_tcp_if_include": "eth0", "PMIX_MCA_gds": "hash"}, []) == {
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "PMIX_MCA_gds": "hash",
    }


# Defaults


@pytest.mark.parametrize(
    ("words", "name", "forward", "threads"),
    [
        ("-np 2 prog", "mpilaunch", "usual", "auto"),
        ("-np 2 -x A=1 prog", "mpilaunch", "usual", "auto"),
        ("--dialect openmpi -np 2 prog", "mpilaunch", "usual", "none"),
        ("--dialect mpi -np 2 prog", "mpilaunch", "usual", "none"),
        ("-np 2 prog", "mpirun", "usual", "none"),
        ("-np 2 -ppn 2 prog", "mpiexec", "all", "none"),
        ("-np 2 prog", "mpirun.openmpi", "usual", "none"),
        ("-np 2 prog", "mpiexec.hydra", "all", "none"),
        ("-np 2 -genv A 1 prog", "mpilaunch", "all", "none"),
        ("--dialect intel -np 2 prog", "mpilaunch", "all", "none"),
        ("-np 2 -genvnone prog", "mpiexec.hydra", "none", "none"),
        ("-np 2 -genvlist HOME prog", "mpiexec.hydra", "none", "none"),
        ("--nproc-per-node 2 prog", "torchrun", "usual", "auto"),
        ("--dialect torchrun --nproc-per-node 2 prog", "mpirun", "usual", "auto"),
        ("-n 2 prog", "srun", "all", "none"),
        ("--dialect srun -n 2 prog", "mpilaunch", "all", "none"),
        ("run -n 2 prog", "flux", "all", "none"),
        ("--num_gpus 2 prog", "deepspeed", "usual", "none"),
        ("--dialect mpi -np 2 prog", "torchrun", "usual", "none"),
        ("--dialect mpi -np 2 -ppn 2 prog", "torchrun", "all", "none"),
        ("--cpus-per-rank 4 --nproc-per-node 2 prog", "torchrun", "usual", "4"),
        ("-np 2 --map-by slot:PE=12 prog", "mpirun", "usual", "12"),
        ("-np 2 --cpus-per-rank 4 prog", "mpilaunch", "usual", "4"),
        ("-np 2 --map-by ppr:1:socket:PE=3 --cpus-per-rank 4 prog", "mpilaunch", "usual", "3"),
    ],
)
def test_each_launcher_has_its_own_defaults_for_the_environment(words: str, name: str, forward: str, threads: str) -> None:
    made = request(words.split(), name=name)
    assert made.settings["forward"] == forward
    assert make_job(made.settings, made.sections, made.environ).threads == threads


def test_a_programs_own_list_limits_what_hydra_forwards() -> None:
    environ = {"HOME": "/nowhere", "MINE": "1", "THEIRS": "2"}
    words = "-np 1 -envlist MINE a : -np 1 -envnone b : -np 1 c"
    made = request(shlex.split(words), environ, "mpiexec.hydra")
    job = make_job(made.settings, made.sections, made.environ)
    assert [{**job.environment, **app.environment} for app in job.apps] == [{"MINE": "1"}, {}, {"MINE": "1", "THEIRS": "2"}]


@pytest.mark.parametrize(
    ("name", "words", "note"),
    [
        ("mpirun.openmpi", "--map-by socket:SPAN -np 2", "--map-by socket:SPAN: the sockets of all nodes take ranks in turn"),
        ("mpirun", "--map-by package:span -np 2", "--map-by package:span: the sockets of all nodes take ranks in turn"),
        ("mpirun", "--map-by ppr:1:l2cache,span -np 2", "--map-by ppr:1:l2cache,span: the l2 caches of all nodes take ranks"),
        ("mpirun", "--map-by numa:PE=2,span -np 2", "--map-by numa:PE=2,span: the numas of all nodes take ranks in turn"),
        ("mpirun", "--map-by slot:span -np 2", ""),
        ("mpilaunch", "--map-by socket:SPAN -np 2", ""),
        ("mpiexec.hydra", "--map-by socket:SPAN -np 2", ""),
        ("mpirun", "--hostfile h --host a,b:2", "--host beside --hostfile: hosts keep their slots of the hostfile"),
        ("mpirun", "--hostfile h --host a,b -np 2", ""),
        ("mpirun", "--hostfile h --host a[1,2]:2,b:1", ""),
        ("mpirun", "--host a,b", ""),
        ("mpilaunch", "--hostfile h --host a", ""),
    ],
)
def test_what_maps_ranks_unlike_open_mpi_is_reported(name: str, words: str, note: str) -> None:
    said = list(unlike_open_mpi(asked(f"{words} prog", name).settings))
    assert len(said) == bool(note) and all(text.startswith(note) for text in said)
