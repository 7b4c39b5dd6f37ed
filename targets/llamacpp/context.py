"""A context of llama.cpp: its C API as methods. Scripts copy this file's definitions, so it needs numpy alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.protocol import EngineError, TargetError
from .context_sizes import Sizes
from .library import F32, FLASH_OFF, Library


class Row(NamedTuple):
    """Tokens of one sequence in a batch.

    start    position of the first
    wanted   how many of them, from the last, ask for logits
    """

    sequence: int
    start: int
    tokens: Sequence[int]
    wanted: int


class Context:
    """A context of one model, on one thread.

    Its cache is float32, and attention is computed without the fused kernel, which rounds to 16 bits: what is left of
    rounding is a hundred times smaller.
    """

    def __init__(self, library: Library, model: int, sizes: Sizes) -> None:
        self.library, self.c = library, library.c
        self.sizes = sizes
        params = library.params.from_buffer_copy(bytes(self.c.llama_context_default_params().bytes))
        for name, value in sizes._asdict().items():
            if name != "n_rs_seq" or library.has_planes:
                setattr(params, name, value)
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = FLASH_OFF
        params.type_k = params.type_v = F32
        self.handle = self.c.llama_init_from_model(model, params)
        if not self.handle:
            raise TargetError(f"llama.cpp does not make a context of {sizes}: {library.complaint}")
        self.memory = self.c.llama_get_memory(self.handle)
        self.batch = self.c.llama_batch_init(sizes.n_batch, 0, 1)
        self.planes = self.c.llama_n_rs_seq(self.handle) if library.has_planes else 0
        """Snapshots that it keeps of each sequence: none in a build that has none for the family."""
        self.vocabulary = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(model))

    def close(self) -> None:
        """Free the context."""
        self.c.llama_batch_free(self.batch)
        self.c.llama_free(self.handle)

    def decode(self, rows: Sequence[Row]) -> list[Any]:
        """Decode a batch; return the logits [wanted, vocabulary] of each row."""
        batch, index, wanted = self.batch, 0, []
        for row in rows:
            first = len(row.tokens) - row.wanted
            wanted.append(range(index + first, index + len(row.tokens)))
            for offset, token in enumerate(row.tokens):
                batch.token[index], batch.pos[index] = token, row.start + offset
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, row.sequence
                batch.logits[index] = offset >= first
                index += 1
        batch.n_tokens = index
        if code := self.c.llama_decode(self.handle, batch):
            raise EngineError(f"llama_decode returns {code} for {index} tokens: {self.library.complaint}")
        return [np.array([self._logits(place) for place in places]) for places in wanted]

    def _logits(self, place: int) -> Any:
        found = self.c.llama_get_logits_ith(self.handle, place)
        if not found:
            raise EngineError(f"llama_get_logits_ith({place}) returns NULL: {self.library.complaint}")
        return np.ctypeslib.as_array(found, (self.vocabulary,)).copy()

    def remove(self, sequence: int, start: int = -1) -> bool:
        """Remove a sequence, or its positions from `start` on; return False if llama.cpp refuses that."""
        return bool(self.c.llama_memory_seq_rm(self.memory, sequence, start, -1))

    def copy(self, source: int, target: int) -> None:
        """Let an empty sequence become a copy of another one."""
        self.c.llama_memory_seq_cp(self.memory, source, target, -1, -1)

    def keep(self, sequence: int) -> None:
        """Remove all sequences but one."""
        self.c.llama_memory_seq_keep(self.memory, sequence)

    def clear(self, zeroed: bool = False) -> None:
        """Remove all sequences, and with `zeroed` zero what they stored."""
        self.c.llama_memory_clear(self.memory, zeroed)

    def shift(self, sequence: int, by: int) -> bool:
        """Move all positions of a sequence up; return False if llama.cpp says that its memory cannot."""
        if not self.c.llama_memory_can_shift(self.memory):
            return False
        self.c.llama_memory_seq_add(self.memory, sequence, -1, -1, by)
        return True

    def state(self, sequence: int, flags: int) -> bytes:
        """Return the saved state of a sequence."""
        size = self.c.llama_state_seq_get_size_ext(self.handle, sequence, flags)
        data = ctypes.create_string_buffer(size)
        if self.c.llama_state_seq_get_data_ext(self.handle, data, size, sequence, flags) != size:
            raise EngineError(f"llama_state_seq_get_data_ext does not write {size} bytes: {self.library.complaint}")
        return data.raw

    def set_state(self, sequence: int, data: bytes, flags: int) -> None:
        """Restore a saved state into a sequence."""
        if self.c.llama_state_seq_set_data_ext(self.handle, data, len(data), sequence, flags) != len(data):
            raise EngineError(f"llama_state_seq_set_data_ext does not read {len(data)} bytes: {self.library.complaint}")

    def positions(self, sequence: int) -> tuple[int, int]:
        """Return the first and the last position from which llama.cpp says that a sequence can go on, -1 for none."""
        return (
            self.c.llama_memory_seq_pos_min(self.memory, sequence),
            self.c.llama_memory_seq_pos_max(self.memory, sequence),
        )


def poisoned(context: Context, poison: int) -> Context:
    """Fill the memory of a new context: decode some tokens in each sequence, then remove all."""
    sizes = context.sizes
    rows = []
    for sequence in range(sizes.n_seq_max):
        tokens = [(97 * poison + 31 * sequence + 7 * one) % context.vocabulary for one in range(sizes.n_rs_seq + 2)]
        rows.append(Row(sequence, 0, tokens, 0))
    context.decode(rows)
    context.clear()
    return context


def log_softmax(logits: Any) -> Any:
    """Return log-probabilities [..., vocabulary] of logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
