"""vLLM's own bookkeeping kernels with drawn arguments: our interpreter against Triton's, bit for bit.

The kernels are imported by name; a release that lacks one, or gives it other parameters than are
drawn here, skips that test. No engine is built.
"""

import importlib
from typing import Any

import numpy as np
import pytest
from interpreter_support import both, launch, torch
from triton.runtime.interpreter import InterpreterBuilder

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

WORKER = "vllm.v1.worker"
SPEC = f"{WORKER}.gpu.spec_decode"
SEEDS = range(3)
SLOTS, COLUMNS, BLOCKS, BLOCK = 8, 40, 30, 8


def kernel(module: str, name: str, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A kernel and those of the arguments that it takes."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        pytest.skip(f"this release has no {module}.{name}")
    missing = set(found.arg_names) - set(arguments)
    if missing:
        pytest.skip(f"this release's {name} also takes {sorted(missing)}")
    return found, {key: arguments[key] for key in found.arg_names}


class Batch:
    """A drawn batch: requests in slots, query lengths (some zero), drafts, block tables."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = int(self.rng.integers(1, 6))
        slots = self.rng.permutation(SLOTS)[: self.n]
        self.idx_mapping = self.tensor(slots, torch.int64 if seed % 2 else torch.int32)
        lengths = self.rng.integers(0, 12, self.n)
        self.query_start_loc = self.sums(lengths)
        self.tokens = int(lengths.sum())
        self.drafts = self.rng.integers(0, 4, self.n)
        self.cu_num_logits = self.sums(self.drafts + 1)
        self.logits = int(self.drafts.sum()) + self.n
        self.num_computed = self.ints(0, 60, SLOTS)
        self.prefill_len = self.ints(1, 60, SLOTS)
        self.temperature = self.tensor(self.rng.integers(0, 2, SLOTS) * 0.7, torch.float32)
        self.seeds = self.ints(-(2**62), 2**62, SLOTS, dtype=torch.int64)
        owner = np.repeat(np.arange(self.n), self.drafts + 1)
        self.expanded = self.tensor(slots[owner], torch.int32)
        places = [np.arange(count + 1) for count in self.drafts]
        self.local_pos = self.tensor(np.concatenate(places), torch.int32)
        self.tables = [self.ints(0, BLOCKS, SLOTS, COLUMNS) for _ in range(2)]

    def ints(self, low: int, high: int, *shape: int, dtype: Any = torch.int32) -> Any:
        return self.tensor(self.rng.integers(low, high, shape), dtype)

    def floats(self, *shape: int) -> Any:
        return self.tensor(self.rng.normal(0, 3, shape), torch.float32)

    def sums(self, lengths: Any) -> Any:
        return self.tensor(np.concatenate([[0], np.cumsum(lengths)]), torch.int32)

    @staticmethod
    def tensor(values: Any, dtype: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)

    @staticmethod
    def pointers(tensors: list[Any], dtype: Any = torch.uint64) -> Any:
        return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64).view(dtype)

    def holes(self) -> Any:
        """The mapping with a request or two left out (-1)."""
        mapping = self.idx_mapping.clone()
        mapping[torch.from_numpy(self.rng.random(self.n) < 0.3)] = -1
        return mapping


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_apply_write(seed: int, many: bool) -> None:
    b = Batch(seed)
    lengths = b.rng.integers(0, 20, 5)
    arguments = {
        "output_ptr": b.pointers(b.tables) if many else b.tables[0],
        "output_stride": b.tensor([COLUMNS, COLUMNS], torch.int64) if many else COLUMNS,
        "write_indices_ptr": b.ints(0, SLOTS, 5),
        "write_starts_ptr": b.ints(0, 20, 5),
        "write_contents_ptr": b.ints(0, 99, int(lengths.sum()) + 1),
        "write_cu_lens_ptr": b.tensor(np.cumsum(lengths), torch.int32),
        "write_group_ids_ptr": b.ints(0, 2, 5) if many else None,
        "BLOCK_SIZE": 8,
        "MULTI_GROUP": many,
    }
    jitted, taken = kernel(f"{WORKER}.gpu.buffer_utils", "_apply_write_kernel", arguments)
    both(jitted, (5, 3), **taken, reached=b.tables)


@pytest.mark.parametrize("seed", SEEDS)
def test_zero_kv_blocks(seed: int) -> None:
    b = Batch(seed)
    pools = [b.ints(1, 2**31, BLOCKS * 24) for _ in range(2)]
    arguments = {
        "seg_addrs_ptr": b.pointers(pools),
        "seg_block_strides_ptr": b.tensor([24, 24], torch.int64),
        "seg_page_sizes_ptr": b.tensor([24, 13], torch.int64),
        "block_ids_ptr": b.ints(0, BLOCKS, 4, dtype=torch.int64),
        "BLOCK_SIZE": 16,
    }
    jitted, taken = kernel(f"{WORKER}.utils", "_zero_kv_blocks_kernel", arguments)
    both(jitted, (4, 2, 2), **taken, reached=pools)


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_block_tables(seed: int) -> None:
    b = Batch(seed)
    targets = [b.ints(0, 9, SLOTS, COLUMNS) for _ in range(2)]
    arguments = {
        "batch_idx_to_req_idx": b.idx_mapping,
        "src_block_table_ptrs": b.pointers(b.tables),
        "dst_block_table_ptrs": b.pointers(targets),
        "block_table_strides": b.tensor([COLUMNS, COLUMNS], torch.int64),
        "num_blocks_ptr": b.ints(0, COLUMNS, 2, SLOTS),
        "num_blocks_stride": SLOTS,
        "num_reqs": b.n,
        "num_computed_tokens_ptr": b.num_computed,
        "sliding_window_reach_ptr": b.tensor([0, 17], torch.int32),
        "block_sizes_ptr": b.tensor([BLOCK, BLOCK], torch.int32),
        "MASK_SLIDING_WINDOW": bool(seed % 2),
        "BLOCK_SIZE": 16,
    }
    jitted, taken = kernel(f"{WORKER}.gpu.block_table", "_gather_block_tables_kernel", arguments)
    both(jitted, (2, SLOTS), **taken, reached=[*b.tables, *targets])


@pytest.mark.parametrize("seed", SEEDS)
def test_compute_slot_mappings(seed: int) -> None:
    b = Batch(seed)
    ranks = 1  # with more, Triton's interpreter fails ("mask has unsupported dtype")
    arguments = {
        "max_num_tokens": 70,
        "idx_mapping": b.holes(),
        "query_start_loc": b.query_start_loc,
        "pos": b.ints(0, COLUMNS * BLOCK, 70, dtype=torch.int64),
        "block_table_ptrs": b.pointers(b.tables),
        "block_table_strides": b.tensor([COLUMNS, COLUMNS], torch.int64),
        "block_sizes": b.tensor([BLOCK, BLOCK], torch.int32),
        "slot_mapping_enabled": torch.tensor([True, False]),
        "dcp_sharded": torch.tensor([True, False]),
        "slot_mappings_ptr": b.ints(0, 9, 2, 70, dtype=torch.int64),
        "slot_mappings_stride": 70,
        "cp_rank": ranks - 1,
        "CP_SIZE": ranks,
        "CP_INTERLEAVE": 2,
        "PAD_ID": -1,
        "TRITON_BLOCK_SIZE": 8,
    }
    name = "_compute_slot_mappings_kernel"
    jitted, taken = kernel(f"{WORKER}.gpu.block_table", name, arguments)
    if "slot_mapping_enabled" not in taken:  # older: it would read the row before the table
        taken["idx_mapping"] = b.idx_mapping
    both(jitted, (2, b.n + 1), **taken, reached=b.tables)


@pytest.mark.parametrize("name", ["ComputeSlotMappingKernel.kernel", "_compute_slot_mapping_kernel"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_slot_mapping_of_v1(seed: int, ranks: int, name: str) -> None:
    b = Batch(seed)
    arguments = {
        "num_tokens": b.tokens,
        "max_num_tokens": 70,
        "query_start_loc_ptr": b.query_start_loc,
        "positions_ptr": b.ints(0, COLUMNS * BLOCK, 70, dtype=torch.int64),
        "block_table_ptr": b.tables[0],
        "block_table_stride": COLUMNS,
        "block_size": BLOCK,
        "slot_mapping_ptr": b.ints(0, 9, 70, dtype=torch.int64),
        "KV_CACHE_BLOCK_SIZE": BLOCK,
        "BLOCKS_PER_KV_BLOCK": 1,
        "TOTAL_CP_WORLD_SIZE": ranks,
        "TOTAL_CP_RANK": ranks - 1,
        "CP_KV_CACHE_INTERLEAVE_SIZE": 2,
        "PAD_ID": -1,
        "BLOCK_SIZE": 8,
    }
    jitted, taken = kernel(f"{WORKER}.block_table", name, arguments)
    both(jitted, (b.n + 1,), **taken)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "name",
    [
        "_prepare_pos_seq_lens_kernel",
        "_combine_sampled_and_draft_tokens_kernel",
        "_get_num_sampled_and_rejected_kernel",
        "_post_update_kernel",
        "_post_update_num_computed_tokens_kernel",
        "_expand_idx_mapping_kernel",
        "_prepare_prefill_inputs_kernel",
    ],
)
def test_input_batch(name: str, seed: int) -> None:
    b = Batch(seed)
    later = name.startswith("_post")
    arguments = {
        "pos_ptr": b.ints(0, 9, 80, dtype=torch.int64),
        "seq_lens_ptr": b.ints(0, 90, SLOTS),
        "idx_mapping_ptr": b.holes() if later and "num" not in name else b.idx_mapping,
        "query_start_loc_ptr": b.query_start_loc,
        "num_computed_tokens_ptr": b.num_computed,
        "max_num_reqs": SLOTS,
        "BLOCK_SIZE": 4,
        "input_ids_ptr": b.ints(0, 9, 100),
        "last_sampled_tokens_ptr": b.ints(0, 99, SLOTS, dtype=torch.int64),
        "prefill_len_ptr": b.prefill_len,
        "prefill_lens_ptr": b.prefill_len,
        "draft_tokens_ptr": b.ints(0, 99, SLOTS, 3, dtype=torch.int64) if seed % 3 else None,
        "draft_tokens_out_ptr": b.ints(0, 9, SLOTS, 3, dtype=torch.int64),
        "num_draft_tokens": 3,
        "draft_tokens_stride": 3,
        "cu_num_logits_ptr": b.cu_num_logits,
        "logits_indices_ptr": b.ints(0, 9, 40, dtype=torch.int64),
        "NUM_NEW_SAMPLED_TOKENS": 1,
        "num_sampled_ptr": b.tensor(b.rng.integers(0, b.drafts + 2), torch.int32),
        "num_rejected_ptr": b.tensor(b.rng.integers(0, b.drafts + 1), torch.int32),
        "output_bin_counts_ptr": b.ints(0, 9, SLOTS, 99) if seed % 2 else None,
        "output_bin_counts_stride": 99,
        "sampled_tokens_ptr": b.ints(0, 99, b.n, 5, dtype=torch.int64),
        "sampled_tokens_stride": 5,
        "all_token_ids_ptr": b.ints(0, 99, SLOTS, 100),
        "all_token_ids_stride": 100,
        "total_len_ptr": b.ints(0, 90, SLOTS),
        "expanded_idx_mapping_ptr": b.ints(0, 9, 40),
        "expanded_local_pos_ptr": b.ints(0, 9, 40),
        "next_prefill_tokens_ptr": b.ints(0, 9, 2, SLOTS),
        "next_prefill_tokens_stride": SLOTS,
        "num_lookahead": 2,
        "LOOKAHEAD_BLOCK": 2,
    }
    if "combine" in name and arguments["draft_tokens_ptr"] is None:
        pytest.skip("it always has drafts")
    jitted, taken = kernel(f"{WORKER}.gpu.input_batch", name, arguments)
    both(jitted, (b.n + ("seq_lens_k" in name),), **taken)


def states(b: Batch, *, rows_first: bool) -> tuple[dict[str, Any], list[Any]]:
    """Conv and temporal states of two groups, as the fused mamba kernels receive them."""
    conv = [b.ints(0, 2**31, BLOCKS, 24) for _ in range(2)]
    temporal = [b.ints(0, 2**31, BLOCKS, 7) for _ in range(2)]
    tensors = [conv[0], temporal[0], conv[1], temporal[1]]
    sizes = [2, 4, 4, 4]  # the first is seen as half precision
    inner = [16, 7, 8, 7]
    arguments = {
        "block_table_ptrs_ptr": b.pointers(b.tables, torch.int64),
        "block_table_stride_req": COLUMNS,
        "state_base_addrs_ptr": b.pointers(tensors, torch.int64),
        "state_block_strides_ptr": b.tensor([96, 28, 96, 28], torch.int64),
        "state_elem_sizes_ptr": b.tensor(sizes, torch.int32),
        "state_inner_sizes_ptr": b.tensor(inner, torch.int32),
        "state_conv_widths_ptr": b.tensor([3, 0, 3, 0], torch.int32),
        "state_group_indices_ptr": b.tensor([0, 0, 1, 1], torch.int32),
        "state_dim_row_count_ptr": b.tensor([5, 0, 6, 0], torch.int32),
        "state_dim_row_stride_ptr": b.tensor([6, 0, 12, 0], torch.int64),
        "COPY_BLOCK_SIZE": 4,
        "CONV_STATE_DIM_FIRST": rows_first,
        "TEMPORAL_TILES": 2,
        "num_reqs": b.n,
        "idx_mapping_ptr": b.holes(),
        "HAS_IDX_MAPPING": True,
    }
    return arguments, [*tensors, *b.tables]


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_precopy_mamba(seed: int, rows_first: bool) -> None:
    b = Batch(seed)
    arguments, reached = states(b, rows_first=rows_first)
    arguments |= {
        "mamba_state_idx_ptr": b.ints(0, 6, SLOTS),
        "src_col_ptr": b.ints(-1, 6, SLOTS),
        "token_bias_ptr": b.ints(0, 3, SLOTS),
    }
    name = "precopy_mamba_align_fused_kernel"
    jitted, taken = kernel(f"{WORKER}.mamba_utils", name, arguments)
    both(jitted, (b.n + 1, 4, 2), **taken, reached=reached)


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_postprocess_mamba(seed: int, rows_first: bool) -> None:
    b = Batch(seed)
    arguments, reached = states(b, rows_first=rows_first)
    accepted = b.ints(1, 4, SLOTS)
    arguments |= {
        "num_accepted_tokens_ptr": accepted,
        "mamba_state_idx_ptr": b.ints(0, 6, SLOTS),
        "num_scheduled_tokens_ptr": b.ints(1, 9, SLOTS),
        "num_computed_tokens_ptr": b.ints(8, 40, SLOTS),
        "num_draft_tokens_ptr": b.ints(0, 3, SLOTS),
        "num_accepted_tokens_out_ptr": accepted.clone(),
        "block_size": BLOCK,
        "PRECOMPUTED_NEW_COMPUTED": bool(seed % 2),
    }
    jitted, taken = kernel(f"{WORKER}.mamba_utils", "postprocess_mamba_fused_kernel", arguments)
    both(jitted, (b.n + 1, 4, 2), **taken, reached=reached)


@pytest.mark.parametrize("seed", SEEDS)
def test_preprocess_mamba(seed: int) -> None:
    b = Batch(seed)
    arguments = {
        "idx_mapping_ptr": b.idx_mapping,
        "state_idx_ptr": b.ints(-1, 6, SLOTS),
        "num_computed_tokens_ptr": b.num_computed,
        "query_start_loc_ptr": b.query_start_loc,
        "num_accepted_tokens_ptr": b.ints(0, 4, SLOTS),
        "src_col_ptr": b.ints(0, 9, SLOTS),
        "src_off_ptr": b.ints(0, 9, SLOTS),
        "num_reqs": b.n,
        "BLOCK_SIZE": 4,
        "MAMBA_BLOCK_SIZE": BLOCK,
    }
    name = "preprocess_mamba_align_fused_kernel"
    jitted, taken = kernel(f"{WORKER}.mamba_utils", name, arguments)
    both(jitted, (2,), **taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_scatter_num_accepted(seed: int) -> None:
    b = Batch(seed)
    arguments = {
        "idx_mapping_ptr": b.holes(),
        "num_sampled_ptr": b.ints(0, 4, b.n),
        "num_accepted_ptr": b.ints(0, 4, SLOTS),
    }
    module = f"{WORKER}.gpu.model_states.mamba_hybrid"
    jitted, taken = kernel(module, "_scatter_num_accepted_kernel", arguments)
    both(jitted, (b.n,), **taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_aligned_state_indices(seed: int) -> None:
    b = Batch(seed)
    out = b.ints(0, 9, 2, SLOTS, 3)
    arguments = {
        "block_table_ptrs_ptr": b.pointers(b.tables, torch.int64),
        "seq_lens_ptr": b.ints(1, 60, SLOTS),
        "state_indices_ptr": out,
        "block_table_stride_req": COLUMNS,
        "seq_lens_stride": 1,
        "state_indices_stride_0": out.stride(0),
        "state_indices_stride_1": out.stride(1),
        "state_indices_stride_2": out.stride(2),
        "num_requests": b.n,
        "CACHE_BLOCK_SIZE": BLOCK,
        "NUM_GROUPS": 2,
        "BLOCK_GROUPS": 2,
        "NUM_STATE_SLOTS": 3,
        "BLOCK_STATE_SLOTS": 4,
        "BLOCK_ROWS": 32,
    }
    name = "get_aligned_state_indices_multi_group_kernel"
    jitted, taken = kernel(f"{WORKER}.mamba_utils", name, arguments)
    both(jitted, (1,), **taken, reached=b.tables)


@pytest.mark.parametrize("seed", SEEDS)
def test_grammar_bitmask(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", launch.masked_store)
    b = Batch(seed)
    vocab, stride = 100, 4
    logits = b.floats(b.logits, vocab)
    masks = b.n * stride
    arguments = {
        "logits_ptr": logits,
        "logits_stride": vocab,
        "logits_indices_ptr": b.tensor(b.rng.permutation(masks), torch.int32),
        "cu_num_logits_ptr": b.cu_num_logits,
        "bitmask_ptr": b.ints(-(2**31), 2**31, masks, 4),
        "bitmask_stride": 4,
        "vocab_size": vocab,
        "MASK_STRIDE": stride,
        "BLOCK_SIZE": 64,
    }
    name = "_apply_grammar_bitmask_kernel"
    jitted, taken = kernel(f"{WORKER}.gpu.structured_outputs", name, arguments)
    both(jitted, (masks, 2), **taken)


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_logit_bias(seed: int, restores: bool) -> None:
    b = Batch(seed)
    vocab, most = 100, 8
    logits = b.floats(b.logits, vocab)
    if restores:
        logits[::2] = -float("inf")
    ids = {
        name: b.tensor(b.rng.permuted(np.tile(np.arange(vocab), (SLOTS, 1)), axis=1)[:, :most], torch.int32)
        for name in "abs"
    }
    arguments = {
        "logits_ptr": logits,
        "logits_stride": vocab,
        "vocab_size": vocab,
        "expanded_idx_mapping_ptr": b.expanded,
        "num_allowed_token_ids_ptr": b.ints(0, 3, SLOTS),
        "allowed_token_ids_ptr": ids["a"],
        "allowed_token_ids_stride": most,
        "num_logit_bias_ptr": b.ints(0, 3, SLOTS),
        "bias_token_ids_ptr": ids["b"],
        "bias_token_ids_stride": most,
        "bias_ptr": b.floats(SLOTS, most),
        "bias_stride": most,
        "pos_ptr": b.ints(0, 9, b.logits, dtype=torch.int64),
        "min_lens_ptr": b.ints(0, 20, SLOTS),
        "num_stop_token_ids_ptr": b.ints(0, 4, SLOTS),
        "restore_when_all_masked_ptr": b.ints(0, 2, SLOTS),
        "stop_token_ids_ptr": ids["s"],
        "stop_token_ids_stride": most,
        "BLOCK_SIZE": most,
        "LOGITS_BLOCK_SIZE": 64,
        "CHECK_ALL_MASKED_ROWS": restores,
    }
    jitted, taken = kernel(f"{WORKER}.gpu.sample.logit_bias", "_bias_kernel", arguments)
    both(jitted, (b.logits,), **taken)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("seed", SEEDS)
def test_batch_memcpy(seed: int, dtype: str) -> None:
    b = Batch(seed)
    pool = b.ints(0, 256, 400, dtype=torch.uint8)
    base = pool.data_ptr()
    # The last one overlaps its own target, to the left.
    sources = np.array([0, 100, 203, 307]) + base
    targets = np.array([50, 151, 250, 300]) + base
    arguments = {
        "src_ptrs": b.tensor(sources, torch.int64).view(getattr(torch, dtype)),
        "dst_ptrs": b.tensor(targets, torch.int64).view(getattr(torch, dtype)),
        "sizes": b.tensor([*b.rng.integers(0, 40, 3), 30], torch.int32),
        "BLOCK_SIZE": 16,
    }
    jitted, taken = kernel(f"{WORKER}.mamba_utils", "batch_memcpy_kernel", arguments)
    both(jitted, (4,), **taken, reached=[pool])


def sampling(b: Batch, *, nan: bool) -> dict[str, Any]:
    """The arguments of the probabilistic rejection sampler, one drawn batch for all its kernels."""
    vocab, parts, n = 21, 3, b.logits
    logits = b.floats(n, vocab)
    if nan:
        logits[0, 3] = float("nan")
    return {
        "target_logits_ptr": logits,
        "target_logits_stride": vocab,
        "target_local_argmax_ptr": b.ints(0, vocab, n, parts, dtype=torch.int64),
        "target_local_argmax_stride": parts,
        "target_local_max_ptr": b.floats(n, parts),
        "target_local_max_stride": parts,
        "target_local_sumexp_ptr": b.floats(n, parts).abs(),
        "target_local_sumexp_stride": parts,
        "draft_local_max_ptr": b.floats(n, parts),
        "draft_local_max_stride": parts,
        "draft_local_sumexp_ptr": b.floats(n, parts).abs(),
        "draft_local_sumexp_stride": parts,
        "draft_logits_ptr": None,
        "draft_logits_stride_0": 0,
        "draft_logits_stride_1": 0,
        "draft_sampled_ptr": b.ints(-1, vocab, n + 1),
        "draft_rejected_logsumexp_ptr": b.floats(b.n),
        "target_rejected_logsumexp_ptr": b.floats(b.n),
        "rejected_steps_ptr": b.ints(0, 2, b.n),
        "rejected_step_ptr": b.tensor(b.rng.integers(0, b.drafts + 1), torch.int32),
        "sampled_ptr": b.ints(0, vocab, b.n, 5, dtype=torch.int64),
        "sampled_stride": 5,
        "num_sampled_ptr": b.tensor(b.rng.integers(0, b.drafts + 1), torch.int32),
        "cu_num_logits_ptr": b.cu_num_logits,
        "idx_mapping_ptr": b.idx_mapping,
        "expanded_idx_mapping_ptr": b.expanded,
        "expanded_local_pos_ptr": b.local_pos,
        "temp_ptr": b.temperature,
        "seed_ptr": b.seeds,
        "seeds_ptr": b.seeds,
        "pos_ptr": b.ints(0, 900, n, dtype=torch.int64),
        "synthetic_conditional_rates_ptr": None,
        "cumulative_log_p_ptr": None,
        "local_residual_mass_ptr": None,
        "local_residual_mass_stride": 0,
        "fly_entropy_ptr": None,
        "fly_entropy_threshold": 0.3,
        "vocab_num_blocks": parts,
        "vocab_size": vocab,
        "num_logits": n,
        "num_speculative_steps": 3,
        "resampled_local_argmax_ptr": b.ints(0, vocab, b.n, parts, dtype=torch.int64),
        "resampled_local_argmax_stride": parts,
        "resampled_local_max_ptr": b.floats(b.n, parts),
        "resampled_local_max_stride": parts,
        "resample_num_blocks": parts,
        "local_argmax_ptr": b.ints(0, 9, n, parts, dtype=torch.int64),
        "local_argmax_stride": parts,
        "local_max_ptr": b.floats(n, parts),
        "local_max_stride": parts,
        "logits_ptr": logits,
        "logits_stride": vocab,
        **dict.fromkeys(
            (
                "logits_cache_ptr",
                "logits_cache_col_ptr",
                "logits_cache_source_ptr",
                "contexts_ptr",
                "watermarking_ptr",
                "watermarking_skip_mask_ptr",
            )
        ),
        **dict.fromkeys(
            (
                "logits_cache_stride",
                "logits_cache_stride_0",
                "logits_cache_stride_1",
                "logits_cache_source_stride",
                "contexts_stride",
                "watermark_key_0",
                "watermark_key_1",
            ),
            0,
        ),
        **dict.fromkeys(
            (
                "HAS_DRAFT_LOGITS",
                "SYNTHETIC_MODE",
                "USE_BLOCK_VERIFICATION",
                "USE_FP64",
                "WATERMARK",
                "DEDUPLICATE_CONTEXTS",
                "IS_DRAFTING",
                "PER_TOKEN_COL",
            ),
            False,
        ),
        "APPLY_TEMPERATURE": True,
        "FLY_WINDOW_SIZE": 0,
        "CONTEXT_WIDTH": 1,
        "PADDED_VOCAB_NUM_BLOCKS": 4,
        "PADDED_RESAMPLE_NUM_BLOCKS": 4,
        "BLOCK_SIZE": 8,
    }


def uses_log1p(jitted: Any) -> bool:
    gumbel = importlib.import_module(f"{WORKER}.gpu.sample.gumbel")
    return hasattr(gumbel, "tldevice") and jitted.fn.__name__ in (
        "_resample_kernel",
        "_gumbel_sample_kernel",
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (f"{SPEC}.rejection_sampler_utils", "_compute_local_logits_stats_kernel"),
        (f"{SPEC}.rejection_sampler_utils", "_rejection_kernel"),
        (f"{SPEC}.rejection_sampler_utils", "_resample_kernel"),
        (f"{SPEC}.rejection_sampler_utils", "_insert_resampled_kernel"),
        (f"{WORKER}.gpu.sample.gumbel", "_gumbel_sample_kernel"),
    ],
)
def test_sampling(module: str, name: str, seed: int) -> None:
    b = Batch(seed)
    jitted, taken = kernel(module, name, sampling(b, nan=seed == 4))
    if uses_log1p(jitted):
        taken["temp_ptr"] = torch.zeros(SLOTS)  # random sampling needs a GPU library there
    rows = b.logits if name in ("_compute_local_logits_stats_kernel", "_gumbel_sample_kernel") else b.n
    columns = 3 if "BLOCK_SIZE" in taken else 1
    both(jitted, (rows, columns), **taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_draft_sampled(seed: int) -> None:
    b = Batch(seed)
    arguments = {
        "draft_sampled_ptr": b.ints(0, 9, b.logits),
        "pos_ptr": b.ints(0, 9, b.logits, dtype=torch.int64),
        "input_ids_ptr": b.ints(0, 99, 70),
        "positions_ptr": b.ints(0, 60, 70, dtype=torch.int64),
        "logits_indices_ptr": b.ints(0, 70, b.logits, dtype=torch.int64),
        "expanded_idx_mapping_ptr": b.expanded,
        "expanded_local_pos_ptr": b.local_pos,
        "prefill_len_ptr": b.prefill_len,
        "num_logits": b.logits,
        "BLOCK_SIZE": 8,
    }
    jitted, taken = kernel(f"{SPEC}.rejection_sampler", "_gather_draft_sampled_kernel", arguments)
    both(jitted, (3,), **taken)


@pytest.mark.parametrize("seed", range(6))
def test_rejection_greedy_sample(seed: int) -> None:
    b = Batch(seed)
    total = int(b.drafts.sum())
    arguments = {
        "output_token_ids_ptr": torch.full((b.n, 4), -1, dtype=torch.int32),
        "cu_num_draft_tokens_ptr": b.tensor(np.cumsum(b.drafts), torch.int32),
        "draft_token_ids_ptr": b.ints(-1, 2, total + 1),
        "target_argmax_ptr": b.ints(0, 2, total + 1, dtype=torch.int64),
        "bonus_token_ids_ptr": b.ints(0, 99, b.n),
        "is_greedy_ptr": torch.from_numpy(b.rng.random(b.n) < 0.7) if seed % 2 else None,
        "max_spec_len": 3,
        "uniform_probs_ptr": b.floats(total + 1).abs() / 9,
        "synthetic_conditional_rates_ptr": b.floats(4).abs() / 9,
        "SYNTHETIC_MODE": seed > 3,
    }
    name = "rejection_greedy_sample_kernel"
    jitted, taken = kernel("vllm.v1.sample.rejection_sampler", name, arguments)
    both(jitted, (b.n,), **taken)
