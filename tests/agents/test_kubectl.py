"""The agent kubectl: the conformance tests with the real kubectl, and what it says when a pod cannot be reached."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpilaunch.agent import CAUSES, Agent, AgentOptions, ChannelEnd
from mpilaunch.hosts.allocation import Node
from mpilaunch.hosts.hostfile import parse_hostfile
from mpilaunch_agents.conformance import AgentConformance
from mpilaunch_agents.kubernetes.kubectl import KubectlAgent
from mpilaunch_agents.kubernetes.pods import KUBECTL_MESSAGES, pod_and_namespace, pod_of_host
from mpilaunch_agents.registry import load
from tests.support.hosts import HEAD
from tests.support.kubernetes.pods import NAMESPACE, Pods
from tests.support.kubernetes.podserver import Refusal
from tests.support.launching import wait_until

POD = "job-worker-0"


@pytest.mark.testbed
class TestKubectl(AgentConformance):
    """The agent runs in the tests' process, and kubectl in the launcher pod."""

    node = Node(0, POD, (), "kubectl")
    unreachable = Node(1, "no-such-pod", (), "kubectl")

    @pytest.fixture(autouse=True)
    def _launcher(self, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in pods.environment.items():
            monkeypatch.setenv(name, value)
        enter = f"nsenter --target={pods.pid_of_first(HEAD)} --net --uts --mount -- {shlex.quote(pods.kubectl)}"
        (tmp_path / "kubectl").write_text(f'#!/bin/sh\nexec {enter} "$@"\n')
        (tmp_path / "kubectl").chmod(0o755)
        monkeypatch.setenv("MPILAUNCH_KUBECTL", str(tmp_path / "kubectl"))

    def make_agent(self) -> Agent:
        return load("kubectl", AgentOptions(container="main"))


@pytest.mark.testbed
class TestKubectlOverWebsocket(TestKubectl):
    """The same with a Role that lets kubectl, from 1.30 on, use WebSocket; an older one uses SPDY here as well."""

    @pytest.fixture(autouse=True)
    def _role(self, pods: Pods) -> None:
        pods.server.verbs.add(("get", "pods/exec"))


# Names


@pytest.mark.parametrize(
    ("host", "pod", "namespace"),
    [
        ("pi-worker-0", "pi-worker-0", None),
        ("pi-worker-0.pi", "pi-worker-0", None),
        ("pi-worker-0.pi-worker.default", "pi-worker-0", None),
        ("pi-worker-0.pi.training.svc", "pi-worker-0", "training"),
        ("pi-worker-0.pi.training.svc.cluster.local", "pi-worker-0", "training"),
        ("10.0.0.7", "10.0.0.7", None),
    ],
)
def test_pod_and_namespace_of_a_host_name(host: str, pod: str, namespace: str | None) -> None:
    assert pod_and_namespace(host) == (pod, namespace)


LISTING = """\
train-launcher-0-0-x1 Running train-launcher-0-0 train
train-node-0-0-old Failed train-node-0-0 train
train-node-0-0-new Running train-node-0-0 train
train-node-0-1-abc Pending train-node-0-1 train
other-node-0-1-abc Running train-node-0-1 other
plain Running
"""


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("train-node-0-0.train", "train-node-0-0-new"),
        ("train-node-0-0.train.ns.svc.cluster.local", "train-node-0-0-new"),
        ("train-node-0-1.train", "train-node-0-1-abc"),
        ("train-node-0-1", "other-node-0-1-abc"),
        ("train-node-0-0.other", None),
        ("plain", None),
        ("train-node-0-0-new", None),
    ],
)
def test_a_pod_is_known_by_the_name_of_its_host(host: str, pod: str | None) -> None:
    assert pod_of_host(host, LISTING) == pod


@pytest.mark.testbed
def test_the_pods_of_a_jobset_are_found_by_their_hosts(pods: Pods, jobset: tuple[str, ...]) -> None:
    pods.server.verbs.add(("list", "pods"))
    done = pods.launch("--agent", "kubectl", "--wdir", "/", "-H", ",".join(jobset), "sh", "-c", "echo $RANK; hostname")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["0", "1", "job-worker-0", "job-worker-1"]
    lists = [request for request in pods.server.requests if request.startswith("GET") and request.endswith("/pods")]
    assert len(lists) == 1, "both nodes ask at the same time"


@pytest.mark.testbed
def test_pods_that_may_not_be_listed_are_missing(pods: Pods, jobset: tuple[str, ...]) -> None:
    done = pods.launch("--agent", "kubectl", "--start-timeout", "2", "-H", ",".join(jobset), "true")
    assert done.returncode == 1
    assert "error[start-pod-unknown]: 2 of 2 nodes: " in done.stderr
    assert "the Role needs `list` on pods" in done.stderr


def test_where_namespace_and_container_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPILAUNCH_KUBECTL", "/k")

    def argv(node: Node, **options: str) -> list[str]:
        return list(KubectlAgent(AgentOptions(**options)).argv(node, ["id"]))  # type: ignore[arg-type]

    bare = Node(0, "a", (), "kubectl")
    assert argv(bare) == ["/k", "exec", "-i", "a", "--", "id"]
    flags = ["--namespace=n", "--container=c", "--context=x"]
    assert argv(bare, namespace="n", container="c", context="x") == ["/k", "exec", "-i", "a", *flags, "--", "id"]
    own = Node(0, "a.s.mine.svc", (), "kubectl", namespace="keyed", container="keyed")
    assert argv(own, namespace="n", container="c")[4:6] == ["--namespace=mine", "--container=keyed"]
    keyed = Node(0, "a", (), "kubectl", namespace="keyed")
    assert argv(keyed, namespace="n")[4] == "--namespace=keyed"


def test_hostfile_keys() -> None:
    (entry,) = parse_hostfile("pod-1 slots=2 agent=kubectl namespace=ml container=worker\n", "f")
    assert (entry.agent, entry.namespace, entry.container) == ("kubectl", "ml", "worker")


# Messages


MESSAGES = [
    (
        "",
        'Error from server (Forbidden): pods "w" is forbidden: User "system:serviceaccount:a:default" cannot get',
        "cluster-forbidden",
    ),
    ("", "error: You must be logged in to the server (Unauthorized)", "cluster-login"),
    ("", "error: cannot exec into a container in a completed pod; current phase is Succeeded", "pod-completed"),
    ("", "Error from server (BadRequest): container x is not valid for pod w", "container-unknown"),
    ("", "error: container x not found in pod w", "container-unknown"),
    ("", 'error: unable to upgrade connection: container not found ("main")', "pod-starting"),
    ("", "Error from server (BadRequest): pod w does not have a host assigned", "pod-starting"),
    ("", 'Error from server (NotFound): pods "w" not found', "pod-unknown"),
    ("", "Error from server: error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout", "connection-closed"),
    (
        "",
        "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?",
        "cluster-unreachable",
    ),
    ("", "Unable to connect to the server: dial tcp: lookup k on 10.0.0.10:53: no such host", "cluster-unreachable"),
    ("", "Unable to connect to the server: x509: certificate signed by unknown authority", "agent-failed"),
    ("", "error: error reading from error stream: next reader: websocket: close 1006 (abnormal closure)", "connection-closed"),
    (
        "",
        'error: Internal error occurred: error executing command in container: failed to exec in container: exec: "python3": '
        "executable file not found in $PATH: unknown",
        "python-missing",
    ),
    ('Defaulted container "main" out of: main, side\n', "something new", "agent-failed"),
]


@pytest.mark.parametrize(("before", "message", "cause"), MESSAGES, ids=[row[1][:40] for row in MESSAGES])
def test_messages_of_kubectl_have_a_cause(before: str, message: str, cause: str) -> None:
    agent = KubectlAgent(AgentOptions())
    assert agent.explain(1, f"{before}{message}\n") == ChannelEnd(1, message, cause)
    assert cause in CAUSES


def test_exit_codes_of_the_command_are_no_failure_of_kubectl() -> None:
    agent = KubectlAgent(AgentOptions())
    for code in (0, 1, 7, 137):
        assert agent.explain(code, f"oops\ncommand terminated with exit code {code}\n") == ChannelEnd(code)


def test_every_cause_of_kubectl_is_known() -> None:
    assert {cause for cause, _ in KUBECTL_MESSAGES} <= set(CAUSES)


# Launches


SHOW = ("sh", "-c", "echo $RANK $(hostname)")


@pytest.mark.testbed
def test_a_job_on_two_pods(pods: Pods) -> None:
    before = [pods.zombies(name) for name in pods.names]
    for host in ("job-worker-0,job-worker-1", ",".join(map(pods.service_name, pods.names[:2]))):
        done = pods.launch("--wdir", "/", "--agent", "kubectl", "-N", "2", "-H", host, *SHOW)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.split("\n")[:-1]) == [f"{rank} job-worker-{rank // 2}" for rank in range(4)]
    wait_until(lambda: not pods.server.live, "no session is left")
    wait_until(lambda: [pods.zombies(name) for name in pods.names] == before, "no zombie is left")


@pytest.mark.testbed
def test_pods_that_are_not_there_yet_are_waited_for(pods: Pods) -> None:
    server = pods.server
    missing = server.pods.pop((NAMESPACE, "job-worker-1"))
    server.pods[NAMESPACE, POD].ready = False
    arguments = [sys.executable, "-m", "mpilaunch", "--agent", "kubectl", "-H", "job-worker-0,job-worker-1", *SHOW]
    with pods.popen(arguments) as process:
        try:
            asked = f"GET /api/v1/namespaces/{NAMESPACE}/pods/"
            wait_until(lambda: server.requests.count(f"{asked}job-worker-1") > 1, "kubectl asks again")
            wait_until(lambda: server.requests.count(f"{asked}job-worker-0") > 1, "kubectl asks again")
        finally:
            server.pods[NAMESPACE, "job-worker-1"] = missing
            server.pods[NAMESPACE, POD].ready = True
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, sorted(output.splitlines())) == (0, ["0 job-worker-0", "1 job-worker-1"]), errors


@pytest.mark.testbed
def test_temporary_errors_are_retried(pods: Pods) -> None:
    pods.server.refusal = Refusal(2)
    done = pods.launch("--agent", "kubectl", "-H", POD, *SHOW)
    assert (done.returncode, done.stdout) == (0, "0 job-worker-0\n"), done.stderr
    assert pods.server.refusal.count == 0


@pytest.mark.testbed
def test_missing_pods_are_named_at_the_end(pods: Pods) -> None:
    done = pods.launch("--agent", "kubectl", "--start-timeout", "2", "-H", "job-worker-0,job-worker-8,job-worker-9", "true")
    assert done.returncode == 1
    assert "error[start-pod-unknown]: 2 of 3 nodes: job-worker-[8-9]: no such pod after 2." in done.stderr
    assert ': Error from server (NotFound): pods "job-worker-8" not found' in done.stderr


@pytest.mark.testbed
@pytest.mark.parametrize(
    ("wrong", "reference", "fix"),
    [
        ("role", "start-cluster-forbidden", "kubectl create role mpilaunch --verb=get,create --resource=pods,pods/exec"),
        ("completed", "start-pod-completed", "sleep infinity"),
        ("container", "start-container-unknown", "--container"),
        ("python", "start-python-missing", "install python3"),
        ("token", "start-cluster-login", "service account"),
    ],
)
def test_permanent_errors_are_reported_at_once(pods: Pods, wrong: str, reference: str, fix: str) -> None:
    server, container = pods.server, "main"
    if wrong == "role":
        server.verbs.discard(("create", "pods/exec"))
    elif wrong == "completed":
        server.pods[NAMESPACE, POD].phase = "Succeeded"
    elif wrong == "container":
        container = "side"
    elif wrong == "python":
        server.pods[NAMESPACE, POD].containers["bare"] = "/nowhere"
        container = "bare"
    else:
        server.token = "of-somebody-else"
    done = pods.launch("--agent", "kubectl", "--container", container, "-H", POD, "true", timeout=20)
    assert done.returncode == 1
    assert f"error[{reference}]: {POD}: " in done.stderr
    assert fix in done.stderr


@contextlib.contextmanager
def launched(pods: Pods, *program: str) -> Iterator[subprocess.Popen[str]]:
    """Launch on two pods, and wait until both ranks are up."""
    arguments = [sys.executable, "-m", "mpilaunch", "--agent", "kubectl", "--wdir", "/", "-H", "job-worker-0,job-worker-1"]
    with pods.popen([*arguments, *program]) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        yield process
    wait_until(lambda: not any(map(pods.processes, pods.names[:2])), "the pods are empty")


def drop_sessions(pods: Pods) -> None:
    seen = pods.server.sessions
    pods.server.drop()
    wait_until(lambda: pods.server.sessions >= seen + 2, "the head has come back to both pods")


@pytest.mark.testbed
def test_a_lost_stream_is_not_a_lost_job(pods: Pods) -> None:
    go = pods.shared / "go"
    go.unlink(missing_ok=True)
    text = f"echo up; until [ -e {go} ]; do sleep 0.05; done; seq -f $RANK:%.0f 50000; exit $((RANK * 5))"
    with launched(pods, "--continue-on-error", "sh", "-c", text) as process:
        for _ in range(2):
            drop_sessions(pods)
        go.touch()
        out, errors = process.communicate(timeout=30)
    go.unlink()
    assert process.returncode == 5
    assert sorted(out.split()) == sorted(f"{rank}:{number}" for rank in (0, 1) for number in range(1, 50001))
    assert "note: job-worker-0: " in errors and "; connected again after " in errors


@pytest.mark.testbed
def test_a_stream_that_cannot_be_made_again_is_a_lost_node_and_leaves_nothing(pods: Pods) -> None:
    with launched(pods, "--reconnect-timeout", "2", "sh", "-c", "echo up; sleep 600") as process:
        pods.server.refusal = Refusal(1000)
        pods.server.drop()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 125
    assert "error[node-lost]: job-worker-" in errors and "; not reached again within 2 s: " in errors


@pytest.mark.testbed
def test_a_stream_that_is_lost_at_the_start_is_no_success(pods: Pods) -> None:
    pods.server.delay, pods.server.drop_after = 5, 0.1
    done = pods.launch("--agent", "kubectl", "--start-timeout", "3", "-H", POD, "true")
    assert done.returncode == 1
    assert "error[start-connection-closed]" in done.stderr
    assert pods.server.sessions > 1


@pytest.mark.testbed
def test_a_killed_head_leaves_nothing_in_the_pods(pods: Pods) -> None:
    before = {name: pods.zombies(name) for name in pods.names}
    with launched(pods, "--reconnect-timeout", "1", "sh", "-c", "echo up; setsid sleep 600") as process:
        process.kill()
        process.communicate(timeout=30)
    wait_until(lambda: {name: pods.zombies(name) for name in pods.names} == before, "no pod has a new zombie")


def test_search_for_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpilaunch_agents.kubernetes import pods

    monkeypatch.delenv("MPILAUNCH_KUBECTL", raising=False)
    monkeypatch.setattr(pods, "DELIVERED", os.devnull)
    assert pods.kubectl_program() == "kubectl"
    monkeypatch.setattr(pods, "DELIVERED", sys.executable)
    assert pods.kubectl_program() == sys.executable
