"""The launchers of frameworks: mpilaunch under their names, and beneath them, under the names that they call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.cli.dialects.table import of_name
from mpilaunch.cli.options import BY_FLAG
from tests.frameworks.places import PYTHON, Place, frameworks_python
from tests.support.launching import MPILAUNCH, environment
from tests.support.paths import ROOT

LINK = f"""#!{sys.executable}
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "agents")]!r}
from mpilaunch.__main__ import entry
entry()
"""
CPU = {"DS_ACCELERATOR": "cpu"}
PORT = str(29500 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))
"""That of rank 0, which these launchers choose without a look at what is free: other processes of a test run have others."""


@pytest.fixture
def links(place: Place) -> dict[str, str]:
    """Make links to mpilaunch, and the programs by which DeepSpeed recognizes an MPI; give the variables that find them."""
    directory = place.directory / "links"
    directory.mkdir()
    (directory / "mpilaunch").write_text(LINK, encoding="utf-8")
    (directory / "mpilaunch").chmod(0o755)
    for name in ("deepspeed", "accelerate", "mpirun", "mpiexec", "pdsh", "ompi_info"):
        (directory / name).symlink_to("mpilaunch")
    (directory / "mpiname").write_text("#!/bin/sh\necho MVAPICH2-GDR 2.3.7\n", encoding="utf-8")
    (directory / "mpiname").chmod(0o755)
    return {"PATH": f"{directory}:{PYTHON.parent}:/usr/sbin:/usr/bin:/sbin:/bin", **CPU}


def hostfile(place: Place) -> str:
    """Write a hostfile in which the place's two ranks have one slot of each host, or both of this machine's."""
    lines = [f"{name} slots=1" for name in place.hosts.names] if place.hosts else ["localhost slots=2"]
    (place.directory / "hostfile").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return str(place.directory / "hostfile")


def local_ranks(place: Place) -> list[int]:
    return [0, 0] if place.hosts else [0, 1]


def trained(place: Place, done: subprocess.CompletedProcess[str], *, argument: bool) -> None:
    """Check that DeepSpeed trained one model on two ranks, and the first argument of the script."""
    assert done.returncode == 0, done.stderr[-4000:]
    # pdsh writes the name of the host before each line, and DeepSpeed its own lines.
    lines = sorted(re.findall(r"^(?:\w+: )?(rank .*)", done.stdout, re.MULTILINE))
    weights = {line.partition("weights ")[2] for line in lines}
    expected = []
    for rank, local in enumerate(local_ranks(place)):
        first = [f"--local_rank={local}"] if argument else ["--lr"]
        expected.append(f"rank {rank} of 2 local {local} argument {first} weights {min(weights)}")
    assert lines == expected


# Under the names of launchers


@pytest.mark.parametrize("words", [(), ("--no_local_rank",)], ids=["", "no_local_rank"])
def test_the_name_deepspeed(place: Place, links: dict[str, str], words: tuple[str, ...]) -> None:
    slots = "@".join(f"{name}:0" for name in place.hosts.names) if place.hosts else "localhost:0,1"
    hosts = ("--hostfile", hostfile(place)) if place.hosts else ()
    if place.hosts:
        (place.directory / ".deepspeed_env").write_text("GLOO_SOCKET_IFNAME=eth0\n", encoding="utf-8")
    options = ("--master_port", PORT, *hosts, "--include", slots, *words)
    trained(place, place.run("deepspeed", *options, "deepspeed_train.py", "--lr", "1", env=links), argument=not words)


def test_accelerate_launch(place: Place, links: dict[str, str]) -> None:
    (place.directory / "cpu.yaml").write_text(
        "distributed_type: MULTI_CPU\nuse_cpu: true\nmixed_precision: bf16\n", encoding="utf-8"
    )
    hosts = ("-H", ",".join(place.hosts.names)) if place.hosts else ()
    options = ("--config_file", "cpu.yaml", "--main_process_port", PORT, "--num_processes", "2", *hosts)
    done = place.run("accelerate", "launch", *options, "accelerate_launched.py", env=links)
    ranks = [f"rank {rank} of 2 local {local} sum 3 DDP on cpu bf16" for rank, local in enumerate(local_ranks(place))]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ranks), done.stderr[-4000:]
    for options in (("--cpu",), ("--num_processes", "1"), ()):
        alone = place.run("accelerate", "launch", *options, "accelerate_launched.py", env=links)
        assert (alone.returncode, alone.stdout) == (0, "rank 0 of 1 local 0 sum 1 plain on cpu no\n"), alone.stderr[-4000:]


def test_accelerate_test(place: Place, links: dict[str, str]) -> None:
    (place.directory / "cpu.yaml").write_text("use_cpu: true\nnum_processes: 1\ndistributed_type: 'NO'\n", encoding="utf-8")
    done = place.run("accelerate", "test", "--config_file", "cpu.yaml", env=links, timeout=300)
    assert (done.returncode, "**Test process execution**" in done.stdout) == (0, True), done.stderr[-4000:]


# Beneath other launchers


@pytest.mark.parametrize("runner", ["pdsh", "openmpi", "mpich", "impi", "mvapich"])
def test_the_launcher_of_deepspeed_runs_with_mpilaunch_beneath_it(place: Place, links: dict[str, str], runner: str) -> None:
    real = (frameworks_python(), "-m", "deepspeed.launcher.runner", "--no_ssh_check", "--force_multi")
    address = place.hosts.address(place.hosts.names[0]) if place.hosts else "127.0.0.1"
    options = ("--launcher", runner, "--hostfile", hostfile(place), "--master_addr", address, "--master_port", PORT)
    trained(place, place.run(*real, *options, "deepspeed_train.py", "--lr", "1", env=links), argument=runner == "pdsh")


def test_accelerate_itself_runs_with_mpilaunch_as_its_mpirun(place: Place, links: dict[str, str]) -> None:
    real = (frameworks_python(), "-m", "accelerate.commands.launch", "--cpu", "--mpirun_hostfile", hostfile(place))
    nodes = ("--num_machines", "2", "--main_process_ip", place.hosts.address(place.hosts.names[0])) if place.hosts else ()
    words = ("--num_processes", "2", *nodes, "--main_process_port", PORT, "accelerate_launched.py")
    done = place.run(*real, *words, env=links)
    ranks = [f"rank {rank} of 2 local {local} sum 3 DDP on cpu no" for rank, local in enumerate(local_ranks(place))]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ranks), done.stderr[-4000:]


def test_a_stand_in_of_tensorrt_llms_script_finds_its_ranks(place: Place, links: dict[str, str]) -> None:
    """The script itself starts a server on GPUs; `programs/trtllm-llmapi-launch` depends on the same variables."""
    variables = {"HF_TOKEN": "hf_secret", "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8" if place.hosts else "127.0.0.0/8"}
    line = ("mpirun", "--hostfile", hostfile(place), "-x", "HF_TOKEN", "-x", f"TRTLLM_PYTHON={frameworks_python()}")
    task = ("./trtllm-llmapi-launch", "sh", "-c", "echo task, size $tllm_mpi_size, rank ${OMPI_COMM_WORLD_RANK:-unset}")
    done = place.run(*line, *task, env={**links, **variables})
    lines = ["rank 0 of 2 sum 3", "rank 1 of 2 sum 3", "task, size 2, rank unset"]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, lines), done.stderr[-4000:]


# Options and variables


def known(dialect: str, flag: str) -> bool:
    return of_name(dialect).has(flag) or flag in BY_FLAG or flag.replace("_", "-") in BY_FLAG


def test_every_option_of_the_launchers_is_known() -> None:
    python = frameworks_python()
    command: tuple[str, ...] = (python, "-m", "deepspeed.launcher.runner", "--help")
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    flags = {("deepspeed", flag) for flag in re.findall(r"^  (-\w|--\w+)", text, re.MULTILINE) + re.findall(r", (--\w+)", text)}
    command = (python, str(Path(__file__).parent / "programs" / "accelerate_variables.py"), "--options")
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    flags |= {("accelerate", flag) for flag in json.loads(text)}
    assert len(flags) > 150
    assert not {(dialect, flag) for dialect, flag in flags if not known(dialect, flag)}
    assert not known("accelerate", "--no_such_option") and of_name("accelerate").verbs == ("launch", "test")


ALONE = ["--cpu --num_processes 1", "--cpu", "--num_processes 1", "--config_file cpu.yaml"]
LINES = [
    *ALONE,
    "--multi_gpu --num_processes 2 --mixed_precision fp16 --dynamo_backend inductor --dynamo_mode max-autotune",
    "--cpu --num_processes 2 --num_cpu_threads_per_process 3 --debug --enable_cpu_affinity",
    "--use_fsdp --num_processes 2 --fsdp_offload_params true --fsdp_sharding_strategy SHARD_GRAD_OP "
    "--fsdp_backward_prefetch BACKWARD_PRE --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
    "--fsdp_transformer_layer_cls_to_wrap Block --fsdp_state_dict_type FULL",
    "--use_fsdp --fsdp_version 2 --use_parallelism_config --num_processes 4 --parallelism_config_cp_size 2 "
    "--parallelism_config_tp_size 2 --parallelism_config_sp_size 2 --parallelism_config_sp_seq_length 8",
    "--use_fsdp --fsdp_version 2 --use_parallelism_config --num_processes 4 --parallelism_config_dp_shard_size 4",
    "--use_megatron_lm --num_processes 2 --megatron_lm_tp_degree 2 --megatron_lm_num_micro_batches 4 "
    "--megatron_lm_recompute_activations true --megatron_lm_attention_dropout 0.5",
    "--use_deepspeed --num_processes 2 --zero_stage 3 --offload_optimizer_device CPU --zero3_init_flag True "
    "--zero3_save_16bit_model true --gradient_accumulation_steps 4 --gradient_clipping 1.0 --deepspeed_moe_layer_cls_names A,B",
    "--config_file config.yaml",
    "--config_file config.yaml --mixed_precision fp16 --fsdp_offload_params true",
    "--config_file zero.yaml",
    "--config_file zero.yaml --mixed_precision no",
]
FILES = {
    "cpu.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n",
    "config.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\n"
    "use_cpu: false\ndynamo_config:\n  dynamo_backend: EAGER\n  use_dynamic: true\n"
    "fsdp_config:\n  fsdp_version: 1\n  fsdp_forward_prefetch: true\n  min_num_params: 7\n  fsdp_use_orig_params: false\n",
    "zero.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 2\ndebug: true\n"
    "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero3_init_flag: false\n  gradient_accumulation_steps: 2\n",
}
LAUNCHERS_OWN = frozenset({"MASTER_ADDR", "MASTER_PORT"})


@pytest.mark.parametrize("line", LINES)
def test_accelerates_variables_are_those_of_accelerate(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    program = str(Path(__file__).parent / "programs" / "accelerate_variables.py")
    words = [*line.split(), "train.py"]
    variables = environment({"HF_HOME": str(tmp_path)})
    theirs = subprocess.run([frameworks_python(), program, *words], env=variables, capture_output=True, text=True, timeout=120)
    assert theirs.returncode == 0, theirs.stderr
    ours = subprocess.run(
        [*MPILAUNCH, "--dialect", "accelerate", "--show-env", "0", "launch", *words],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ours.returncode == 0, ours.stderr
    environ = dict(item.split("=", 1) for item in ours.stdout.splitlines() if "=" in item)
    expected = {name: text for name, text in json.loads(theirs.stdout.splitlines()[-1]).items() if name not in LAUNCHERS_OWN}
    assert {name: environ.get(name) for name in expected} == expected
    prefixes = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "KMP_")
    assert {name for name in environ if name.startswith(prefixes)} <= set(expected)
    assert ("RANK" in environ) == (line not in ALONE)
