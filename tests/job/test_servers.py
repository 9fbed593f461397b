"""Servers that span nodes: what their profiles add, and to which processes."""

from __future__ import annotations

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.job.environment.templates import programs_before_launch
from mpilaunch.job.roles import followers
from mpilaunch.job.servers.server import in_front, unless_given
from mpilaunch.job.servers.serving import server_notes, server_profile
from mpilaunch.job.servers.table import SERVERS
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import first_worlds
from tests.support.command_line import job_of, request

WHERE = ("--master-addr", "10.0.0.1", "--master-port", "20000")
KNOWN = "--master-addr 10.0.0.1 --master-port 20000"


def programs(job: JobSpec) -> list[str]:
    return [" ".join(words) for _, words in programs_before_launch(job)]


def test_vllm_is_one_process_a_node_and_headless_beyond_the_first() -> None:
    job = job_of(f"-H a:8,b:8 --profile vllm {KNOWN} vllm serve M --tensor-parallel-size 16")
    common = "vllm serve M --tensor-parallel-size 16 --nnodes 2 --node-rank"
    assert programs(job) == [
        f"{common} 0 --master-addr 10.0.0.1 --master-port 20000",
        f"{common} 1 --master-addr 10.0.0.1 --master-port 20000 --headless",
    ]
    assert [place.node for place in job.job_map.placements] == [0, 1]


def test_on_one_node_it_is_one_process_too() -> None:
    assert programs(job_of(f"-H a:8 --profile vllm {KNOWN} vllm serve M")) == [
        f"vllm serve M --nnodes 1 --node-rank 0 {' '.join(WHERE)}"
    ]


def test_the_job_does_not_wait_for_headless_processes() -> None:
    job = job_of("-H a,b,c --profile vllm vllm serve M")
    assert followers(first_worlds(job)) == {1, 2}
    assert followers(first_worlds(job_of("-H a,b --profile ray x.py"))) == {1}
    assert followers(first_worlds(job_of("-H a,b,c --profile sglang sglang serve M"))) == set()


def test_what_the_user_writes_wins_and_stays_as_it_is() -> None:
    job = job_of(f"-H a,b --profile vllm {KNOWN} vllm serve M --nnodes=4 --node_rank 3 --headless --overrides '{{\"a\": 1}}'")
    own = 'vllm serve M --nnodes=4 --node_rank 3 --headless --overrides {"a": 1}'
    assert programs(job) == [f"{own} {' '.join(WHERE)}"] * 2
    templated = job_of(f"-H a,b --profile sglang {KNOWN} --template sglang serve --name s{{node_rank}}{{{{}}}}")
    assert programs(templated)[1] == "sglang serve --name s1{} --dist-init-addr 10.0.0.1:20000 --nnodes 2 --node-rank 1"


def test_the_slots_of_a_node_are_one() -> None:
    job = job_of("-H a:2,b:2 --profile vllm vllm serve M")
    assert [len(node.slots) for node in job.allocation.nodes] == [1, 1]


@pytest.mark.parametrize("option", ["-N 2", "--map-by ppr:2:node", "--rankmap 0,0,1,1"])
def test_the_users_map_stands(option: str) -> None:
    job = job_of(f"-H a:2,b:2 --profile vllm {option} vllm serve M")
    assert [place.node for place in job.job_map.placements] == [0, 0, 1, 1]
    assert [words.endswith("--headless") for words in programs(job)] == [False, False, True, True]


def test_each_role_is_a_server_of_its_own() -> None:
    job = job_of(
        "--profile vllm --role prefill -np 2 -host a:8,b:8 vllm serve M --port 1 : --role decode -np 2 -host c,d vllm serve M"
    )
    found = programs(job)
    assert [("--headless" in words, "--node-rank 0" in words, "--nnodes 2" in words) for words in found] == [
        (False, True, True),
        (True, False, True),
        (False, True, True),
        (True, False, True),
    ]
    assert [app.role for app in job.apps] == ["prefill", "prefill", "decode", "decode"]


def test_other_programs_of_the_job_stay_as_they_are() -> None:
    job = job_of(
        f"--profile vllm {KNOWN} --role server -np 1 -host n1 vllm serve M : "
        "--role train --after server:8000 -np 2 -host n2:2 train.py"
    )
    assert programs(job) == [f"vllm serve M --nnodes 1 --node-rank 0 {' '.join(WHERE)}", "train.py", "train.py"]
    assert [place.node for place in job.job_map.placements] == [0, 1, 1]


def test_by_hand_only_the_first_machine_has_a_head() -> None:
    words = f"--nnodes 2 --profile vllm {KNOWN} vllm serve M"
    assert "--headless" not in programs(job_of(f"--node-rank 0 {words}"))[0]
    second = programs(job_of(f"--node-rank 1 {words}"))
    assert len(second) == 1 and second[0].endswith("--headless") and "--nnodes 2 --node-rank 1" in second[0]


def test_trtllm_is_an_mpi_job_of_all_slots() -> None:
    job = job_of("-H a:2,b:2 --profile trtllm trtllm-serve M --tp_size 4")
    assert programs(job) == ["trtllm-llmapi-launch trtllm-serve M --tp_size 4"] * 4
    assert programs(job_of("-H a --profile trtllm /opt/trtllm-llmapi-launch trtllm-serve M")) == [
        "/opt/trtllm-llmapi-launch trtllm-serve M"
    ]


def test_ray_runs_the_program_once_and_a_script_by_its_interpreter() -> None:
    start = "ray symmetric-run --address 10.0.0.1:20000 --min-nodes 2 --"
    assert (
        programs(job_of(f"-H a:4,b:4 --profile ray {KNOWN} train.py --lr {{0}}"))
        == [f"{start} python3 train.py --lr {{0}}"] * 2
    )
    assert (
        programs(job_of(f"-H a,b --profile ray {KNOWN} ray symmetric-run --address x -- prog"))[0].count("symmetric-run") == 1
    )


def test_sglang_has_its_own_address() -> None:
    from mpilaunch.job.environment.contract import JobFacts, NodePlace

    variables = SERVERS["sglang"].variables
    job = JobFacts("", "", 2, 2, 2, "10.0.0.1", "20000")
    assert variables.node(job, NodePlace(1, 1, address="10.0.0.2")) == {"SGLANG_HOST_IP": "10.0.0.2"}
    assert variables.node(job, NodePlace(0, 1)) == {}


def test_a_job_is_one_server_whose_map_is_known() -> None:
    with pytest.raises(UsageError, match="a job is one server"):
        server_profile(["tf", "ray", "vllm"])
    assert server_profile(["tf", "vllm"]) == "vllm" and server_profile(["tf"]) == ""
    with pytest.raises(UsageError, match="a map that is known from the start"):
        job_of("-H a,b,c --spares 1 --max-restarts 1 --profile vllm vllm serve M")


ALONE = "on 2 nodes: each process is a server by itself; --profile {} makes them one"
ADDED = "ray symmetric-run --address {master_addr}:{master_port} --min-nodes {nnodes} -- python3"
NOTES = {
    "-H a,b --profile ray x.py": f"--profile ray adds to x.py: {ADDED} before it",
    "-H a,b --profile vllm vllm serve --nnodes 2 --node-rank 0 --master-addr x --master-port 1": (
        "--profile vllm adds to vllm: --headless beyond the first node"
    ),
    "-H a,b /opt/bin/vllm serve M": f"/opt/bin/vllm {ALONE.format('vllm')}",
    "-H a,b python3.11 -m sglang.launch_server": f"python3.11 {ALONE.format('sglang')}",
    "-H a,b trtllm-serve M": f"trtllm-serve {ALONE.format('trtllm')}",
    "-H a:2 vllm serve M": "",
    "-H a,b vllm bench": "",
    "-H a,b vllm serve M --nnodes 2 --node-rank 0": "",
}


@pytest.mark.parametrize("line", NOTES)
def test_notes(line: str) -> None:
    asked = request(line.split())
    programs = [section.program for section in asked.sections]
    assert list(server_notes(job_of(line), programs)) == ([NOTES[line]] if NOTES[line] else [])


def test_options_that_are_there_are_not_added() -> None:
    options = (("--a", "1"), ("--b-c", "2"), ("--d",))
    assert unless_given(["prog", "a", "--a=3"], *options) == ("--b-c", "2", "--d")
    assert unless_given(["prog", "--b_c", "5", "--d"], *options) == ("--a", "1")
    aliases = {"-a": "--a", "--old": "--b-c"}
    for words in (["-a", "3", "--old", "4"], ["-a3", "--old=4"], ["-a=3", "--old", "4"]):
        assert unless_given(["prog", *words], *options, aliases=aliases) == ("--d",)
    assert unless_given(["prog", "-about", "-d"], *options, aliases=aliases) == ("--a", "1", "--b-c", "2", "--d")
    assert in_front(["x.py"], "run") == ("run", "python3") and in_front(["x"], "run") == ("run",)
