"""Stand-in layers: a hybrid model whose recurrent states are numbers, kept in vLLM's own KV tensors.

A state is a number that stands for "exactly these tokens, in this order" (`fold`). It is stored in the block that
vLLM's own metadata names, so that vLLM's copies, zeroing and recycling apply to it. Attention layers only take part in
the allocation. The tokens that the model samples are given in advance. (This file is inlined into reproducers; nothing
imports it.)
"""

import dataclasses
import inspect
import itertools
import types
from functools import partial  # noqa: F401  for `read_rows`

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.kv_cache_interface import FullAttentionSpec

VOCABULARY = 128
STATES = {}
put = setattr  # a script uses the names of the release that it was written for


def fold(tokens, state=0):
    """Return the state after `tokens`: a different number for each sequence of tokens (and for each stale start)."""
    for token in tokens:
        state = STATES.setdefault((state, token), len(STATES) + 1)
    return state


def takes(function, name):
    """Return True if a function of this release has a parameter."""
    return name in inspect.signature(function).parameters


class Backend(TritonAttentionBackend):
    """The real attention metadata, for words of 64 bits and blocks of any size."""

    supported_dtypes = (torch.int64,)
    get_supported_kernel_block_sizes = staticmethod(lambda *_, **__: [MultipleOf(1)])

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
        return num_blocks, num_kv_heads, block_size, 2 * head_size


class Attention(nn.Module, AttentionLayerBase):
    """Stores a number for each position, that of the tokens up to there (`fold`), and reads its whole context."""

    num_heads = 1
    impl = types.SimpleNamespace(num_heads=1, need_to_return_lse_for_decode=False, supports_quant_query_input=False)

    def __init__(self, name, block_size, head_size, note):
        super().__init__()
        self.layer_name, self.note, self.kv_cache = name, note, torch.tensor([])
        self.block_size, self.head_size = block_size, head_size

    def get_attn_backend(self):
        return Backend

    def get_kv_cache_spec(self, vllm_config):
        words = {"head_size": self.head_size, "head_size_v": self.head_size, "dtype": torch.int64}
        return FullAttentionSpec(block_size=self.block_size, num_kv_heads=1, **words)

    def run(self, ids):
        context = get_forward_context()
        metadata = context.attn_metadata[self.layer_name]
        mapping = getattr(context, "slot_mapping", None)
        slots = (mapping[self.layer_name] if mapping else metadata.slot_mapping).tolist()
        cache = self.kv_cache if isinstance(self.kv_cache, torch.Tensor) else self.kv_cache[0]
        keys, size = cache[:, 0, :, 0], self.block_size
        starts, lengths, tables = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist(), metadata.block_table
        rows = [one for one in range(len(lengths)) if starts[one] < starts[one + 1] <= len(ids)]
        for row in rows:
            first, pages = lengths[row] - starts[row + 1] + starts[row], tables[row].tolist()
            tag = int(keys[pages[(first - 1) // size], (first - 1) % size]) if first > 0 else 0
            for token in range(starts[row], starts[row + 1]):
                tag = fold([ids[token]], tag)
                if slots[token] >= 0:
                    keys[slots[token] // size, slots[token] % size] = tag
        for row in rows:
            pages = tables[row].tolist()
            tags = [int(keys[pages[one // size], one % size]) for one in range(lengths[row])]
            self.note(self.layer_name, row, size, pages, tags)


class Columns:
    """Takes the place of what finds columns of block tables and checks indices: a script needs blocks only."""

    def __init__(self, num_blocks):
        self.num_blocks, self.bounds = num_blocks, self

    def of(self, row, index, block):
        return -1

    def has(self, row, what, index, size):
        return 0 <= index < size

    def span(self, row, tokens, start, stop):
        return tokens[start:stop] if 0 <= start < stop <= len(tokens) else ()

    def state_row(self, row):
        inner = [row.inner.block] if row.inner else ()
        return all(0 <= block < self.num_blocks for block in (row.temporal, *row.outputs, *inner))


class State(nn.Module, MambaBase):
    """Reads, folds and writes recurrent states as the kernels of a kind of layer do (`read_rows`)."""

    def __init__(self, name, mixer, conv_width, num_drafts, ring, engine):
        super().__init__()
        self.prefix = self.layer_name = name
        self.engine, self.mixer, self.ring, self.kv_cache = engine, mixer, ring, ()
        self.skipped = -1 if mixer == "linear" else 0  # the index at which kernels skip a row
        self.shape = (() if mixer == "linear" else ((conv_width - 1 + num_drafts, 1),)) + ((1,),)
        self.place = len(self.shape) - 1
        self.shape += ((ring, 1), (1,), (1, 1)) if ring else ()

    @property
    def mamba_type(self):
        return MambaAttentionBackendEnum[{"gdn": "GDN_ATTN"}.get(self.mixer, self.mixer.upper())]

    def get_attn_backend(self):
        if self.mixer == "linear":
            from vllm.v1.attention.backends import linear_attn

            return getattr(linear_attn, "BailingLinearAttentionBackend", None) or super().get_attn_backend()
        return super().get_attn_backend()

    def get_kv_cache_spec(self, vllm_config):
        spec = super().get_kv_cache_spec(vllm_config)
        if self.mixer != "mamba2" or not hasattr(spec, "num_prefill_checkpoint_blocks"):
            return spec
        return dataclasses.replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)

    def get_state_shape(self):
        return self.shape

    def get_state_dtype(self):
        return (torch.int64,) * len(self.shape)

    @property
    def states(self):
        """The recurrent state of each block."""
        return self.kv_cache[self.place].view(len(self.kv_cache[self.place]), -1)[:, 0]

    def run(self, ids):
        metadata = get_forward_context().attn_metadata[self.layer_name]
        tags, states = [0] * len(ids), self.states
        rows = self.engine.read_rows(metadata, Columns(len(states)))
        for prefill, some in itertools.groupby(rows, lambda row: row.prefill):
            # Prefills load their initial states before any state is stored, decodes one after the other.
            for part in [list(some)] if prefill else [[row] for row in some]:
                starts = [self.start(row, states) for row in part]
                for row, state in zip(part, starts, strict=True):
                    if state is not None:
                        self.store(row, state, ids, states, tags)
                last = {row.outputs[0]: int(states[row.outputs[0]]) for row in part}
                for row in part:
                    if row.inner is not None:  # a state inside a chunk
                        self.write(row, row.inner.block, last.get(row.inner.block, tags[row.inner.last]), states)

    def start(self, row, states):
        """Return the initial state of a row, None if the kernel skips it."""
        if not row.has_temporal:
            return 0
        if row.temporal == self.skipped and not row.prefill:
            return None
        state = int(states[row.temporal])
        if row.replay and row.replay.entries:
            state = fold(self.inputs[row.temporal, : row.replay.entries].tolist(), state)
        self.engine.note(self.layer_name, row.row, row.temporal, state)
        return state

    @property
    def inputs(self):
        """The ring of inputs of each block (ReplaySSM)."""
        return self.kv_cache[self.place + 1][..., 0]

    def store(self, row, state, ids, states, tags):
        for token in row.tokens:
            tags[token] = state = fold([ids[token]], state)
        if row.replay and not row.replay.flushes:
            self.inputs[row.temporal, row.replay.entries] = ids[row.tokens[0]]
            return
        last = len(row.tokens) if row.folded is None else row.folded
        for index, block in enumerate(row.outputs):
            if block != self.skipped or row.prefill:
                self.write(row, block, tags[row.tokens[index if row.speculative else last - 1]], states)

    def write(self, row, block, state, states):
        states[block] = state
        self.engine.note_write(self.layer_name, row.row, block)


class Model(nn.Module):
    """A decoder of stand-in layers."""

    is_hybrid = True

    def __init__(self, engine, forms, mixer, conv_width, sizes):
        """`forms`: (kind, tokens of a block) of each layer, from bottom to top."""
        super().__init__()
        self.engine, layers, self.mixer = engine, [], mixer
        for index, (kind, block_size) in enumerate(forms):
            name = f"model.layers.{index}.mixer"
            if kind == "mamba":
                layers.append(State(name, mixer, conv_width, sizes.num_drafts, sizes.ring, engine))
            else:
                layers.append(Attention(name, block_size, sizes.page_bytes // 16 // block_size, engine.note_slots))
            engine.config.compilation_config.static_forward_context[name] = layers[-1]
        self.layers = nn.ModuleList(layers)

    def get_mamba_state_copy_func(self):
        conv, temporal = MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()
        return (temporal,) if self.mixer == "linear" else (conv, temporal)

    def get_mamba_state_copy_funcs(self, kinds):
        return dict.fromkeys(kinds, self.get_mamba_state_copy_func())

    def forward(self, input_ids, positions=None, **_):
        ids, says = input_ids.tolist(), [0] * len(input_ids)
        metadata = get_forward_context().attn_metadata or {}
        attention = [one for one in metadata.values() if hasattr(one, "seq_lens") and hasattr(one, "query_start_loc")]
        if attention:
            starts, lengths = attention[0].query_start_loc.tolist(), attention[0].seq_lens.tolist()
            self.engine.begin_forward([length - starts[row + 1] + starts[row] for row, length in enumerate(lengths)])
            for layer in self.layers:
                layer.run(ids)
            for row, name in enumerate(self.engine.batch):
                for token in range(starts[row], starts[row + 1]):
                    says[token] = self.engine.says(name, self.engine.computed[row] + token - starts[row] + 1)
        return torch.tensor(says, dtype=torch.int64)[:, None]

    def compute_logits(self, hidden, *_):
        return torch.nn.functional.one_hot(hidden[:, 0], VOCABULARY).float() * 10
