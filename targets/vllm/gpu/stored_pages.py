"""Copies of real pages in a KV connector's store: what each memory of an engine holds, and what another engine has.

A block is copied with all parts of its layers' pages, as a connector does that copies pages without knowing what is in
them. Content that the trace has another engine store is what the model computes for the tokens alone; it has no inputs
of drafts behind the window of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ....reference.prefix_cache import Key
from ....reference.tokens import Truth
from .beside import Beside, beside
from .memories import Memories

if TYPE_CHECKING:
    from .real_engine import RealEngine
    from .same_tokens import SameTokens

Parts = Sequence[torch.Tensor]
Copy = Sequence[Sequence[Parts]]
"""By layer of a group and by memory: the parts of a page. One computed elsewhere is the same for all memories."""


class StoredPages:
    """The `Copies` of one trace."""

    def __init__(self, engine: RealEngine, memories: Memories, alone: SameTokens, resume: Callable[[], None]) -> None:
        """`alone` computes what another engine stores; `resume` makes this engine that of the process again."""
        self._engine = engine
        self._memories = memories
        self._alone = alone
        self._resume = resume
        self._known: dict[tuple[tuple[int, ...], Beside], Mapping[str, Parts]] = {}

    def read(self, group: int, block: int) -> Copy:
        """Copy a block of all layers of a group."""
        return [
            [[part[block].clone() for part in parts] for parts in self._in_memories(name)]
            for name in self._engine.layer_names(group)
        ]

    def write(self, group: int, index: int, block: int, copy: Copy) -> None:
        """Write a copy to a block, in each memory."""
        with torch.inference_mode():
            held = [*copy[index]]
            for number, parts in enumerate(self._in_memories(self._engine.layer_names(group)[index])):
                for part, own in zip(parts, held[min(number, len(held) - 1)], strict=False):
                    part[block][tuple(slice(size) for size in own.shape)] = own

    def computed_elsewhere(self, key: Key, truth: Truth, length: int) -> Copy:
        """Compute the tokens alone, with their adapter or images; for a state only those up to it."""
        group = self._engine.layout.groups[key.group]
        is_state = group.kind == "mamba"
        pages = self._computed(truth, key.depth if is_state else length)
        column = 0 if is_state else key.depth // group.block_size - 1
        return [[[part[column] for part in pages[name]]] for name in self._engine.layer_names(key.group)]

    def _computed(self, truth: Truth, length: int) -> Mapping[str, Parts]:
        truth.reach(length)
        computed = tuple(truth.tokens[:length]), beside(truth, length)
        if computed not in self._known:
            self._known[computed] = self._alone.pages(*computed)
            self._resume()
        return self._known[computed]

    def _in_memories(self, name: str) -> Iterator[Parts]:
        """Yield a layer's caches in each memory, the engine's own first."""
        own = self._engine.caches(name)
        yield own
        for number in range(len(self._memories.others)):
            yield [self._memories.counterpart(part, number) for part in own]
