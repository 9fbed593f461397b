"""mpilaunch-rsh: how it reads its call, what it promises to launchers, and the real mpirun and mpiexec over it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpilaunch_agents.rsh.command_line import NO_AGENT, BadCall, Call, parse, rewrite
from mpilaunch_agents.rsh.process import NODE_SCRIPT, Stream
from mpilaunch_agents.rsh.routes import Route, route_name, route_to
from tests.support.agents.programs import remote_shell
from tests.support.hosts import Hosts
from tests.support.kubernetes.pods import NAMESPACE, Pods
from tests.support.kubernetes.podserver import Pod, Refusal
from tests.support.launching import script, wait_until
from tests.support.paths import ROOT

POD = "job-worker-0"

# The command line

ORTED = """-o ConnectionAttempts=10 pi-worker-0.pi.default.svc| orted|-mca|ess|"env"|-mca|ess_base_num_procs|"3"
|-mca|orte_hnp_uri|"548012032.0;tcp://192.0.2.2:40279"|--tree-spawn|-mca|plm_rsh_agent|"/opt/mpilaunch-rsh"|-mca|pmix|"^s1,s2"""
HYDRA = '-x node01 "/usr/bin/hydra_pmi_proxy" --control-port vm:34433 --launcher-exec /x/rsh --demux poll --proxy-id 0'
INTEL = "-q -o ConnectionAttempts=10 -x node01 /p/bin//hydra_bstrap_proxy --upstream-host vm --upstream-port 41785 --pgid 0"


@pytest.mark.parametrize(
    ("arguments", "user", "host", "options", "command"),
    [
        (["h", "ls"], "", "h", [], "ls"),
        (["u@h", "ls", "-l", "a b"], "u", "h", [], "ls -l a b"),
        (["-x", "-q", "h", "-p", "2222", "ls", "-p"], "", "h", ["-x", "-q", "-p", "2222"], "ls -p"),
        (["-p2222", "-vvv", "-l", "bob", "h", "-n", "--", "-c"], "", "h", ["-p2222", "-vvv", "-l", "bob", "-n"], "-c"),
        (["-qTo", "A=b", "h", "x"], "", "h", ["-qTo", "A=b"], "x"),
        (["h", " orted", "-mca", "ess"], "", "h", [], " orted -mca ess"),
        (["h", "echo $SHELL"], "", "h", [], "echo $SHELL"),
    ],
)
def test_calls(arguments: list[str], user: str, host: str, options: list[str], command: str) -> None:
    call = parse(arguments)
    assert (call.user, call.host, call.options, call.command) == (user, host, options, command)


@pytest.mark.parametrize("arguments", [[], ["-x"], ["h"], ["-p"], ["h", "-p"], ["@", "x"], ["u@-oProxyCommand=x", "y"]])
def test_bad_calls(arguments: list[str]) -> None:
    with pytest.raises(BadCall):
        parse(arguments)


@pytest.mark.parametrize(
    "options", [["$(id)@h"], ["a`b@h"], ["-l", "a;b", "h"], ["-qla|b", "h"], ["a;b"], ["-l", "-oProxyCommand=x", "h"], ["$x"]]
)
def test_names_that_a_shell_would_read_are_refused(options: list[str]) -> None:
    with pytest.raises(BadCall, match="invalid characters"):
        route_to("ssh", parse([*options, "true"]), {})


def called(text: str) -> Call:
    first, *words = text.replace("\n", "").split("|")
    return parse([*first.split(" "), *words])


@pytest.mark.parametrize(
    ("text", "lifeline"),
    [
        (ORTED, True),
        (HYDRA, True),
        (INTEL, True),
        ("h|          PATH=/usr/bin:$PATH ; export PATH ; /usr/bin/orted -mca ess env", True),
        ("h|( test ! -r ./.profile || . ./.profile; orted -mca x )", True),
        ("h|PRTE_PREFIX=/p;export PRTE_PREFIX;/p/bin/prted|--prtemca|ess|env", True),
        ("h|cd /x ; env horovodrun", False),
        ("h|cat orted.log", False),
    ],
)
def test_daemons_have_a_lifeline_of_their_own(text: str, lifeline: bool) -> None:
    assert called(text).has_lifeline is lifeline


def test_paths_and_names_that_nodes_cannot_use_are_rewritten() -> None:
    call = called(ORTED)
    rewrite(call, NO_AGENT, "vm", lambda: "10.0.0.9")
    assert '-mca plm_rsh_agent "/bin/false" -mca pmix "^s1,s2' in call.command
    prted = called('h|prted|--prtemca|plm_ssh_agent|"/opt/mpilaunch-rsh"')
    rewrite(prted, "ssh", "vm", lambda: "")
    assert prted.command == 'prted --prtemca plm_ssh_agent "ssh"'
    for text, then in ((HYDRA, "--control-port 10.0.0.9:34433"), (INTEL, "--upstream-host 10.0.0.9 --upstream-port")):
        call = called(text)
        rewrite(call, NO_AGENT, "vm", lambda: "10.0.0.9")
        assert then in call.command
        other = called(text)
        rewrite(other, NO_AGENT, "another", lambda: "10.0.0.9")
        assert other.command == called(text).command


def test_a_tree_of_pods_is_refused_before_it_hangs() -> None:
    call = called(ORTED.replace('"3"', '"67"'))
    with pytest.raises(BadCall, match="plm_rsh_no_tree_spawn=1"):
        rewrite(call, NO_AGENT, "vm", str)
    rewrite(call, "ssh", "vm", str)


def test_the_route_to_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert route_name("/x/mpilaunch-rsh", {}) == "ssh"
    assert route_name("/etc/mpi/kubexec.sh", {}) == "kubectl"
    assert route_name("/etc/mpi/kubexec.sh", {"MPILAUNCH_AGENT": "local"}) == "local"
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/opt/kube/kubectl")
    assert [route_name(name, {}) for name in ("mpilaunch-rsh", "ssh", "rsh")] == ["kubectl", "ssh", "ssh"]


@pytest.mark.parametrize("name", ["ssh", "openssh", "kubectl"])
def test_this_pod_is_reached_without_an_agent(name: str) -> None:
    own = {"pi-launcher", "pi-launcher.pi"}
    routes = [route_to(name, parse([*words.split(), "true"]), {}, own) for words in ("pi-launcher.pi", "-x pi-launcher")]
    assert [type(route) for route in routes] == [Route, Route]
    others = ("pi-worker-0", "u@pi-launcher", "-l u pi-launcher")
    assert Route not in [type(route_to(name, parse([*words.split(), "true"]), {}, own)) for words in others]


# Its promises


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MPILAUNCH_AGENT", "local")
    return str(remote_shell(tmp_path))


def run(*argv: str, **options: object) -> tuple[int, str, str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, **options)  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


def test_exit_code_and_output_are_those_of_the_command(local: str) -> None:
    assert run(local, "h", "echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert run(local, "-x", "h", "true") == (0, "", "")
    assert run(local, "h", "kill -9 $$")[0] == 137
    assert run(local, "h", "no-such-program")[0] == 127
    assert run(local, "h", "printf", "'%s|'", "'a\nb\n'", "'c d'") == (0, "a\nb\n|c d|", "")


@pytest.mark.parametrize("shell", ["dash", "bash", pytest.param("busybox", marks=pytest.mark.needs("busybox"))])
@pytest.mark.parametrize("mode", ["end", "keep"])
def test_the_script_runs_in_every_shell(tmp_path: Path, shell: str, mode: str) -> None:
    path = shutil.which(shell)
    assert path, f"{shell} is missing: apt-get install {shell}"
    (tmp_path / "sh").symlink_to(path)
    argv = [str(tmp_path / "sh"), "-c", NODE_SCRIPT, "sh", "TOKEN", mode, "1"]
    if mode == "keep":
        command = b"2\necho out\necho err >&2; exit 3\n"
        done = subprocess.run(argv, input=command, capture_output=True, timeout=30, check=False)
        started, *rest = done.stdout.split(b"\n")
        assert started.startswith(b"\036TOKEN started ")
        assert rest == [b"out", b"\036TOKEN exit 3", b""]
        assert done.stderr == started + b"\nerr\n\036TOKEN exit 3\n"
        assert done.returncode == 3
        return
    # At the end of stdin a command that does not want to end is ended, with all that it has started.
    stubborn = b"1\ntrap '' TERM; sleep 600 & echo up; wait; wait\n"
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(stubborn)
        process.stdin.flush()
        assert process.stdout.readline() and process.stdout.readline() == b"up\n"
        process.stdin.close()
        assert process.wait(10) == 137


def test_every_byte_of_the_output_arrives(local: str) -> None:
    data = bytes(range(256)) * 1000 + b"\036"
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000 + bytes([30]))"
    done = subprocess.run([local, "h", f"{sys.executable} -c '{program}'"], capture_output=True, timeout=30, check=True)
    assert done.stdout == data


def test_nothing_leaks_to_the_command_and_no_stdin(local: str) -> None:
    reading, writing = os.pipe()
    code, out, _ = run(local, "h", "ls /proc/self/fd; cat", pass_fds=(reading, writing), stdin=reading)
    os.close(reading)
    os.close(writing)
    assert (code, out.split()) == (0, ["0", "1", "2", "3"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_and_all_of_its_group(local: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("MPILAUNCH_GRACE", "1")
    stubborn = "trap '' TERM; sleep 600 & echo up; wait; wait"
    with subprocess.Popen([local, "h", stubborn], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(20) == 128 + number


def test_a_killed_remote_shell_ends_its_command(local: str) -> None:
    with subprocess.Popen([local, "h", "echo up; sleep 600"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()


def test_a_program_that_is_missing_is_an_error(local: str) -> None:
    code, out, err = run(local, "h", "true", env={**os.environ, "MPILAUNCH_AGENT": "no-such-agent {host}"})
    assert (code, out, err) == (255, "", "mpilaunch-rsh: h: no-such-agent: No such file or directory\n")


def test_settings_that_make_no_sense_are_errors(local: str) -> None:
    for setting, message in (
        (
            {"MPILAUNCH_AGENT": "ssh {hots}"},
            "MPILAUNCH_AGENT: agent template 'ssh {hots}': unknown field 'hots'; did you mean {host}?",
        ),
        ({"MPILAUNCH_GRACE": "soon"}, "MPILAUNCH_GRACE: 'soon' is not a time"),
    ):
        assert run(local, "h", "true", env={**os.environ, **setting}) == (255, "", f"mpilaunch-rsh: {message}\n")


def test_the_error_is_that_of_the_last_complete_attempt(tmp_path: Path, local: str) -> None:
    missing = 'Error from server (NotFound): pods "h" not found'
    text = f"#!/bin/sh\n[ ! -e {tmp_path}/asked ] || exec sleep 60\ntouch {tmp_path}/asked\necho '{missing}' >&2\nexit 1\n"
    kubectl = str(script(tmp_path / "kubectl", text))
    settings = {"MPILAUNCH_AGENT": "kubectl", "MPILAUNCH_KUBECTL": kubectl, "MPILAUNCH_START_TIMEOUT": "1"}
    assert run(local, "h", "true", env={**os.environ, **settings}) == (1, "", f"mpilaunch-rsh: h: {missing}\n")


def test_a_command_for_this_pod_runs_here(local: str) -> None:
    name = os.uname().nodename
    settings = {"MPILAUNCH_AGENT": "ssh", "PATH": "/usr/bin:/bin", "MPILAUNCH_SSH_OPTION": "ConnectTimeout=1"}
    pod = {**settings, "KUBERNETES_SERVICE_HOST": "192.0.2.1"}
    assert run(local, name, "echo $$; exit 3", env=pod)[0] == 3
    no_pod = {**settings, "MPILAUNCH_START_TIMEOUT": "0.1", "MPILAUNCH_SSH_OPTION": "ProxyCommand=false"}
    assert run(local, name, "echo $$; exit 3", env=no_pod)[0] == 255


REFUSES = "#!/bin/sh\necho Connection refused >&2; exit 1\n"


def test_it_says_once_what_it_waits_for(tmp_path: Path, local: str) -> None:
    agent = f"{script(tmp_path / 'agent', REFUSES)} {{host}} {{command}}"
    impatient = "import sys; from mpilaunch_agents.rsh import shell; shell.SILENCE = 0.5; shell.main()"
    env = {**os.environ, "MPILAUNCH_AGENT": agent, "MPILAUNCH_START_TIMEOUT": "2", "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}
    code, out, err = run(sys.executable, "-c", impatient, "h", "true", env=env)
    waits, failed = err.splitlines()
    assert (code, out) == (1, "")
    assert waits == "mpilaunch-rsh: waiting for h (Connection refused), at most 2 s"
    assert failed == "mpilaunch-rsh: h: Connection refused"


def test_a_long_command_to_a_host_that_does_not_answer_ends_in_time(tmp_path: Path, local: str) -> None:
    agent = f"{script(tmp_path / 'agent', '#!/bin/sh' + chr(10) + 'exec sleep 60')} {{host}} {{command}}"
    env = {**os.environ, "MPILAUNCH_AGENT": agent, "MPILAUNCH_START_TIMEOUT": "1"}
    code, _, err = run(local, "h", f"true {'x' * 100_000}", env=env)
    assert code == 255 and "no answer within 1 s" in err


def test_a_long_command_arrives_whole(local: str) -> None:
    assert run(local, "h", f"echo {'x' * 100_000} | wc -c") == (0, "100001\n", "")


def test_what_a_node_says_reaches_no_terminal_as_control_sequences(tmp_path: Path, local: str) -> None:
    text = "#!/bin/sh\nprintf 'Permission denied \\033]0;title\\007 \\342\\200\\256 \\377' >&2\nexit 1\n"
    agent = f"{script(tmp_path / 'agent', text)} {{host}} {{command}}"
    code, out, err = run(local, "h", "true", env={**os.environ, "MPILAUNCH_AGENT": agent, "MPILAUNCH_START_TIMEOUT": "0.1"})
    assert (code, out) == (1, "")
    assert err.startswith("mpilaunch-rsh: h: Permission denied ") and "\\x1b]0;title\\x07" in err
    assert not [character for character in err if not character.isprintable() and character != "\n"]


def test_it_starts_with_few_modules(tmp_path: Path) -> None:
    """A launcher starts it once for each node: it takes some 15 ms longer than a bare interpreter, most of them for `re`."""

    def modules(*argv: str) -> set[str]:
        done = subprocess.run([sys.executable, "-X", "importtime", *argv], capture_output=True, text=True, check=False)
        lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
        return {line.rpartition("|")[2].strip() for line in lines}

    loaded = modules(str(remote_shell(tmp_path))) - modules("-c", "pass")
    assert {"mpilaunch_agents.rsh.shell", "re"} <= loaded and len(loaded) <= 55
    assert not loaded & {"asyncio", "dataclasses", "inspect", "json", "logging", "selectors", "socket", "ssl", "subprocess"}


# Pods


@pytest.fixture
def shell(pods: Pods) -> str:
    return str(remote_shell(pods.shared))


@pytest.fixture
def orted(pods: Pods) -> Iterator[str]:
    """A program that counts for a launcher's daemon: it ends when its file does."""
    flag = pods.shared / "flag"
    flag.write_text("")
    yield str(script(pods.shared / "orted", f"#!/bin/sh\necho up\nwhile [ -e {flag} ]; do sleep 0.05; done\nexit 4\n"))
    flag.unlink(missing_ok=True)


KUBECTL = {"MPILAUNCH_AGENT": "kubectl"}


@pytest.mark.slow
@pytest.mark.testbed
def test_a_command_in_a_pod(pods: Pods, shell: str) -> None:
    done = pods.run([shell, "-x", pods.service_name(POD), "hostname; echo err >&2; exit 5"], env=KUBECTL)
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{POD}\n", "err\n")


@pytest.mark.slow
@pytest.mark.testbed
def test_a_remote_shell_retries_temporary_errors(pods: Pods, shell: str) -> None:
    pods.server.refusal = Refusal(3)
    assert pods.run([shell, POD, "echo ran"], env=KUBECTL).stdout == "ran\n"
    pods.server.refusal = Refusal(1, 500, None, 'container not found ("main")')
    assert pods.run([shell, POD, "echo ran"], env=KUBECTL).stdout == "ran\n"


@pytest.mark.slow
@pytest.mark.testbed
def test_a_pod_is_found_by_the_name_of_its_host(pods: Pods, jobset: tuple[str, ...], shell: str) -> None:
    pods.server.verbs.add(("list", "pods"))
    done = pods.run([shell, jobset[1], "hostname; exit 3"], env=KUBECTL)
    assert (done.returncode, done.stdout, done.stderr) == (3, "job-worker-1\n", "")


@pytest.mark.slow
@pytest.mark.testbed
def test_a_pod_that_may_not_be_looked_for_is_unknown(pods: Pods, jobset: tuple[str, ...], shell: str) -> None:
    done = pods.run([shell, jobset[0], "true"], env={**KUBECTL, "MPILAUNCH_START_TIMEOUT": "2"})
    assert done.returncode == 1
    assert done.stderr.startswith(f"mpilaunch-rsh: {jobset[0]}: ") and 'pods "train-node-0-0" not found' in done.stderr


@pytest.mark.slow
@pytest.mark.testbed
def test_permanent_errors_fail_at_once(pods: Pods, shell: str) -> None:
    pods.server.verbs.discard(("create", "pods/exec"))
    done = pods.run([shell, POD, "echo ran"], env=KUBECTL, timeout=10)
    assert done.returncode not in (0, None)
    assert done.stderr.startswith(f"mpilaunch-rsh: {POD}: ")
    assert "(Forbidden)" in done.stderr


@pytest.mark.slow
@pytest.mark.testbed
def test_a_stream_lost_before_the_start_is_never_exit_code_0(pods: Pods, shell: str) -> None:
    pods.server.delay, pods.server.drop_after = 5, 0.1
    done = pods.run([shell, POD, "echo ran"], env={**KUBECTL, "MPILAUNCH_START_TIMEOUT": "2"})
    assert (done.returncode, done.stdout) == (255, "")
    assert pods.server.sessions > 1


@pytest.mark.slow
@pytest.mark.testbed
def test_a_server_that_never_answers_has_a_deadline(pods: Pods, shell: str) -> None:
    pods.server.delay = 60
    done = pods.run([shell, POD, "echo ran"], env={**KUBECTL, "MPILAUNCH_START_TIMEOUT": "1.5s"}, timeout=20)
    assert done.returncode == 255
    assert "no answer within 1.5 s" in done.stderr


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("protocol", ["SPDY", "WebSocket, where kubectl speaks it"])
@pytest.mark.parametrize("how", ["drop", "close"])
def test_a_daemon_outlives_a_lost_stream(pods: Pods, shell: str, orted: str, how: str, protocol: str) -> None:
    if protocol != "SPDY":
        pods.server.verbs.add(("get", "pods/exec"))
    if how == "close":
        pods.server.close_after = 0.5
    with pods.popen([shell, POD, orted], env=KUBECTL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        if how == "drop":
            pods.server.drop()
        wait_until(lambda: pods.server.sessions > 1, "the daemon is watched")
        pods.server.close_after = None
        wait_until(lambda: pods.server.live, "the daemon is watched")
        assert process.poll() is None
        (pods.shared / "flag").unlink()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "mpilaunch-rsh" not in errors


@pytest.mark.slow
@pytest.mark.testbed
def test_a_daemon_whose_pod_is_gone_is_known_dead(pods: Pods, shell: str, orted: str) -> None:
    with pods.popen([shell, POD, orted], env=KUBECTL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        del pods.server.pods[NAMESPACE, POD]
        pods.server.drop()
        _, errors = process.communicate(timeout=30)
    pods.server.pods[NAMESPACE, POD] = Pod(POD, NAMESPACE)
    (pods.shared / "flag").unlink()
    assert (process.returncode, errors) == (137, f"mpilaunch-rsh: {POD}: the node has gone, and the daemon with it\n")


@pytest.mark.slow
@pytest.mark.testbed
def test_a_command_without_a_lifeline_ends_with_its_stream(pods: Pods, shell: str) -> None:
    with pods.popen([shell, POD, "echo up; sleep 600"], env=KUBECTL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        pods.server.drop()
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (
        255,
        f"mpilaunch-rsh: {POD}: the connection was lost, and the command ended with it\n",
    )
    wait_until(lambda: not pods.processes(POD), "the pod is empty")


@pytest.mark.slow
@pytest.mark.testbed
def test_a_killed_remote_shell_leaves_nothing_in_the_pod(pods: Pods, shell: str) -> None:
    with pods.popen([shell, POD, "echo up; sleep 600"], env=KUBECTL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.communicate(timeout=30)
    wait_until(lambda: not pods.processes(POD), "the pod is empty")


# The real launchers

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "10.88.0.0/16")
LAUNCHERS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}


@pytest.fixture(params=["hosts", "pods"])
def nodes(request: pytest.FixtureRequest, hosts: Hosts, pods: Pods) -> Hosts:
    """Give hosts with sshd, and then pods; each with the remote shell."""
    made = pods if request.param == "pods" else hosts
    remote_shell(made.shared)
    return made


def line(nodes: Hosts, mpi: str) -> list[str]:
    """Return the launcher's command line for two ranks on two nodes, without the program."""
    shell, names = f"{nodes.shared}/mpilaunch-rsh", ",".join(nodes.names[:2])
    if mpi == "openmpi":
        return ["mpirun.openmpi", "--wdir", "/", "--mca", "plm_rsh_agent", shell, "-np", "2", "--host", names, *TCP]
    options = ["-launcher", "ssh", "-launcher-exec", shell, "-hosts", names, "-np", "2", "-wdir", "/"]
    return ["mpiexec.hydra", *options, "-genv", "UCX_TLS", "tcp,self"]


def settings(nodes: Hosts) -> dict[str, str]:
    return {**AS_ROOT, "MPILAUNCH_AGENT": "kubectl" if isinstance(nodes, Pods) else "ssh"}


def ring(nodes: Hosts, mpi: str) -> str:
    compiler = shutil.which(f"mpicc.{mpi}")
    assert compiler, f"mpicc.{mpi} is missing: apt-get install lib{mpi}-dev"
    assert shutil.which(LAUNCHERS[mpi]), f"{LAUNCHERS[mpi]} is missing: apt-get install {mpi}-bin"
    program = f"{nodes.shared}/ring.{mpi}"
    subprocess.run([compiler, "-o", program, ROOT / "tests/programs/ring.c"], check=True)
    return program


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_a_real_launcher_runs_a_real_mpi_program(nodes: Hosts, mpi: str) -> None:
    done = nodes.run_mpi([*line(nodes, mpi), ring(nodes, mpi), "2"], 2, env=settings(nodes))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 2, 0 of 1 on {nodes.names[rank]}" for rank in range(2)]
    assert "mpilaunch-rsh" not in done.stderr


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_a_killed_launcher_leaves_nothing(nodes: Hosts, mpi: str, number: int) -> None:
    program = ["sh", "-c", "echo up; exec sleep 600"]
    with nodes.popen([*line(nodes, mpi), *program], env=settings(nodes), start_new_session=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        process.send_signal(number)
        process.communicate(timeout=30)
    wait_until(lambda: not any(map(nodes.processes, nodes.names[:2])), "the nodes are empty")


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_a_real_launchers_job_outlives_its_lost_streams(pods: Pods, mpi: str) -> None:
    remote_shell(pods.shared)
    flag = pods.shared / "go"
    flag.unlink(missing_ok=True)
    program = f"echo up; until [ -e {flag} ]; do sleep 0.05; done; echo done"
    with pods.popen([*line(pods, mpi), "sh", "-c", program], env=settings(pods)) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        pods.server.drop()
        wait_until(lambda: pods.server.sessions == 4, "both daemons are watched")
        flag.touch()
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "done\ndone\n"), errors


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_a_real_launcher_waits_for_pods(pods: Pods, mpi: str) -> None:
    remote_shell(pods.shared)
    pods.server.refusal = Refusal(3, 500, None, 'container not found ("main")')
    done = pods.run([*line(pods, mpi), "hostname"], env=settings(pods))
    assert (done.returncode, sorted(done.stdout.split())) == (0, pods.names[:2]), done.stderr


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("variables", ["OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC", "kubexec.sh"])
def test_the_operators_variables_name_it(pods: Pods, variables: str) -> None:
    name = "kubexec.sh" if variables == "kubexec.sh" else "mpilaunch-rsh"
    shell = str(remote_shell(pods.shared, name))
    hostfile = pods.shared / "hostfile"
    hostfile.write_text("".join(f"{pod}{':1' if variables[0] == 'H' else ' slots=1'}\n" for pod in pods.names[:2]))
    environ = {**AS_ROOT, "OMPI_MCA_plm_rsh_agent": shell, "OMPI_MCA_orte_default_hostfile": str(hostfile)}
    argv = ["mpirun.openmpi", "--wdir", "/", "-np", "2", "hostname"]
    if variables == "HYDRA_LAUNCHER_EXEC":
        environ = {"HYDRA_LAUNCHER_EXEC": shell, "HYDRA_HOST_FILE": str(hostfile)}
        argv = ["mpiexec.hydra", "-wdir", "/", "-np", "2", "hostname"]
    if name != "kubexec.sh":
        environ["MPILAUNCH_AGENT"] = "kubectl"
    done = pods.run(argv, env=environ)
    assert (done.returncode, sorted(done.stdout.split())) == (0, pods.names[:2]), done.stderr


@pytest.mark.slow
@pytest.mark.testbed
def test_under_the_name_of_ssh_it_finds_the_other_ssh(hosts: Hosts) -> None:
    folder = hosts.shared / "bin"
    folder.mkdir(exist_ok=True)
    remote_shell(folder, "ssh")
    environ = {**AS_ROOT, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = hosts.run(["mpirun.openmpi", "--wdir", "/", "-np", "2", "--host", "node01,node02", "hostname"], env=environ)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["node01", "node02"]), done.stderr
    done = hosts.run(["ssh", "-x", "root@node01", "hostname; exit 3"], env=environ)
    assert (done.returncode, done.stdout) == (3, "node01\n")
    done = hosts.run(["ssh", "node99", "true"], env={**environ, "MPILAUNCH_START_TIMEOUT": "0.1"})
    assert done.returncode == 255
    assert done.stderr.startswith("mpilaunch-rsh: node99: ")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_marks_are_found_however_the_output_is_cut(size: int) -> None:
    reader, writer = os.pipe()
    stream = Stream(b"abcd", writer)
    output = b"banner\x1eabc \x1eabcd started 12\nout\x1ea\x1eput\n\x1eabcd exit 7\nlate\x1e"
    for start in range(0, len(output), size):
        stream.take(output[start : start + size])
    os.close(writer)
    with open(reader, "rb") as file:
        assert (stream.pid, stream.exit, stream.preamble, file.read()) == ("12", 7, b"banner\x1eabc ", b"out\x1ea\x1eput\n")


@pytest.mark.parametrize("number", [b"", b"seven", b"9" * 5000, b"-1", "²".encode()])
def test_a_mark_of_a_hostile_node_is_no_crash(number: bytes) -> None:
    stream = Stream(b"abcd", 1)
    stream.take(b"\x1eabcd started 12\n\x1eabcd exit " + number + b"\n")
    assert stream.exit == 255
