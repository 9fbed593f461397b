"""The command line: which words are options, what is said about wrong ones, and what the steps of a command do."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch import __version__
from mpilaunch.cli import main as cli
from mpilaunch.cli.advice.hints import for_missing_program
from mpilaunch.cli.help import EXAMPLES
from mpilaunch.cli.help import text as help_text
from mpilaunch.cli.main import main
from mpilaunch.cli.options import GROUPS, OPTIONS
from mpilaunch.cli.parser import read_command
from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.job.settings import Layer
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import Verdict
from tests.support import goldens
from tests.support.command_line import request
from tests.support.paths import GOLDEN, ROOT


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory and an environment in which nothing is said; what marks the tests' processes stays."""
    for name in list(os.environ):
        if not name.startswith(("PYTEST", "TESTS_OF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that were given to the head, which pretends that they went well."""
    from mpilaunch.head import begin as module

    jobs: list[Any] = []

    def launch(job: Any, observer: Any, local: Any) -> Verdict:
        jobs.append(job)
        return Verdict(0, "ok")

    monkeypatch.setattr(module, "launch", launch)
    return jobs


def values(*words: str) -> dict[str, object]:
    asked = request(words)
    assert asked.sections[0].program == ["prog", "-x", "--np", "9"]
    return {name: setting.value for name, setting in asked.settings.by_name.items() if setting.layer == Layer.COMMAND_LINE}


def program(words: list[str]) -> list[str]:
    return read_command(words).programs[0].words


PROGRAM = ("prog", "-x", "--np", "9")


# Words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("--", {}),
        *((spelled, {"np": 4}) for spelled in ("-n 4", "-np 4", "--np 4", "--np=4", "-np=4", "-n=4", "-np 2 -n 4")),
        ("-host a -H b,c --hosts=d", {"host": ("a", "b,c", "d")}),
        ("-hostfile f -machinefile g -f h", {"hostfile": ("f", "g", "h")}),
        ("-npernode 2", {"npernode": 2}),
        ("-N 2", {"npernode": 2}),
        ("-pernode", {"npernode": 1}),
        ("--ppn 3", {"npernode": 3}),
        ("-bind-to none -map-by slot -rank-by node", {"bind-to": "none", "map-by": "slot", "rank-by": "node"}),
        ("-wdir d -wd e", {"wdir": "e"}),
        ("-tag-output", {"tag": "ompi"}),
        ("--tag={rank}= ", {"tag": "{rank}="}),
        ("-oversubscribe", {"oversubscribe": True}),
        ("--oversubscribe --nooversubscribe", {"oversubscribe": False}),
        ("--oversubscribe=no", {"oversubscribe": False}),
        ("-mca btl tcp,self --mca a b=c", {"export": ("OMPI_MCA_btl=tcp,self", "OMPI_MCA_a=b=c")}),
        ("-x A=b=c -x D -x E_*", {"export": ("A=b=c", "D", "E_*")}),
        ("-v", {"verbose": 1}),
        ("-vv", {"verbose": 2}),
        ("-vvv", {"verbose": 2}),
        ("--verbose=2 -q", {"verbose": 2, "quiet": True}),
        ("--allow-run-as-root -allow-run-as-root", {"allow-run-as-root": True}),
        ("--timeout 5m --grace 1", {"timeout": 300.0, "grace": 1.0}),
        ("--stdin -np", {"stdin": "-np"}),
    ],
)
def test_words(words: str, expected: dict[str, object]) -> None:
    assert values(*words.split(), *PROGRAM) == expected


def test_the_program_may_look_like_an_option_after_two_dashes() -> None:
    assert program(["-np", "2", "--", "--np", "3"]) == ["--np", "3"]
    assert program(["--", "--"]) == ["--"]
    assert program(["-"]) == ["-"]


@given(st.lists(st.sampled_from(["-x", "--np", "4", "-np=3", "--", "-q", "--d", "a b", ""])))
def test_no_word_of_the_program_is_read(arguments: list[str]) -> None:
    line = read_command(["-np", "2", "prog", *arguments])
    assert line.job.argv == ["--np=2"]
    assert line.programs[0].words == ["prog", *arguments]


@given(st.lists(st.text(st.sampled_from("-=npxhost4 {\n"), max_size=8), max_size=5))
def test_any_words_are_read_or_a_usage_error(words: list[str]) -> None:
    with contextlib.suppress(UsageError, click.exceptions.Exit):
        asked = request(words).sections[0].program
        assert words[len(words) - len(asked) :] == asked


# Messages: one for every reference that can come before a launch

SLOT_MAP = {"map.yaml": "nodes:\n  a: {slots: 2, gpus: 0-1}\n  b: {slts: 2}\n"}
GROUPS_OF_HOSTS = {"groups.conf": "[Main]\ndefault: local\n", "groups": "gpu: a[1-2]\n"}
MESSAGES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "option-unknown": ("--hostfle h prog", {}, {}),
    "option-unknown-one-dash": ("-hostfil h prog", {}, {}),
    "option-unknown-glued": ("-np4 prog", {}, {}),
    "option-unknown-pdsh": ("-w node[01-02] prog", {}, {}),
    "group-unknown": ("-H a,@gpo prog", GROUPS_OF_HOSTS, {"CLUSTERSHELL_CFGDIR": "."}),
    "group-files": ("-H @gpu prog", {"groups.conf": "default: local\n"}, {"CLUSTERSHELL_CFGDIR": "."}),
    "option-unknown-torchrun": ("--nproc_per_node=2 prog", {}, {}),
    "option-unknown-standalone": ("--standalone prog", {}, {}),
    "option-unknown-module": ("-m package prog", {}, {}),
    "option-unknown-no-guess": ("-z prog", {}, {}),
    "option-value": ("-np two prog", {}, {}),
    "option-value-missing": ("--np", {}, {}),
    "option-value-two-missing": ("-mca btl", {}, {}),
    "option-value-none-taken": ("--tag-output=3 prog", {}, {}),
    "option-value-range": ("-np 0 prog", {}, {}),
    "option-value-choice": ("--gpu-bind slt prog", {}, {}),
    "option-value-time": ("--timeout 5x prog", {}, {}),
    "option-value-rank": ("-np 2 --show-env 2 prog", {}, {}),
    "option-value-rank-of-one": ("-np 1 --show-env 2 prog", {}, {}),
    "option-value-variable": ("prog", {}, {"MPILAUNCH_NP": "two"}),
    "option-conflict": ("-N 2 --map-by ppr:3:node prog", {}, {}),
    "option-conflict-json": ("--json prog", {}, {}),
    "no-program": ("-np 2", {}, {}),
    "map-by": ("--map-by slto prog", {}, {}),
    "map-by-ppr": ("--map-by ppr:2:cores prog", {}, {}),
    "map-by-instead": ("--map-by board prog", {}, {}),
    "rank-by": ("--rank-by sockets prog", {}, {}),
    "bind-to": ("--bind-to cor prog", {}, {}),
    "rankmap": ("-H a,b --rankmap 0,2 prog", {}, {}),
    "rankfile": ("-rf r prog", {"r": "rank 0=n1 slot=0-3\nrank 1=n1 slots\n"}, {}),
    "map-by-modifier": ("--map-by slot:PE=x prog", {}, {}),
    "stdin": ("-np 2 --stdin 2 prog", {}, {}),
    "stdin-word": ("--stdin al prog", {}, {}),
    "stdin-archive": ("--stdin-archive /no/such/file cat", {}, {}),
    "stdout-archive": ("--independent -H local --stdout-archive /no/such/place cat", {}, {}),
    "ssh-option": ("--ssh-option -v prog", {}, {}),
    "tag-format": ("--tag {rnk} prog", {}, {}),
    "file-unreadable": ("-f host.txt prog", {"hosts.txt": "a\n"}, {}),
    "config-key": ("--config c.yaml prog", {"c.yaml": "np: 2\nhostfil: h\n"}, {}),
    "config-format": ("--config c.yaml prog", {"c.yaml": "np\n"}, {}),
    "option-value-config": ("--config c.yaml prog", {"c.yaml": "np: two\n"}, {}),
    "yaml-syntax": ("--config c.yaml prog", {"c.yaml": "np: 2\nhost: [a\n"}, {}),
    "yaml-duplicate": ("--config c.yaml prog", {"c.yaml": "np: 2\nnp: 3\n"}, {}),
    "yaml-size": ("--config c.yaml prog", {"c.yaml": "[" * 9999}, {}),
    "hostfile-empty": ("-f h prog", {"h": "# none\n"}, {}),
    "hostfile-slots": ("-f h prog", {"h": "n1\nn2 slots=two\n"}, {}),
    "hostfile-key": ("-f h prog", {"h": "n2 slot=2\n"}, {}),
    "hostfile-name": ("-H a,b@,c prog", {}, {}),
    "hostfile-syntax": ("-f h prog", {"h": "n1 /* n2\n"}, {}),
    "hostfile-port": ("-f h prog", {"h": "n1 port=0\n"}, {}),
    "hostfile-user": ("-f h prog", {"h": "n1 user=-a\n"}, {}),
    "hostfile-gpus": ("-f h prog", {"h": "n1 gpus=x\n"}, {}),
    "hostfile-exclude": ("-f h prog", {"h": "^n1\n"}, {}),
    "host-relative": ("-f h -H +n4 prog", {"h": "n[1-3]\n"}, {}),
    "host-unknown": ("-f h -H n3 prog", {"h": "n[1-2]\n"}, {}),
    "host-slots": ("-f h -H n1:4 prog", {"h": "n1 slots=2\n"}, {}),
    "host-gpus": ("-f h prog", {"h": "n1 slots=2 gpus=0-2\n"}, {}),
    "host-cpus": ("-f h prog", {"h": "n1 slots=2 cpus=0\n"}, {}),
    "host-conflict": ("-f h prog", {"h": "n1 port=1\nn1 port=2\n"}, {}),
    "nodeset-syntax": ("-H n[3-1] prog", {}, {}),
    "nodeset-size": ("-H n[1-99999] prog", {}, {}),
    "not-enough-slots": ("-np 5 -H a:2,b:2 prog", {}, {}),
    "not-enough-slots-one": ("-np 2 -N 1 -H a:2 prog", {}, {}),
    "host-slots-one": ("-f h -H a:1 prog", {"h": "a slots=0\n"}, {}),
    "slot-map-one": ("-np 1 --slot-map m prog", {"m": "nodes:\n  n1:\n    slots:\n      - rank: 3\n"}, {}),
    "scheduler-variable-one": ("prog", {}, {"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "4(x3)"}),
    "slot-map": ("--slot-map map.yaml prog", SLOT_MAP, {}),
    "rank-count": ("-np 2000000 prog", {}, {}),
    "scheduler-variable": ("prog", {}, {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "x"}),
    "scheduler-flux": ("prog", {}, {"FLUX_URI": "local:///run/flux"}),
    "export-unset": ("-x HOEM prog", {}, {}),
    "export-name": ("-x 1A=2 prog", {}, {}),
    "export-reserved": ("-x RANK=2 prog", {}, {}),
    "export-value": ("-x A=" + "v" * 131072 + " prog", {}, {}),
    "env-file": ("--env-file e prog", {"e": "A=1\nB\n"}, {}),
    "operator-hosts": ("prog", {}, {"HYDRA_HOST_FILE": "/no/such"}),
    "not-enough-slots-nolocal": ("--nolocal -H localhost:2 prog", {}, {}),
    "mca-parameter": ("prog", {}, {"MPILAUNCH_MCA": "plm_rsh_agent=rsh"}),
    "checkpoint-prefix": ("--checkpoint-prefix /dev/null prog", {}, {}),
    "option-conflict-checkpoint": ("--checkpoint-interval 1h prog", {}, {}),
    "option-conflict-app": ("--app f prog", {"f": "-np 1 a\n"}, {}),
    "option-conflict-ranks": ("--output-file o --error-file-ranks 0 prog", {}, {}),
    "app-file": ("--app f", {"f": "-np 1 a\n-np 1 'b\n"}, {}),
    "no-program-app": ("--app f", {"f": "# nothing\n-np 1\n"}, {}),
    "option-unknown-app": ("--app f", {"f": "-np 1 a\n-np 2 -hostt x b\n"}, {}),
    "option-value-app": ("--app f", {"f": "# one program\n-np x a\n"}, {}),
    "option-value-help": ("--help outpt", {}, {}),
    "no-program-second": ("-np 1 a : -np 2", {}, {}),
    "option-unknown-second": ("-np 1 a : -npp 2 b", {}, {}),
    "rank-count-second": ("-np 1 -H a:4 prog : b", {}, {}),
    "not-enough-slots-second": ("-np 3 -H a:4 prog : -np 2 b", {}, {}),
    "host-unknown-second": ("-f h -np 1 a : -host n3 -np 1 b", {"h": "n[1-2]\n"}, {}),
    "option-dialect": ("-s all -n 2 prog", {}, {}),
    "option-dialect-tune": ("-tune f -n 2 prog", {}, {}),
    "option-dialect-named": ("--dialect openmpi -genv A 1 prog", {}, {}),
    "option-refused": ("-preload-files a,b prog", {}, {}),
    "option-refused-debugger": ("-n 2 -gdb prog", {}, {}),
    "option-unknown-foreign": ("-genvlst A prog", {}, {}),
    "option-value-foreign-missing": ("-genv A", {}, {}),
    "option-value-foreign-none": ("-perhost", {}, {}),
    "option-value-foreign": ("-perhost two prog", {}, {}),
    "topology": ("--dry-run --topology core:two -np 2 prog", {}, {}),
    "option-conflict-topology": ("--topology core:2 -np 2 prog", {}, {}),
    "slurm-request": ("--slurm nods=4,gpus=8 prog", {}, {}),
    "slurm-request-ranks": ("--slurm time=1h prog", {}, {}),
    "slurm-request-time": ("--slurm nodes=2,time=60 prog", {}, {}),
    "option-conflict-mask": ("--gpus-per-rank 1 -x CUDA_VISIBLE_DEVICES=0 prog", {}, {}),
    "option-conflict-slurm": ("--slurm nodes=2 -H a prog", {}, {}),
    "option-value-launcher": ("-launcher lsf prog", {}, {}),
    "option-value-pattern": ("-outfile-pattern out.%x prog", {}, {}),
    "option-value-output": ("--output XML prog", {}, {}),
    "option-value-runtime": ("--runtime-options ERROR-NONZERO-STATUS=0 prog", {}, {}),
    "option-value-tune": ("--tune t prog", {"t": "-x A=1\n-np 4\n"}, {}),
    "option-value-inherited": ("prog", {}, {"MPIEXEC_TIMEOUT": "soon"}),
    "tag-format-file": ("--output-file out.{rnk} prog", {}, {}),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], launched: list[Any], name: str
) -> None:
    words, files, environ = MESSAGES[name]
    for path, text in files.items():
        (here / path).write_text(text)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    goldens.check(f"messages/{name}.txt", err)
    assert not out and not launched
    reference = re.match(r"error\[([a-z-]+)\]: ", err)
    assert reference is not None and reference[1] in name


BEFORE_A_LAUNCH = ("cli", "hosts", "placement", "job/environment", "job/output")
"""Folders whose modules raise errors before a launch."""
ON_THE_NODES = {"gpu_binding.py", "cpu_binding.py", "topology.py", "network.py", "nic_binding.py"}
"""Modules there that need what the nodes report."""


def test_every_reference_has_a_golden_message() -> None:
    references = set()
    for path in [path for folder in BEFORE_A_LAUNCH for path in (ROOT / "mpilaunch" / folder).rglob("*.py")]:
        if path.name in ON_THE_NODES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                text = str(node.args[0].value)
                if name in ("UsageError", "LaunchError", "error") and re.fullmatch("[a-z]+(-[a-z]+)*", text):
                    references.add(text)
    golden = [path.read_text() for path in (GOLDEN / "messages").iterdir()]
    shown = {match[1] for text in golden if (match := re.match(r"error\[([a-z-]+)\]", text))}
    assert references - {"internal", "output-lost", "file-untrusted", "output-directory"} <= shown


# Help


def test_nothing_said_gets_a_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    goldens.check("messages/short-help.txt", err)
    assert not out


@pytest.mark.parametrize("flag", ["--help", "-h", "-help"])
@pytest.mark.parametrize("columns", ["80", "100"])
def test_the_help_fits_one_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["-np", "4", flag]) == 0
    out, err = capsys.readouterr()
    assert not err and len(out.splitlines()) <= 40 and max(map(len, out.splitlines())) <= 100
    for option in OPTIONS:
        assert bool(option.basic) == bool(re.search(rf"^  .*{re.escape(option.flag)}(?![\w-])", out, re.M)), option.flag
    assert all(topic in out for topic in (*GROUPS, "openmpi", "hydra", "intel", "all"))


def test_the_whole_help_has_every_option_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "all"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    for option in OPTIONS:
        for flag in option.flags:
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", out), flag


@pytest.mark.parametrize("columns", ["60", "70", "80", "90", "100"])
@pytest.mark.parametrize("topic", ["all", "openmpi", "hydra", "intel"])
def test_no_line_of_the_help_ends_inside_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], topic: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["--help", topic]) == 0
    out = capsys.readouterr().out
    assert out.isascii() and "--" in out
    assert not re.findall(r"\w-$", out, re.M)


@pytest.mark.parametrize("topic", GROUPS)
def test_a_topic_has_its_options_and_no_others(capsys: pytest.CaptureFixture[str], topic: str) -> None:
    assert main(["--help", topic]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{GROUPS[topic]}:\n")
    listed = {flag for row in re.findall(r"^  (-.*?)(?:  |$)", out, re.M) for flag in re.findall(r"(?<![\w-])--[a-z-]+", row)}
    assert {option.flag for option in OPTIONS if option.group == topic} <= listed
    assert not {option.flag for option in OPTIONS if option.group != topic} & listed


@pytest.mark.parametrize("topic", ["openmpi", "hydra", "intel"])
def test_the_help_of_another_launcher(capsys: pytest.CaptureFixture[str], topic: str) -> None:
    assert main(["--help", topic]) == 0
    assert capsys.readouterr().out.startswith("Options of ")


@pytest.mark.parametrize(("verb", "flags"), [("up", ["--up-idle", "--host", "--agent"]), ("down", [])])
def test_a_verb_has_a_help(capsys: pytest.CaptureFixture[str], verb: str, flags: list[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"mpilaunch {verb}") and all(flag in out for flag in flags)
    assert out.rstrip() == help_text(verb=verb)


@pytest.mark.parametrize("verb", ["up", "down"])
def test_a_verb_is_a_topic(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main(["--help", verb]) == 0
    assert capsys.readouterr().out.rstrip() == help_text(verb=verb)


def test_a_command_line_behind_help_is_not_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "-np", "two", "prog"]) == 0
    assert capsys.readouterr().out.rstrip() == help_text()


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_program_name_is_an_error(launched: list[Any], capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["-np", "2", name]) == 2
    assert capsys.readouterr().err.startswith("error[no-program]: the name of the program is empty\n") and not launched


def test_help_does_not_read_a_broken_config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MPILAUNCH_CONFIG", "missing.yaml")
    assert main(["--help"]) == 0


def test_the_version_takes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version=maybe"]) == 2
    assert capsys.readouterr().err == "error[option-value]: option --version takes no value\n"


@pytest.mark.parametrize("words", [["--version"], ["-np", "2", "-V", "--nothing-like-it"], ["-info"]])
def test_version(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == f"mpilaunch {__version__}\n"


@pytest.mark.parametrize("words", [shlex.split(command)[1:] for command, _ in EXAMPLES])
def test_the_examples_work(here: Path, launched: list[Any], capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    (here / "hosts.txt").write_text("n1\n")
    assert main(words) == 0


# Looking


def test_dry_run_starts_nothing(launched: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "-H", "a:2,b:2", "-np", "3", "prog"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 ranks on 2 nodes, hosts from --host\n") and not err and not launched


def test_dry_run_as_json_has_options_with_provenance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPILAUNCH_FANOUT", "8")
    assert main(["--dry-run", "--json", "-H", "a", "-x", "MY_TOKEN=s3cret", "prog"]) == 0
    out = capsys.readouterr().out
    options = json.loads(out)["options"]
    assert options["fanout"] == {"value": 8, "provenance": "MPILAUNCH_FANOUT"}
    assert options["host"] == {"value": ["a"], "provenance": "--host"}
    assert options["grace"] == {"value": 10.0, "provenance": "default"}
    assert "s3cret" not in out


def test_show_env_masks_secrets_and_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-np", "2", "--show-env", "1", "-x", "MY_TOKEN=s3cret", "-x", "TWO=a\nb", "prog"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == sorted(lines, key=lambda line: line.partition("=")[0])
    assert {"MY_TOKEN=<masked>", "TWO=a\\x0ab", "RANK=1", "MASTER_PORT=<chosen at launch>"} <= set(lines)
    assert main(["--show-secrets", *words]) == 0
    assert "MY_TOKEN=s3cret" in capsys.readouterr().out


def test_show_config_needs_no_program(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "c.yaml").write_text("grace: 5\n")
    assert main(["--show-config", "-np", "3", "--config", "c.yaml", "-x", "A_KEY=s3cret"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["np"] == ["3", "--np"]
    assert rows["grace"] == ["5.0", "c.yaml:1"]
    assert rows["quiet"] == ["no", "default"]
    assert rows["export"] == ["'A_KEY=<masked>'", "--export"]
    assert set(rows) == {"option", *(option.key for option in OPTIONS)}


def test_display_map_continues(launched: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--display-map", "-H", "a:2", "prog"]) == 0
    out, err = capsys.readouterr()
    assert "0     a     ssh    2      0-1\n" in err and not out and len(launched) == 1


# Launching


def test_a_launch_gets_the_job_and_gives_the_exit_code(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-np", "3", "-H", "local:3", "prog", "-np", "4"]) == 0
    assert launched[0].apps[0].program == ("prog", "-np", "4") and len(launched[0].job_map.placements) == 3
    from mpilaunch.head import begin as module

    verdict = Verdict(7, "rank-failed", first=RankEnd(1, code=7), host="local")
    monkeypatch.setattr(module, "launch", lambda job, observer, local: verdict)
    capsys.readouterr()
    assert main(["prog"]) == 7
    assert capsys.readouterr().err == "error[rank-failed]: rank 1 on local exited with code 7 after 0.0 s\n"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (LaunchError("start-failed", "1 of 1 node"), 1, "error[start-failed]: 1 of 1 node\n"),
        (KeyboardInterrupt(), 130, "error[interrupted]: SIGINT to mpilaunch\n"),
        (
            ZeroDivisionError("oops"),
            70,
            "error[internal]: internal error: ZeroDivisionError: oops\n"
            "hint: this is a bug in mpilaunch; run it again with MPILAUNCH_DEBUG=1 for a traceback\n",
        ),
    ],
)
def test_a_fault_of_ours_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, said: str
) -> None:
    def run(*arguments: object) -> int:
        raise raised

    monkeypatch.setattr(cli, "run", run)
    assert main(["prog"]) == code
    assert capsys.readouterr().err == said


def test_a_fault_of_ours_is_traced_when_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "run", lambda *arguments: 1 // 0)
    monkeypatch.setenv("MPILAUNCH_DEBUG", "1")
    assert main(["prog"]) == 70
    assert "Traceback (most recent call last):" in capsys.readouterr().err


# As a process


def run_python(*words: str, agents: bool = False) -> subprocess.CompletedProcess[str]:
    folders = f"{ROOT}{os.pathsep}{ROOT / 'agents'}" if agents else str(ROOT)
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": folders, "HOME": os.environ["HOME"]}
    return subprocess.run([sys.executable, *words], env=environ, capture_output=True, text=True, timeout=60)


def test_python_m_mpilaunch() -> None:
    done = run_python("-m", "mpilaunch", "--version")
    assert (done.returncode, done.stdout) == (0, f"mpilaunch {__version__}\n")


def test_a_reader_of_stdout_that_goes_away_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "mpilaunch", "--help"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_stdout_that_is_not_utf_8_is_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mpilaunch", "--dry-run", "-H", "hö", "true"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"h\\xf6" in done.stdout


def test_closed_descriptors_are_no_fault() -> None:
    done = run_python("-c", "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'mpilaunch', '--hlp'])")
    assert done.returncode == 2 and "--help" in done.stderr
    closed = "import os, sys; os.close(1); os.close(2); os.execv(sys.executable, [sys.executable, '-m', 'mpilaunch', %r])"
    assert run_python("-c", closed % "--hlp").returncode == 2
    assert run_python("-c", closed % "--help").returncode == 0


def test_looking_at_a_plan_imports_no_network(here: Path) -> None:
    code = "import sys; from mpilaunch.cli.main import main; main(['--dry-run', '-H', 'a', 'prog']); print(*sys.modules)"
    modules = set(run_python("-c", code).stdout.splitlines()[-1].split())
    assert not {"asyncio", "ssl", "asyncssh", "rich", "yaml"} & modules


# Hints for a program that was not meant


LINK = "a link named pdsh does so by itself"

@pytest.mark.parametrize(
    ("program", "hint"),
    [
        (["uptime; hostname"], f"mpilaunch does not use a shell; run one: mpilaunch sh -c 'uptime; hostname'; {LINK}"),
        (["ls | wc -l"], f"mpilaunch does not use a shell; run one: mpilaunch sh -c 'ls | wc -l'; {LINK}"),
        (["python train.py"], "the quotes make this one word; remove them: mpilaunch python train.py"),
        (["A=1", "B=2", "env", "-0"], "variables of the ranks are set with -x: mpilaunch -x A=1 -x B=2 env"),
        (["A=1 2", "env"], "the quotes make this one word; remove them: mpilaunch A=1 2"),
        (["RANK=3", "env"], "leave RANK=3 out: mpilaunch sets RANK for every rank"),
    ],
)
def test_a_command_line_in_one_word_gets_a_hint(program: list[str], hint: str) -> None:
    done = run_python("-m", "mpilaunch", "-np", "1", *program, agents=True)
    assert done.returncode == 1 and done.stderr.startswith("error[start-program-missing]: ")
    assert done.stderr.splitlines()[-1] == f"hint: {hint}"


def test_a_file_in_place_of_the_directory_of_output_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    done = run_python("-m", "mpilaunch", "--output-filename", str(tmp_path / "out"), "true", agents=True)
    assert done.returncode == 2 and done.stderr.startswith("error[output-directory]: ")
    assert done.stderr.splitlines()[-1] == (
        "hint: it names a directory for a file of each rank; --output-file FILE names the file"
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["uup", "-H", "a"], "did you mean: mpilaunch up"),
        (["donw"], "did you mean: mpilaunch down"),
        (["-np", "1", "up"], "did you mean: mpilaunch up"),
        (["help"], "did you mean: mpilaunch --help"),
        (["version"], "did you mean: mpilaunch --version"),
    ],
)
def test_a_missing_program_named_like_a_verb_gets_a_hint(here: Path, words: list[str], hint: str) -> None:
    done = run_python("-m", "mpilaunch", *words, agents=True)
    assert done.returncode == 1 and done.stderr.startswith("error[start-program-missing]: ")
    assert done.stderr.splitlines()[-1] == f"hint: {hint}"


@pytest.mark.parametrize("program", ["no-such-program", "./uup"])
def test_any_other_missing_program_gets_the_usual_hint(here: Path, program: str) -> None:
    assert for_missing_program([[program]], ["node01"]) is None
    assert for_missing_program([[program]]) == "give its path, or --wdir DIR, or -x PATH", "on this machine"


def test_a_program_of_this_machine_is_not_taken_for_a_verb(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert for_missing_program([["uup"]], ["node01"])
    (here / "uup").touch(mode=0o755)
    assert for_missing_program([["uup"]], ["node01"]) is None
    (here / "uup").rename(here / "uq")
    (here / "bin").mkdir()
    (here / "bin/uup").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(here / "bin"))
    assert for_missing_program([["uup"]], ["node01"]) is None


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        (["\u2014np", "2", "x"], "'\u2014' is not a hyphen, though it looks like one: write -np"),
        (["cd", "/tmp"], "cd is a command of the shell: mpilaunch sh -c 'cd /tmp && ...'; --wdir DIR sets the directory"),
        (["node02", "true"], "is node02 a host? hosts are separated by commas: -H node01,node02"),
        (["train.pyy"], "did you mean train.py?"),
        (["sub/evil.py"], "did you mean sub/eval.py?"),
    ],
)
def test_a_missing_program_that_is_something_else_gets_a_hint(here: Path, program: list[str], hint: str) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "eval.py").touch()
    (here / "train.py").touch()
    assert (for_missing_program([program], ["node01"]) or "").startswith(hint)


def test_a_program_that_cannot_be_executed_gets_a_hint(here: Path) -> None:
    (here / "crlf.sh").write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    (here / "plain").write_bytes(b"true\n")
    for name in ("crlf.sh", "plain"):
        (here / name).chmod(0o755)
    (here / "folder").mkdir()
    for name, code, hint in (
        ("./folder", 1, "a program is a file in it: add its name"),
        ("./crlf.sh", 1, "the file has the line ends of Windows: sed -i 's/\\r$//' FILE"),
        ("./plain", 126, "no program for this machine; a script needs a first line like #!/bin/sh (or: mpilaunch sh FILE)"),
    ):
        done = run_python("-m", "mpilaunch", "-np", "1", name, agents=True)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (code, f"hint: {hint}")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("train.py -np 2", "train.py gets -np as its argument: options of mpilaunch must precede the program"),
        ("sh x --hostfile=h", "sh gets --hostfile as its argument: options of mpilaunch must precede the program"),
        ("-np 1 -- a : -np 1 b -np 3", "b gets -np as its argument: options of mpilaunch must precede the program"),
        ("-H node01:2222 true", "node01:2222 means 2222 slots; a port is set in a hostfile: node01 port=2222"),
        ("echo {rank}", "echo gets {rank} as it stands: --template fills it in"),
        ("train.py --out=runs/{host}.{local_rank}", "train.py gets {host} as it stands: --template fills it in"),
        ("-N 8 --pernode true", "--pernode overrides -N 8: both set --npernode"),
    ],
)
def test_a_command_line_that_is_hardly_meant_gets_a_note(words: str, note: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words.replace("-- a :", "a :")
    assert main(["--dry-run", *words.split()]) == 0
    assert capsys.readouterr().err == f"note: {note}\n"
    assert main(["-q", "--dry-run", *words.split()]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        ("grep", "-n", "-N", "8"),
        ("mpirun", "-np", "4", "prog"),
        ("/opt/bin/mpiexec.hydra", "-np", "4", "prog"),
        ("ssh", "node01", "horovodrun", "-np", "2"),
        ("sh", "-c", "prog -np 2"),
        ("-H", "node01:1023", "true"),
        ("python", "-c", "print(f'{rank}')"),
        ("awk", "{rank = $1}"),
        ("jq", '{"host": .host}'),
        ("sh", "-c", "echo ${rank}"),
        ("echo", "{other}"),
        ("--template", "echo", "{rank}"),
        ("-np", "2", "-np", "3", "true"),
        ("-np", "2", "--n", "2", "true"),
        ("-x", "A=1", "--export", "B=1", "true"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_may_be_meant_gets_none(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", *words]) == 0
    assert capsys.readouterr().err == ""


def test_a_variable_that_is_no_options_gets_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NUMPROCS", "RANK", "JOB_ID", "RESTART_COUNT"):  # but for the first, of ranks, where mpilaunch may run
        monkeypatch.setenv(f"MPILAUNCH_{name}", "3")
    assert main(["--dry-run", "true"]) == 0
    said = "note: the variable MPILAUNCH_NUMPROCS has no effect: no option has this name (mpilaunch --help all)\n"
    assert capsys.readouterr().err == said


def test_options_behind_a_program_that_fails_get_a_hint() -> None:
    done = run_python("-m", "mpilaunch", "-np", "1", "ls", "-np", "4", agents=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "hint: ls gets -np as its argument: options of mpilaunch must precede the program"
    )


def test_a_program_that_fails_without_options_of_ours_gets_no_hint() -> None:
    done = run_python("-m", "mpilaunch", "-np", "1", "ls", "/no/such", agents=True)
    assert done.returncode == 2 and "hint:" not in done.stderr
