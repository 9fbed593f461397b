"""The variables by which `accelerate launch` passes its options on to a script (accelerate/utils/launch.py, 1.0 to 1.15).

Pure: a table of options by paradigm, and one function that makes the variables of the options in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpilaunch.cli.dialects.rows import InvalidArgument


class Group(NamedTuple):
    """Options that one paradigm passes on.

    Attributes:
        options: the prefix of their names, and what the prefix of their variables is.
        table: words OPTION=DEFAULT:VARIABLE, the option without the prefix; no variable is set where it has neither value nor
            default. Unless it is named, the variable is the option in upper case without DEEPSPEED_. A "!" before the option:
            its value is in lower case. A "?": it is a flag without a value.
    """

    options: str
    variables: str
    table: str

    def rows(self) -> list[tuple[str, str, str, bool, bool]]:
        """Return the name of each option, its default, its variable, and whether it is in lower case and a flag."""
        result = []
        for word in self.table.split():
            option, _, variable = word.partition(":")
            mark, _, default = option.partition("=")
            name = mark.lstrip("!?")
            variable = self.variables + (variable or name.upper().removeprefix("DEEPSPEED_"))
            result.append((self.options + name, default, variable, mark[0] == "!", mark[0] == "?"))
        return result


_DYNAMO = Group(
    "dynamo_",
    "ACCELERATE_DYNAMO_",
    """
    backend=NO mode=default ?use_fullgraph=False ?use_dynamic=False ?use_regional_compilation=False
    """,
)
_FP8 = Group(
    "fp8_",
    "ACCELERATE_FP8_",
    """
    backend ?use_autocast_during_eval=False margin=0 interval=1 format=HYBRID amax_history_len=1024
    amax_compute_algo=most_recent override_linear_precision=False,False,False opt_level=O2
    enable_fsdp_float8_all_gather=true pad_inner_dim=true
    """,
)
_DEEPSPEED = Group(
    "",
    "ACCELERATE_DEEPSPEED_",
    """
    zero_stage !offload_optimizer_device !offload_param_device offload_optimizer_nvme_path offload_param_nvme_path
    !zero3_init_flag:ZERO3_INIT !zero3_save_16bit_model deepspeed_config_file deepspeed_moe_layer_cls_names
    """,
)
_OF_ALL = Group(
    "",
    "ACCELERATE_",
    """
    gradient_accumulation_steps gradient_clipping
    """,
)
_FSDP = Group(
    "fsdp_",
    "FSDP_",
    """
    version=1 sharding_strategy=FULL_SHARD !reshard_after_forward=true !offload_params=false min_num_params=100000000
    auto_wrap_policy transformer_layer_cls_to_wrap:TRANSFORMER_CLS_TO_WRAP backward_prefetch state_dict_type
    !forward_prefetch=false !use_orig_params=true !cpu_ram_efficient_loading=true !sync_module_states=true
    !activation_checkpointing=false !activation_checkpointing_offload=false ignored_modules
    """,
)
_MEGATRON = Group(
    "megatron_lm_",
    "MEGATRON_LM_",
    """
    tp_degree=1 pp_degree=1 gradient_clipping=1.0 use_custom_fsdp=False no_load_optim=False eod_mask_loss=False
    no_save_optim=False optimizer_cpu_offload=False use_precision_aware_optimizer=False
    overlap_cpu_optimizer_d2h_h2d=False decoder_last_pipeline_num_layers num_micro_batches sequence_parallelism
    recompute_activations use_distributed_optimizer recompute_granularity recompute_method recompute_num_layers
    attention_backend expert_model_parallel_size context_parallel_size attention_dropout hidden_dropout
    attention_softmax_in_fp32 expert_tensor_parallel_size calculate_per_token_loss use_rotary_position_embeddings
    """,
)
_PARALLELISM = Group(
    "parallelism_config_",
    "PARALLELISM_CONFIG_",
    """
    dp_replicate_size=1 dp_shard_size=1 tp_size=1 cp_size=1 cp_backend=torch sp_size=1 sp_backend=deepspeed
    cp_comm_strategy=allgather sp_seq_length=None sp_seq_length_is_variable=True sp_attn_implementation=sdpa
    """,
)
GROUPS = {
    "dynamo": _DYNAMO,
    "fp8": _FP8,
    "deepspeed": _DEEPSPEED,
    "clipping": _OF_ALL,
    "fsdp": _FSDP,
    "megatron": _MEGATRON,
    "parallelism": _PARALLELISM,
}
USES = {
    "deepspeed": "ACCELERATE_USE_DEEPSPEED",
    "fsdp": "ACCELERATE_USE_FSDP",
    "megatron": "ACCELERATE_USE_MEGATRON_LM",
    "parallelism": "ACCELERATE_USE_PARALLELISM_CONFIG",
}
"""The variable that says that a paradigm is in use."""

CHOICES = {
    "mixed_precision": "no fp16 bf16 fp8",
    "dynamo_backend": "no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt "
    "aot_torchxla_trace_once torhchxla_trace_once tvm",
    "dynamo_mode": "default reduce-overhead max-autotune",
    "fsdp_version": "1 2",
    "fp8_backend": "ao te msamp",
    "fp8_format": "hybrid e4m3 e5m2",
    "fp8_amax_compute_algo": "max most_recent",
    "fp8_opt_level": "o1 o2",
    "parallelism_config_cp_backend": "torch",
    "parallelism_config_sp_backend": "deepspeed",
}
"""The values of options that have a few, in lower case."""
_UPPER = frozenset({"dynamo_backend"})
_ONLY_ABOVE_1 = {"cp_comm_strategy": "cp_size", "sp_seq_length": "sp_size", "sp_attn_implementation": "sp_size"}
"""Variables of a parallelism that is only passed on if its size is more than 1."""


def check_choices(values: Mapping[str, str]) -> None:
    """Raise InvalidArgument for a value that its option does not have."""
    for name, words in CHOICES.items():
        if name in values and values[name].lower() not in words.split():
            raise InvalidArgument(f"--{name}: unknown value '{values[name]}'", f"use {', '.join(words.split())}")


def variables(groups: frozenset[str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of some groups of options; `values` are those of all options that are given."""
    result: dict[str, str] = {}
    for group in GROUPS:
        if group not in groups:
            continue
        if group in USES:
            result[USES[group]] = "true"
        for name, default, variable, lower, _ in GROUPS[group].rows():
            if text := values.get(name, default):
                result[variable] = text.lower() if lower else text.upper() if name in _UPPER else text
    if (three := result.pop("ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION", None)) is not None:
        names = ("FPROP", "DGRAD", "WGRAD")
        texts = three.split(",")
        if len(texts) != len(names):
            raise InvalidArgument(f"--fp8_override_linear_precision: '{three}'", "give three values, like false,false,true")
        result |= {f"ACCELERATE_FP8_OVERRIDE_{name}": text for name, text in zip(names, texts, strict=True)}
    return {name: text for name, text in result.items() if _in_use(name, result)}


def _in_use(variable: str, given: Mapping[str, str]) -> bool:
    """Return whether a variable of a parallelism counts: its size is more than 1."""
    prefix = _PARALLELISM.variables
    for start, size in _ONLY_ABOVE_1.items():
        if variable.startswith(prefix + start.upper()):
            return given.get(prefix + size.upper(), "1") != "1"
    return True
