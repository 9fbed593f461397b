"""Every profile and hostfile of configs/ does what its comment says: its commands are read from it, and run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT, Hosts

pytestmark = pytest.mark.testbed

CONFIGS = CHECKOUT / "configs"
FILES = sorted(path for path in CONFIGS.iterdir() if path.name != "README.md")


@pytest.fixture(autouse=True)
def shared(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new directory that the head and all hosts see, with a copy of the configs and a program."""
    monkeypatch.chdir(tempfile.mkdtemp(dir=hosts.shared))
    shutil.copytree(CONFIGS, "configs")
    Path("my.hosts").write_text("node01:2\nnode02:2\n")
    Path("train.py").write_text('import os\nprint(*(os.environ[name] for name in ("RANK", "NODE_RANK", "LOCAL_RANK")))\n')
    return Path.cwd()


def ran(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of a job that went well and about which there was nothing to say."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def commands(path: Path) -> list[list[str]]:
    """Return the arguments of each `mpilaunch` that a file's comment shows, between lines or in backquotes."""
    text = path.read_text()
    shown = re.findall(r"^#     mpilaunch (.*)$", text, re.MULTILINE) + re.findall(r"`mpilaunch ([^`]*)`", text)
    # `mpilaunch -H` is no command but a mention.
    return [shlex.split(command, comments=True) for command in shown if " " in command]


def plan(hosts: Hosts, *arguments: str) -> list[tuple[str, int]]:
    """Return the nodes that have ranks in a dry run, and how many."""
    found = json.loads("\n".join(ran(hosts.launch("--dry-run", "--json", *arguments))))
    return [(node["name"], len(node["ranks"])) for node in found["nodes"] if node["ranks"]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_that_a_file_shows(hosts: Hosts, path: Path) -> None:
    shown = commands(path)
    assert any(f"configs/{path.name}" in arguments for arguments in shown)
    for arguments in shown:
        assert sum(ranks for _, ranks in plan(hosts, *arguments)) > 0


# The profiles


def test_local_try(hosts: Hosts) -> None:
    done = hosts.launch("--config", "configs/local-try.yaml", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[0] 0 0 0", "[1] 1 0 1", "[2] 2 1 0", "[3] 3 1 1"]
    assert done.returncode == 0
    assert "local" in done.stderr, "the map is missing"
    assert len(hosts.launch("--config", "configs/local-try.yaml", "-np", "3", "train.py").stdout.splitlines()) == 3
    assert len(hosts.launch("--config", "configs/local-try.yaml", "-H", "local:8", "train.py").stdout.splitlines()) == 8


def test_smoke(hosts: Hosts) -> None:
    kernel = hosts.run(["uname", "-r"]).stdout.strip()
    smoke = ("--config", "configs/smoke.yaml")
    assert ran(hosts.launch(*smoke, "-f", "my.hosts", "--", "uname", "-r")) == [f"node[01-02]: {kernel}"]
    lines = ran(hosts.launch(*smoke, "-H", "node[01-04]", "--", "hostname"))
    assert sorted(lines) == [f"{name}: {name}" for name in hosts.names]


def test_smoke_does_not_wait_for_a_node_that_is_down(hosts: Hosts) -> None:
    settings = hosts.launch("--config", "configs/smoke.yaml", "--show-config").stdout
    for option, value in (("start-timeout", "20"), ("timeout", "120")):
        assert re.search(rf"^{option}\b.*\b{value}\b", settings, re.MULTILINE), settings


def exported(path: Path) -> list[str]:
    """Return the NAME=VALUE of a profile's `export`, as its text shows them."""
    found = re.findall(r"^  - (\w+=.*)$", path.read_text(), re.MULTILINE)
    assert found
    return found


@pytest.mark.parametrize("name", ["ethernet-gloo", "infiniband-nccl", "nccl-debug"])
def test_profiles_reach_the_ranks(hosts: Hosts, name: str) -> None:
    done = hosts.launch("--config", f"configs/{name}.yaml", "-f", "my.hosts", "env")
    assert (done.returncode, done.stderr) == (0, "")
    for variable in exported(CONFIGS / f"{name}.yaml"):
        assert len(re.findall(rf"^(?:\[.*\] )?{re.escape(variable)}$", done.stdout, re.MULTILINE)) == 4, variable


def test_nccl_debug_writes_logs_and_a_report(hosts: Hosts, shared: Path) -> None:
    lines = ran(hosts.launch("--config", "configs/nccl-debug.yaml", "-f", "my.hosts", "train.py"))
    assert sorted(lines) == ["[0 node01] 0 0 0", "[1 node01] 1 0 1", "[2 node02] 2 1 0", "[3 node02] 3 1 1"]
    logs, report = shared / "nccl-debug", shared / "nccl-debug.json"
    assert (logs / "rank-0002.out").read_text() == "2 1 0\n"
    assert sorted(path.name for path in logs.iterdir()) == [f"rank-000{n}.{s}" for n in range(4) for s in ("err", "out")]
    assert json.loads(report.read_text())["verdict"]["cause"] == "ok"


def test_infiniband_binds_to_numa_nodes(hosts: Hosts) -> None:
    done = hosts.launch("--config", "configs/infiniband-nccl.yaml", "-f", "my.hosts", "--report-bindings", "true")
    assert done.returncode == 0
    assert len(re.findall(r"^rank \d on node0\d: .*cpus? ", done.stderr, re.MULTILINE | re.IGNORECASE)) == 4, done.stderr


# The hostfiles


def test_openmpi_hosts(hosts: Hosts) -> None:
    with Hosts(3) as own:
        # Another user, who is root by another name: the testbed knows one key.
        give_user = "sed 's/^root:/train:/' /etc/passwd >/run/train; cat /etc/passwd >>/run/train; "
        own.on("node03", ["sh", "-ec", give_user + "mount --bind /run/train /etc/passwd"])
        own.listen("node03", 2222)
        with (own.ssh / "known_hosts").open("r+") as known:
            key = known.readline().split(None, 1)[1]
            known.seek(0, 2)
            known.write(f"[node03]:2222 {key}")
        script = "set -- $SSH_CONNECTION; echo $(hostname) $4 $USER"
        lines = ran(own.launch("-f", "configs/openmpi.hosts", "sh", "-c", script))
        assert sorted(lines) == ["node01 22 root"] * 4 + ["node02 22 root"] * 4 + ["node03 2222 train"] * 4
        assert len(ran(own.launch("-f", "configs/openmpi.hosts", "-np", "6", "-H", "node[01-02]", "hostname"))) == 6
    assert plan(hosts, "-f", "configs/openmpi.hosts", "-np", "6", "true") == [("node01", 4), ("node02", 2)]
    over = plan(hosts, "-f", "configs/openmpi.hosts", "-H", "node02", "-np", "8", "--oversubscribe", "true")
    assert over == [("node02", 8)]
    beyond = hosts.launch("-f", "configs/openmpi.hosts", "-H", "node02", "-np", "9", "--oversubscribe", "--dry-run", "true")
    assert beyond.returncode == 2 and "max_slots" in beyond.stderr


def test_hydra_hosts(hosts: Hosts) -> None:
    lines = ran(hosts.launch("-f", "configs/hydra.hosts", "-H", "node01,node02", "hostname"))
    assert sorted(lines) == ["node01"] * 4 + ["node02"] * 4
    assert plan(hosts, "-f", "configs/hydra.hosts", "true") == [
        ("node01", 4),
        ("node02", 4),
        ("10.0.0.3", 1),
        ("2001:db8::4", 2),
    ]


def test_slurm_ranges_hosts(hosts: Hosts) -> None:
    lines = ran(hosts.launch("-f", "configs/slurm-ranges.hosts", "-H", "node[01-04]", "hostname"))
    assert sorted(lines) == sorted(hosts.names * 4)
    nodes = plan(hosts, "-f", "configs/slurm-ranges.hosts", "true")
    assert [ranks for _, ranks in nodes] == [4] * 33
    names = [name for name, _ in nodes]
    assert ("node17" in names, names[0], names[-1]) == (False, "node01", "login-gpu1")
    assert ran(hosts.launch("-H", "node[01-04]", "-N", "1", "--fold", "--", "uname", "-s")) == ["node[01-04]: Linux"]


def test_gpus_hosts_and_slot_map_need_gpus_on_the_nodes(hosts: Hosts, shared: Path) -> None:
    assert plan(hosts, "-f", "configs/gpus.hosts", "true") == [("node01", 4), ("node02", 3), ("node03", 2), ("node04", 2)]
    refused = hosts.launch("-f", "configs/gpus.hosts", "touch", "ran")
    assert refused.returncode == 1 and "GPU" in refused.stderr, refused.stderr
    slot_map = hosts.launch("--slot-map", "configs/slotmap.yaml", "touch", "ran")
    assert slot_map.returncode == 1 and "GPU" in slot_map.stderr, slot_map.stderr
    assert not (shared / "ran").exists()
    # node04 has none to give, and so it can.
    assert ran(hosts.launch("-f", "configs/gpus.hosts", "-H", "node04", "hostname")) == ["node04"] * 2


def test_slot_map_puts_rank_0_where_it_says(hosts: Hosts) -> None:
    found = json.loads("\n".join(ran(hosts.launch("--dry-run", "--json", "--slot-map", "configs/slotmap.yaml", "train.py"))))
    first = found["ranks"][0]
    assert (found["nodes"][first["node"]]["name"], len(found["ranks"])) == ("node03", 10)
