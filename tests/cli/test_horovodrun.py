"""The values that options of horovodrun and its config file give to the library, as horovod's config_parser.py does."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpilaunch.errors import UsageError
from tests.support.command_line import request

CONFIG = """
controller: Gloo
params: {fusion_threshold_mb: 32, cycle_time_ms: 3.5, hierarchical_allreduce: false, cache_capacity: null}
autotune: {enabled: true, log_file: l.csv, warmup_samples: 5}
stall_check: {enabled: false}
logging: {level: INFO, with_timestamp: false}
"""
OF_CONFIG = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_FUSION_THRESHOLD": "33554432",
    "HOROVOD_CYCLE_TIME": "3.5",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_LOG": "l.csv",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
    "HOROVOD_STALL_CHECK_DISABLE": "1",
    "HOROVOD_LOG_LEVEL": "INFO",
    "HOROVOD_LOG_HIDE_TIME": "1",
}


def exported(words: str) -> dict[str, str]:
    made = request([*words.split(), "-np", "2", "prog"], name="horovodrun").settings
    return dict(pair.split("=", 1) for pair in made["export"])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ("--fusion-threshold-mb 0", {"HOROVOD_FUSION_THRESHOLD": "0"}),
        ("--fusion_threshold_mb 128 --cycle-time-ms 1", {"HOROVOD_FUSION_THRESHOLD": "134217728", "HOROVOD_CYCLE_TIME": "1.0"}),
        (
            "--hierarchical-allreduce --no-torus-allreduce",
            {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_TORUS_ALLREDUCE": "0"},
        ),
        ("--autotune --no-autotune", {}),
        ("--autotune-log-file l", {}),
        ("--autotune --autotune-log-file l", {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "l"}),
        ("--timeline-filename 0 --no-timeline-mark-cycles", {"HOROVOD_TIMELINE": "0", "HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        ("--stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("--log-with-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
        ("--no-log-hide-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
        ("--log-without-timestamp --log-level TRACE", {"HOROVOD_LOG_HIDE_TIME": "1", "HOROVOD_LOG_LEVEL": "TRACE"}),
        ("--tcp --mpi", {"NCCL_IB_DISABLE": "1", "HOROVOD_CONTROLLER": "mpi"}),
        (
            "--network-interface a --network-interfaces b,c",
            {"HOROVOD_GLOO_IFACE": "a", "NCCL_SOCKET_IFNAME": "a,b,c", "OMPI_MCA_btl_tcp_if_include": "a,b,c"},
        ),
    ],
)
def test_options_become_variables_of_the_library(words: str, variables: dict[str, str]) -> None:
    assert exported(words) == variables


def test_the_config_file_counts_unless_an_option_says_otherwise(config: Path) -> None:
    assert exported("--config-file c.yaml") == OF_CONFIG
    changed = {**OF_CONFIG, "HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_STALL_CHECK_DISABLE": "0"}
    for order in (
        "--fusion-threshold-mb 1 --stall-check --config-file c.yaml",
        "--config-file c.yaml --fusion-threshold-mb 1 --stall-check",
    ):
        assert exported(order) == changed
    mpi = {name: value for name, value in OF_CONFIG.items() if name != "HOROVOD_CPU_OPERATIONS"}
    assert exported("--config-file c.yaml --mpi") == {**mpi, "HOROVOD_CONTROLLER": "mpi"}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "controller: nccl",
            "[1, 2]",
            "params: 3",
            "parms: {}\nx: 1",
            "params: {cycle_time_ms: soon}",
            "params: {cache_capacity: 1.5}",
        ),
        *(
            "params: {cache_capacity: true}",
            "autotune: {enabled: 1}",
            "logging: {level: loud}",
            "a: {b: !!python/name:os.system x}",
        ),
        *(
            "autotune: {gaussian_process_noise: .nan}",
            "params: {cycle_time_ms: .inf}",
            "params: {fusion_threshold_mb: .inf}",
            "x",
        ),
    ],
)
def test_a_config_file_that_horovodrun_could_not_follow_is_an_error(config: Path, text: str) -> None:
    config.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        exported("--config-file c.yaml")
