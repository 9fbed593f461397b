"""Settings: which layer wins, who is named as the one who said it, and what a bad file is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.cli import config, files
from mpilaunch.cli.files import load_yaml, read_text
from mpilaunch.cli.options import OPTIONS
from mpilaunch.errors import UsageError
from tests.support.command_line import settings
from tests.support.launching import launch


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message(call: Any, *arguments: Any) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    return caught.value.message


# Layers


def test_without_any_layer_all_is_default(here: Path) -> None:
    loaded = settings("", {"HOME": str(here)})
    assert {option.key: loaded[option.key] for option in OPTIONS} == {option.key: option.default for option in OPTIONS}
    assert {loaded.source(option.key) for option in OPTIONS} == {"default"}


def test_the_stronger_layer_wins_and_is_named(here: Path) -> None:
    (here / "jobs.yaml").write_text("np: 1\nfanout: 1\ngrace: 1m\n")
    environ = {"HOME": str(here), "MPILAUNCH_NP": "2", "MPILAUNCH_FANOUT": "2"}
    loaded = settings("-np 3 --config jobs.yaml", environ)
    assert [loaded[name] for name in ("np", "fanout", "grace", "timeout")] == [3, 2, 60.0, None]
    names = ("np", "fanout", "grace", "timeout")
    assert [loaded.source(name) for name in names] == ["--np", "MPILAUNCH_FANOUT", "jobs.yaml:3", "default"]
    assert [loaded.layer(name) for name in names] == [4, 3, 2, 0]


def test_the_config_file_of_the_environment(here: Path) -> None:
    (here / "a.yaml").write_text("np: 5\n")
    assert settings("", {"HOME": str(here), "MPILAUNCH_CONFIG": "a.yaml"})["np"] == 5


@pytest.mark.parametrize("variable", ["HOME", "XDG_CONFIG_HOME"])
def test_the_personal_file(here: Path, variable: str) -> None:
    base = here / ".config" if variable == "HOME" else here
    (base / "mpilaunch").mkdir(parents=True)
    path = base / "mpilaunch" / "config.yaml"
    path.write_text("# mine\nnp: 6\n")
    loaded = settings("", {variable: str(here)})
    assert (loaded["np"], loaded.source("np")) == (6, f"{path}:2")
    assert settings(f"--config {path}", {"HOME": "/nowhere"})["np"] == 6


def test_files_are_named_relative_to_the_config_file(here: Path) -> None:
    (here / "site").mkdir()
    (here / "site" / "a.yaml").write_text("hostfile: [hosts.txt, /etc/hosts.txt]\nslot-map: map.yaml\nwdir: work\n")
    loaded = settings("--config site/a.yaml", {"HOME": str(here)})
    assert loaded["hostfile"] == ("site/hosts.txt", "/etc/hosts.txt")
    assert (loaded["slot-map"], loaded["wdir"]) == ("site/map.yaml", "work")


def test_a_variable_has_one_value_per_line_and_empty_says_nothing(here: Path) -> None:
    environ = {"HOME": str(here), "MPILAUNCH_EXPORT": "A=1,2\nB\n", "MPILAUNCH_NP": "", "MPILAUNCH_QUIET": "yes"}
    loaded = settings("", environ)
    assert loaded["export"] == ("A=1,2", "B")
    assert (loaded["np"], loaded["quiet"]) == (None, True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DRY_RUN", "--dry-run is for the command line only"),
        ("HOSTS", "write MPILAUNCH_HOST=VALUE"),
        ("TAG_OUTPUT", "write MPILAUNCH_TAG=ompi"),
        ("NO_COPY", "write MPILAUNCH_COPY=no"),
        ("NPP", "did you mean MPILAUNCH_NP?"),
        ("HOSTFIL", "did you mean MPILAUNCH_HOSTFILE?"),
    ],
)
def test_a_variable_that_means_an_option_and_sets_nothing_is_refused(here: Path, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"the variable MPILAUNCH_{name} sets nothing") as raised:
        settings("", {"HOME": str(here), f"MPILAUNCH_{name}": "1"})
    assert raised.value.hint == hint


def test_variables_that_ranks_get_mean_no_option(here: Path) -> None:
    own = ("RANK", "SIZE", "LOCAL_RANK", "NODE_RANK", "JOB_ID", "RESTART_COUNT", "CHECKPOINT_DIR", "RESTART_DIR", "VERSION")
    settings("", {"HOME": str(here), **{f"MPILAUNCH_{name}": "1" for name in own}})


@pytest.mark.parametrize(
    ("key", "hint"),
    [("no-copy", "write copy: no"), ("hosts", "write host: VALUE"), ("dry-run", "--dry-run is for the command line only")],
)
def test_the_right_spelling_of_an_option_is_suggested(here: Path, key: str, hint: str) -> None:
    (here / "a.yaml").write_text(f"{key}: yes\n")
    with pytest.raises(UsageError, match=f"unknown key '{key}'") as raised:
        settings("--config a.yaml", {"HOME": str(here)})
    assert raised.value.hint == hint


def test_a_bad_variable_is_named(here: Path) -> None:
    environ = {"HOME": str(here), "MPILAUNCH_NP": "two"}
    assert message(settings, "", environ) == "MPILAUNCH_NP: 'two' is not a whole number"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_config_file_says_nothing(here: Path, text: str) -> None:
    (here / "a.yaml").write_text(text)
    assert settings("--config a.yaml", {"HOME": str(here)})["np"] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("np: 4\n  bad: 1\n", "a.yaml:2:6: mapping values are not allowed here"),
        ("hostfil: x\n", "a.yaml:1:1: unknown key 'hostfil'; did you mean hostfile?"),
        ("np: 4\nmap_by: node\n", "a.yaml:2:1: unknown key 'map_by'; did you mean map-by?"),
        ("config: other.yaml\n", "a.yaml:1:1: unknown key 'config'"),
        ("dry-run: true\n", "a.yaml:1:1: unknown key 'dry-run'"),
        ("4: 4\n", "a.yaml:1:1: unknown key '4'"),
        ("np: four\n", "a.yaml:1:1: np: 'four' is not a whole number"),
        ("quiet: 1\n", "a.yaml:1:1: quiet: 1 is neither true nor false"),
        ("np: 4\nfanout: 1\nnp: 5\n", "a.yaml:3:1: duplicate key 'np'"),
        ("- np\n", "a.yaml:1:1: a config file must have 'option: value' lines"),
    ],
)
def test_a_bad_config_file_is_reported_where(here: Path, text: str, expected: str) -> None:
    (here / "a.yaml").write_text(text)
    assert message(settings, "--config a.yaml", {"HOME": str(here)}) == expected


# Files


def test_positions_of_keys_and_items(here: Path) -> None:
    (here / "a.yaml").write_text("nodes:\n  n1:\n    slots:\n      - {gpus: [0, 1]}\n      - {gpus: [2]}\n")
    data, positions = load_yaml("a.yaml")
    assert data == {"nodes": {"n1": {"slots": [{"gpus": [0, 1]}, {"gpus": [2]}]}}}
    assert positions[("nodes",)] == (1, 1)
    assert positions[("nodes", "n1", "slots", 1)] == (5, 9)
    assert positions[("nodes", "n1", "slots", 0, "gpus")] == (4, 10)
    assert positions[("nodes", "n1", "slots", 0, "gpus", 1)] == (4, 20)


WRONG_TAGS = ("a: !!bool maybe\n", 'a: !!int ""\n', 'a: !!float ""\n', "a: !!timestamp foo\n", "!!seq x: 1\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        ("a: &x [1]\nb: {<<: 4}\n", "could not determine a constructor"),
        ("[a]: 1\n", "a.yaml:1:1: a key must be a single word"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: but found another document"),
        ("a: \x07\n", "special characters are not allowed"),
        ("[" * 20000, "'a.yaml' is nested too deeply"),
        ("&a [*a]\n", "'a.yaml' is nested too deeply"),
        ("#" * (files.MAX_BYTES + 1), "'a.yaml' is larger than 1 MiB"),
        ("a: 9999-99-99\n", "month must be in 1..12"),
        (f"a: 1{':59' * 100_000}\n", "a.yaml:1:4: a number of 300,001 characters"),
        (f"1{':59' * 40}: b\n", "a.yaml:1:1: a number of 121 characters"),
        (f"a: 1{':59' * 400}.5\n", "a.yaml:1:4: a number of 1,203 characters"),
        *((text, "a.yaml: a value is not what its tag, like !!int, says") for text in WRONG_TAGS),
    ],
    ids=[
        *("python", "merge", "list-key", "two", "control", "deep", "loop", "big", "date", "number", "number-key", "float"),
        *("tag-bool", "tag-int", "tag-float", "tag-time", "tag-seq"),
    ],
)
def test_what_yaml_must_not_do(here: Path, text: str, expected: str) -> None:
    (here / "a.yaml").write_text(text)
    assert expected in message(load_yaml, "a.yaml")


def test_aliases_cannot_unfold_without_bound(here: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (here / "a.yaml").write_text("\n".join(lines))
    assert message(load_yaml, "a.yaml") == "'a.yaml' has more than 100,000 items"


@given(st.text(max_size=60) | st.text("a:-[]{}&*!|>'\"#? \n,0.~<", max_size=60))
def test_any_text_is_data_or_a_usage_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        load_yaml(str(path))
    except UsageError as error:
        assert str(path) in error.message


@pytest.mark.parametrize(
    ("path", "reason", "hint"),
    [
        ("host.txt", "no such file or directory", "did you mean hosts.txt?"),
        ("zzz", "no such file or directory", None),
        ("sub", "is a directory", None),
        ("nowhere/hosts.txt", "no such file or directory", "the directory 'nowhere' does not exist"),
        ("binary", "not UTF-8 text", None),
        ("a\0b", "invalid file name", None),
    ],
)
def test_files_that_cannot_be_read(here: Path, path: str, reason: str, hint: str | None) -> None:
    (here / "hosts.txt").touch()
    (here / "sub").mkdir()
    (here / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError) as caught:
        read_text(path, "hostfile")
    assert (caught.value.message, caught.value.hint) == (f"cannot read hostfile '{path}': {reason}", hint)


def test_yaml_is_imported_for_a_file_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "yaml", raising=False)
    settings("-np 2", {"HOME": str(here), "MPILAUNCH_FANOUT": "2"})
    assert "yaml" not in sys.modules


# Whose file it is

TEMPLATE = "agent: 'touch ran; exit 1; {host} {command}'\n"


@pytest.mark.testbed
@pytest.mark.parametrize("variable", ["HOME", "XDG_CONFIG_HOME", "MPILAUNCH_CONFIG"])
@pytest.mark.parametrize(
    ("owner", "mode", "reason"),
    [(65534, 0o644, "it belongs to nobody (uid 65534)"), (0, 0o664, "others may write it"), (0, 0o646, "others may write it")],
)
def test_a_file_that_the_environment_leads_to_must_be_ours(
    here: Path, variable: str, owner: int, mode: int, reason: str
) -> None:
    # As under `sudo -E`, which keeps the variables of the user.
    folder = here / {"HOME": ".config/mpilaunch", "XDG_CONFIG_HOME": "mpilaunch", "MPILAUNCH_CONFIG": ""}[variable]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(TEMPLATE)
    os.chown(path, owner, owner)
    path.chmod(mode)
    value = str(path if variable == "MPILAUNCH_CONFIG" else here)
    done = launch("-H", "node1", "true", env={"HOME": "/nowhere", "XDG_CONFIG_HOME": "", variable: value}, cwd=here)
    assert (done.code, (here / "ran").exists()) == (2, False)
    assert done.words.startswith(f"error[file-untrusted]: {path}: the file is not trusted: {reason}\n")
    assert "hint: make it yours" in done.words
    path.chmod(0o600)
    os.chown(path, 0, 0)
    assert settings("", {variable: value})["agent"].startswith("touch ran")


@pytest.mark.testbed
def test_a_pipe_of_another_user_is_not_awaited(here: Path) -> None:
    os.mkfifo(here / "pipe")
    os.chown(here / "pipe", 65534, 65534)
    text = message(settings, "", {"MPILAUNCH_CONFIG": str(here / "pipe")})
    assert text == f"{here}/pipe: the file is not trusted: it belongs to nobody (uid 65534)"


def test_a_pipe_of_ours_is_read(here: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"np: 7\n")
    os.close(write)
    try:
        assert settings("", {"MPILAUNCH_CONFIG": f"/dev/fd/{read}"})["np"] == 7
    finally:
        os.close(read)


VALUES = {"ssh-option": "[User=a]", "export": "[A=b]", "env-file": "[a]", "prepend-env": "[A=b]", "append-env": "[A=b]"}


@pytest.mark.testbed
@pytest.mark.parametrize("key", config.COMMANDS)
def test_a_named_file_that_everybody_may_write_names_no_command(here: Path, key: str) -> None:
    path = here / "a.yaml"
    path.write_text(f"np: 3\n{key}: {VALUES.get(key, 'x y {command}')}\n")
    path.chmod(0o646)
    expected = f"a.yaml:2:1: {key}: the file is not trusted: every user may write it"
    assert message(settings, "--config a.yaml", {}) == expected
    # The file of a colleague who lets nobody write it is the choice of the user who names it.
    os.chown(path, 65534, 65534)
    path.chmod(0o664)
    assert settings("--config a.yaml", {})["np"] == 3
    path.write_text("np: 3\n")
    path.chmod(0o646)
    assert settings("--config a.yaml", {})["np"] == 3


@pytest.mark.testbed
@pytest.mark.parametrize("by", ["command line", "variable", "config file"])
@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o644), (0, 0o646)])
def test_an_env_file_of_another_user_sets_no_variable(here: Path, by: str, owner: int, mode: int) -> None:
    path = here / "variables"
    path.write_text("LD_PRELOAD=/tmp/theirs.so\n")
    (here / "config.yaml").write_text("env-file: [variables]\n")
    os.chown(path, owner, owner)
    path.chmod(mode)
    words = {"command line": ["--env-file", "variables"], "config file": ["--config", "config.yaml"]}.get(by, [])
    environ = {"MPILAUNCH_ENV_FILE": "variables"} if by == "variable" else None
    done = launch(*words, "--dry-run", "true", env=environ, cwd=here)
    if by == "command line" and owner:
        assert done.code == 0, done.words  # the choice of the user who names it
    else:
        reason = "it belongs to nobody (uid 65534)" if owner else "every user may write it"
        reason = reason if owner or by == "command line" else "others may write it"
        assert (done.code, done.out) == (2, b"")
        assert done.words.startswith("error[file-untrusted]: ") and done.words.splitlines()[0].endswith(
            f"variables: the file is not trusted: {reason}"
        )
    os.chown(path, 0, 0)
    path.chmod(0o600)
    assert launch(*words, "--dry-run", "true", env=environ, cwd=here).code == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--app file", "-np 1 true\n"),
        ("-np 1 true : -np 1 --env-file file true", "A=b\n"),
        ("--dialect openmpi --tune file true", "-x A=b\n"),
        ("--dialect horovodrun -np 1 --config-file file true", "autotune: {enabled: true}\n"),
    ],
)
def test_a_file_that_everybody_may_write_names_no_program_and_no_variable(here: Path, words: str, text: str) -> None:
    (here / "file").write_text(text)
    assert launch("--dry-run", *words.split(), cwd=here).code == 0
    (here / "file").chmod(0o666)
    done = launch("--dry-run", *words.split(), cwd=here)
    assert (done.code, done.out) == (2, b"")
    assert done.words.startswith("error[file-untrusted]: file: the file is not trusted: every user may write it\nhint: make it")


def test_devices_and_pipes_of_ours_are_files_of_options(here: Path) -> None:
    assert launch("--env-file", "/dev/null", "--app", "/dev/stdin", "--dry-run", cwd=here, stdin=b"-np 1 true\n").code == 0


@pytest.mark.testbed
@pytest.mark.parametrize("by", ["command line", "variable", "config file", "scheduler"])
@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o644), (0, 0o646)])
def test_a_hostfile_of_another_user_names_no_command(here: Path, by: str, owner: int, mode: int) -> None:
    hosts = here / "hosts"
    hosts.write_text("node1\nnode2 agent='touch ran; exit 1; {host} {command}'\n")
    (here / "config.yaml").write_text("hostfile: hosts\n")
    os.chown(hosts, owner, owner)
    hosts.chmod(mode)
    environ = {"variable": {"MPILAUNCH_HOSTFILE": str(hosts)}, "scheduler": {"PBS_JOBID": "1", "PBS_NODEFILE": str(hosts)}}
    words = {"command line": ["--hostfile", "hosts"], "config file": ["--config", "config.yaml"]}.get(by, [])
    done = launch(*words, "--dry-run", "true", env=environ.get(by), cwd=here)
    own_choice = by == "command line" and owner
    assert done.code == (0 if own_choice else 2), done.words
    if not own_choice:
        assert done.words.startswith("error[file-untrusted]: ")
        assert "hosts:2: agent: the file is not trusted: " in done.words
    hosts.write_text("node1\nnode2 agent=openssh\n")
    assert launch(*words, "--dry-run", "true", env=environ.get(by), cwd=here).code == 0
