"""Wraps vLLM's own functions for copies, once per process (`install`), so that a recorder sees their calls.

The wrappers report to the recorder of the engine that is open (one at a time, `activate`). The columns that a fused
copy moves follow from the arrays that its kernel reads, by the kernel's own arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...base.renamed import put
from ..versions.wrapping import Arguments, parameters
from .recorder import Recorder

_open: list[Recorder] = []


def activate(recorder: Recorder | None) -> None:
    """Make the wrappers report to `recorder` (None: to no recorder)."""
    _open[:] = [recorder] if recorder else []


def _fused_precopy(recorder: Recorder, context: Any, call: dict[str, Any]) -> None:
    sources, offsets = call["src_col_gpu"].tolist(), call["token_bias_gpu"].tolist()
    destinations = call["state_idx_gpu"].tolist()
    for row, slot in _rows(call, len(sources)):
        if sources[slot] >= 0 and sources[slot] != destinations[slot]:
            _copied(recorder, context, row, slot, (sources[slot], destinations[slot]), offsets[slot])


def _fused_postcopy(recorder: Recorder, context: Any, call: dict[str, Any]) -> None:
    """Record the post-step copy in both forms: V2 passes the computed count after the step, V1 its summands."""
    accepted = call["num_accepted_tokens_gpu"].tolist()
    states = (call["state_idx_gpu"] if "state_idx_gpu" in call else call["mamba_state_idx_gpu"]).tolist()
    for row, slot in _rows(call, len(states)):
        if "new_num_computed_tokens_gpu" in call:
            computed = int(call["new_num_computed_tokens_gpu"][slot])
            running = computed - accepted[slot] + 1
        else:
            counts = ("num_computed_tokens_gpu", "num_scheduled_tokens_gpu", "num_draft_tokens_gpu")
            before, scheduled, drafts = (int(call[name][slot]) for name in counts)
            running = before + scheduled - drafts
            computed = running + accepted[slot] - 1
        boundary = computed // context.block_size * context.block_size
        columns = states[slot], boundary // context.block_size - 1
        if boundary >= running and (boundary > running or columns[0] != columns[1]):
            _copied(recorder, context, row, slot, columns, boundary - running)


def _rows(call: dict[str, Any], size: int) -> list[tuple[int, int]]:
    """Return (batch row, index into the per-request arrays of length `size`) of a fused copy.

    Indices beyond the arrays are left out: the launch itself reports them as out of bounds.
    """
    mapping = call.get("idx_mapping")
    if mapping is None:
        return [(row, row) for row in range(min(call["num_reqs"], size))]
    slots = mapping[: call["num_reqs"]].tolist()
    return [(row, slot) for row, slot in enumerate(slots) if 0 <= slot < size]


def _copied(recorder: Recorder, context: Any, row: int, slot: int, columns: tuple[int, int], offset: int) -> None:
    name = recorder.worker.names(row + 1)[row]
    for group in context.mamba_group_ids:
        recorder.copied(name, group, columns, offset, recorder.worker.copy_table(context, group, slot, row))


def _observed(
    function: Callable[..., Any], note: Callable[[Recorder, Any, dict[str, Any]], None]
) -> Callable[..., Any]:
    """Wrap a method: `note` is called with its arguments before it runs."""
    names = list(parameters(function))[1:]

    @functools.wraps(function)
    def wrapper(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if _open:
            call = Arguments(function, names, arguments, keywords)
            if call["num_reqs"] and self.is_initialized:
                note(_open[0], self, _open[0].on_host(call))
        return function(self, *arguments, **keywords)

    return wrapper


@functools.cache
def install() -> None:
    """Wrap vLLM's copy functions, once per process."""
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu import model_runner

    for module in (gpu_model_runner, model_runner):
        if hasattr(module, "copy_kv_cache_blocks_inplace"):
            put(module, "copy_kv_cache_blocks_inplace", _observed_block_copy(module.copy_kv_cache_blocks_inplace))
    try:
        from vllm.v1.worker import mamba_utils
    except ImportError:  # 0.14 moves no states
        return
    context = getattr(mamba_utils, "MambaSpecDecodeGPUContext", None)
    for name, note in (
        ("run_fused_precopy", _fused_precopy),
        ("run_fused_postprocess", _fused_postcopy),
        ("run_fused_postprocess_align", _fused_postcopy),
    ):
        if context is not None and hasattr(context, name):
            put(context, name, _observed(getattr(context, name), note))
    put(mamba_utils, "collect_mamba_copy_meta", _observed_scalar_copy(mamba_utils.collect_mamba_copy_meta))


def _observed_scalar_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record the align copies that V1 without speculation plans one by one on the host."""
    names = list(parameters(function))

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        call = Arguments(function, names, arguments, keywords)
        # Some are NumPy's integers, which a history cannot hold.
        names_of = ("src_block_idx", "dest_block_idx", "accept_token_bias")
        source, destination, offset = (int(call[name]) for name in names_of)
        if _open and (source != destination or offset):
            request = call["req_state"]
            for group in call["mamba_group_ids"]:
                table = request.block_ids[group]
                _open[0].copied(request.req_id, group, (source, destination), offset, table)
        return function(*arguments, **keywords)

    return wrapper


def _observed_block_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record copies on write of whole blocks."""

    @functools.wraps(function)
    def wrapper(caches: Any, num_blocks: Any, copies: Any, *rest: Any) -> Any:
        result = function(caches, num_blocks, copies, *rest)
        for copy in copies or () if _open else ():
            source, destination = copy
            _open[0].block_copied(source, destination)
        return result

    return wrapper
