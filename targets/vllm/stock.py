"""The stock server of a vLLM release: `vllm serve MODEL` of a hybrid model, on a GPU. Importable without vLLM.

Defaults of 0.33.0, with where they stand there:

    prefix caching, mode align   `ModelConfig.is_prefix_caching_supported`, `MambaModelConfig.verify_and_update_config`
    sparse retention             `CacheConfig.prefix_cache_retention_interval = 0`
    lookahead hashes             `SpeculativeConfig.disable_lookahead_block_hashes = False`; none with KV connectors
    asynchronous scheduling      `VllmConfig.__post_init__`, where executor and drafter allow it
    full decode graphs           `CompilationConfig.cudagraph_mode`: FULL_AND_PIECEWISE
    fcfs, whole prompts          `SchedulerConfig.policy`, `scheduler_reserve_full_isl`
    load failures fail           `KVTransferConfig.kv_load_failure_policy`

The model runner is an implementation (`deployment`), the state layer and the attention kernels are the model's and the
platform's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base.stock import Setting
from ..base.trace import Config
from .release import Release

_SETTINGS = (
    Setting("streaming input sessions, by AsyncLLM in Python", events=frozenset({"resume"}), is_rare=True),
    Setting("--prefix-match-unit", {"prefix_match_unit": "0"}, is_rare=True),
    Setting("--use-replayssm", {"replay": "0"}, is_rare=True),
    Setting("VLLM_SSM_CONV_STATE_LAYOUT=DS", {"conv_layout": "SD"}, is_rare=True),
    Setting("--prefix-cache-retention-interval", {"retention": "default"}, is_rare=True),
    Setting("--prefill-schedule-interval", {"prefills": "eager"}, is_rare=True),
    Setting("--no-scheduler-reserve-full-isl", {"admission": "prompt"}, is_rare=True),
    Setting("disable_lookahead_block_hashes", {"hashing": "lookahead"}, is_rare=True),
    Setting("--long-prefill-token-threshold", {"long_prefill_token_threshold": "0"}),
    Setting("POST /reset_prefix_cache", events=frozenset({"reset_prefix_cache"})),
    Setting("POST /reset_encoder_cache", events=frozenset({"reset_encoder_cache"})),
    Setting("a preemption at a moment that the scenario chooses", events=frozenset({"preempt"})),
    Setting("--kv-events-config", {"reports": "none"}),
    Setting("--pipeline-parallel-size", {"pipeline": "none"}),
    Setting("--data-parallel-size", {"data_parallel": "1", "dp": "1"}, events=frozenset({"dummy_run"})),
    Setting("kv_load_failure_policy=recompute", {"load_failure": "fail"}),
    Setting(
        "--kv-transfer-config",
        {"connector": "none"},
        {
            "sync": "--kv-transfer-config with sync_load_budget_bytes",
            "offloading": "--kv-transfer-config with OffloadingConnector",
            "simple_cpu": "--kv-transfer-config with SimpleCPUOffloadConnector",
        },
        rare=frozenset({"sync"}),
    ),
    Setting("--scheduling-policy priority", {"policy": "fcfs"}),
    Setting("--enforce-eager", {"graphs": "decode"}),
    Setting(
        "--no-async-scheduling",
        {"async_depth": "1"},
        {"2": "--pipeline-parallel-size with --async-scheduling"},
    ),
    Setting(
        "--mamba-cache-mode",
        {"mamba_cache_mode": "align", "enable_prefix_caching": "true"},
        {"none": "--no-enable-prefix-caching", "all": "--mamba-cache-mode all"},
        rare=frozenset({"all"}),
    ),
    Setting("--speculative-config", {"num_speculative_tokens": "0", "eagle_block_drop": "false"}, is_common=True),
    Setting("inputs", {"inputs": "tokens"}, {"images": "images in prompts", "adapters": "--enable-lora or cache_salt"}),
)


def stock_of(release: Release, options: Mapping[str, tuple[str, ...]]) -> tuple[Setting, ...] | None:
    """Return the settings of a release with these options, None for one whose defaults are not known to be those of
    0.33.0. A setting whose option is gone, as on a checkout, is left out."""
    if not release.coordinates:
        return None

    def has(name: str, value: str) -> bool:
        return name in (*Config.__struct_fields__, "dp") or value in options.get(name, ())

    return tuple(one for one in _SETTINGS if all(has(name, value) for name, value in one.stock.items()))
