"""Captured decode graphs: SGLang's runner pads a batch to the size of a graph and fills the buffers that graphs read.

`DecodeCudaGraphRunner.load_batch` runs as it is, with SGLang's registry of buffers and the linear-attention backend's
metadata for a replay. A replay reads nothing but these buffers: whatever the batch says, the rows that are computed
here have the request rows, lengths, KV locations, state slots and snapshot slots that the buffers have. They are read
at the launch, since the next launch fills them again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.model_executor.cuda_graph_buffer_registry import build_decode_registry
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

from ..base.observe import OutOfRange
from .batch_rows import NO_STATE, PADDING_TOKEN, Row
from .compat import parts, scheduler_api
from .compat.engine import STATES, SglangEngine
from .ring import replays
from .stubs import OFF


class Graphs(DecodeCudaGraphRunner):
    """The runner without its constructor, which would capture graphs."""

    device = "cpu"
    dllm_uses_input_embeds = ragged_verify_mode = require_mlp_tp_gather = require_attn_tp_gather = False
    disable_padding = require_mlp_sync = is_encoder_decoder = enable_two_batch_overlap = enable_pdmux = False
    record_nolora_graph = _skips_prefilled_inputs = False
    dllm_input_preparation = attention_graph_variants = _metadata_glue = _early_verify_metadata = None
    _draft_metadata_glue = _target_metadata_glue = None
    capture_hidden_mode = CaptureHiddenMode.NULL

    def __init__(self, engine: SglangEngine) -> None:
        sizes, self.memory = engine.sizes, engine.memory
        self.captured_req_width = width = max(sizes.drafts, 1)
        self.graph_sizes = sorted(sizes.graphs)
        self.max_bs, tokens = self.graph_sizes[-1], self.graph_sizes[-1] * width
        self.tracks = sizes.strategy != "no_buffer" and not sizes.drafts
        self.entries = sizes.ring
        self.deepep_adapter = OFF
        self.model_runner: Any = SimpleNamespace(hisparse_coordinator=None, lora_manager=None, spec_algorithm=OFF)
        self.attn_backend = backend = _replaying(engine)
        backend.init_cuda_graph_state(self.max_bs, tokens)
        self.seq_len_fill_value = backend._graph_seq_len_fill_value = backend.get_cuda_graph_seq_len_fill_value()
        self.buffer_registry = registry = build_decode_registry(
            device=torch.device("cpu"),
            max_bs=self.max_bs,
            max_num_token=tokens,
            seq_len_fill_value=self.seq_len_fill_value,
            cache_loc_dtype=torch.int64,
            enable_mamba_track=self.tracks,
            register_global_num_tokens=False,
            share_pool=False,
        )
        buffers = {name: registry.get_slot(name).buffer for name in registry.slot_names()}
        self.buffers: Any = scheduler_api.Seen(**buffers)

    def load(self, batch: Any, rows: Sequence[Row], pad_to: int) -> Filled | None:
        """Load a batch whose rows were read from the scheduler's tables; None if no graph is large enough.

        `pad_to` stands for the rows of other data-parallel ranks: the smallest graph with as many is taken.
        """
        if len(rows) > self.max_bs:
            return None
        self.capture_bs = [size for size in self.graph_sizes if size >= pad_to] or self.graph_sizes[-1:]
        self.capture_forward_mode = ForwardMode.DECODE if batch.forward_mode.is_idle() else batch.forward_mode
        self.load_batch(scheduler_api.graph_batch(batch, self.captured_req_width))
        return Filled(self, rows, batch)


def _replaying(engine: SglangEngine) -> Any:
    """Return the linear-attention backend with empty buffers for the metadata of replays."""
    backend = parts.make_backend(engine.rows, engine.sizes)
    backend.pad_slot_id, backend._fused_state_indices_ok, backend.kernel_dispatcher = NO_STATE, False, OFF
    backend.state_indices_list, backend.query_start_loc_list = [], []
    backend.retrieve_next_token_list, backend.retrieve_next_sibling_list = [], []
    backend.retrieve_parent_token_list = []
    return backend


class Filled:
    """The content of the buffers for one replay.

    rows       of the graph, padding rows included
    metadata   of the linear-attention backend
    snapshots  (row, place of the slot) of rows whose state is copied after the decode
    """

    def __init__(self, graphs: Graphs, rows: Sequence[Row], batch: Any) -> None:
        buffers, width, size = graphs.buffers, graphs.captured_req_width, graphs.bs
        filled = graphs.attn_backend.forward_metadata
        self.metadata = copy.copy(filled)
        self.metadata.mamba_cache_indices = filled.mamba_cache_indices.clone()
        if graphs.entries:
            rings = replays(filled, graphs.entries)
            rows = [row._replace(replay=rings[index]) for index, row in enumerate(rows)]
        places, starts = filled.mamba_cache_indices.tolist(), filled.query_start_loc.tolist()
        slots = graphs.memory.slots_at(places)
        pool_rows, lengths = buffers.req_pool_indices[:size].tolist(), buffers.seq_lens[:size].tolist()
        written = buffers.out_cache_loc[: size * width].tolist()
        table = graphs.attn_backend.req_to_token_pool.req_to_token
        drafts = width if batch.forward_mode.is_target_verify() else 0
        self.rows = []
        for index in range(size):
            pool_row, places = pool_rows[index], written[index * width : (index + 1) * width]
            if index >= len(rows):
                dead = Row(None, pool_row, 0, width, (PADDING_TOKEN,) * width, False, slots[index], (), places, places)
                self.rows.append(dead)
                continue
            length = lengths[index] + drafts
            exists = 0 <= pool_row < len(table)
            row = rows[index]._replace(
                pool_row=pool_row,
                prefix=length - width,
                slot=slots[index],
                locations=table[pool_row, :length].tolist() if exists else [],
                written=places,
            )
            for relative in (starts[index] - index * width, starts[index + 1] - (index + 1) * width):
                if relative:
                    row = row._replace(outside=OutOfRange(index, STATES, "relative token", relative, 1))
            self.rows.append(row)
        self.snapshots = list[tuple[int, int]]()
        if graphs.tracks and filled.mamba_track_indices is not None:
            marked = buffers.mamba_track_mask[:size].tolist()
            tracks = filled.mamba_track_indices.tolist()
            self.snapshots = [(index, tracks[index]) for index in range(size) if marked[index]]
