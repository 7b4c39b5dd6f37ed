"""What the adapter sets behind vLLM's front door, and what vLLM makes of the command in a report (`base.front_door`).

Importable without vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ..base.deployment import Deployment
from ..base.kits import Behind
from ..base.trace import Trace
from .deployment import DRAFTER

_CHECKPOINT = {"--load-format": 2, "--hf-overrides": 2, "--use-replayssm": 1, "--reasoning-parser": 2}
"""Flags that only the command's checkpoint takes, or its tokenizer, each with its number of words."""
_PARALLEL = ("speculative_config.draft_parallel_config", "speculative_config.target_parallel_config")
_MODELS = ("model_config", "speculative_config.draft_model_config", "speculative_config.target_model_config")


BEHIND: Sequence[Behind] = (
    Behind(
        "block sizes are the trace's; vLLM derives them from the size of a real model's states",
        tuple(
            f"cache_config.{name}"
            for name in ("block_size", "mamba_block_size", "mamba_page_size_padded", "user_specified_block_size")
        ),
    ),
    Behind("tags are exact 8-byte words, whatever the model's dtype is", tuple(f"{model}.dtype" for model in _MODELS)),
    Behind(
        "shadow layers are not compiled: the largest captured batch is given, and no kernel is warmed up",
        (
            *(f"{model}.enforce_eager" for model in _MODELS),
            *(
                f"compilation_config.{name}"
                for name in (
                    "custom_ops",
                    "inductor_compile_config",
                    "max_cudagraph_capture_size",
                    "mode",
                    "pass_config",
                )
            ),
            "kernel_config.enable_jit_warmup",
        ),
    ),
    Behind(
        "one process: vLLM's coordination of data-parallel ranks runs, and gets the answers of the other rank",
        tuple(
            f"parallel_config.{name}"
            for name in (
                "_data_parallel_master_port_list",
                "data_parallel_master_port",
                "data_parallel_rank_local",
                "data_parallel_size",
                "data_parallel_size_local",
                "elastic_ep_max_dp_size",
            )
        ),
    ),
    Behind(
        "one process: the scheduler plans for two pipeline stages, of which the last one runs",
        ("parallel_config.pipeline_parallel_size", "parallel_config.world_size"),
    ),
    Behind(
        "set at start-up, which the command alone does not reach: from the cache's plan and the layers",
        (
            *(
                f"cache_config.{name}"
                for name in (
                    "num_gpu_blocks",
                    "hash_block_size",
                    "cache_hit_alignment_tokens",
                    "kv_cache_layout",
                    "simple_cpu_offload_num_blocks",
                )
            ),
            "compilation_config.static_forward_context",
        ),
    ),
    Behind("the drafter runs in the process of the model", _PARALLEL),
    Behind("the scenario's own connector stands behind vLLM's connector API", ("kv_transfer_config",)),
    Behind("adapters have no weights: scheduler and runner are given their number", ("lora_config",)),
    Behind(
        "the markers of reasoning are given as tokens, which a server takes from its tokenizer", ("reasoning_config",)
    ),
    Behind(
        "ReplaySSM is switched on behind vLLM's check that the architecture, which is the shadow layers', has it",
        (
            *(f"cache_config.{name}" for name in ("use_replayssm", "replayssm_buffer_len")),
            "mamba_config.backend",
        ),
    ),
    Behind("KV cache events are read in the process instead of from a socket", ("kv_events_config.publisher",)),
    Behind("chosen at random for each engine", ("instance_id",)),
)


def at_the_door(parsed: Any) -> Mapping[str, Any]:
    """Return the fields of the configuration that vLLM's platform for CPUs changes after they were parsed, as parsed:
    a GPU's would leave them. `parsed` is vLLM's `EngineArgs`."""
    found: dict[str, Any] = {"scheduler_config.async_scheduling": parsed.async_scheduling}
    if not parsed.enforce_eager:
        found |= {
            "compilation_config.cudagraph_mode": parsed.compilation_config.cudagraph_mode,
            "compilation_config.cudagraph_capture_sizes": parsed.cudagraph_capture_sizes,
        }
    return found


def configurations(described: Deployment, trace: Trace) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the fields of the configuration that vLLM makes of a command, and of the one that runs the trace.

    The model is the one of the shadow layers instead of the command's checkpoint, and its own MTP layer instead of an
    EAGLE checkpoint. Sizes are those of the trace. Raises what vLLM raises for a command that it refuses.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from .shadow_config import MODEL
    from .shadow_kit import shadow_engine

    words = [*described.flags, *described.sizes]
    for flag in _CHECKPOINT.keys() & set(words):
        del words[words.index(flag) : words.index(flag) + _CHECKPOINT[flag]]
    words = [word.replace(f'"method": "eagle3", "model": "{DRAFTER}"', '"method": "mtp"') for word in words]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = EngineArgs.from_cli_args(parser.parse_args(["--model", str(MODEL), "--skip-tokenizer-init", *words]))
    ran = shadow_engine(trace.config).vllm_config
    return {**leaves(parsed.create_engine_config()), **at_the_door(parsed)}, leaves(ran)


def leaves(configuration: Any) -> Mapping[str, Any]:
    """Return the leaves of nested dataclasses, by the path to each."""
    return dict(_leaves(configuration, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not is_dataclass(value) or isinstance(value, type):
        yield path, value
        return
    for field in fields(value):
        yield from _leaves(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)
