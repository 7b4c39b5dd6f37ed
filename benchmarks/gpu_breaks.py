"""One-line breaks of vLLM that only real kernels, graphs or dtypes can show: which oracle finds each, and when.

    python benchmarks/gpu_breaks.py --device cuda --tree TREE --seconds 60 --jobs 16 -o breaks.json

Each break is made in a copy of TREE in which the known causes are fixed, and meets random traces in a process of its
own (`gpu_engines.py --until-violation`). The arguments of the kernels, which a CPU sees, stay right. With `--kernels`
the broken kernel is driven by itself (`gpu_kernels.py`), "steps" are cases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trees import Edit, edited_tree

MAMBA = "vllm/model_executor/layers/mamba/ops"
FLA = "vllm/third_party/flash_linear_attention/ops"
CONV, SSU, PASSING = f"{MAMBA}/causal_conv1d.py", f"{MAMBA}/mamba_ssm.py", f"{MAMBA}/ssd_state_passing.py"
GATED, DELTA = f"{FLA}/fused_sigmoid_gating.py", f"{FLA}/chunk_delta_h.py"
ATTENTION = "vllm/v1/attention/ops/triton_unified_attention.py"
STORE = "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py"
COPIES, ZEROS = "vllm/v1/worker/mamba_utils.py", "vllm/v1/worker/utils.py"
REPLAY = f"{MAMBA}/selective_state_update_replayssm_output_only.py"
SCHEDULER, TABLES = "vllm/v1/core/sched/scheduler.py", "vllm/v1/worker/gpu/block_table.py"
ADAPTERS, KEYS = "vllm/lora/ops/triton_ops/lora_kernel_metadata.py", "vllm/v1/core/kv_cache_utils.py"
TRITON, HEAD_METADATA = "vllm/v1/attention/backends/triton_attn.py", "vllm/v1/worker/gpu/spec_decode/speculator.py"
HEAD_STEPS = "vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py"
SHARED = "vllm/v1/attention/backends/gdn_attn.py"
LOADS_V1, LOADS_V2 = "vllm/v1/worker/kv_connector_model_runner_mixin.py", "vllm/v1/worker/gpu/kv_connector.py"
RUNNER_V1, RUNNER_V2 = "vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/async_utils.py"
ENCODER, ENCODED = "vllm/v1/worker/gpu/mm/encoder_runner.py", "vllm/v1/worker/gpu/model_states/interface.py"
POSITIONS, TOWER = "vllm/v1/worker/gpu/mm/rope.py", "vllm/model_executor/models/qwen3_vl.py"
GRAPHS_V2, ADAPTED = "vllm/v1/worker/gpu/cudagraph_utils.py", "vllm/lora/layers/base_linear.py"
TRANSFERS = "vllm/v1/kv_offload/cpu/gpu_worker.py"
AGREED_V1, AGREED_V2 = "vllm/v1/worker/dp_utils.py", "vllm/v1/worker/gpu/dp_utils.py"


@dataclass(frozen=True)
class Break:
    """One edit, and the configuration whose traces reach it."""

    name: str
    config: str
    file: str
    old: str
    new: str
    workload: str = ""


BREAKS = (
    Break(
        "conv update reads its window one token late",
        "mixer=mamba2,num_speculative_tokens=3,graphs=none",
        CONV,
        "tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64) - 1",
        "tl.load(num_accepted_tokens_ptr + idx_seq).to(tl.int64)",
    ),
    Break(
        "conv update drops the newest input",
        "mixer=gdn,num_speculative_tokens=0,graphs=none",
        CONV,
        "    mask = (idx_tokens < state_len)[:, None] & (idx_feats < dim)[None, :]\n"
        "    tl.store(conv_state_ptrs_target, new_conv_state, mask)",
        "    mask = (idx_tokens < state_len - 1)[:, None] & (idx_feats < dim)[None, :]\n"
        "    tl.store(conv_state_ptrs_target, new_conv_state, mask)",
    ),
    Break(
        "conv update takes every row's window from a fixed stride",
        "mixer=mamba2,num_speculative_tokens=0,graphs=decode",
        CONV,
        "conv_state_indices_ptr + idx_seq * stride_state_indices\n    ).to(tl.int64)\n\n    if HAS_NULL_BLOCK:",
        "conv_state_indices_ptr + idx_seq // 2 * 2 * stride_state_indices\n"
        "    ).to(tl.int64)\n"
        "\n"
        "    if HAS_NULL_BLOCK:",
    ),
    Break(
        "selective update stores a draft's state one place early",
        "mixer=mamba2,num_speculative_tokens=3",
        SSU,
        "dst_idx_ptr = dst_state_batch_indices_ptr + i_t * stride",
        "dst_idx_ptr = dst_state_batch_indices_ptr + tl.maximum(i_t - 1, 0) * stride",
    ),
    Break(
        "selective update rounds the stored state to bfloat16",
        "mixer=mamba2,num_speculative_tokens=0",
        SSU,
        "            state = state.to(dst_state_ptrs.dtype.element_ty)",
        "            state = state.to(tl.bfloat16).to(dst_state_ptrs.dtype.element_ty)",
    ),
    Break(
        "selective update ignores the count of accepted tokens",
        "mixer=mamba2,num_speculative_tokens=2",
        SSU,
        "init_token_idx = tl.maximum(num_accepted - 1, 0)",
        "init_token_idx = tl.minimum(num_accepted - 1, 0)",
    ),
    Break(
        "SSD stores all final states in the first slot",
        "mixer=mamba2,graphs=none",
        PASSING,
        "tl.load(final_state_indices_ptr + pid_b * stride_final_state_indices)",
        "tl.load(final_state_indices_ptr + pid_b * 0)",
    ),
    Break(
        "SSD starts each prompt from the first one's state",
        "mixer=mamba2,graphs=none",
        PASSING,
        "+ pid_b * stride_initstates_batch",
        "+ pid_b * 0 * stride_initstates_batch",
    ),
    Break(
        "gated delta update reads the first state after a verification",
        "mixer=gdn,num_speculative_tokens=3",
        GATED,
        "i_t = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1",
        "i_t = tl.load(num_accepted_tokens + i_n).to(tl.int64) * 0",
    ),
    Break(
        "gated delta update rounds the stored state to bfloat16",
        "mixer=gdn,num_speculative_tokens=1",
        GATED,
        "                p_ht = ht + final_state_idx * stride_final_state_token\n"
        "                p_ht = p_ht + i_hv * V * K + o_v[:, None] * K + o_k[None, :]\n"
        "                tl.store(p_ht, b_h.to(p_ht.dtype.element_ty), mask=mask_h)",
        "                p_ht = ht + final_state_idx * stride_final_state_token\n"
        "                p_ht = p_ht + i_hv * V * K + o_v[:, None] * K + o_k[None, :]\n"
        "                tl.store(p_ht, b_h.to(tl.bfloat16).to(p_ht.dtype.element_ty), mask=mask_h)",
    ),
    Break(
        "chunked gated delta stores every head's state as the first head's",
        "mixer=gdn,graphs=none",
        DELTA,
        "        ht = ht + i_nh * V * K",
        "        ht = ht + i_nh // 2 * 2 * V * K",
    ),
    Break(
        "attention reads the first row's block table",
        "mixer=mamba2,graphs=decode",
        ATTENTION,
        "block_table_offset = seq_idx * block_table_stride",
        "block_table_offset = seq_idx * 0 * block_table_stride",
    ),
    Break(
        "attention stores at the next slot of the page",
        "mixer=gdn,graphs=none",
        STORE,
        "            + block_offset * page_stride\n",
        "            + (block_offset + 1) % block_size * page_stride\n",
    ),
    Break(
        "align copies move half of a temporal state",
        "mixer=mamba2,mamba_cache_mode=align",
        COPIES,
        "        body_u64 = body_bytes // 8\n",
        "        body_u64 = body_bytes // 16\n",
    ),
    Break(
        "align copies ignore the accepted column",
        "mixer=gdn,num_speculative_tokens=3,mamba_cache_mode=align",
        COPIES,
        "tl.load(block_table_base + src_col + token_bias)",
        "tl.load(block_table_base + src_col + token_bias * 0)",
    ),
    Break(
        "zeroing clears the first chunk of a page",
        "mixer=gdn,graphs=none",
        ZEROS,
        "    if chunk_offset >= page_size_el:\n        return",
        "    if chunk_offset >= page_size_el // 2:\n        return",
    ),
)
"""Of kernels, graphs and dtypes. Each meets the models and options that the first real models had."""

_RING = "mixer=mamba2,runner=v1,replay=4,num_speculative_tokens=0,connector=none"
_PARTIAL = "prefix_match_unit=8,mamba_cache_mode=align,num_speculative_tokens=0"
_ALIGN = "mamba_cache_mode=align"
BREADTH = (
    Break(
        "ReplaySSM reads its ring without the newest entry",
        _RING,
        REPLAY,
        "            mask=offs_k_cache < write_pos,",
        "            mask=offs_k_cache < write_pos - 1,",
    ),
    Break(
        "ReplaySSM stores an input one place late",
        _RING,
        REPLAY,
        "x_cache_ptr + offs_m * stride_x_cache_dim + write_pos * stride_x_cache_pos",
        "x_cache_ptr + offs_m * stride_x_cache_dim + (write_pos + 1) % MAX_CACHE_LEN * stride_x_cache_pos",
    ),
    Break(
        "ReplaySSM folds its ring into the state without the inputs' decay",
        _RING,
        REPLAY,
        "        scale_dot = dt_all_dot * tl.exp(dA_total_dot - dA_cumsum_dot)",
        "        scale_dot = dt_all_dot",
    ),
    Break(
        "windows that lie channel by channel are copied without the shift",
        f"conv_layout=DS,num_speculative_tokens=3,{_ALIGN}",
        COPIES,
        " + (token_idx + token_bias) * state_elem_size\n                )\n                dst_byte_addr",
        " + token_idx * state_elem_size\n                )\n                dst_byte_addr",
    ),
    Break(
        "windows that lie channel by channel are copied for half of the channels",
        f"conv_layout=DS,num_speculative_tokens=3,{_ALIGN}",
        COPIES,
        "                mask = rows < dim_rows\n",
        "                mask = rows < dim_rows // 2\n",
    ),
    Break(
        "a hit inside a block copies half of the page",
        _PARTIAL,
        ZEROS,
        "        blocks[dst] = blocks[src]",
        "        blocks[dst, : blocks.shape[1] // 2] = blocks[src, : blocks.shape[1] // 2]",
    ),
    Break(
        "a hit inside a block copies pages of the first allocation only",
        _PARTIAL,
        ZEROS,
        "            if storage_key in copied_storages:",
        "            if copied_storages:",
    ),
    Break(
        "what a step needs is loaded behind its forward (V2)",
        "connector=sync,runner=v2",
        LOADS_V2,
        "        if scheduler_output.has_sync_kv_loads:",
        "        if False:",
    ),
    Break(
        "what a step needs is loaded behind its forward (V1)",
        "connector=sync,runner=v1",
        LOADS_V1,
        "        start_after_forward = not scheduler_output.has_sync_kv_loads",
        "        start_after_forward = True",
    ),
    Break(
        "groups that share metadata read the first group's states",
        "metadata=shared,mixer=gdn,runner=v2",
        SHARED,
        "            non_spec_indices = blk_table[:, 0]\n            if m.num_prefills > 0:",
        "            non_spec_indices = m.non_spec_state_indices_tensor\n            if m.num_prefills > 0:",
    ),
    Break(
        "a session's next turn keeps the token that is dropped",
        _ALIGN,
        SCHEDULER,
        "        keep_end = session.num_tokens - 1\n",
        "        keep_end = session.num_tokens\n",
    ),
    Break(
        "a session's next turn keeps the keys of its last one",
        _ALIGN,
        SCHEDULER,
        "        del session.block_hashes[keep_end // self.hash_block_size :]\n",
        "",
    ),
    Break(
        "tokens behind a stop token stay in the answer",
        "num_speculative_tokens=3",
        SCHEDULER,
        "                del new_token_ids[num_new:]  # Trim new tokens if needed.\n",
        "",
    ),
    Break(
        "a dummy run beside another rank uses the last step's tables",
        "data_parallel=2,runner=v2,graphs=decode",
        TABLES,
        "            block_table[:num_rows].zero_()",
        "            pass",
    ),
    Break(
        "loads that failed are not reported (V1)",
        "connector=store,load_failure=recompute,runner=v1",
        LOADS_V1,
        "            output.invalid_block_ids = kv_connector.get_block_ids_with_load_errors()\n",
        "            output.invalid_block_ids = set()\n",
    ),
    Break(
        "attention with a window reads a block beyond it",
        "mixer=mamba2",
        ATTENTION,
        "        SLIDING_WINDOW=(1 + window_size[0]),\n        USE_CAUSAL=use_causal,",
        "        SLIDING_WINDOW=(17 + window_size[0]),\n        USE_CAUSAL=use_causal,",
    ),
    Break(
        "attention with a window multiplies the values that it masks",
        "mixer=mamba2",
        ATTENTION,
        "            V = tl.where(sw_mask_v, V, 0.0)",
        "            V = tl.where(sw_mask_v, V, V)",
    ),
    Break(
        "an adapter is applied to the tokens of other rows",
        "inputs=adapters,graphs=none",
        ADAPTERS,
        "            token_lora_mapping, stable=True",
        "            -token_lora_mapping, stable=True",
    ),
    Break(
        "keys of blocks do not name adapters",
        "inputs=adapters,graphs=none,mamba_cache_mode=align",
        KEYS,
        '    return [("lora", lora_request.lora_name, lora_request.lora_path)]',
        "    return []",
    ),
)
"""Of what real models are driven with since: the ring of ReplaySSM, the second layout of windows, hits inside blocks,
connectors, shared metadata, sessions, stop tokens, ranks, windows, adapters."""

_DRAFTING = f"num_speculative_tokens=3,{_ALIGN}"
RACES = (
    Break(
        "the counts of accepted drafts are read before they are copied (V1)",
        f"runner=v1,async_depth=0,{_DRAFTING}",
        RUNNER_V1,
        "            self.num_accepted_tokens_event.synchronize()\n",
        "            pass\n",
    ),
    Break(
        "sampled tokens are copied before they are sampled (V2)",
        "runner=v2,async_depth=1",
        RUNNER_V2,
        "            copy_stream.wait_stream(main_stream)\n\n            self.sampled_token_ids =",
        "            self.sampled_token_ids =",
    ),
    Break(
        "sampled tokens are read before they are copied (V2)",
        "runner=v2,async_depth=1",
        RUNNER_V2,
        "        self.copy_event.synchronize()\n\n        # NOTE(woosuk): The following code is to ensure",
        "        # NOTE(woosuk): The following code is to ensure",
    ),
    Break(
        "sampled tokens are copied before they are sampled (V1)",
        "runner=v1,async_depth=1,num_speculative_tokens=0",
        RUNNER_V1,
        "            async_output_copy_stream.wait_stream(default_stream)\n            self.sampled_token_ids_cpu",
        "            self.sampled_token_ids_cpu",
    ),
    Break(
        "sampled tokens are read before they are copied (V1)",
        "runner=v1,async_depth=1,num_speculative_tokens=0",
        RUNNER_V1,
        " = self.sampled_token_ids_cpu.shape[-1]\n        self.async_copy_ready_event.synchronize()\n",
        " = self.sampled_token_ids_cpu.shape[-1]\n",
    ),
    Break(
        "the counts of valid tokens are copied before they are counted (V1)",
        f"runner=v1,async_depth=1,{_DRAFTING}",
        RUNNER_V1,
        "            self.valid_sampled_token_count_copy_stream.wait_stream(default_stream)  # type: ignore\n",
        "",
    ),
)
"""Of events that order streams and the host: a wait that is missing."""

_RANKS = "ranks=2,graphs=decode"
RANKS = (
    Break(
        "a dummy run beside a working rank uses the last step's tables (V2)",
        f"{_RANKS},runner=v2",
        TABLES,
        "            block_table[:num_rows].zero_()",
        "            pass",
    ),
    Break(
        "rows that pad to a larger rank's graph keep the blocks of an earlier batch (V1)",
        f"{_RANKS},runner=v1",
        RUNNER_V1,
        "            blk_table_tensor[num_reqs:num_reqs_padded].fill_(NULL_BLOCK_ID)\n",
        "            pass\n",
    ),
    Break(
        "a dummy run takes its rows for prompts: the fix of cause 5 left out (V1)",
        f"{_RANKS},runner=v1",
        RUNNER_V1,
        "        is_prefilling[0 if for_cudagraph_capture else num_reqs :] = False",
        "        is_prefilling[num_reqs:] = False",
    ),
    Break(
        "a dummy run keeps the rows of idle sessions: the fix of cause 18 left out (V1)",
        f"{_RANKS},runner=v1",
        RUNNER_V1,
        "for req_id in list(self.input_batch.req_id_to_index):\n                    self.input_batch.remove_request",
        "for req_id in ():\n                    self.input_batch.remove_request",
    ),
    Break(
        "each rank tells its tokens in the first rank's place (V1)",
        f"{_RANKS},runner=v1",
        AGREED_V1,
        "    tensor_cpu[1][dp_rank] = padded_num_tokens_per_ubatch",
        "    tensor_cpu[1][0] = padded_num_tokens_per_ubatch",
    ),
    Break(
        "each rank tells its tokens in the first rank's place (V2)",
        f"{_RANKS},runner=v2",
        AGREED_V2,
        "    tensor[0][dp_rank] = num_tokens\n",
        "    tensor[0][0] = num_tokens\n",
    ),
)
"""Of what data-parallel ranks agree on, and of their dummy runs. Each engine is rank 0 of two processes: two GPUs. The
last two change nothing where the other rank is a stand-in."""

_HEAD = "mixer=gdn,runner=v2,num_speculative_tokens=3,connector=none,inputs=tokens,graphs=none"
_ALWAYS = "drafter=100"
HEADS = (
    Break(
        "the head's attention reads the blocks behind its own",
        _HEAD,
        TRITON,
        "        block_table = attn_metadata.block_table\n",
        '        block_table = attn_metadata.block_table + int(getattr(layer, "is_draft_layer", False))\n',
        _ALWAYS,
    ),
    Break(
        "the head's keys and values are stored in the block behind",
        _HEAD,
        TRITON,
        "            value_cache,\n            slot_mapping,\n            self.kv_cache_dtype,",
        "            value_cache,\n"
        '            slot_mapping + 16 * int(getattr(layer, "is_draft_layer", False)),\n'
        "            self.kv_cache_dtype,",
        _ALWAYS,
    ),
    Break(
        "the head's attention reads a slot beyond its context",
        _HEAD,
        TRITON,
        "        seqused_k = attn_metadata.seq_lens\n        max_seqlen_q",
        '        seqused_k = attn_metadata.seq_lens + int(getattr(layer, "is_draft_layer", False))\n'
        "        max_seqlen_q",
        _ALWAYS,
    ),
    Break(
        "the head's keys and values are stored a slot late",
        _HEAD,
        TRITON,
        "            value_cache,\n            slot_mapping,\n            self.kv_cache_dtype,",
        "            value_cache,\n"
        '            slot_mapping + int(getattr(layer, "is_draft_layer", False)),\n'
        "            self.kv_cache_dtype,",
        _ALWAYS,
    ),
    Break(
        "the head's later drafts attend to rejected ones",
        _HEAD,
        HEAD_STEPS,
        "    seq_len = target_seq_len - num_rejected\n",
        "    seq_len = target_seq_len\n",
        _ALWAYS,
    ),
    Break(
        "the head's later drafts are stored where the first one was",
        _HEAD,
        HEAD_STEPS,
        "                self.block_tables.compute_slot_mappings(\n"
        "                    idx_mapping,\n"
        "                    query_start_loc,\n"
        "                    positions,\n"
        "                    num_tokens_padded,\n"
        "                )\n",
        "",
        _ALWAYS,
    ),
    Break(
        "the head's later drafts read the tables of another group",
        _HEAD,
        HEAD_METADATA,
        "            x[:num_reqs_padded] for x in self.block_tables.input_block_tables\n",
        "            x[:num_reqs_padded] for x in reversed(self.block_tables.input_block_tables)\n",
        _ALWAYS,
    ),
    Break(
        "a dummy run of the head stores into the blocks of requests",
        _HEAD,
        HEAD_METADATA,
        "        if dummy_run:\n            self.idx_mapping.fill_(-1)\n        else:\n",
        "        if True:\n",
        _ALWAYS,
    ),
)
"""Of an MTP head behind the model. The first four leave all metadata as they are."""

_IMAGES = "mixer=gdn,inputs=images"
IMAGES = (
    Break(
        "a chunk that begins inside an image gets the image's first embeddings (V2)",
        f"{_IMAGES},runner=v2",
        ENCODER,
        "                    mm_embeds_item = encoder_output[start_idx:end_idx]",
        "                    mm_embeds_item = encoder_output[: end_idx - start_idx]",
    ),
    Break(
        "a chunk that begins inside an image gets the image's first embeddings (V1)",
        f"{_IMAGES},runner=v1",
        RUNNER_V1,
        "                    mm_embeds_item = encoder_output[start_idx:end_idx]",
        "                    mm_embeds_item = encoder_output[: end_idx - start_idx]",
    ),
    Break(
        "an answer's positions count an image's tokens one by one (V2)",
        f"{_IMAGES},runner=v2",
        POSITIONS,
        "                pos = orig_pos + delta",
        "                pos = orig_pos",
    ),
    Break(
        "an answer's positions count an image's tokens one by one (V1)",
        f"{_IMAGES},runner=v1",
        RUNNER_V1,
        "                    mrope_position_delta=req.mrope_position_delta,",
        "                    mrope_position_delta=0,",
    ),
    Break(
        "images that are encoded in one step are mistaken for each other (V2)",
        f"{_IMAGES},runner=v2",
        ENCODED,
        "zip(mm_hashes, encoder_outputs)",
        "zip(reversed(mm_hashes), encoder_outputs)",
    ),
    Break(
        "images that are encoded in one step attend to each other",
        _IMAGES,
        TOWER,
        "        cu_seqlens = np.concatenate([np.zeros(1, dtype=np.int32), cu_seqlens])\n",
        "        cu_seqlens = np.concatenate([np.zeros(1, dtype=np.int32), cu_seqlens[-1:]])\n",
    ),
)
"""Of images: what their encoder computes, which of it a chunk gets, and where the text behind it stands."""

_GRAPHS = "inputs=adapters,graphs=decode"
LORA = (
    Break(
        "rows with an adapter replay a graph without adapters (V2)",
        f"{_GRAPHS},runner=v2",
        GRAPHS_V2,
        "        if num_active_loras <= 0 or not self._lora_dispatch_map:\n            return num_active_loras",
        "        if True:\n            return 0",
    ),
    Break(
        "rows with an adapter replay a graph without adapters (V1)",
        f"{_GRAPHS},runner=v1",
        RUNNER_V1,
        "            else len(self.input_batch.lora_id_to_lora_request)\n        )\n        has_lora",
        "            else 0\n        )\n        has_lora",
    ),
    Break(
        "a graph reads the adapters of another batch",
        _GRAPHS,
        ADAPTERS,
        "        self.active_lora_ids[: lora_ids.size(0)].copy_(lora_ids, non_blocking=True)",
        "        self.active_lora_ids = torch.full_like(self.active_lora_ids, -1)\n"
        "        self.active_lora_ids[: lora_ids.size(0)].copy_(lora_ids, non_blocking=True)",
    ),
    Break(
        "an adapter that takes another one's place keeps a matrix of it",
        _GRAPHS,
        ADAPTED,
        "        self.reset_lora(index)\n        if self.tp_size > 1:\n            lora_a = self.slice_lora_a(lora_a)",
        "        if self.lora_b_stacked[0][index].any():\n"
        "            lora_b = self.lora_b_stacked[0][index, 0].clone()\n"
        "        self.reset_lora(index)\n"
        "        if self.tp_size > 1:\n"
        "            lora_a = self.slice_lora_a(lora_a)",
    ),
)
"""Of adapters in captured graphs. The third leaves batches alone that replay none."""
_TIER = "connector=offloading,mamba_cache_mode=align,graphs=none"
OFFLOADING = (
    Break(
        "pages are copied without their last quarter",
        _TIER,
        TRANSFERS,
        "            all_sizes[op_idx:end_idx] = data_ref.page_size_bytes",
        "            all_sizes[op_idx:end_idx] = data_ref.page_size_bytes * 3 // 4",
    ),
    Break(
        "each chunk is loaded to the block of another one",
        _TIER,
        TRANSFERS,
        "        src_offset = 0\n        dst_offset = 0\n        op_idx = 0",
        "        if not self.gpu_to_cpu:\n"
        "            src_blocks = src_blocks[::-1]\n"
        "        src_offset = 0\n        dst_offset = 0\n        op_idx = 0",
    ),
)
"""Of the bytes that vLLM's own connector copies between the caches and host memory."""
SETS = {
    "kernels": BREAKS, "breadth": BREADTH, "races": RACES, "ranks": RANKS, "heads": HEADS, "images": IMAGES,
    "adapters": LORA, "offloading": OFFLOADING,
}  # fmt: skip

DRIVEN = {
    CONV: "causal_conv1d_update",
    SSU: "selective_state_update",
    PASSING: "mamba_chunk_scan",
    GATED: "fused_sigmoid_gating",
    DELTA: "chunk_gated_delta",
    ATTENTION: "unified_attention",
    STORE: "reshape_and_cache",
    COPIES: "precopy_mamba",
}
"""The kernel of `gpu_kernels.py` that a break is in, by its file."""


def broken_tree(fixed: Path, one: Break, into: Path) -> Path:
    """The fixed tree with one break."""
    return edited_tree(fixed, [Edit(one.file, one.old, one.new)], into)


def main() -> int:
    """Run all breaks, so many at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "interpreter"))
    parser.add_argument("--tree", type=Path, required=True, help="an unpacked vLLM wheel with the known causes fixed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--kernels", action="store_true", help="meet the kernels by themselves (gpu_kernels.py)")
    parser.add_argument("--set", choices=SETS, default="kernels", dest="of", help="which breaks")
    parser.add_argument("--more", default="", help="further settings of all, as for --config: jitter=yes")
    parser.add_argument("--only", default="", help="words of which one is in a break's name")
    parser.add_argument("-o", dest="out", type=Path, default=Path("gpu-breaks.json"))
    options = parser.parse_args()
    if options.kernels and options.of != "kernels":
        parser.error("--kernels is for the set of this name")
    chosen = [
        one for one in SETS[options.of] if not options.only or any(word in one.name for word in options.only.split(","))
    ]
    chosen = [one for one in chosen if not options.kernels or one.file in DRIVEN]
    folder = Path(tempfile.mkdtemp(prefix="gpu-breaks-"))
    waiting, running, found = list(enumerate(chosen)), {}, {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            number, one = waiting.pop(0)
            tree, out = broken_tree(options.tree, one, folder / f"tree-{number}"), folder / f"{number}.json"
            config = ",".join(filter(None, (one.config, options.more)))
            driver, more = "gpu_engines.py", ["--config", config, "--until-violation"]
            more += ["--workload", one.workload] if one.workload else []
            if options.kernels:
                driver, more = "gpu_kernels.py", ["--only", DRIVEN[one.file], "--until-wrong"]
            command = [
                sys.executable, str(Path(__file__).with_name(driver)), "--device", options.device, "--tree", str(tree),
                "--seconds", str(options.seconds), "--seed", str(options.seed), *more, "-o", str(out),
            ]  # fmt: skip
            log = (folder / f"{number}.log").open("w")
            running[number] = one, subprocess.Popen(command, stdout=log, stderr=log), out
        for number, (one, process, out) in list(running.items()):
            if process.poll() is None:
                continue
            del running[number]
            result = json.loads(out.read_text())["result"] if out.exists() else {}
            log_tail = "" if result else (folder / f"{number}.log").read_text(errors="replace")[-600:]
            if options.kernels:
                wrong = result.get("wrong", {})
                result = {"violations": wrong, "steps": sum(result.get("cases", {}).values()), "messages": wrong}
            found[one.name] = {
                "config": one.config, "by": list(result.get("violations", {})), "traces": result.get("traces"),
                "steps": result.get("steps"), "message": next(iter(result.get("messages", {}).values()), log_tail),
            }  # fmt: skip
            print(json.dumps({one.name: found[one.name]}), flush=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
        time.sleep(0.2)
    print(f"{sum(bool(one['by']) for one in found.values())} of {len(found)} breaks found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
