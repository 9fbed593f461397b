"""Launches that do not start: the message, the exit code 1, and that nothing has run anywhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.failures import START, proves
from tests.support.launching import launch, script, sh

RUN = sh("touch ran-$RANK")


def has_run(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("ran-*"))


def start(tmp_path: Path, *words: str) -> str:
    """Launch what cannot start; return what was said. How errors are laid out is for the golden messages to hold."""
    done = launch(*words, cwd=tmp_path)
    assert (done.code, done.out, has_run(tmp_path)) == (1, b"", [])
    assert done.words.count("error[") == done.words.count("hint: ") == 1
    return done.words


# The program


@proves(
    "program-missing", START, "the program is missing", finder="each daemon, before any rank runs",
    says="`local: program not found: no-such-program: not found in PATH nor in ...`", code="1", within=10,
)  # fmt: skip
def test_a_program_that_is_nowhere(tmp_path: Path) -> None:
    said = start(tmp_path, "-H", "local:2,local:1", "no-such-program", "x")
    assert said.startswith("error[start-program-missing]: ")
    assert f"local: program not found: no-such-program: not found in PATH nor in {tmp_path}\n" in said


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    said = start(tmp_path, "-np", "2", "./sub/none.py")
    assert said.startswith("error[start-program-missing]: ")
    assert "localhost: program not found: ./sub/none.py: not found\n" in said


@proves(
    "program-not-executable", START, "the program is not executable", finder="each daemon, before any rank runs",
    says="`job.sh: not executable`", code="1", within=10,
)  # fmt: skip
def test_a_program_that_is_not_executable(tmp_path: Path) -> None:
    script(tmp_path / "job.sh", "#!/bin/sh\ntouch ran-0\n", mode=0o644)
    said = start(tmp_path, "-np", "2", "./job.sh")
    assert said.startswith("error[start-program-not-executable]: ")
    assert "job.sh: not executable\n" in said and "hint: chmod +x" in said


def test_a_directory_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    assert "./job: is a directory\n" in start(tmp_path, "-np", "1", "./job")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("#!/no/such/python3", "its first line names '/no/such/python3', which is not there"),
        ("#! /no/such/python3 -u", "its first line names '/no/such/python3', which is not there"),
        ("#!/bin/sh\r", r"its first line names '/bin/sh\r', which is not there"),
    ],
)
def test_an_interpreter_that_is_not_there(tmp_path: Path, line: str, named: str) -> None:
    script(tmp_path / "job", f"{line}\ntouch ran-0\n")
    said = start(tmp_path, "-np", "1", "./job")
    assert said.startswith("error[start-interpreter-missing]: ")
    assert named in said


def test_an_interpreter_for_scripts_that_is_not_there(tmp_path: Path) -> None:
    script(tmp_path / "job.py", "open('ran-0', 'w')\n", mode=0o644)
    said = start(tmp_path, "-np", "1", "--python", "/no/such/python3", "job.py")
    assert "no Python for scripts: tried /no/such/python3\n" in said


@proves(
    "program-format", START, "the kernel cannot execute the file", finder="the daemon, at the start of the rank",
    says="`rank 0 on localhost could not be executed: Exec format error`", code="126", within=10,
)  # fmt: skip
def test_a_file_that_the_kernel_cannot_execute(tmp_path: Path) -> None:
    # Found only when it is executed, so ranks of other nodes may have begun: it is reported as a rank's failure.
    (tmp_path / "job").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "job").chmod(0o755)
    done = launch("-np", "2", "./job", cwd=tmp_path)
    assert done.code == 126
    assert done.words.startswith("error[rank-failed]: rank 0 on localhost")
    assert "could not be executed: Exec format error" in done.words


@proves(
    "environment-too-large", START, "arguments and environment are larger than Linux allows",
    finder="the daemon, at the start of the rank", says="`could not be executed: Argument list too long`", code="126",
    within=10,
)  # fmt: skip
def test_an_environment_that_is_too_large(tmp_path: Path) -> None:
    # Past the 6 MB that Linux hands to a program at most.
    (tmp_path / "env").write_text("".join(f"LARGE_{number}={'x' * 120_000}\n" for number in range(60)), encoding="ascii")
    done = launch("-np", "2", "--env-file", "env", "true", cwd=tmp_path)
    assert done.code == 126
    assert done.words.startswith("error[rank-failed]: rank 0 on localhost")
    assert "could not be executed: Argument list too long" in done.words


# The directory


@proves(
    "directory-missing", START, "the working directory is missing on a node", finder="each daemon, before any rank runs",
    says="`working directory not usable: /no/such/directory: no such directory`", code="1", within=10,
)  # fmt: skip
def test_a_working_directory_that_is_missing(tmp_path: Path) -> None:
    said = start(tmp_path, "-H", "local:1,local:1", "--wdir", "/no/such/directory", *RUN)
    assert said.startswith("error[start-directory-missing]: ")
    assert "local: working directory not usable: /no/such/directory: no such directory\n" in said


def test_a_file_is_no_working_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file: no" in start(tmp_path, "-np", "1", "--wdir", str(tmp_path / "file"), *RUN)


# Nodes


def test_failures_are_folded_by_cause_and_nothing_runs_on_the_nodes_that_are_well(tmp_path: Path) -> None:
    said = start(tmp_path, "--agent", "fake", "-H", "connection-refused[04,09,17],node[01-29]", *RUN)
    assert said.startswith("error[start-connection-refused]: 3 of 32 nodes: connection-refused[04,09,17]: connection refused")


def test_every_node_is_tried_and_every_cause_is_reported(tmp_path: Path) -> None:
    hosts = "node1,host-unknown1,key-refused1,key-refused2,exit1,host-key-changed1"
    said = start(tmp_path, "--agent", "fake", "-H", hosts, *RUN)
    assert said.startswith("error[start-failed]: 5 of 6 nodes did not start\n    key-refused[1-2]: ")
    assert all(f"\n    {name}1: " in said for name in ("exit", "host-key-changed", "host-unknown"))
    assert "\n    exit1: this account is currently not available\n" in said


def test_a_node_that_does_not_answer_in_time(tmp_path: Path) -> None:
    said = start(tmp_path, "--agent", "fake", "-H", "node1,timeout1", "--start-timeout", "1.5", *RUN)
    match = re.match(r"error\[start-timeout\]: (?:1 of 2 nodes: )?timeout1: no answer in time after ([\d.]+) s\n", said)
    assert match and float(match[1]) >= 1.5, said


def test_a_banner_is_no_failure(tmp_path: Path) -> None:
    done = launch("--agent", "fake", "-H", "banner1,slow1", *sh("echo $RANK"))
    assert (done.code, done.lines, done.err) == (0, ["0", "1"], b"")


def test_a_python_that_is_missing(tmp_path: Path) -> None:
    words = ["--agent", f"{plain_agent(tmp_path)} {{host}} {{command}}", "-H", "node1,node2", "--python", "/no/such/python3"]
    said = start(tmp_path, *words, *RUN)
    assert said.startswith("error[start-python-missing]: ") and "node[1-2]" in said
    assert "/no/such/python3: not found" in said and "or use --python" in said


def test_an_agent_that_fails_is_shown_as_a_command_to_run_by_hand(tmp_path: Path) -> None:
    agent = script(tmp_path / "agent", "#!/bin/sh\necho out of order >&2\nexit 3\n")
    said = start(tmp_path, "--agent", f"{agent} -p hunter2 --password=hunter2 {{host}} {{command}}", "-H", "node1,node2", *RUN)
    assert said.startswith("error[start-agent-failed]: ")
    assert f"\nhint: run the agent's command by hand: {agent} -p " in said and "node1 'python3 --version'\n" in said
    assert "--password=hunter2" not in said


@pytest.mark.needs("ssh")
@pytest.mark.parametrize("words", [["--connectors", "1"], ["--connectors", "2"], ["--call-back", "always"]])
def test_the_agent_ssh_is_shown_as_a_command_of_openssh(tmp_path: Path, words: list[str]) -> None:
    said = start(tmp_path, *words, "--agent", "ssh", "--ssh-option", "KexAlgorithms=none", "-H", "u@node1,u@node2", *RUN)
    assert said.startswith("error[start-agent-failed]: ")
    assert "\nhint: run the agent's command by hand: ssh -T -o KexAlgorithms=none -o BatchMode=yes " in said
    assert " -l u -- node1 'python3 --version'\n" in said


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("echo 'This account is currently not available.'; exit 1", "login-disabled]: node1: the account has no login shell",
         "log in as another user (user=NAME in the hostfile), or "),
        ("echo 'No user exists for uid 1234' >&2; exit 255", "user-unknown]: node1: your user id has no name here",
         "ssh needs your user id in /etc/passwd"),
    ],
)  # fmt: skip
def test_an_account_that_cannot_log_in(tmp_path: Path, line: str, error: str, hint: str) -> None:
    agent = script(tmp_path / "agent", f"#!/bin/sh\n{line}\n")
    said = start(tmp_path, "--agent", f"{agent} ssh {{host}} {{command}}", "-H", "node1", *RUN)
    assert said.startswith(f"error[start-{error} after ") and f"\nhint: {hint}" in said


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    script(tmp_path / "old-python", "#!/bin/sh\necho 'mpilaunch: python 3.6.8 is older than 3.8' >&2\nexit 97\n")
    said = start(tmp_path, "--agent", "fake", "-H", "node1", "--python", str(tmp_path / "old-python"), *RUN)
    assert said.startswith("error[start-python-too-old]: ")
    assert "node1: mpilaunch: python 3.6.8 is older than 3.8\n" in said


def test_a_refusal_of_one_node_stops_all(tmp_path: Path) -> None:
    # Both daemons are there before it turns out that the program is missing on one of the nodes.
    agent = plain_agent(tmp_path, "[ $1 = bare ] && export PATH=/no-programs-here")
    (tmp_path / "empty").mkdir()
    words = ["--agent", f"{agent} {{host}} {{command}}", "-H", "well,bare", "--python", sys.executable]
    said = start(tmp_path / "empty", *words, "touch", "ran-0")
    assert "1 of 2 nodes: bare: program not found: touch: not found in PATH" in said


def plain_agent(folder: Path, first: str = ":") -> Path:
    """Return an agent that runs its command here, after a line of shell that may look at the host's name in $1."""
    return script(folder / "agent", f'#!/bin/sh\n{first}\nshift\neval "exec $*"\n')


def test_an_impossible_binding_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("local slots=1 cpus=100000\n", encoding="utf-8")
    done = launch("-f", "hosts", *RUN, cwd=tmp_path)
    assert done.code in (1, 2) and done.words.startswith("error[") and "100000" in done.words
    assert has_run(tmp_path) == []
