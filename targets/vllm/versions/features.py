"""What a vLLM release has and how it computes, found by feature detection.

Version numbers are never compared, so that a checkout between two releases works as well. `release.installed` gathers
what decides which traces can be run; the rest is read where it matters.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib.util import find_spec
from typing import Any, get_args

from vllm.config import SchedulerConfig, VllmConfig
from vllm.v1.core import kv_cache_utils

from ....reference.layout import Mode
from .wrapping import parameters


def cache_modes() -> tuple[Mode, ...]:
    """Return the mamba cache modes: all up to 0.31, for Mamba 1 and 2 (the default there up to 0.27).

    Releases without the switch have it for these layers only, and no align mode.
    """
    from vllm.config import CacheConfig, cache

    if "mamba_cache_mode" not in CacheConfig.__dataclass_fields__:
        return "none", "all"
    return ("align", "none", "all") if "all" in get_args(cache.MambaCacheMode) else ("align", "none")


def mixers() -> tuple[str, ...]:
    """Return the state layers that a trace can have: Mamba 1 only where there is mode all, the mode made for it."""
    others = ("short_conv", "linear")
    return ("gdn", "mamba2", "mamba1", *others) if "all" in cache_modes() else ("gdn", "mamba2", *others)


def plain_mixers() -> frozenset[str]:
    """Return the state layers that do not speculate: Mamba 1, up to 0.16 Mamba 2, up to 0.24 plain linear attention and
    up to 0.28 short convolutions."""
    from vllm.v1.attention.backends import mamba_attn
    from vllm.v1.worker import gpu_model_runner

    plain = {"mamba1"}
    if "use_spec_decode" not in inspect.getsource(mamba_attn):
        plain.add("mamba2")
    # The V1 runner passes the accepted counts to the builders that it lists.
    listed = inspect.getsource(gpu_model_runner)
    plain |= {
        mixer
        for mixer, builder in (
            ("short_conv", "ShortConvAttentionMetadataBuilder"),
            ("linear", "BailingLinearAttentionMetadataBuilder"),
        )
        if builder not in listed
    }
    return frozenset(plain)


def speculative_modes() -> tuple[Mode, ...]:
    """Return the cache modes in which this release speculates: align since 0.17, all where Mamba 2 speculates.

    PR #40454 (0.20) replaced all by align where there is speculation, until #41233 (0.22).
    """
    from vllm.model_executor.models import config as configuration

    source = inspect.getsource(configuration)
    if "currently not compatible " in source or "align" not in cache_modes():
        return ("none",)
    replaced = "when prefix caching and speculative decoding are enabled" in source
    return ("align", "none") if replaced or "all" not in cache_modes() else ("align", "none", "all")


def limits_of_a_block() -> frozenset[str]:
    """Return the limits of a step that must hold a block in mode align: one of them since 0.15, none since 0.27.

    vLLM compares them with the sizes that it derives from the model, which are not the trace's.
    """
    source = inspect.getsource(VllmConfig)
    checks = {
        "max_num_batched_tokens": r"block_size\s*<=\s*self\.scheduler_config\.max_num_batched_tokens",
        "long_prefill_token_threshold": r"long_prefill_token_threshold\s*>=\s*(self\.cache_config\.)?block_size",
    }
    return frozenset(name for name, check in checks.items() if re.search(check, source))


def aligns_tables() -> bool:
    """Return True if all block tables are as wide as a multiple of 128 tokens (0.21 to 0.26).

    The buffers for graphs of mode all are not: capturing fails with blocks of less than 128 tokens, which no real model
    has in that mode.
    """
    from vllm.v1.worker import block_table

    return "128 // bs" in inspect.getsource(block_table)


def has_v2() -> bool:
    """Return True if the V2 runner can run on a CPU and takes a hybrid model in mode align (0.25 and later)."""
    refusals = getattr(VllmConfig, "_get_v2_model_runner_unsupported_features", None)
    refuses = refusals is not None and "hybrid/mamba models" in inspect.getsource(refusals)
    return find_spec("vllm.v1.worker.cpu") is not None and has_prefill_indices() and not refuses


def has_prefill_indices() -> bool:
    """Return True if GDN metadata splits decode rows in a batch with prefills from the prefills."""
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

    return "prefill_state_indices" in GDNAttentionMetadata.__dataclass_fields__


def is_v2_drafting_as_eagle() -> bool:
    """Return True if the V2 runner refuses the n-gram method: the drafter then passes as MTP, with EAGLE's rules."""
    from vllm.v1.worker.gpu import model_runner

    make = getattr(model_runner, "init_speculator", None)
    return make is not None and "req_states" not in parameters(make)


def v2_drafts_ahead() -> bool:
    """Return True if the V2 runner can schedule ahead of this target's drafter: 0.32 refuses n-gram drafts there."""
    refuses = "async scheduling is only supported" in inspect.getsource(VllmConfig.__post_init__)
    return is_v2_drafting_as_eagle() or not refuses


def has_device_drafter() -> bool:
    """Return True if the V1 runner can speculate with drafts that stay on the device (0.18 and later)."""
    return find_spec("vllm.v1.spec_decode.ngram_proposer_gpu") is not None


def has_draft_layers() -> bool:
    """Return True if a drafter's layers are marked, and its speculator reuses the model's metadata (0.32 and later)."""
    return find_spec("vllm.v1.worker.gpu.spec_decode.target_dependent_ar") is not None


def caches_asynchronously() -> bool:
    """Return True if this release schedules asynchronously with a prefix cache of states."""
    from vllm.config import vllm as configuration

    refusal = r'async scheduling is not compatible with["\s]*prefix caching'
    return not re.search(refusal, inspect.getsource(configuration))


def can_preempt_in_flight(scheduler: Any) -> bool:
    """Return True if a request can lose its blocks between two steps while a result of it is in flight.

    Earlier releases preempt only while they schedule; they assert that a resumed request was not in the step before,
    and would deliver a token in flight twice.
    """
    return "drop_stale_output" in parameters(type(scheduler)._preempt_request)  # the target wraps the instance's


def has_graph_choice() -> bool:
    """Return True if the graphs to capture can be listed (0.15 and later)."""
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    return hasattr(CudagraphDispatcher, "get_capture_descs")


def graphs_need_a_state_per_seat() -> bool:
    """Return True if a release refuses decode graphs with fewer blocks than `max_num_seqs` (after #34094)."""
    from vllm.config import CompilationConfig

    resolve = getattr(CompilationConfig, "resolve_cudagraph_mode_and_sizes", None)
    return resolve is not None and "max_num_reqs" in parameters(resolve)


def zeroes_blocks() -> bool:
    """Return True if this release zeroes blocks at all (PR #35219)."""
    from vllm.v1.kv_cache_interface import KVCacheConfig

    return hasattr(KVCacheConfig, "needs_kv_cache_zeroing")


def has_connectors() -> bool:
    """Return True if a KV connector can serve a hybrid model with all of its results (0.32 and later): loads that fail
    as a whole, states handed off at boundaries, blocks that are not zeroed because a load writes them."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    names = "bind_kv_cache_manager", "get_transfer_results", "get_loaded_kv_cache_group_ids"
    return all(hasattr(base.KVConnectorBase_V1, name) for name in names)


def has_sessions() -> bool:
    """Return True if streaming input sessions can be driven: those whose waiting turns keep a queue and a place in the
    batch of their own (0.31 and later)."""
    from vllm.v1.core.sched.scheduler import Scheduler

    names = "_update_request_as_session", "_holds_kv_blocks"
    return all(hasattr(Scheduler, name) for name in names)


def has_serving_options() -> bool:
    """Return True if prefills can be spaced, the scheduler paused, and removals of keys are reported (since 0.31)."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched import interface

    names = {"prefill_schedule_interval", "long_prefill_token_threshold_adaptive"}  # the second since 0.31
    spaced = names <= SchedulerConfig.__dataclass_fields__.keys()
    return spaced and hasattr(interface, "PauseState") and hasattr(BlockPool, "_emit_block_removed_events")


def has_admission_choice() -> bool:
    """Return True if a prompt may be admitted without room for all of it."""
    return "scheduler_reserve_full_isl" in SchedulerConfig.__dataclass_fields__


def has_local_groups() -> bool:
    """Return True if groups of local attention may stand beside full attention and states, and all of their specs take
    the size of a value's head (0.28 and later).
    """
    from vllm.v1.core import kv_cache_coordinator
    from vllm.v1.kv_cache_interface import AttentionSpec

    return hasattr(kv_cache_coordinator, "SpecGroup") and "head_size_v" in AttentionSpec.__dataclass_fields__


def has_partial_hits() -> bool:
    """Return True if a hit may end inside a block, on a grid that the configuration can choose (0.32 and later)."""
    return hasattr(kv_cache_utils, "resolve_cache_hit_alignment_tokens")


def coordinates_ranks() -> bool:
    """Return True if data-parallel ranks exchange exactly the fields that `peer` fills in (0.33)."""
    if not has_v2():
        return False
    from vllm.v1.worker.dp_utils import _run_ar
    from vllm.v1.worker.gpu import dp_utils

    state = getattr(dp_utils, "DPSyncState", None)
    exchanged = {"num_tokens_across_dp", "uniform_token_count", "eager", "num_reqs", "skip_drafts"}
    ours = ["should_ubatch", "orig_num_tokens_per_ubatch", "padded_num_tokens_per_ubatch", "cudagraph_mode"]
    known = state is not None and set(state.__dataclass_fields__) == exchanged
    return known and list(parameters(_run_ar))[:4] == ours


def shares_state_indices() -> bool:
    """Return True if the groups of GDN layers share metadata, with state indices computed for all at once (0.31 and
    later)."""
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder

    return "mamba_aligned_state_indices" in inspect.getsource(GDNAttentionMetadataBuilder)


def stores_inner_states() -> bool:
    """Return True if a chunk of a Mamba 2 layer may leave a state at a boundary inside it (0.32 and later)."""
    from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadata

    return "checkpoint_meta" in Mamba2AttentionMetadata.__dataclass_fields__


def skipped_state() -> int:
    """Return the state index that kernels skip: the null block (PR #35431) or, before 0.20, -1 (`PAD_SLOT_ID`)."""
    from vllm.v1.attention.backends import utils

    return 0 if hasattr(utils, "NULL_BLOCK_ID") else -1


def window_rules() -> frozenset[str]:
    """Return the rules by which mode all places windows of the convolution, each a cause with a packaged patch.

    source    a chunk shorter than the window stores it to the block that it was read from (#56196)
    programs  a program stores the window of one boundary at most, from the tokens of the batch
    computed  a verification reads the window at the column of the last computed token
    """
    from vllm.model_executor.layers.mamba import mamba_mixer2
    from vllm.model_executor.layers.mamba.ops import causal_conv1d

    kernel, mixer = inspect.getsource(causal_conv1d), inspect.getsource(mamba_mixer2)
    rules = {
        "source": re.search(r"= \(\s*conv_states_base\s*\+ \(idx_tokens_conv", kernel),
        "programs": "(chunk_offset - 1) < n_block_to_fill" in kernel,
        "computed": "initial_state_idx=block_idx_last_computed_token_d," in mixer,
    }
    return frozenset(name for name, follows in rules.items() if follows)


def has_replay() -> bool:
    """Return True if Mamba 2 can replay inputs instead of storing states in each decode (ReplaySSM), as since 0.32."""
    from vllm.v1.attention.backends import mamba_attn

    return "replayssm_state_indices_d" in mamba_attn.BaseMambaAttentionMetadata.__dataclass_fields__


@cache
def has_file_tier() -> bool:
    """Return True if files may stand behind the host's memory of vLLM's own connector."""
    return find_spec("vllm.v1.kv_offload") is not None and find_spec("vllm.v1.kv_offload.tiering") is not None


@cache
def has_simple_offload() -> bool:
    """Return True if there is the simple connector with host memory, whose blocks may also be in a file (0.33)."""
    return all(find_spec(f"vllm.v1.{name}") for name in ("simple_kv_offload", "simple_kv_offload.disk_backend"))


@cache
def has_conv_layouts() -> bool:
    """Return True if the layout of windows can be chosen and states in both can be moved (0.26 and later).

    Kept, since each engine asks, and reading the source takes longer than building the rest of it.
    """
    try:
        from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext as Context
    except ImportError:
        return False
    return "state_dim_row_count" in inspect.getsource(Context)


def has_junctions() -> bool:
    """Return True if states can also be published where prompts fork beside EAGLE (0.31 and later)."""
    from vllm.config import CacheConfig

    return "enable_mamba_shared_prefix_checkpoint" in CacheConfig.__dataclass_fields__


def has_lookahead_hashes() -> bool:
    """Return True if a block's hash covers the token behind it beside EAGLE or MTP drafts (0.33)."""
    from vllm.config import SpeculativeConfig

    return "disable_lookahead_block_hashes" in SpeculativeConfig.__dataclass_fields__


def has_structured_output() -> bool:
    """Return True if the drafts of a planned step are validated by grammars, and sampling may wait for that (0.33)."""
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    names = StructuredOutputManager, "_create_grammar"
    late = "pending_structured_output_tokens" in SchedulerOutput.__dataclass_fields__
    return late and hasattr(*names) and hasattr(Scheduler, "update_draft_token_ids_in_output")


def has_reasoning() -> bool:
    """Return True if a grammar holds from the end of the reasoning on, which a parser of the request finds (0.33)."""
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    by_request = "reasoning_parser_kwargs" in inspect.signature(Request).parameters
    return by_request and hasattr(StructuredOutputManager, "_get_constraint_bounds")


@cache
def has_budgets_in_slots() -> bool:
    """Return True if the V2 runner's sampler keeps budgets of thinking tokens by the slot of a request."""
    return find_spec("vllm.v1.worker.gpu.sample.thinking_budget") is not None


def has_parameters_in_slots() -> bool:
    """Return True if the V2 runner's sampler keeps the parameters of a request by its slot, each kind in a processor of
    logits (0.31)."""
    return find_spec("vllm.v1.worker.gpu.sample.logits_processor") is not None
