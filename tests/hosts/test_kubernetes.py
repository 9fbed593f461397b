"""What operators put into a launcher's pod: each source, their order, and a plan that says which it was."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.kubernetes import FoundAgent, find_agent, find_hosts
from mpilaunch.hosts.remote_names import own_names
from mpilaunch.job.environment.forwarded import forwarded_environment
from tests.support.kubernetes.pods import NAMESPACE, Pods
from tests.support.launching import launch

KUBEXEC = """\
#!/bin/sh
set -x
POD_NAME=$1
shift
/opt/kube/kubectl exec ${POD_NAME}%s -- /bin/sh -c "$*"
"""
FQDN = "pi-worker-{}.pi.ml.svc"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def hosts(
    environ: Mapping[str, str], files: Mapping[str, str] = {}, names: Sequence[str] = ()
) -> tuple[list[tuple[str, int | None]], str] | None:
    found = find_hosts(environ, reading(files), lambda folder: names)
    return found and ([(entry.name, entry.slots) for entry in found[0]], found[1])


def reading(files: Mapping[str, str]):  # type: ignore[no-untyped-def]
    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return files[path]

    return read


def agent(environ: Mapping[str, str], files: Mapping[str, str] = {}, programs: Sequence[str] = ()) -> FoundAgent | None:
    return find_agent(environ, reading(files), lambda word: word in programs)


# Hosts


def test_nothing_is_found_where_there_is_no_operator() -> None:
    assert hosts({}) is None
    assert hosts({"OMPI_MCA_orte_default_hostfile": "none", "VC_WORKER_HOSTS": "a,b"}) is None
    assert agent({}) is None


@pytest.mark.parametrize(
    "variable",
    ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"],
)
def test_a_variable_names_the_hostfile(variable: str) -> None:
    found = hosts({variable: "/x/hosts"}, {"/x/hosts": "a slots=2\nb:3\n"})
    assert found == ([("a", 2), ("b", 3)], f"/x/hosts ({variable})")


def test_the_first_source_wins() -> None:
    variables = {
        "OMPI_MCA_orte_default_hostfile": "/1",
        "PRTE_MCA_prte_default_hostfile": "/2",
        "I_MPI_HYDRA_HOST_FILE": "/3",
        "HYDRA_HOST_FILE": "/4",
    }
    volcano = {"VC_TASK_INDEX": "0", "VC_WORKER_HOSTS": "seven", "MPI_HOST": "six"}
    files = {"/1": "one", "/2": "two", "/3": "three", "/4": "four", "/etc/mpi/hostfile": "five"}
    for name, first in zip([*variables, "file", "MPI_HOST"], ["one", "two", "three", "four", "five", "six"], strict=True):
        found = hosts({**variables, **volcano}, files)
        assert found is not None and found[0] == [(first, None)]
        variables.pop(name, None)
        volcano.pop(name, None)
        if name == "file":
            del files["/etc/mpi/hostfile"]
    assert hosts(volcano, files) == ([("seven", None)], "VC_WORKER_HOSTS")


@pytest.mark.parametrize("variable", ["OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots", "I_MPI_PERHOST"])
def test_default_slots(variable: str) -> None:
    files = {"/etc/mpi/hostfile": "a\nb slots=1\nc\nc\n"}
    found = hosts({variable: "4"}, files)
    assert found is not None
    assert found[0] == [("a", 4), ("b", 1), ("c", None), ("c", None)]
    assert hosts({variable: "all"}, files) == ([("a", None), ("b", 1), ("c", None), ("c", None)], "/etc/mpi/hostfile")


def test_volcano() -> None:
    task = {"VC_TASK_INDEX": "0"}
    tasks = {"VC_MPIMASTER_HOSTS": "j-mpimaster-0.j", "VC_MPIWORKER_HOSTS": "j-mpiworker-0.j,j-mpiworker-1.j"}
    workers: list[tuple[str, int | None]] = [("j-mpiworker-0.j", None), ("j-mpiworker-1.j", None)]
    assert hosts({**task, **tasks}) == (workers, "VC_MPIWORKER_HOSTS")
    given: tuple[list[tuple[str, int | None]], str] = ([("a.j", None), ("b.j", None)], "MPI_HOST")
    assert hosts({**task, **tasks, "MPI_HOST": "a.j,b.j"}) == hosts({**POD, **tasks, "MPI_HOST": "a.j,b.j"}) == given
    assert hosts({**tasks, "MPI_HOST": "a.j"}) is None, "another program's variable, outside of pods"
    assert hosts({**POD, **tasks}) is None, "any job of Volcano's; its pods may each start ranks of their own"
    files = {"/etc/volcano/mpiworker.host": "j-mpiworker-0.j\nj-mpiworker-1.j\n", "/etc/volcano/mpimaster.host": "m"}
    names = ["mpimaster.host", "mpiworker.host", "VC_MPIWORKER_NUM"]
    assert hosts({"VK_TASK_INDEX": "0"}, files, names) == (workers, "/etc/volcano/mpiworker.host")
    assert hosts(task, {}, []) is None
    with pytest.raises(UsageError) as caught:
        hosts({**task, "VC_A_HOSTS": "a", "VC_B_HOSTS": "b"})
    assert caught.value.reference == "operator-hosts"
    assert "VC_A_HOSTS, VC_B_HOSTS" in caught.value.message


def test_a_hostfile_that_cannot_be_read_or_is_empty() -> None:
    with pytest.raises(UsageError) as caught:
        hosts({"HYDRA_HOST_FILE": "/gone"})
    assert caught.value.message == "HYDRA_HOST_FILE='/gone' cannot be read: no such file or directory"
    comment = {"/d": "# the distribution's, without hosts\n"}
    assert hosts({"OMPI_MCA_orte_default_hostfile": "/d"}, comment) is None
    with pytest.raises(UsageError) as caught:
        hosts({"OMPI_MCA_orte_default_hostfile": "/d", **POD}, comment)
    assert caught.value.reference == "hostfile-empty"


# Agents


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}, FoundAgent("kubectl", "OMPI_MCA_plm_rsh_agent")),
        ({"I_MPI_HYDRA_BOOTSTRAP_EXEC": "/etc/mpi/kubexec.sh"}, FoundAgent("kubectl", "I_MPI_HYDRA_BOOTSTRAP_EXEC")),
        ({"HYDRA_LAUNCHER_EXEC": "/etc/mpi/kubexec.sh"}, FoundAgent("kubectl", "HYDRA_LAUNCHER_EXEC")),
        ({"OMPI_MCA_plm_rsh_agent": "/x/c.sh"}, FoundAgent("kubectl", "OMPI_MCA_plm_rsh_agent", container="main")),
        ({"OMPI_MCA_plm_rsh_agent": "ssh : rsh"}, FoundAgent("ssh", "OMPI_MCA_plm_rsh_agent")),
        ({"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}, FoundAgent("ssh", "OMPI_MCA_plm_rsh_args")),
        (
            {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10"},
            FoundAgent("ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
        ),
        ({"HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"}, FoundAgent("ssh", "HYDRA_LAUNCH_EXTRA_ARGS")),
        (
            {
                "OMPI_MCA_plm_rsh_agent": "/usr/bin/ssh -x",
                "OMPI_MCA_plm_rsh_args": '-p 2222 -oUser=mpiuser -o "IdentityFile ~/k"',
            },
            FoundAgent("openssh", "OMPI_MCA_plm_rsh_agent", ("Port=2222", "User=mpiuser", "IdentityFile=~/k")),
        ),
        (
            {"PRTE_MCA_plm_ssh_agent": "no : blaunch -z"},
            FoundAgent("blaunch -z '{host}' '{command}'", "PRTE_MCA_plm_ssh_agent"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_agents(environ: dict[str, str], found: FoundAgent) -> None:
    files = {"/etc/mpi/kubexec.sh": KUBEXEC % "", "/x/c.sh": KUBEXEC % " --container main"}
    assert agent(environ, files, ["ssh", "rsh", "blaunch"]) == found


def test_our_own_remote_shell_stands_for_the_agent_behind_it() -> None:
    ours = {"/etc/mpi/kubexec.sh": "#!/usr/bin/python3\nfrom mpilaunch_agents.rsh.shell import main\nmain()\n"}
    for value, programs, name in (
        ("/opt/mpilaunch-rsh", [], "ssh"),
        ("/opt/mpilaunch-rsh", ["/opt/kube/kubectl"], "kubectl"),
        ("/etc/mpi/kubexec.sh", [], "kubectl"),
    ):
        found = agent({"OMPI_MCA_plm_rsh_agent": value}, ours, programs)
        assert found == FoundAgent(name, "OMPI_MCA_plm_rsh_agent")


def test_the_first_agent_wins_and_comes_before_arguments() -> None:
    environ = {"HYDRA_LAUNCHER_EXEC": "ssh", "OMPI_MCA_plm_rsh_args": "-p 2222"}
    assert agent(environ) == FoundAgent("ssh", "HYDRA_LAUNCHER_EXEC")


LWS = {"LWS_LEADER_ADDRESS": "vllm-0.vllm.ml", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "0"}


def test_the_leader_of_a_leader_worker_set_finds_its_workers() -> None:
    names = ["vllm-0.vllm.ml", "vllm-0-1.vllm.ml", "vllm-0-2.vllm.ml"]
    assert hosts(LWS) == ([(name, None) for name in names], "LWS_LEADER_ADDRESS")
    assert agent(LWS, programs=["kubectl"]) == FoundAgent("kubectl", "LWS_LEADER_ADDRESS")
    assert agent(LWS) is None
    others = {"LWS_WORKER_INDEX": ("1", ""), "LWS_GROUP_SIZE": ("1", "x"), "LWS_LEADER_ADDRESS": ("10.1.2.3", "a", "")}
    for name, values in others.items():
        assert [hosts({**LWS, name: value}) for value in values] == [None] * len(values)


@pytest.mark.parametrize(
    ("variables", "note"),
    [
        ({**LWS, "LWS_WORKER_INDEX": "2"}, "note: this pod is number 2 of 3 of a LeaderWorkerSet's group; "),
        ({**POD, "PET_NNODES": "4"}, "note: this pod is one of 4 nodes of its job (PET_NNODES); "),
        ({**POD, "PET_NNODES": "1"}, ""),
        ({"PET_NNODES": "4"}, ""),
    ],
)
def test_a_pod_that_leaves_the_others_of_its_group_out_says_so(variables: dict[str, str], note: str) -> None:
    done = launch("-np", "1", "echo", "ran", env=variables)
    assert (done.code, done.lines) == (0, ["ran"])
    assert done.words.startswith(note) and bool(done.words) == bool(note)
    assert launch("--host", "localhost", "echo", "ran", env=variables).words == ""


# This pod, and its variables


def test_names_of_this_pod() -> None:
    text = "127.0.0.1 localhost\n10.1.2.3 pi-launcher.pi.ml.svc.cluster.local pi-launcher # by the kubelet\n10.1.2.4 other\n"
    names = own_names("pi-launcher", text)
    assert {"pi-launcher", "pi-launcher.pi", "pi-launcher.pi.ml.svc", "pi-launcher.pi.ml.svc.cluster.local"} <= names
    assert "other" not in names


def test_what_is_true_of_the_launcher_is_not_forwarded() -> None:
    environ = {
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
        "HOSTNAME": "launcher",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_plm_rsh_agent": "x",
        "OMPI_MCA_btl": "tcp",
        "NCCL_DEBUG": "INFO",
    }
    patterns = ["NVIDIA_*", "HOST*", "KUBERNETES_*", "K_*", "OMPI_*"]
    found: dict[str, str] = forwarded_environment(environ, [])
    for pattern in patterns:
        try:
            found |= forwarded_environment(environ, [pattern])
        except UsageError as error:
            assert error.reference == "export-unset"
    assert found == {"NCCL_DEBUG": "INFO", "OMPI_MCA_btl": "tcp"}


# Plans


def plan(tmp_path: Path, text: str, environ: dict[str, str], *words: str) -> dict[str, object]:
    (tmp_path / "hostfile").write_text(text)
    (tmp_path / "kubexec.sh").write_text(KUBEXEC % "")
    (tmp_path / "kubexec.sh").chmod(0o755)
    given = {name: value.replace("/etc/mpi", str(tmp_path)) for name, value in environ.items()}
    done = launch("--dry-run", "--json", *words, "true", env=given)
    assert done.code == 0, done.words
    found: dict[str, object] = json.loads(done.out)
    return found


V1 = {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}
V2 = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "2",
}
INTEL = {
    "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    "I_MPI_PERHOST": "2",
}


@pytest.mark.parametrize(
    ("text", "environ", "reached", "said"),
    [
        ("pi-worker-0 slots=2\npi-worker-1 slots=2\n", V1, "kubectl", "OMPI_MCA_plm_rsh_agent"),
        (f"{FQDN.format(0)} slots=2\n{FQDN.format(1)} slots=2\n", V2, "ssh", "OMPI_MCA_plm_rsh_args"),
        (f"{FQDN.format(0)}:2\n{FQDN.format(1)}:2\n", INTEL, "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
    ],
    ids=["v1", "v2beta1", "v2beta1 Intel"],
)
def test_a_launchers_pod_needs_no_option(tmp_path: Path, text: str, environ: dict[str, str], reached: str, said: str) -> None:
    found = plan(tmp_path, text, {**POD, **environ})
    assert [(node["agent"], len(node["ranks"])) for node in found["nodes"]] == [(reached, 2)] * 2  # type: ignore[attr-defined]
    variable = next(name for name in environ if name.lower().endswith(("hostfile", "host_file")))
    assert (found["source"], found["agent_source"]) == (f"{tmp_path}/hostfile ({variable})", said)
    first = plan(tmp_path, text, {**POD, **environ}, "--agent", "openssh", "-H", "b:1")
    assert [(node["name"], node["agent"]) for node in first["nodes"]] == [("b", "openssh")]  # type: ignore[attr-defined]
    assert (first["source"], first["agent_source"]) == ("--host", None)


def test_a_launcher_that_works_too_needs_no_agent(tmp_path: Path) -> None:
    text = f"{os.uname().nodename} slots=1\npi-worker-0 slots=2\n"
    found = plan(tmp_path, text, {**POD, **V1})
    assert [node["agent"] for node in found["nodes"]] == ["local", "kubectl"]  # type: ignore[attr-defined]


def test_the_plan_for_people_says_it_too(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a slots=2\n")
    environ = {"HYDRA_HOST_FILE": str(tmp_path / "hostfile"), "HYDRA_LAUNCHER_EXEC": "ssh"}
    done = launch("--dry-run", "true", env=environ)
    first = f"2 ranks on 1 node, hosts from {tmp_path}/hostfile (HYDRA_HOST_FILE), agent from HYDRA_LAUNCHER_EXEC"
    assert first in done.out.decode()


# Workers that are not there yet


@pytest.mark.parametrize("environ", [POD, {}], ids=["in a pod", "elsewhere"])
def test_in_a_pod_a_host_that_refuses_is_tried_again(tmp_path: Path, environ: dict[str, str]) -> None:
    once = 'test -e {0} && eval "exec $1"; touch {0}; echo ssh: connect to $0: Connection refused >&2; exit 255'
    done = launch(
        "--agent", f"sh -c '{once.format(tmp_path / 'tried')}' {{host}} {{command}}", "-H", "w", "echo", "ran", env=environ
    )
    assert (done.code, done.out) == ((0, b"ran\n") if environ else (1, b""))
    assert ("error[start-connection-refused]" in done.words) == (not environ)


# The classic MPIJob


@pytest.mark.testbed
def test_the_tensorflow_benchmarks_job_word_for_word(pods: Pods) -> None:
    place = pods.shared / "benchmarks"
    shutil.rmtree(place, ignore_errors=True)
    (place / "scripts/tf_cnn_benchmarks").mkdir(parents=True)
    show = 'import os, sys\nprint(*(os.environ.get(name, "-") for name in sys.argv[2].split(",")))\n'
    (place / "scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py").write_text(show)
    (place / "hostfile").write_text("job-worker-0 slots=1\njob-worker-1 slots=1\n")
    (place / "kubexec.sh").write_text(KUBEXEC % "")
    (place / "kubexec.sh").chmod(0o755)
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to("/usr/bin/python3")
    environ = {
        "PATH": f"{place}/bin:/usr/bin:/bin",
        "OMPI_MCA_plm_rsh_agent": f"{place}/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": f"{place}/hostfile",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
        "K_MPI_JOB_ROLE": "launcher",
        "LD_LIBRARY_PATH": "/usr/local/lib",
        "NCCL_DEBUG": "INFO",
    }
    line = (
        "--wdir {place} --allow-run-as-root -np 2 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH "
        "-mca pml ob1 -mca btl ^openib python scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py --show"
    )
    names = "RANK,HOSTNAME,NCCL_DEBUG,OMPI_MCA_btl,OMPI_MCA_pml,NVIDIA_VISIBLE_DEVICES,K_MPI_JOB_ROLE,KUBERNETES_SERVICE_HOST"
    done = pods.launch(*line.format(place=place).split(), names, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"{rank} job-worker-{rank} INFO ^openib ob1 - - -" for rank in range(2)]
    asked = f"/api/v1/namespaces/{NAMESPACE}/pods/job-worker-1/exec"
    assert any(request.endswith(asked) for request in pods.server.requests)


def test_entries_keep_where_they_were_said() -> None:
    found = find_hosts({}, reading({"/etc/mpi/hostfile": "a slots=2\n"}), lambda folder: [])
    assert found == ([HostEntry("a", 2, origin="/etc/mpi/hostfile:1")], "/etc/mpi/hostfile")
