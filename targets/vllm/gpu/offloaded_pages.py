"""The host tier of vLLM's `OffloadingConnector` beside a real model: its pages in each memory, and the mirror's words.

vLLM names the bytes of each copy, in the real pages and in its own tier. The same bytes are copied in each other
memory, which has a tier of its own. A block whose page is copied takes the words of the mirror along.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ..counterparts.offloading import Contents, Move
from .memories import Memories

if TYPE_CHECKING:
    from ..counterparts.offloading import HostWorker
    from .mirror import Words


class OffloadedPages(Contents):
    """What the pages of one trace hold. `words` are the mirror's, by layer slot: those of layer `i` of each group."""

    def __init__(self, worker: HostWorker, memories: Memories, words: Sequence[Words]) -> None:
        own = worker.device.contents
        super().__init__(own.tensors, own.host)
        self._memories = memories
        self._others = [[one.clone() for one in own.host] for _ in memories.others]
        self._words: Mapping[int, Words] = {
            reference.tensor_idx: words[slot]
            for references in worker.references.values()
            for slot, reference in enumerate(references)
        }
        """By tensor, [block, word]."""
        self._held = {
            index: np.zeros((len(own.host[index]), one.shape[1]), one.dtype) for index, one in self._words.items()
        }
        """The words of the tier: [chunk, word]."""

    def make(self, moves: Sequence[Move]) -> None:
        """Copy in each memory, the engine's own last, and in the mirror."""
        for number in self._memories.each():
            self.copy(moves, self._others[number])
        self.copy(moves, self.host)
        for move in moves:
            words, held = self._words[move.tensor], self._held[move.tensor]
            if move.is_load:
                words[move.block] = held[move.chunk]
            else:
                held[move.chunk] = words[move.block]

    @contextmanager
    def in_null_block(self, tensors: Collection[int], chunk: int) -> Iterator[None]:
        """Let the mirror's null block hold what a chunk of the tier holds."""
        kept = {index: self._words[index][0].copy() for index in tensors}
        for index in tensors:
            self._words[index][0] = self._held[index][chunk]
        try:
            yield
        finally:
            for index, page in kept.items():
                self._words[index][0] = page


__all__ = ["OffloadedPages"]
