"""The host tier of vLLM's `OffloadingConnector` beside a real model: its pages in each memory, and the mirror's words.

vLLM names the bytes of each copy, in the real pages and in its own tier. The same bytes are copied in each other
memory, which has a tier of its own. A block whose page is copied takes the words of the mirror along.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        slots = {
            reference.tensor_idx: words[slot]
            for references in worker.references.values()
            for slot, reference in enumerate(references)
        }
        self.read = {
            index: (one, np.zeros((len(own.host[index]), one.shape[1]), one.dtype)) for index, one in slots.items()
        }

    def make(self, moves: Sequence[Move]) -> None:
        """Copy in each memory, the engine's own last, and in the mirror."""
        for number in self._memories.each():
            self.copy(moves, self._others[number])
        self.copy(moves, self.host)
        for move in moves:
            blocks, chunks = self.read[move.tensor]
            if move.is_load:
                blocks[move.block] = chunks[move.chunk]
            else:
                chunks[move.chunk] = blocks[move.block]


__all__ = ["OffloadedPages"]
