"""An engine with a real model, kept for several traces.

Between traces `reset` restores model, runner and every buffer to what they were when they were built (`snapshot`),
fills the caches and makes a new scheduler. `benchmarks/gpu_engines.py --proof` compares the results with those of new
engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal

import torch

from ...base.trace import Config
from .. import graphs
from ..engine import Engine
from ..options import rank_count
from ..shadow import patches
from . import adapters, images, memories
from .mirror import MirrorRecorder
from .rank_group import InGroup, become_rank, is_of_collective
from .rank_processes import OtherRanks, processes
from .real_kit import RealKit, prepare_process
from .real_model import watch_sampling
from .snapshot import Snapshot

Fill = Literal["zero", "random", "nan"]


class RealEngine(Engine):
    """The parts of one engine, for one trace at a time. Call `reset` before the first one, too."""

    kit: RealKit
    recorder: MirrorRecorder

    def __init__(self, config: Config, device: str, ranks: InGroup | None = None) -> None:
        """`ranks` are the other data-parallel ranks, where this process is not the first one."""
        prepare_process(device)
        self._ranks: InGroup | OtherRanks | None = ranks
        if rank_count(config) > 1 and ranks is None:
            self._ranks = OtherRanks(config)
        try:
            super().__init__(config, RealKit(config, device))
        except Exception as error:
            self.settle_ranks(error)
            raise
        if isinstance(self._ranks, OtherRanks):
            self._ranks.built()
        self.device = self.kit.device
        self.real = self.kit.real
        if self.runner.lora_config:
            adapters.generate(self.runner.lora_manager)
        if self.inputs:
            self.inputs.picture = images.picture
        watch_sampling(self.runner, self.real, self.is_v2)
        found = self._find_pages()
        self._cached_pages, self._places = [pages for pages, _ in found], [place for _, place in found]
        self._snapshot = Snapshot([self], [cache for layer in self.layers for cache in self.caches(layer.layer_name)])

    def reset(self, fill: Fill) -> None:
        """Restore the engine to what it was when it was built. `fill` is what cache memory holds."""
        memories.activate(None)
        self._synchronize()
        snapshot, self.scheduler, self.hasher = self._snapshot, None, None
        snapshot.restore()
        self._snapshot = snapshot
        self.fill_pool(fill)
        self.begin()
        if isinstance(self._ranks, OtherRanks):
            self._ranks.reset()

    def settle_ranks(self, error: Exception) -> None:
        """After an exception on this rank, wait for the others or end them. If it only says that another rank is
        gone, raise what that one failed with."""
        failed = processes().settle() if isinstance(self._ranks, OtherRanks) else None
        if failed and is_of_collective(error):
            raise failed from error

    def _among_ranks(self) -> AbstractContextManager[None]:
        if self._ranks is None:
            return super()._among_ranks()
        become_rank(self.vllm_config)
        return nullcontext()

    def _other_ranks(self) -> graphs.Ranks:
        return self._ranks or super()._other_ranks()

    def close(self) -> None:
        """Let go of model, graphs, caches and snapshot. Their parts refer to each other: the garbage collector takes
        them, once nothing of this process refers to them (`engines_of_process`)."""
        if isinstance(self._ranks, OtherRanks):
            self._ranks.close()
        self._synchronize()
        if self.runner.lora_config:
            adapters.forget(self.runner.lora_manager)
        patches.activate(None)
        memories.activate(None)
        self.real.close()
        self.recorder.worker = None
        vars(self).clear()

    def _synchronize(self) -> None:
        if not self.kit.is_interpreted:
            torch.accelerator.synchronize()

    def caches(self, layer_name: str) -> Sequence[torch.Tensor]:
        """A layer's cache tensors: one of attention; window, temporal state and rings (ReplaySSM) of a state layer."""
        cached = self.vllm_config.compilation_config.static_forward_context[layer_name].kv_cache
        return (cached,) if isinstance(cached, torch.Tensor) else tuple(cached)

    def layer_names(self, group: int) -> Sequence[str]:
        """The layers of a group, by their index in it."""
        names: Sequence[str] = self._plan.worker.kv_cache_groups[group].layer_names
        return names

    def temporal(self, group: int, layer: int) -> torch.Tensor:
        """[blocks, ...] bits of a state layer's temporal states; of a layer with windows only: of these."""
        parts = self.caches(self.recorder.layers[group, layer].layer_name)
        state = parts[min(1, len(parts) - 1)]
        return state.view({2: torch.int16, 4: torch.int32}[state.element_size()])

    def storages(self) -> list[torch.Tensor]:
        """The bytes of all caches, one tensor for each allocation."""
        found = {pages.untyped_storage().data_ptr(): pages.untyped_storage() for pages in self._cached_pages}
        return [torch.empty(0, dtype=torch.uint8, device=self.device).set_(one) for one in found.values()]

    def pages(self) -> Sequence[torch.Tensor]:
        """[blocks, bytes] of each layer slot: all pages, which the layers of all groups share."""
        return self._cached_pages

    def places(self) -> Sequence[tuple[int, int]]:
        """Group and layer that the pages of each slot are named after: the first ones."""
        return self._places

    def fill_pool(self, fill: Fill) -> None:
        """Fill all cache memory, the null block included."""
        for pages in self._cached_pages:
            pages[:] = fill_bytes(pages.shape[1], self.device, fill)

    def _find_pages(self) -> list[tuple[torch.Tensor, tuple[int, int]]]:
        found: dict[int, tuple[torch.Tensor, tuple[int, int]]] = {}
        for group, spec in enumerate(self._plan.worker.kv_cache_groups):
            for layer, name in enumerate(spec.layer_names):
                parts = self.caches(name)
                first = min(parts, key=lambda part: part.data_ptr())
                raw = torch.empty(0, dtype=torch.uint8, device=self.device).set_(first.untyped_storage())
                page, word = spec.kv_cache_spec.page_size_bytes, first.element_size()
                shape, strides = (len(first), page), (first.stride(0) * word, 1)
                pages = raw.as_strided(shape, strides, first.storage_offset() * word)
                found[first.data_ptr()] = pages, found.get(first.data_ptr(), (pages, (group, layer)))[1]
        return list(found.values())


@cache
def fill_bytes(count: int, device: torch.device, fill: Fill) -> torch.Tensor:
    """One page; random values are finite in every dtype that a cache has."""
    if fill == "zero":
        return torch.zeros(count, dtype=torch.uint8, device=device)
    if fill == "nan":
        return torch.full((count,), 0xFF, dtype=torch.uint8, device=device)  # NaN in 16, 32 and 64 bits
    generator = torch.Generator().manual_seed(1)
    # Each byte below 0x40: between 0 and about 2 in bfloat16 and float32.
    return torch.randint(0, 0x40, (count,), dtype=torch.uint8, generator=generator).to(device)
