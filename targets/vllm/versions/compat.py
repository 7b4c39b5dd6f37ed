"""One function for each thing that vLLM releases (0.14 to 0.33) do in different ways.

A function finds the way by feature detection (as `features`) and takes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from vllm.config import VllmConfig
from vllm.v1.core import kv_cache_utils

from ...base.trace import TraceError
from .features import has_conv_layouts
from .wrapping import parameters, replaced


class CachePlan(NamedTuple):
    """vLLM's plan of groups and blocks: `KVCacheConfig` of worker and scheduler, and two block sizes in tokens."""

    worker: Any
    scheduler: Any
    block_size: int
    hash_block_size: int


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
