"""Stand-in layers: a hybrid model whose recurrent states are numbers, kept in vLLM's own KV tensors.

A state is a number that stands for "exactly these tokens, in this order" (`fold`). It is stored in the block that
vLLM's own metadata names, so that vLLM's copies, zeroing and recycling apply to it. Attention layers only take part in
the allocation. The tokens that the model samples are given in advance. (This file is inlined into reproducers; nothing
imports it.)
"""

import inspect
import types

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
            self.note(self.layer_name, row, pages, tags)


class State(nn.Module, MambaBase):
    """Reads, folds and writes recurrent states as the gated delta net kernels do."""

    mamba_type = MambaAttentionBackendEnum.GDN_ATTN

    def __init__(self, name, conv_width, num_drafts, note):
        super().__init__()
        self.prefix = self.layer_name = name
        self.buffer, self.note, self.kv_cache = conv_width - 1 + num_drafts, note, ()

    def get_state_shape(self):
        return (self.buffer, 1), (1,)

    def get_state_dtype(self):
        return torch.int64, torch.int64

    def run(self, ids):
        states = self.kv_cache[1].view(len(self.kv_cache[1]), -1)[:, 0]
        rows = list(state_rows(get_forward_context().attn_metadata[self.layer_name]))
        for row, tokens, source, outputs in rows:
            state, chain = 0, []
            if source is not None:
                state = int(states[source])
                self.note(self.layer_name, row, source, state)
            for token in tokens:
                chain.append(state := fold([ids[token]], state))
            for block, written in zip(outputs, chain[-len(outputs) :], strict=True):
                states[block] = written


def state_rows(metadata):
    """Yield (batch row, positions of its tokens, block of the initial state or None, blocks to write), as kernels do.

    A speculative row starts from the block at index accepted - 1 and writes one state for each token.
    """
    tokens, rows = range(metadata.num_actual_tokens), None
    if metadata.spec_sequence_masks is not None:
        masks, speculating = metadata.spec_sequence_masks.tolist(), tokens
        if metadata.num_prefills or metadata.num_decodes:
            speculating, tokens = metadata.spec_token_indx.tolist(), metadata.non_spec_token_indx.tolist()
            rows = [row for row, one in enumerate(masks) if not one]
        starts, accepted = metadata.spec_query_start_loc.tolist(), metadata.num_accepted_tokens.tolist()
        spec_rows = range(len(starts)) if rows is None else [row for row, one in enumerate(masks) if one]
        for index, blocks in enumerate(metadata.spec_state_indices_tensor.tolist()[: metadata.num_spec_decodes]):
            own = speculating[starts[index] : starts[index + 1]]
            if own:
                yield spec_rows[index], own, blocks[accepted[index] - 1] or None, blocks[: len(own)]
    if metadata.num_prefills:
        starts, blocks = metadata.non_spec_query_start_loc.tolist(), metadata.non_spec_state_indices_tensor.tolist()
        decodes = metadata.num_decodes if metadata.spec_sequence_masks is None else 0
        has_state = [True] * decodes + metadata.prefill_has_initial_state.tolist()
        for index, block in enumerate(blocks):
            own = tokens[starts[index] : starts[index + 1]]
            if own:
                yield rows[index] if rows else index, own, block if has_state[index] else None, [block]
    elif metadata.num_decodes:
        for index, block in enumerate(metadata.non_spec_state_indices_tensor.tolist()[: len(tokens)]):
            if block:
                yield rows[index] if rows else index, [tokens[index]], block, [block]


class Model(nn.Module):
    """A decoder of stand-in layers: "m" a state layer, "a" an attention layer."""

    is_hybrid = True

    def __init__(self, engine, pattern, conv_width, block_size, head_size, num_drafts):
        super().__init__()
        self.engine, layers = engine, []
        for index, kind in enumerate(pattern):
            name = f"model.layers.{index}.mixer"
            if kind == "m":
                layers.append(State(name, conv_width, num_drafts, engine.note))
            else:
                layers.append(Attention(name, block_size, head_size, engine.note_slots))
            engine.config.compilation_config.static_forward_context[name] = layers[-1]
        self.layers = nn.ModuleList(layers)

    @classmethod
    def get_mamba_state_copy_func(cls):
        return MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()

    @classmethod
    def get_mamba_state_copy_funcs(cls, kinds):
        return dict.fromkeys(kinds, cls.get_mamba_state_copy_func())

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
