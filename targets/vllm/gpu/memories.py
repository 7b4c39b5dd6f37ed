"""Several contents of one engine's cache memory: each piece of device work that touches caches runs once for each.

S4 compares what engines compute that differ in what unused memory holds only. They would plan the same steps, since
tokens are the tag model's, so one engine is enough: before a forward, a copy or a zeroing its caches are exchanged for
those of another memory, the work runs, and they are put back. The engine's own memory comes last: what vLLM reads
afterwards is the result for that one. Addresses stay, so captured graphs serve all memories.

Work that is missed here would leave the other memories behind: S4 reports it on the first trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Memories:
    """The other memories of an engine. `storages` are the bytes of its caches, [bytes] each."""

    def __init__(self, storages: Sequence[torch.Tensor], count: int) -> None:
        self._own = list(storages)
        self._kept = [one.clone() for one in self._own] if count else []
        self.others = [[one.clone() for one in self._own] for _ in range(count)]
        self._places = {one.untyped_storage().data_ptr(): place for place, one in enumerate(self._own)}

    def counterpart(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """The tensor at the place of a cache tensor in another memory."""
        storage = self.others[number][self._places[tensor.untyped_storage().data_ptr()]].untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def each(self) -> Iterator[int]:
        """Exchange the engine's caches for those of each other memory in turn; they are put back at the end."""
        for number, other in enumerate(self.others):
            with self._exchanged(other):
                yield number

    @contextmanager
    def _exchanged(self, other: list[torch.Tensor]) -> Iterator[None]:
        with torch.inference_mode():
            torch._foreach_copy_(self._kept, self._own)
            torch._foreach_copy_(self._own, other)
        try:
            yield
        finally:
            with torch.inference_mode():
                torch._foreach_copy_(other, self._own)
                torch._foreach_copy_(self._own, self._kept)


_active: list[Memories] = []


def activate(memories: Memories | None) -> None:
    """Repeat work for these memories from now on (None: for none)."""
    _active[:] = [memories] if memories else []


def each() -> Iterator[int]:
    """Exchange caches for those of each other memory in turn, if an engine that has some is active."""
    return _active[0].each() if _active else iter(())


def repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that moves or clears states: it runs for each memory, with the same tensors as arguments. It
    may change them (a count of accepted tokens is reset where a state was moved)."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        if _active:
            changed = [one for one in (*arguments, *keywords.values()) if isinstance(one, torch.Tensor)]
            before = [one.clone() for one in changed]
            for _ in each():
                function(*arguments, **keywords)
                for now, then in zip(changed, before, strict=True):
                    now.copy_(then)
        return function(*arguments, **keywords)

    return wrapper


@functools.cache
def install() -> None:
    """Wrap vLLM's copies of states and blocks, once per process. (Zeroing is an engine's: `mirror`.)"""
    from vllm.v1.worker import gpu_model_runner, mamba_utils
    from vllm.v1.worker.gpu import model_runner

    for module in (gpu_model_runner, model_runner):
        if hasattr(module, "copy_kv_cache_blocks_inplace"):
            module.copy_kv_cache_blocks_inplace = repeated(module.copy_kv_cache_blocks_inplace)
    context = getattr(mamba_utils, "MambaSpecDecodeGPUContext", None)
    for name in ("run_fused_precopy", "run_fused_postprocess", "run_fused_postprocess_align"):
        if hasattr(context, name):
            setattr(context, name, repeated(getattr(context, name)))
    mamba_utils.do_mamba_copy_block = repeated(mamba_utils.do_mamba_copy_block)


__all__ = ["Memories", "activate", "each", "install", "repeated"]
