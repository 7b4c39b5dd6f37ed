"""Executes operations on a context of llama.cpp: each is one call of its C API, or the few that a client makes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.protocol import EngineError, TargetError
from . import operations as do
from .families import VOCABULARY
from .library import F32, FLASH_OFF, PARTIAL_ONLY, Library


class Sizes(NamedTuple):
    """Parameters of a context: fields of `llama_context_params`."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_rs_seq: int = 0
    kv_unified: bool = False


class Context:
    """A context of one model, on one thread. Its cache is float32, and attention computed without its fused kernel, which
    rounds to 16 bits: what is left of rounding is a hundred times smaller."""

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
        self.saved: dict[str, bytes] = {}
        self.checkpoints: dict[int, bytes] = {}

    def close(self) -> None:
        """Free the context."""
        self.c.llama_batch_free(self.batch)
        self.c.llama_free(self.handle)

    def execute(self, operation: do.Operation) -> bool:
        """Execute an operation without logits; return False if llama.cpp refused it."""
        match operation:
            case do.Decode():
                self.decode(operation.rows)
            case do.Checkpoint(sequence):
                self.checkpoints[sequence] = self._state(sequence, PARTIAL_ONLY)
            case do.GoBack(sequence, start, tokens):
                self._set_state(sequence, self.checkpoints.pop(sequence), PARTIAL_ONLY)
                self._remove(sequence, start)
                self.decode([do.Row(sequence, start, tokens, 0)])
            case do.RollBack(sequence, length, tokens):
                if not self._remove(sequence, length):
                    self._remove(sequence)
                    self.decode([do.Row(sequence, 0, tokens, 0)])
            case do.Cut(sequence, length):
                return self._remove(sequence, length)
            case do.Remove(sequence):
                self._remove(sequence)
            case do.Copy(source, target):
                self.c.llama_memory_seq_cp(self.memory, source, target, -1, -1)
            case do.Keep(sequence):
                self.c.llama_memory_seq_keep(self.memory, sequence)
            case do.Clear():
                self.c.llama_memory_clear(self.memory, False)
            case do.Save(name, sequence):
                self.saved[name] = self._state(sequence, 0)
            case do.Restore(name, sequence):
                self._set_state(sequence, self.saved.pop(name), 0)
            case do.CopySaved(name, parent):
                self.saved[name] = self.saved[parent]
            case do.Forget(name):
                self.saved.pop(name, None)
        return True

    def decode(self, rows: Sequence[do.Row]) -> list[Any]:
        """Decode a batch; return the logits [wanted, vocabulary] of each row."""
        batch, index, wanted = self.batch, 0, []
        for row in rows:
            wanted.append(range(index + len(row.tokens) - row.wanted, index + len(row.tokens)))
            for offset, token in enumerate(row.tokens):
                batch.token[index], batch.pos[index] = token, row.start + offset
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, row.sequence
                batch.logits[index] = offset >= len(row.tokens) - row.wanted
                index += 1
        batch.n_tokens = index
        if code := self.c.llama_decode(self.handle, batch):
            raise EngineError(f"llama_decode returns {code} for {index} tokens: {self.library.complaint}")
        return [np.array([self._logits(place) for place in places]) for places in wanted]

    def empty_memory(self) -> None:
        """Remove all sequences, and zero what they stored."""
        self.c.llama_memory_clear(self.memory, True)

    def positions(self, sequence: int) -> tuple[int, int]:
        """Return the first and the last position from which llama.cpp says that a sequence can go on, -1 for none."""
        return (
            self.c.llama_memory_seq_pos_min(self.memory, sequence),
            self.c.llama_memory_seq_pos_max(self.memory, sequence),
        )

    def _logits(self, place: int) -> Any:
        found = self.c.llama_get_logits_ith(self.handle, place)
        if not found:
            raise EngineError(f"llama_get_logits_ith({place}) returns NULL: {self.library.complaint}")
        return np.ctypeslib.as_array(found, (VOCABULARY,)).copy()

    def _remove(self, sequence: int, start: int = -1) -> bool:
        return bool(self.c.llama_memory_seq_rm(self.memory, sequence, start, -1))

    def _state(self, sequence: int, flags: int) -> bytes:
        size = self.c.llama_state_seq_get_size_ext(self.handle, sequence, flags)
        data = ctypes.create_string_buffer(size)
        written = self.c.llama_state_seq_get_data_ext(self.handle, data, size, sequence, flags)
        if written != size:
            raise EngineError(f"llama_state_seq_get_data_ext writes {written} of {size} bytes: {self.library.complaint}")
        return data.raw

    def _set_state(self, sequence: int, data: bytes, flags: int) -> None:
        read = self.c.llama_state_seq_set_data_ext(self.handle, data, len(data), sequence, flags)
        if read != len(data):
            raise EngineError(
                f"llama_state_seq_set_data_ext reads {read} of {len(data)} bytes: {self.library.complaint}"
            )
