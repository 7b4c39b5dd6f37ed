"""Every difference between the vLLM releases that the target drives (0.14 to 0.33).

Differences are found by feature detection, never by comparing version numbers, so that a checkout between two releases
works as well.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, get_args

from vllm.config import SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.v1.core import kv_cache_utils

from ...reference.layout import Mode
from ..base.trace import Group, TraceError


class CachePlan(NamedTuple):
    """vLLM's plan of groups and blocks: `KVCacheConfig` of worker and scheduler, and two block sizes in tokens."""

    worker: Any
    scheduler: Any
    block_size: int
    hash_block_size: int


_signature = functools.cache(inspect.signature)


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; those of a bound method include `self`."""
    return _signature(getattr(function, "__func__", function)).parameters


@contextlib.contextmanager
def too_small_is_a_refusal() -> Iterator[None]:
    """Turn the check of newer releases that the pool fits the longest request into a TraceError: it is not a crash."""
    try:
        yield
    except ValueError as error:
        if "at least one request" not in str(error):
            raise
        raise TraceError("configuration: vLLM wants a larger pool for the longest request: raise num_blocks") from error


def _resolved_layout(config: VllmConfig, specs: dict[str, Any]) -> str:
    """Return the memory layout for releases that choose one (0.29 and later), "" for older ones."""
    try:
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    except ImportError:
        return ""
    layout: str = resolve_kv_cache_layout(config, [["LBHNC"]], list(specs.values())).name
    config.cache_config.kv_cache_layout = layout
    return layout


def plan_cache(config: VllmConfig, specs: dict[str, Any], memory: int) -> CachePlan:
    """Let vLLM form the KV cache groups and size the pool.

    Newer releases plan in a module of their own and choose a memory layout; "LBHNC" (layer outermost) keeps one
    tensor per layer slot, which groups overlay: the arrangement of the older releases.
    """
    layout = _resolved_layout(config, specs)
    with too_small_is_a_refusal():
        try:
            from vllm.v1.core import kv_cache_planning as planning
        except ImportError:
            workers = kv_cache_utils.get_kv_cache_configs(config, [specs], [memory])
        else:
            groups = planning.get_global_kv_cache_groups(config, [specs])
            workers = planning.get_kv_cache_configs(config, [specs], [memory], groups)
    for worker in workers if layout else ():
        worker.kv_cache_layout = layout
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config(workers)
    config.cache_config.num_gpu_blocks = scheduler.num_blocks
    if hasattr(kv_cache_utils, "resolve_kv_cache_block_sizes"):
        block_size, hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(scheduler, config)
    else:  # as `EngineCore` does up to 0.19
        block_size = hash_block_size = config.cache_config.block_size
    resolved = {"hash_block_size": hash_block_size}
    if hasattr(kv_cache_utils, "resolve_cache_hit_alignment_tokens"):
        resolved["cache_hit_alignment_tokens"] = kv_cache_utils.resolve_cache_hit_alignment_tokens(
            scheduler, config, block_size, hash_block_size
        )
    # vLLM's planner sends these to worker and scheduler; the worker keeps them in its own configuration.
    for one in (*workers, scheduler, config.cache_config):
        for name, value in resolved.items():
            if hasattr(one, name):
                setattr(one, name, value)
    return CachePlan(workers[0], scheduler, block_size, hash_block_size)


def scheduler_arguments(plan: CachePlan) -> dict[str, Any]:
    """Return the keyword arguments of `Scheduler` that only newer releases have."""
    from vllm.v1.core.sched.scheduler import Scheduler

    known = parameters(Scheduler.__init__)
    return {name: value for name, value in {"hash_block_size": plan.hash_block_size}.items() if name in known}


def prepare_zeroing(runner: Any, cache_config: Any) -> None:
    """Let the runner prepare to zero blocks, as a worker does: never before 0.17 (PR #35219)."""
    if getattr(cache_config, "needs_kv_cache_zeroing", False) and hasattr(runner, "_init_kv_zero_meta"):
        runner._init_kv_zero_meta()


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


def blocks_to_free(scheduler: Any) -> Iterator[int]:
    """Yield the blocks that are freed once the steps in flight have run, each once for each reference; a table's null
    entries are none."""
    for _, blocks in getattr(scheduler, "deferred_frees", ()):
        yield from (block.block_id for block in blocks if not block.is_null)


def can_preempt_in_flight(scheduler: Any) -> bool:
    """Return True if a request can lose its blocks between two steps while a result of it is in flight.

    Earlier releases preempt only while they schedule; they assert that a resumed request was not in the step before,
    and would deliver a token in flight twice.
    """
    return "drop_stale_output" in parameters(type(scheduler)._preempt_request)  # the target wraps the instance's


def caches_asynchronously() -> bool:
    """Return True if this release schedules asynchronously with a prefix cache of states."""
    from vllm.config import vllm as configuration

    refusal = r'async scheduling is not compatible with["\s]*prefix caching'
    return not re.search(refusal, inspect.getsource(configuration))


def most_drafts(config: VllmConfig) -> int:
    """Return the number of speculative tokens, 0 without speculation."""
    return config.speculative_config.num_speculative_tokens if config.speculative_config else 0


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


def has_device_drafter() -> bool:
    """Return True if the V1 runner can speculate with drafts that stay on the device (0.18 and later)."""
    return find_spec("vllm.v1.spec_decode.ngram_proposer_gpu") is not None


def aligns_tables() -> bool:
    """Return True if all block tables are as wide as a multiple of 128 tokens (0.21 to 0.26).

    The buffers for graphs of mode all are not: capturing fails with blocks of less than 128 tokens, which no real model
    has in that mode.
    """
    from vllm.v1.worker import block_table

    return "128 // bs" in inspect.getsource(block_table)


def has_graph_choice() -> bool:
    """Return True if the graphs to capture can be listed (0.15 and later)."""
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    return hasattr(CudagraphDispatcher, "get_capture_descs")


def zeroes_blocks() -> bool:
    """Return True if this release zeroes blocks at all (PR #35219)."""
    from vllm.v1.kv_cache_interface import KVCacheConfig

    return hasattr(KVCacheConfig, "needs_kv_cache_zeroing")


def has_v2() -> bool:
    """Return True if the V2 runner can run on a CPU and takes a hybrid model in mode align (0.25 and later)."""
    refusals = getattr(VllmConfig, "_get_v2_model_runner_unsupported_features", None)
    refuses = refusals is not None and "hybrid/mamba models" in inspect.getsource(refusals)
    return find_spec("vllm.v1.worker.cpu") is not None and has_prefill_indices() and not refuses


def has_prefill_indices() -> bool:
    """Return True if GDN metadata splits decode rows in a batch with prefills from the prefills."""
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

    return "prefill_state_indices" in GDNAttentionMetadata.__dataclass_fields__


def cache_modes() -> tuple[Mode, ...]:
    """Return the mamba cache modes: all up to 0.31, for Mamba 1 and 2 (the default there up to 0.27).

    Releases without the switch have it for these layers only, and no align mode.
    """
    from vllm.config import CacheConfig, cache

    if "mamba_cache_mode" not in CacheConfig.__dataclass_fields__:
        return "none", "all"
    return ("align", "none", "all") if "all" in get_args(cache.MambaCacheMode) else ("align", "none")


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


def state_backend(name: str) -> Any:
    """Return the value of `mamba_type` for a backend: a member of the enumeration, up to 0.20 a string."""
    from vllm.v1.attention.backends import registry

    if hasattr(registry, "MAMBA_TYPE_TO_BACKEND_MAP"):
        names = {backend: kind for kind, backend in registry.MAMBA_TYPE_TO_BACKEND_MAP.items()}
        return names[name]
    return registry.MambaAttentionBackendEnum[name]


def linear_backend() -> Any:
    """Return the attention backend that layers of plain linear attention name themselves, None for that of their kind.

    Bailing's layers have one of their own since 0.25, with which they speculate.
    """
    from vllm.v1.attention.backends import linear_attn

    return getattr(linear_attn, "BailingLinearAttentionBackend", None)


def bound_cache(cache: Any) -> Any:
    """Return a layer's cache. Up to 0.18 it is wrapped in a list with one entry per virtual engine."""
    return cache[0] if isinstance(cache, list) and len(cache) == 1 else cache


def bound_states(cache: Any) -> Sequence[Any]:
    """Return the tensors of a state layer's cache, one per state. A release may bind a single one without a tuple."""
    import torch

    bound = bound_cache(cache)
    states: Sequence[Any] = (bound,) if isinstance(bound, torch.Tensor) else bound
    return states


def copy_in_one_tile() -> None:
    """Copy a temporal state as one tile: a tag is 8 bytes, and each tile is a call of the interpreter.

    Tiles spread a copy of megabytes over a GPU.
    """
    with contextlib.suppress(ImportError):
        from vllm.v1.worker import mamba_utils

        mamba_utils._TEMPORAL_TILES = 1


def has_replay() -> bool:
    """Return True if Mamba 2 can replay inputs instead of storing states in each decode (ReplaySSM), as since 0.32."""
    from vllm.v1.attention.backends import mamba_attn

    return "replayssm_state_indices_d" in mamba_attn.BaseMambaAttentionMetadata.__dataclass_fields__


def replay_inputs(config: VllmConfig, entries: int) -> None:
    """Switch ReplaySSM on once vLLM has validated the configuration: the platform's backend and the model, both of
    which a test replaces, do not support it."""
    from vllm.config.mamba import MambaBackendEnum

    config.mamba_config.backend = MambaBackendEnum.TRITON
    config.cache_config.use_replayssm = True
    config.cache_config.replayssm_buffer_len = entries


def without_replay_kernel() -> list[tuple[Any, str, Any]]:
    """Return the replacements, as for `replaced`, with which no kernel for Mamba's decodes is chosen: shadow layers
    call none, and the one for CPUs cannot replay inputs."""
    if not has_replay():
        return []
    from vllm.v1.worker import gpu_model_runner

    return [(gpu_model_runner, "initialize_mamba_ssu_backend", lambda *_, **__: None)]


def has_inputs() -> bool:
    """Return True if images, adapters and salts are in the keys of blocks, with the position of an image and the path
    of an adapter (0.31 and later)."""
    keys = getattr(kv_cache_utils, "_gen_lora_extra_hash_keys", None)
    return keys is not None and "lora_path" in inspect.getsource(keys)


def image(name: str, offset: int, length: int) -> Any:
    """Return an image of a request, at a position among its tokens."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=place)


def adapter(name: str, number: int) -> Any:
    """Return the LoRA adapter of a request."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=number, lora_path=f"/{name}")


def has_movable_parameters() -> bool:
    """Return True if the V1 runner's rows have sampling parameters as since 0.31: a mask of allowed tokens moves with
    its request."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    return "allowed_token_ids_mask_cpu_tensor[last_req_index].fill_" in inspect.getsource(InputBatch)


def sample_in_torch() -> None:
    """Let the V1 sampler draw in PyTorch: its other kernels are compiled, and are not the cache's."""
    with contextlib.suppress(ImportError):
        from vllm.v1.sample.ops import topk_topp_sampler

        if hasattr(topk_topp_sampler, "HAS_TRITON"):
            topk_topp_sampler.HAS_TRITON = False
            topk_topp_sampler.TopKTopPSampler.forward_cpu = topk_topp_sampler.TopKTopPSampler.forward_native


def has_junctions() -> bool:
    """Return True if states can also be published where prompts fork beside EAGLE (0.31 and later)."""
    from vllm.config import CacheConfig

    return "enable_mamba_shared_prefix_checkpoint" in CacheConfig.__dataclass_fields__


def has_conv_layouts() -> bool:
    """Return True if the layout of windows can be chosen and states in both can be moved (0.26 and later)."""
    try:
        from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext as Context
    except ImportError:
        return False
    return "state_dim_row_count" in inspect.getsource(Context)


def lay_out_windows(layout: str) -> None:
    """Set the layout of convolution windows: "SD", the channels of each input together, or "DS"."""
    if has_conv_layouts():
        from vllm.model_executor.layers.mamba import mamba_utils

        os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] = layout
        mamba_utils.get_conv_state_layout.cache_clear()


def block_hasher(config: VllmConfig, hash_block_size: int) -> Callable[[Any], list[Any]]:
    """Return vLLM's own prefix hasher: a function from a request to the hashes of its new full blocks."""
    from vllm.utils.hashing import get_hash_fn_by_name

    function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    kv_cache_utils.init_none_hash(function)
    arguments: list[Any] = [hash_block_size, function]
    if "num_hash_lookahead_tokens" in parameters(kv_cache_utils.get_request_block_hasher):
        arguments.append(config.num_hash_lookahead_tokens)
    hasher: Callable[[Any], list[Any]] = kv_cache_utils.get_request_block_hasher(*arguments)
    return hasher


def is_v2_drafting_as_eagle() -> bool:
    """Return True if the V2 runner refuses the n-gram method: the drafter then passes as MTP, with EAGLE's rules."""
    from vllm.v1.worker.gpu import model_runner

    make = getattr(model_runner, "init_speculator", None)
    return make is not None and "req_states" not in parameters(make)


def v2_drafts_ahead() -> bool:
    """Return True if the V2 runner can schedule ahead of this target's drafter: 0.32 refuses n-gram drafts there."""
    refuses = "async scheduling is only supported" in inspect.getsource(VllmConfig.__post_init__)
    return is_v2_drafting_as_eagle() or not refuses


def has_lookahead_hashes() -> bool:
    """Return True if lookahead block hashes can take the place of EAGLE's block drop, and can be disabled."""
    return "disable_lookahead_block_hashes" in SpeculativeConfig.__dataclass_fields__


def retain_every_boundary(cache_config: Any) -> None:
    """Publish the state at each block boundary, as older releases always do.

    By default, newer ones publish only where prompts end or fork, so that a state written by decoding is never hit.
    """
    if hasattr(cache_config, "prefix_cache_retention_interval"):
        cache_config.prefix_cache_retention_interval = None


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes while the block runs: (object, name, value) each."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def without_pinning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a tensor constructor to ignore `pin_memory`, which the V1 runner passes without checking for support."""

    def make(*arguments: Any, pin_memory: bool = False, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return make


def load_v2_model(runner: Any, model: Any) -> None:
    """Give the V2 runner a model instead of a checkpoint to load."""
    if "model" in parameters(type(runner).load_model):
        runner.load_model(model=model)
        return
    from vllm.v1.worker.gpu import model_runner

    class Loader:
        """A checkpoint loader that returns the given model."""

        def load_model(self, vllm_config: Any, model_config: Any) -> Any:
            return model

    with replaced((model_runner, "get_model_loader", lambda load_config: Loader())):
        runner.load_model()


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


def share_state_indices(runner: Any) -> None:
    """Let the V2 runner build metadata as on a GPU: for the first GDN group, of which the others get new indices.

    vLLM does so only if the device is a GPU.
    """
    import torch
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
    from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

    for builder in [one for groups in runner.attn_groups for group in groups for one in group.metadata_builders]:
        if type(builder) is GDNAttentionMetadataBuilder:
            builder.supports_update_block_table = True
            builder.mamba_aligned_state_indices = None
    compute = MambaSpecDecodeGPUContext.compute_aligned_state_indices
    if hasattr(compute, "on_cpu"):
        return

    def compute_on_cpu(*arguments: Any, **keywords: Any) -> Any:
        with replaced((torch.Tensor, "is_cuda", True)):
            return compute(*arguments, **keywords)

    compute_on_cpu.on_cpu = True  # type: ignore[attr-defined]
    MambaSpecDecodeGPUContext.compute_aligned_state_indices = compute_on_cpu


def has_draft_layers() -> bool:
    """Return True if a drafter's layers are marked, and its speculator reuses the model's metadata (0.32 and later)."""
    return find_spec("vllm.v1.worker.gpu.spec_decode.target_dependent_ar") is not None


def attention_spec(group: Group, **sizes: Any) -> Any:
    """Return the spec of an attention layer: full, with a sliding window, or chunked-local."""
    from vllm.v1 import kv_cache_interface as interface

    if group.window:
        return interface.SlidingWindowSpec(**sizes, sliding_window=group.window)
    if group.chunk:
        return interface.ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=group.chunk)
    return interface.FullAttentionSpec(**sizes)


def chunked_backend(backend: Any, chunk: int) -> Any:
    """Return the backend whose metadata cuts rows at the chunks of chunked-local attention."""
    from vllm.model_executor.layers.attention import chunked_local_attention

    return chunked_local_attention.create_chunked_local_attention_backend(backend, chunk)


def kernel_block_sizes() -> Callable[..., list[Any]]:
    """Return `get_supported_kernel_block_sizes` for a backend that takes any block size (its parameters differ)."""
    from vllm.v1.attention.backend import MultipleOf

    def any_size(*_: Any, **__: Any) -> list[Any]:
        return [MultipleOf(1)]

    return any_size


def kv_cache_shape(
    num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
) -> tuple[int, ...]:
    """Return the logical shape of an attention cache. Older releases call the backend, which refuses small blocks."""
    return num_blocks, num_kv_heads, block_size, 2 * head_size


def stride_order(backend: Any) -> Callable[..., tuple[int, ...]]:
    """Return `get_kv_cache_stride_order` for `kv_cache_shape`: as it stands, where vLLM's own has other dimensions."""
    own = getattr(backend, "get_kv_cache_stride_order", None)

    def order(*arguments: Any, **keywords: Any) -> tuple[int, ...]:
        found: tuple[int, ...] = own(*arguments, **keywords) if own else ()
        dimensions = len(kv_cache_shape(1, 1, 1, 1))
        return found if len(found) != dimensions + 1 or arguments or keywords else tuple(range(dimensions))

    return order


def dummy_run(runner: Any) -> None:
    """Run one decode row, as `Worker.execute_dummy_batch` does on an idle data-parallel rank."""
    runner._dummy_run(query_length(runner), uniform_decode=True)


def query_length(runner: Any) -> int:
    """Return the number of tokens of a decode row."""
    return getattr(runner, "uniform_decode_query_len", 0) or getattr(runner, "decode_query_len", 1)


def waiting_queues(scheduler: Any) -> list[str]:
    """Return the names of the scheduler's queues of waiting requests, in the order in which it visits them."""
    names = ("kv_holding_waiting", "waiting", "skipped_waiting")
    return [name for name in names if getattr(scheduler, name, None) is not None]


def copy_table(context: Any, group: int, by_slot: Any, by_row: Any, slot: int, row: int) -> list[int]:
    """Return the row of a block table that a fused align copy reads.

    Newer releases index the table of request slots, older ones its batch-ordered copy: the context holds the address.
    """
    pointer = int(context.block_table_ptrs[context.mamba_group_ids.index(group)])
    table = by_slot[slot] if pointer == by_slot.data_ptr() else by_row[row]
    columns: list[int] = table.tolist()
    return columns


def drain_drafts(runner: Any, scheduler: Any) -> None:
    """Pass the runner's proposals to the scheduler (synchronous speculation)."""
    drafts = runner.take_draft_token_ids()
    if drafts is not None:
        scheduler.update_draft_token_ids(drafts)


def request_arguments(hasher: Any, priority: int, arrival: float) -> dict[str, Any]:
    """Return the keyword arguments of `Request` besides id, prompt and sampling parameters."""
    from vllm.v1.request import Request

    known = parameters(Request.__init__)
    wanted = {
        "pooling_params": None,
        "block_hasher": hasher,
        "priority": priority,
        "arrival_time": arrival,
        "eos_token_id": None,
    }
    return {name: value for name, value in wanted.items() if name in known}


def client_outputs(outputs: Any) -> Sequence[Any]:
    """Return the `EngineCoreOutput`s of all clients."""
    if isinstance(outputs, dict):
        return [one for client in outputs.values() for one in client.outputs]
    return list(outputs.outputs)


def failed(output: Any) -> bool:
    """Return True if a request ended with an error."""
    return output.finish_reason is not None and output.finish_reason.name == "ERROR"


def apart_buffers(wanted: bool) -> list[tuple[Any, str, Any]]:
    """Return the replacements under which the V1 runner has separate host and "device" copies of its buffers.

    Its CPU subclass aliases them, which is correct only without asynchronous scheduling.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if not hasattr(CPUModelRunner, "_postprocess_tensors"):
        return []
    return [(CPUModelRunner, "_postprocess_tensors", lambda runner: None)] if wanted else []
