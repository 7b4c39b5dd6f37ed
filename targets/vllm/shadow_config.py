"""A trace's configuration as the `VllmConfig` of an engine with shadow layers. Differences between releases are in
`compat` and `features`."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any

from vllm.config import DeviceConfig, VllmConfig

from ...reference.tokens import SHARED, VOCABULARY, document_token
from ..base.trace import Config
from .options import is_v2 as has_v2
from .options import reports_all, varies_sampling
from .sizes import Sizes, has_eagle_rules, sizes_of
from .versions import as_on_gpu, features
from .versions.wrapping import replaced
from .vllm_config import build, cache_config, model_config

MODEL = Path(__file__).parent / "model"
"""The `config.json` of a hybrid model that vLLM knows; its layers are never built. Its chunks are as long as the
smallest blocks, its vocabulary is the reference's `VOCABULARY`."""
_WIDE = 4096
"""Tokens: more than any block."""
START_OF_REASONING = document_token(SHARED, 5)
"""The token that begins the reasoning that a thinking budget counts, taken from a document that many prompts share."""
END_OF_REASONING = VOCABULARY - 2
"""The token that ends it, by the model's choice or by force."""


def has_budgets(config: Config) -> bool:
    """Return True if requests may have a budget of thinking tokens."""
    return varies_sampling(config) and has_v2(config) and features.has_budgets_in_slots()


def reasoning_config() -> Any:
    """Return vLLM's configuration of the markers, which it would take from a tokenizer."""
    from vllm.config.reasoning import ReasoningConfig

    made = ReasoningConfig()
    made._reasoning_start_token_ids = [START_OF_REASONING]
    made._reasoning_end_token_ids = made._natural_reasoning_end_token_ids = [END_OF_REASONING]
    made._enabled = True
    return made


def configure(config: Config, is_v2: bool) -> VllmConfig:
    """Return the configuration of one engine."""
    sizes = sizes_of(config)
    if drafts_as_eagle(config, is_v2):
        sizes = sizes._replace(method="mtp")
    model = pickle.loads(_pickled_model(sizes.max_model_len, is_v2))
    made = build(sizes, model, cache_config(sizes), make=_make, device_config=DeviceConfig("cpu"))
    assert made.scheduler_config.enable_chunked_prefill
    assert getattr(made.cache_config, "mamba_cache_mode", config.mamba_cache_mode) == config.mamba_cache_mode
    if reports_all(config):
        report_all(made)
    if has_budgets(config):
        made.reasoning_config = reasoning_config()
    return made


@cache
def _pickled_model(max_model_len: int, is_v2: bool) -> bytes:
    """Return the model's configuration as vLLM hands it to a worker's process: each engine reads one of its own.

    Building it takes a sixth of the opening of an engine, and depends on nothing else but the runner that the
    environment names.
    """
    sizes = Sizes(0, 0, 0, 0, 0, max_model_len, max_num_seqs=0, max_num_batched_tokens=0)
    return pickle.dumps(model_config(sizes, str(MODEL)))


def _make(scheduler_config: Any, **parts: Any) -> VllmConfig:
    tokens, threshold = scheduler_config.max_num_batched_tokens, scheduler_config.long_prefill_token_threshold
    try:
        with replaced(*as_on_gpu.without_amx()):
            return VllmConfig(scheduler_config=scheduler_config, **parts)
    except ValueError as error:
        # Up to 0.17 limits are compared with the block size of the model in `MODEL`, which is not the trace's: see
        # `kit_limits`. Some of the assertions have no message.
        if "Assertion failed" not in str(error):
            raise
    scheduler_config.max_num_batched_tokens, scheduler_config.long_prefill_token_threshold = max(tokens, _WIDE), 0
    made = VllmConfig(scheduler_config=scheduler_config, **parts)
    made.scheduler_config.max_num_batched_tokens = tokens
    made.scheduler_config.long_prefill_token_threshold = threshold
    return made


def report_all(vllm_config: Any) -> None:
    """Switch statistics and KV events on."""
    from . import cache_events

    cache_events.switch_on(vllm_config)
    observed = vllm_config.observability_config
    observed.kv_cache_metrics, observed.kv_cache_metrics_sample = True, 1.0
    if vllm_config.speculative_config:
        observed.per_request_spec_decode_metrics = "detailed"


def drafts_as_eagle(config: Config, is_v2: bool) -> bool:
    """Return True if the drafter passes as MTP: the last matched block of a hit is then computed again."""
    return has_eagle_rules(config) or (is_v2 and features.is_v2_drafting_as_eagle())
