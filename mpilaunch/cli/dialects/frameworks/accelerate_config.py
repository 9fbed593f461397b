"""The config file of `accelerate launch`, which `accelerate config` writes, as values of its options.

It reads that file and nothing else; what the values mean is decided in `accelerate`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mpilaunch.cli.dialects.frameworks.accelerate_variables import GROUPS
from mpilaunch.cli.dialects.rows import Surroundings
from mpilaunch.cli.files import parse_yaml, read_unnamed
from mpilaunch.errors import UsageError

_PARADIGMS = {
    **dict.fromkeys(("NO", "MULTI_CPU"), ""),
    **{f"MULTI_{device}": "multi_gpu" for device in ("GPU", "NPU", "MLU", "SDAA", "MUSA", "XPU", "HPU", "NEURON")},
    "DEEPSPEED": "use_deepspeed",
    "FSDP": "use_fsdp",
    "MEGATRON_LM": "use_megatron_lm",
}
"""The value of `distributed_type`, and the option that means the same."""
_OPTIONS = """num_processes machine_rank num_machines gpu_ids main_process_ip main_process_port mixed_precision use_cpu debug
    enable_cpu_affinity dynamo_backend"""
_WITHOUT_EFFECT = """compute_environment distributed_type rdzv_backend same_network main_training_function fp16 downcast_bf16
    tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env"""
"""Keys that are options, and those that are read elsewhere, or count only for a TPU or for torchrun."""
_NO = ("distributed_type", "mixed_precision", "dynamo_backend")
"""Keys whose value NO is a boolean in YAML if it stands without quotes."""
_SECTIONS = {
    "fp8_config": "fp8_",
    "deepspeed_config": "",
    "fsdp_config": "fsdp_",
    "parallelism_config": "",
    "megatron_lm_config": "",
    "mpirun_config": "",
    "dynamo_config": "dynamo_",
}
"""The sections, and the prefix of options that their keys may lack."""
_OF_NODES = """deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher
    mpirun_hostfile mpirun_ccl"""
_IN_SECTIONS = {*_OF_NODES.split(), *(row[0] for group in GROUPS.values() for row in group.rows())}


class Config(NamedTuple):
    """A config file: the values of options, the paradigm, keys of the section of DeepSpeed, and keys without effect."""

    values: Mapping[str, str] = {}
    paradigm: str = ""
    deepspeed_fields: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_config(path: str | None, around: Surroundings, *, cpu: bool) -> Config:
    """Return the config file that the user names, else the default one if it exists; raises UsageError.

    Args:
        cpu: the command line asks for CPUs, so the default file does not count.
    """
    if path is not None:
        return _of_text(path, around.read_file(path, "config file"))
    environ = around.environ
    home = environ.get("HOME", "")
    cache = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    file = os.path.join(cache.replace("~", home, 1) if cache.startswith("~/") else cache, "accelerate", "default_config.yaml")
    text = None if cpu else read_unnamed(file, "config file")
    return Config() if text is None else _of_text(file, text)


def _of_text(path: str, text: str) -> Config:
    data, _ = parse_yaml(path, text)
    if not isinstance(data, dict):
        raise _error(path, "not a table of keys", "run `accelerate config` to write one")
    if data.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise _error(path, f"compute_environment {data['compute_environment']}", "use accelerate's own launch for SageMaker")
    data = {key: "no" if value is False and key in _NO else value for key, value in data.items()}
    kind = str(data.get("distributed_type", "")).upper()
    if kind not in _PARADIGMS:
        hint = "write one of " + ", ".join(_PARADIGMS) + "; for a TPU use torch_xla's or accelerate's own launch"
        raise _error(path, f"distributed_type '{kind}' is not supported", hint)
    values: dict[str, str] = {}
    unknown: list[str] = []
    for key, value in data.items():
        if key in _SECTIONS and isinstance(value, dict | None):
            for name, text in _section(value or {}, _SECTIONS[key]):
                if name in _IN_SECTIONS:
                    values[name] = text
                else:
                    unknown.append(f"{key}.{name}")
        elif key in _OPTIONS.split() and value is not None and not isinstance(value, dict):
            values[key] = _text(value)
        elif key not in (*_OPTIONS.split(), *_WITHOUT_EFFECT.split()):
            raise _error(path, f"unknown key '{key}'", "remove it; accelerate refuses it too")
    if str(data.get("fp16", "")).lower() == "true":
        values.setdefault("mixed_precision", "fp16")
    paradigm = _PARADIGMS[kind]
    return Config(values, paradigm, tuple(map(str, data.get("deepspeed_config") or ())), tuple(unknown))


def _section(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        key = str(name)
        if value is not None:
            yield key if key.startswith(prefix) else prefix + key, _text(value)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _error(path: str, message: str, hint: str) -> UsageError:
    return UsageError("option-value", f"{path}: {message}", hint=hint)
