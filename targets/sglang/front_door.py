"""What the adapter sets behind SGLang's front door, and what SGLang makes of the command in a report
(`base.front_door`). Importable without SGLang; compares a release that resolves its arguments (0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ..base.deployment import Deployment
from ..base.kits import Behind
from ..base.trace import Trace

MODEL = Path(__file__).parent / "model"
"""Configuration of a small model of the command's architecture."""

BEHIND: Sequence[Behind] = (
    Behind(
        "no model: pools, tree and scheduler are made from the trace's sizes, and tags are 8-byte words",
        (
            "context_length",
            "custom_weight_loader",
            "json_model_override_args",
            "load_format",
            "mem_fraction_static",
            "model_path",
            "served_model_name",
            "skip_tokenizer_init",
            "tokenizer_path",
            "uses_mamba_radix_cache",
        ),
    ),
    Behind(
        "no device: layers, and the padding of captured graphs, are stand-ins on the CPU",
        (
            "attention_backend",
            "boundary_reduction",
            "cuda_graph_config",
            "dcp_comm_backend",
            "device",
            "enable_tp_lm_head_all_to_all",
            "sampling_backend",
            "speculative_moe_runner_backend",
        ),
    ),
    Behind(
        "one rank of several: the others are the scenario's, and a server divides what the command gives it among them",
        ("attn_dp_size", "disaggregation_decode_extra_slots", "schedule_conservativeness", "tp_size"),
    ),
    Behind(
        "adapters are numbers that are added to the content of tokens",
        ("enable_lora", "lora_target_modules", "max_lora_rank"),
    ),
    Behind(
        "a stand-in for the reasoning parser of a model: each request says which token ends its reasoning",
        ("reasoning_parser",),
    ),
    Behind("the budget of a step is the scenario's, and set before the step", ("chunked_prefill_size",)),
    Behind(
        "HiCache's pools have the trace's sizes",
        ("hicache_host_memory_fraction",),
    ),
    Behind("chosen where the pools of a decode server are built", ("disaggregation_decode_retraction_backup",)),
    Behind("one tree serves requests and sessions, whether or not the trace has any", ("enable_streaming_session",)),
    Behind(
        "read by other processes than the scheduler's, or by features that no trace has",
        (
            "admin_api_key",
            "encoder_transfer_backend",
            "expert_distribution_recorder_buffer_size",
            "grammar_backend",
            "grpc_worker_threads",
            "load_balance_method",
            "mm_feature_transport",
            "mm_process_config",
        ),
    ),
    Behind(
        "notes of the resolution about what the command said",
        (
            "_radix_eviction_policy_explicitly_set",
            "_speculative_draft_quantization_explicitly_set",
            "_swa_full_tokens_ratio_explicitly_set",
        ),
    ),
    Behind("chosen at random for each server", ("random_seed",)),
)


def configurations(described: Deployment, trace: Trace) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments that SGLang resolves from a command, and those of the engine that runs the trace.

    The model is a small one of the command's architecture, and the platform is said to be a GPU's. Raises what SGLang
    raises for a command that it refuses.
    """
    from sglang.srt.arg_groups import mamba_hook
    from sglang.srt.arg_groups.arg_utils import record_fields
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    from .compat.parts import publish
    from .compat.sizes import sizes_of

    fields = [field.name for field in record_fields(ServerArgs)]
    own = ("--model-path", str(MODEL), "--skip-tokenizer-init", "--device", "cuda")
    server = prepare_server_args([*own, *described.flags, *described.sizes])
    with patch.object(mamba_hook, "_platform_supports_mamba_cache_extra_buffer", lambda: True):
        server.resolve_once()
    served, ran = resolved_view(server), publish(sizes_of(trace.config))
    return {name: getattr(served, name) for name in fields}, {name: getattr(ran, name) for name in fields}
