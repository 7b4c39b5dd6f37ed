"""Proof that the vLLM target can see: vLLM 0.33.0 with one line broken at a time, until an oracle says so.

    python benchmarks/vllm_breaks.py [--only SLUG,...] [--results FILE]

Writes build/vllm-breaks.md. The release's own bugs (docs/explanation/vllm.md) are fixed first: a break changes
what is scheduled, and a bug of the release that shows only then would count as if the break were seen.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from breaks import Break, Drill, main
from vllm_campaign import fixes_of

from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.registry import prepare

V1, V2 = {"runner": "v1"}, {"runner": "v2"}
ALIGN, ASYNC = {"mamba_cache_mode": "align"}, {"async_depth": "1"}
EAGLE = {"eagle_block_drop": "true", "hashing": "plain"}
LOOKAHEAD = ALIGN | {"eagle_block_drop": "true", "hashing": "lookahead", "connector": "none"}
SPEC, NO_SPEC = {"num_speculative_tokens": "2"}, {"num_speculative_tokens": "0"}
SPARSE, GRAPHS, MIXER = {"retention": "default"}, {"graphs": "decode"}, {"mixer": "mamba2"}
SCHEDULER, MANAGER = "v1/core/sched/scheduler.py", "v1/core/kv_cache_manager.py"
GROUPS, COORDINATOR = "v1/core/single_type_kv_cache_manager.py", "v1/core/kv_cache_coordinator.py"
POOL, GDN = "v1/core/block_pool.py", "v1/attention/backends/gdn_attn.py"
TABLES_V1, TABLES_V2 = "v1/worker/block_table.py", "v1/worker/gpu/block_table.py"
RUNNER_V1, RUNNER_V2 = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"
BATCH_V1, STATE_V2 = "v1/worker/gpu_input_batch.py", "v1/worker/gpu/model_states/mamba_hybrid.py"
MAMBA, MAMBA2 = "v1/worker/mamba_utils.py", "v1/attention/backends/mamba_attn.py"
CHECKPOINT = "model_executor/layers/mamba/checkpoint.py"
CONFIG, DRAFTING = "config/vllm.py", "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py"


def beside(**extra: object) -> dict[str, object]:
    """A group of attention with these properties beside one of states and one of full attention."""
    mamba, full = {"kind": "mamba", "block_size": 4}, {"kind": "attention", "block_size": 4}
    return {"groups": [mamba, full, {**full, **extra}], "graphs": "none"}


WINDOW, CHUNKS, DRAFTER = beside(window=8), beside(chunk=8), beside(draft=True)
FINE = {"prefix_match_unit": "2", "mixer": "gdn", "groups": beside()["groups"]}
UTILS, WORKER_UTILS = "v1/core/kv_cache_utils.py", "v1/worker/utils.py"
PARTIAL = ALIGN | {"prefix_match_unit": "2"}
STORE, TRANSFER = ALIGN | {"connector": "store"}, ALIGN | {"connector": "transfer"}
RECOMPUTE = {"load_failure": "recompute"}


def groups(mamba: int, attention: int, **local: int) -> dict[str, object]:
    """Return a group of states, one of attention, and one of local attention with a `window` or a `chunk`."""
    layers: list[dict[str, object]] = [
        {"kind": "mamba", "block_size": mamba},
        {"kind": "attention", "block_size": attention},
    ]
    return ALIGN | {"groups": layers + ([{"kind": "attention", "block_size": mamba, **local}] if local else [])}


WINDOW, CHUNK = groups(4, 4, window=8), groups(4, 4, chunk=8)
SESSION, PAUSED = ALIGN | NO_SPEC | {"connector": "none"}, ALIGN | {"reset": "paused", "connector": "none"}
STAGES, EVENTS = NO_SPEC | ASYNC | {"pipeline": "sync"}, ALIGN | {"reports": "all"}
UNEQUAL, UNEQUAL_WINDOW = groups(4, 8), groups(4, 8, window=8)
IMAGES, ADAPTERS = ALIGN | {"inputs": "images"}, ALIGN | {"inputs": "adapters"}
REPLAY = V1 | MIXER | NO_SPEC | {"replay": "3", "connector": "none"}
SLOTS, SAMPLE_V2 = V2 | {"sampling": "varied"}, "v1/worker/gpu/sample"
SAMPLED, LAYOUT = V1 | NO_SPEC | {"sampling": "varied"}, {"conv_layout": "DS"}

# fmt: off
BREAKS = (
    Break("stale-output-not-marked", SCHEDULER, V2 | ASYNC,
          "results in flight when a request is preempted count for its next life",
          "        )\n        request.num_stale_output_tokens = request.num_in_flight_tokens",
          "        )\n        request.num_stale_output_tokens = 0"),
    Break("commit-in-flight", SCHEDULER, V2 | ASYNC | SPEC | ALIGN,
          "tokens of the step in flight are published as if computed",
          "num_computed_tokens - request.num_in_flight_tokens,\n                    )",
          "num_computed_tokens,\n                    )",
          "Harmless without pipeline stages, which this run did not draw: only known tokens have keys, and the step "
          "in flight computes them before a step could hit them."),
    Break("chunk-past-boundary", SCHEDULER, ALIGN,
          "a chunk that starts inside a block runs past the boundary whose state is published",
          "next_block_boundary if start % block_size != 0 else 0",
          "next_block_boundary if start % block_size == 0 else 0"),
    Break("preempted-not-reported", SCHEDULER, V2, "a preemption is not reported to the worker, which keeps the row",
          "        self.reset_preempted_req_ids.add(request.request_id)\n", ""),
    Break("stop-without-rollback", SCHEDULER, SPEC | ALIGN, "accepted drafts behind the last token count as computed",
          "request.num_computed_tokens -= len(new_token_ids) - num_new", "pass",
          "Harmless: trimmed tokens are accepted drafts, so the last token's state exists; one more block is found."),
    Break("same-step-hit", GROUPS, ALIGN, "a state that this step will write may be hit in this very step",
          "self.cached_blocks_this_step.add(block.block_hash)", "pass"),
    Break("same-step-never-ends", GROUPS, ALIGN, "what was published once may not be hit, and who hits it waits",
          "self.cached_blocks_this_step.clear()", "pass"),
    Break("skipped-off-by-one", GROUPS, ALIGN, "at a block boundary the state to continue from is given back",
          "        return num_computed_tokens - 1\n\n    def cache_blocks(",
          "        return num_computed_tokens\n\n    def cache_blocks("),
    Break("in-flight-not-subtracted", MANAGER, V2 | ASYNC | SPEC | ALIGN,
          "states are given back as if all drafts in flight were accepted",
          "max(0, total_computed_tokens - request.num_in_flight_tokens),", "total_computed_tokens,"),
    Break("evictable-not-counted", GROUPS, ALIGN, "the admission check forgets that hits leave the free queue",
          "return num_new_blocks + num_evictable_computed_blocks", "return num_new_blocks"),
    Break("hits-not-truncated", COORDINATOR, ALIGN, "attention keeps hit blocks behind the common hit length",
          "del blks[num_blocks:]", "pass"),
    Break("last-duplicate-lost", POOL, ALIGN, "of two equal blocks one is evicted, and the other cannot be found",
          "            if len(blocks) > 0:\n", "            if len(blocks) > 1:\n"),
    Break("dummy-tables-stale", TABLES_V2, V2 | GRAPHS, "a dummy run uses the tables of the last real step",
          "block_table[:num_rows].zero_()", "pass"),
    Break("dummy-slots-first-group", TABLES_V2, V2 | GRAPHS, "a dummy run has real slots in all groups but the first",
          "self.slot_mappings.fill_(PAD_SLOT_ID)", "self.slot_mappings[0].fill_(PAD_SLOT_ID)"),
    Break("swap-without-counts", TABLES_V1, V1, "two rows change places, their lengths do not",
          "self.num_blocks_per_row[src_tgt] = self.num_blocks_per_row[tgt_src]", "pass"),
    Break("condense-without-accepted", BATCH_V1, V1 | SPEC, "a row moves, its count of accepted drafts does not",
          "self.num_accepted_tokens_cpu[empty_index] = self.num_accepted_tokens_cpu[\n                last_req_index",
          "self.num_accepted_tokens_cpu[empty_index] = self.num_accepted_tokens_cpu[\n                empty_index"),
    Break("zero-draft-row", RUNNER_V1, V1 | SPEC, "a decode without drafts ignores what was accepted before",
          "(num_decode_draft_tokens < 0) & zero_draft", "(num_decode_draft_tokens < -1) & zero_draft"),
    Break("accepted-after-copy", MAMBA, V1 | SPEC | ALIGN, "after the copy to the next block the accepted count stays",
          "input_batch.num_accepted_tokens_cpu[i] = 1", "pass"),
    Break("accepted-of-last-owner", STATE_V2, V2 | SPEC | ALIGN, "a slot keeps the accepted count of its last owner",
          "self.num_accepted_tokens_gpu[req_index].fill_(1)", "pass"),
    Break("first-boundary-not-reset", MAMBA, V2 | SPEC | ALIGN, "crossing the first boundary keeps the accepted count",
          "should_reset = (state_idx >= 0)", "should_reset = (state_idx > 0)"),
    Break("seed-off-by-one", STATE_V2, V2 | ALIGN, "after a hit the state is looked for one column too far",
          "(new_req_data.num_computed_tokens - 1) // mamba", "new_req_data.num_computed_tokens // mamba"),
    Break("conv-not-shifted", MAMBA, SPEC | ALIGN, "the window is copied without the shift of the accepted drafts",
          "src_addr = src_block_addr + token_bias.to(tl.int64) * token_bytes", "src_addr = src_block_addr"),
    Break("boundary-not-saved", MAMBA, SPEC | ALIGN, "the state at a boundary is not saved when drafts ran past it",
          "needs_copy = aligned_new_computed >= num_", "needs_copy = aligned_new_computed > num_"),
    Break("initial-state-offset", GDN, NO_SPEC, "prefills get the initial-state flags of the decodes before them",
          "_has_initial_state = has_initial_state[num_decodes:]", "_has_initial_state = has_initial_state"),
    Break("padded-tail-as-prefill", STATE_V2, V2 | SPEC | ALIGN,
          "a prompt's last token, padded with placeholder drafts, runs in the prefill kernel",
          "is_prefilling_np = is_prefilling_np & ~input_batch.prefill_runs_as_decode_np", "pass"),
    Break("resumed-before-drained", SCHEDULER, V2 | ASYNC, "a preempted request resumes with results still in flight",
          "if request.num_stale_output_tokens and not request", "if request.num_stale_output_tokens and request"),
    Break("retired-count-kept", GROUPS, ALIGN, "a preempted request's count of retired states outlives its blocks",
          "self._num_retired_blocks.pop(request_id, None)", "pass"),
    Break("row-of-last-owner", BATCH_V1, V1 | SPEC, "a row keeps the accepted count of its last owner",
          "self.num_accepted_tokens_cpu[req_index] = 1", "pass"),
    Break("hit-one-block-short", GROUPS, ALIGN, "the last full block of states is never looked up",
          "max_num_blocks = max_length // block_size\n        # Search from right to left",
          "max_num_blocks = max_length // block_size - 1\n        # Search from right to left"),
    Break("state-never-retired", GROUPS, ALIGN, "one state after another is skipped when states are given back",
          "_num_retired_blocks[request_id] = last_block\n", "_num_retired_blocks[request_id] = last_block + 1\n",
          "Costs memory only: under async scheduling states stay until the request ends; nothing bounds that."),
    Break("wrong-boundary-kept", GROUPS, ALIGN | SPARSE, "the state where a resent prompt resumes is not published",
          "boundary_block = aligned // block_size - 1", "boundary_block = aligned // block_size",
          "Only changes what can be hit: where an engine keeps a selection of its states, M8 does not check which."),
    Break("eagle-no-drop", GROUPS, V2 | SPEC | ALIGN | EAGLE, "with EAGLE the last matching block is not dropped",
          "            hit_length -= min(alignment_tokens, block_size)", "            pass"),
    Break("row-not-cleared", BATCH_V1, V1 | GRAPHS, "a request that ended leaves its block ids in the row",
          "self.block_table.clear_row(req_index)", "pass"),
    Break("vacated-row-stale", TABLES_V1, V1 | GRAPHS, "a row that moved leaves its block ids behind",
          "        block_table_np[src, :num_blocks] = 0\n", ""),
    Break("graph-padding-kept", GDN, V2 | NO_SPEC | GRAPHS,
          "padding rows of a decode graph keep the state indices of an earlier batch",
          "            non_spec_state_indices_tensor[num_decodes:].fill_(NULL_BLOCK_ID)\n", "",
          "Harmless: padding rows count among the decodes, whose indices come from cleared rows."),
    Break("graph-rows-not-cleared", TABLES_V2, V2 | NO_SPEC | GRAPHS, "padding rows keep the tables of an older batch",
          "            num_rows = max(num_rows, self._num_dirty_rows)\n            self._num_dirty_rows = num_reqs\n",
          "            num_rows = num_reqs\n"),
    Break("graph-accepted-not-staged", GDN, V2 | SPEC | GRAPHS,
          "a decode graph replays with the accepted counts of an earlier batch",
          "            self.num_accepted_tokens[:num_spec_decodes].copy_(\n"
          "                num_accepted_tokens, non_blocking=True\n            )\n", ""),
    Break("graph-states-not-staged", GDN, V2 | SPEC | GRAPHS,
          "a decode graph replays with the state indices of an earlier batch",
          "            self.spec_state_indices_tensor[:num_spec_decodes].copy_(\n"
          "                spec_state_indices_tensor, non_blocking=True\n            )\n", ""),
    Break("graph-slots-not-padded", TABLES_V2, V2 | GRAPHS, "padding tokens keep the slots of an earlier batch",
          "PAD_ID, mask=offset < max_num_tokens)", "PAD_ID, mask=offset < 0)"),
    Break("graph-slots-not-padded-v1", RUNNER_V1, V1 | GRAPHS, "padding tokens keep the slots of an earlier batch",
          "slot_mapping[num_tokens_unpadded:num_tokens_padded].fill_(-1)", "pass",
          "Harmless: the kernel that computes the slots has padded them."),
    Break("graph-prefill-admitted", RUNNER_V2, V2 | GRAPHS, "a batch with a prompt's chunk replays a decode graph",
          "num_toks, max_query_len, decode_graph_eligible\n", "num_toks, max_query_len, True\n"),
    Break("padded-row-fake-prefill", RUNNER_V1, V1 | GRAPHS, "a padding row is a prompt by what a vacated row left",
          "        is_prefilling[0 if for_cudagraph_capture else num_reqs :] = False\n",
          "        is_prefilling[: num_reqs if for_cudagraph_capture else 0] = False\n"),
    Break("mamba2-initial-states", MAMBA2, MIXER | NO_SPEC, "prompts get the initial-state flags of others",
          "num_computed_tokens[num_reqs - num_prefills : num_reqs] > 0", "num_computed_tokens[:num_prefills] > 0"),
    Break("mamba2-first-token", MAMBA2, MIXER | NO_SPEC, "a first chunk of one token updates a recycled block",
          "prefill_to_decode = stateful_prefill_rows & ", "prefill_to_decode = is_prefilling & "),
    Break("mamba2-accepted", MAMBA2, MIXER | SPEC | V2, "decodes read at the accepted counts of other rows",
          "num_accepted_tokens = num_accepted_tokens[:num_decodes]",
          "num_accepted_tokens = num_accepted_tokens[-num_decodes:]"),
    Break("mamba2-inner-column", CHECKPOINT, MIXER | NO_SPEC | ALIGN, "the state inside a chunk goes where it ends",
          "cdiv(seq_len, mamba_block_size) - 2 if valid", "cdiv(seq_len, mamba_block_size) - 1 if valid"),
    Break("mamba2-inner-not-reserved", GROUPS, MIXER | NO_SPEC | ALIGN, "no block for the state inside a chunk",
          "            checkpoint_block = int(checkpoint_position > 0)\n", "            checkpoint_block = 0\n"),
    Break("window-freed-early", GROUPS, ALIGN | NO_SPEC | WINDOW, "blocks inside the window are given back",
          "num_computed_tokens - self.sliding_window + 1 - self",
          "num_computed_tokens - self.sliding_window + 5 - self"),
    Break("window-never-freed", GROUPS, ALIGN | NO_SPEC | WINDOW, "blocks left of a window stay",
          "            num_computed_tokens - self.sliding_window + 1 - self.extra_retained_tokens,\n",
          "            0,\n"),
    Break("window-hit-one-short", GROUPS, ALIGN | NO_SPEC | WINDOW, "a hit needs one block of the window less",
          "blocks = cdiv(window_size - 1, block_size)\n",
          "blocks = max(cdiv(window_size - 1, block_size) - 1, 1)\n"),
    Break("window-masked-early", TABLES_V2, V2 | ALIGN | NO_SPEC | WINDOW, "the worker nulls a block inside the window",
          "tl.maximum(first_pos - reach, 0) // block_size",
          "tl.maximum(first_pos - reach + block_size, 0) // block_size"),
    Break("chunk-freed-early", GROUPS, ALIGN | NO_SPEC | CHUNKS, "the chunk is given back before its last token",
          "            num_computed_tokens // self.attention_chunk_size\n        ) * self.att",
          "            (num_computed_tokens + 1) // self.attention_chunk_size\n        ) * self.att"),
    Break("chunk-looked-up-late", GROUPS, ALIGN | NO_SPEC | CHUNKS, "a hit does not need the first block of its chunk",
          "            local_attention_start_idx // kv_cache_spec.block_size\n",
          "            (local_attention_start_idx + 4) // kv_cache_spec.block_size\n"),
    Break("partial-key-not-moved", GROUPS, ALIGN | NO_SPEC | FINE, "a request writes on in a block with a partial key",
          "self.block_pool.move_block_hashes(source_block, cow_block)\n", "pass\n"),
    Break("partial-hit-not-copied", GROUPS, ALIGN | NO_SPEC | FINE, "a hit inside a block gets a block without content",
          "        self._pending_cow_copies.append((source_block, cow_block))\n        cow_block.ref_cnt += 1\n", ""),
    Break("draft-no-lookahead", CONFIG, V2 | ALIGN | SPEC | DRAFTER, "no slots for the drafter's own tokens",
          "            # num_speculative_tokens lookahead slots.\n            return self.num_speculative_tokens\n",
          "            return 0\n"),
    Break("draft-rejected-kept", DRAFTING, V2 | ALIGN | SPEC | DRAFTER, "rejected tokens reach the drafter",
          "    query_len -= num_rejected\n", "    query_len -= 0\n"),
    Break("draft-chunk-next-token", DRAFTING, V2 | ALIGN | SPEC | DRAFTER,
          "behind a chunk the drafter takes the request's last sampled token for the next one",
          "        next_token = tl.load(next_prefill_tokens_ptr + req_state_idx)\n",
          "        next_token = tl.load(last_sampled_ptr + req_state_idx).to(tl.int32)\n"),
    Break("draft-no-eagle-drop", GROUPS, V2 | ALIGN | SPEC | DRAFTER | EAGLE, "the last matched block is not dropped",
          "        if drop_eagle_block and hit_length > 0:\n            hit_length -= min",
          "        if False and hit_length > 0:\n            hit_length -= min"),
)
# fmt: on

# fmt: off
FEATURE_BREAKS: tuple[Break, ...] = (
    # Sliding windows
    Break("window-left-early", GROUPS, WINDOW, "a window's first block is given back one token early",
          "num_computed_tokens - self.sliding_window + 1 - self.extra_retained_tokens",
          "num_computed_tokens - self.sliding_window + 2 - self.extra_retained_tokens"),
    Break("window-hit-too-short", GROUPS, WINDOW, "a hit needs one block less than the window reaches back",
          "blocks = cdiv(window_size - 1, block_size)", "blocks = max(1, (window_size - 1) // block_size)"),
    Break("window-hit-with-a-gap", GROUPS, WINDOW, "blocks on both sides of a missing one count as one run",
          "            else:\n                num_contiguous_blocks = 0\n        if not match_found",
          "            else:\n                pass\n        if not match_found"),
    Break("window-hit-not-trimmed", GROUPS, WINDOW, "missing blocks behind the run count as hit",
          "                        del computed[i + num_contiguous_blocks :]\n                    match_found",
          "                        pass\n                    match_found"),
    Break("window-start-not-trimmed", GROUPS, WINDOW, "without a whole run, blocks that were not found count as hit",
          "            for computed in computed_blocks:\n                del computed[num_contiguous_blocks:]\n"
          "            while (\n                block_size != alignment_tokens  # Faster",
          "            while (\n                block_size != alignment_tokens  # Faster"),
    Break("window-hit-unaligned", GROUPS, UNEQUAL_WINDOW, "a hit in a window ends where others have no block",
          "if (post_pop_blocks * block_size) % alignment_tokens != 0:",
          "if (post_pop_blocks * block_size) % alignment_tokens < 0:"),
    Break("window-skipped-not-null", GROUPS, WINDOW, "after a hit the blocks before the window are not padded",
          "        req_blocks.extend([self._null_block] * num_skipped_blocks)\n        # Add",
          "        # Add"),
    Break("window-in-flight", MANAGER, WINDOW | ASYNC | V2 | SPEC, "a window moves on with unverified drafts",
          "            max(0, total_computed_tokens - request.num_in_flight_tokens),\n"
          "            num_prompt_tokens=request.num_prompt_tokens,\n        )\n\n        num_blocks",
          "            max(0, total_computed_tokens),\n"
          "            num_prompt_tokens=request.num_prompt_tokens,\n        )\n\n        num_blocks"),
    # Chunked-local attention
    Break("chunk-hit-skips-a-block", GROUPS, CHUNK, "the first block of the current chunk counts as computed",
          "            local_attention_start_idx // kv_cache_spec.block_size\n        )",
          "            local_attention_start_idx // kv_cache_spec.block_size + 1\n        )"),
    Break("chunk-left-early", GROUPS, CHUNK, "a chunk's blocks are given back with its last token still to come",
          "            num_computed_tokens // self.attention_chunk_size\n        ) * self",
          "            (num_computed_tokens + 1) // self.attention_chunk_size\n        ) * self"),
    Break("chunk-of-the-last-token", GROUPS, CHUNK, "the chunk of a hit is that of its last token, not of the next one",
          "                max_length\n                // kv_cache_spec.attention_chunk_size\n",
          "                (max_length + kv_cache_spec.attention_chunk_size - 1)\n"
          "                // kv_cache_spec.attention_chunk_size\n"),
    # Three kinds of groups, unequal block sizes
    Break("hit-checked-once", COORDINATOR, WINDOW, "groups are not asked again after one of them shortened the hit",
          "            if curr_hit_length >= hit_length:\n                break",
          "            hit_length = curr_hit_length\n            break"),
    Break("three-kinds-are-simple", COORDINATOR, WINDOW, "three kinds of groups are taken for the simple case of two",
          "is_simple_hybrid = len(self.attention_groups) == 2 and",
          "is_simple_hybrid = len(self.attention_groups) > 1 and"),
    Break("larger-block-first-key", UTILS, UNEQUAL, "a larger block goes by the key of its first part",
          "return self.block_hashes[(idx + 1) * self.scale_factor - 1]",
          "return self.block_hashes[idx * self.scale_factor]"),
    Break("larger-block-next-key", UTILS, UNEQUAL, "the keys of larger blocks are counted without the first one",
          "return self.block_hashes[(idx + 1) * self.scale_factor - 1]",
          "return self.block_hashes[min((idx + 2) * self.scale_factor, len(self.block_hashes)) - 1]"),
    # Hits inside blocks and copy-on-write
    Break("tail-published-early", GROUPS, PARTIAL, "a prompt's tail is published before its last chunk",
          "        if boundary_tokens == 0 or boundary_tokens > num_tokens:", "        if boundary_tokens == 0:"),
    Break("tail-of-the-block-before", GROUPS, PARTIAL, "the tail's key is given to the block before",
          "        block_idx = boundary_tokens // self.block_size\n        if block_idx",
          "        block_idx = max(0, boundary_tokens // self.block_size - 1)\n        if block_idx"),
    Break("tail-key-too-short", POOL, PARTIAL, "the key of a tail is that of one unit less",
          "        return request.block_hashes[num_hash_blocks - 1]",
          "        return request.block_hashes[max(0, num_hash_blocks - 2)]"),
    Break("cow-shared-block-kept", GROUPS, PARTIAL, "a request goes on writing into the shared block it hit",
          "        req_blocks[block_idx] = cow_block\n", ""),
    Break("cow-not-copied", GROUPS, PARTIAL, "the private block of a hit is never filled",
          "        self._pending_cow_copies.append((source_block, cow_block))\n        cow_block.ref_cnt += 1",
          "        cow_block.ref_cnt += 1"),
    Break("cow-reversed", WORKER_UTILS, PARTIAL, "blocks are copied the wrong way round",
          "blocks[dst] = blocks[src]", "blocks[src] = blocks[dst]"),
    Break("cow-not-reserved", GROUPS, PARTIAL, "admission forgets the private block of a hit",
          "            # partial-hit CoW redirect.\n            num_new_blocks += 1", "            pass"),
    Break("cow-never-released", SCHEDULER, PARTIAL, "both blocks of a copy stay referenced",
          "            self._free_cow_retained_blocks(cow_retained_blocks, self.sched_step_seq + 1)\n",
          "            pass\n"),
    Break("state-key-not-moved", POOL, PARTIAL, "a running state keeps the key that its copy should get",
          "            self._insert_block_hash(block_hash, dst_block, num_tokens=num_tokens)",
          "            self._insert_block_hash(block_hash, src_block, num_tokens=num_tokens)"),
    Break("state-copy-hit-at-once", GROUPS, PARTIAL, "a copied state may be hit in the step that copies it",
          "                            self.cached_blocks_this_step.add(cow_block.block_hash)",
          "                            pass"),
    Break("tail-hit-too-long", GROUPS, PARTIAL, "a hit inside a block counts one unit more than was found",
          "                hit_length = (fine_idx + 1) * alignment_tokens\n                break",
          "                hit_length = min(fine_idx + 2, max_length // alignment_tokens) * alignment_tokens\n"
          "                break"),
    # Data-parallel ranks
    Break("ranks-agree-on-the-least", "v1/worker/dp_utils.py", V1 | GRAPHS | {"data_parallel": "2"},
          "ranks pad to the smallest batch among them",
          "        max_num_tokens = int(num_tokens_across_dp.max().item())",
          "        max_num_tokens = int(num_tokens_across_dp.min().item())"),
    Break("ranks-agree-on-the-least-v2", "v1/worker/gpu/dp_utils.py", V2 | GRAPHS | {"data_parallel": "2"},
          "ranks choose the graph of the smallest batch among them",
          "    synced_num_tokens = int(num_tokens_across_dp.max())",
          "    synced_num_tokens = int(num_tokens_across_dp.min())"),
    # KV connectors
    Break("load-not-awaited", SCHEDULER, STORE, "a request runs before its load has ended",
          "            if request_id not in self.finished_recving_kv_req_ids:",
          "            if request_id is None:"),
    Break("load-published-early", SCHEDULER, STORE, "blocks of a load are published when it starts",
          "                    delay_cache_blocks=load_kv_async,", "                    delay_cache_blocks=False,"),
    Break("load-zeroed", GROUPS, STORE, "blocks of a load are zeroed while it writes them",
          "        if self._record_new_block_ids and record_for_zeroing:\n            self.new_block_ids.extend("
          "b.block_id for b in allocated_blocks)\n\n    def allocate_new_blocks",
          "        if self._record_new_block_ids:\n            self.new_block_ids.extend("
          "b.block_id for b in allocated_blocks)\n\n    def allocate_new_blocks"),
    Break("load-never-published", SCHEDULER, STORE, "blocks of a load that ended are not published",
          "            # This will cache the blocks iff caching is enabled.\n"
          "            self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)",
          "            pass"),
    Break("failed-load-kept", SCHEDULER, STORE | RECOMPUTE, "tokens of a load that failed count as computed",
          "                    request.num_computed_tokens = 0\n                    self.failed_recving",
          "                    self.failed_recving"),
    Break("failed-load-not-freed", SCHEDULER, STORE | RECOMPUTE, "blocks of a load that failed are not given back",
          "                # reallocated, so the skipped blocks need no handling.)\n"
          "                self.kv_cache_manager.free(request)",
          "                pass"),
    Break("load-not-reserved", SCHEDULER, STORE, "a load takes blocks that running prompts need",
          "            self._request_remaining_blocks(req) for req in self._inflight_prefills",
          "            0 * self._request_remaining_blocks(req) for req in self._inflight_prefills"),
    Break("send-not-awaited", SCHEDULER, TRANSFER, "blocks are freed while they are sent",
          "        if not delay_free_blocks:\n            self._free_blocks(request)\n\n        return kv_xfer_params",
          "        if True:\n            self._free_blocks(request)\n\n        return kv_xfer_params"),
    Break("send-never-freed", SCHEDULER, TRANSFER, "blocks that were sent are not given back",
          "            assert req_id in self.requests\n            self._free_blocks(self.requests[req_id])\n\n"
          "    def _update_requests", "            assert req_id in self.requests\n\n    def _update_requests"),
    Break("free-not-deferred", SCHEDULER, STORE | ASYNC, "blocks that a step in flight writes are free for a load",
          "self.defer_block_free = True", "self.defer_block_free = False"),
    Break("load-not-held", SCHEDULER, STORE, "an aborted request's blocks are freed while they are loaded",
          "                    and request.request_id not in self.finished_recving_kv_req_ids\n",
          "                    and False\n"),
    Break("diverged-hit-kept", SCHEDULER, TRANSFER, "a hit of attention alone counts although no state is loaded",
          "if hit_diverged and num_external_computed_tokens == 0:", "if False:"),
    Break("state-offered-short", GROUPS, STORE, "a state is handed to the connector as that of a block earlier",
          "                            self.kv_cache_group_id,\n                            block,\n"
          "                            block.block_hash_num_tokens,\n",
          "                            self.kv_cache_group_id,\n                            block,\n"
          "                            block.block_hash_num_tokens - self.block_size,\n"),
    # Streaming input sessions
    Break("session-token-not-dropped", SCHEDULER, SESSION, "a turn keeps the key of a block with the dropped token",
          "        del session.block_hashes[keep_end // self.hash_block_size :]\n", ""),
    Break("session-frontier-behind", SCHEDULER, SESSION, "a turn goes on one token behind what was computed",
          "        request.num_computed_tokens = safe_frontier\n",
          "        request.num_computed_tokens = safe_frontier - 1\n"),
    Break("session-keeps-old-tokens", RUNNER_V1, SESSION | V1, "the worker keeps the prompt of the last turn",
          "        req_state.prompt_token_ids = new_req_data.prompt_token_ids\n        req_state.mm_features",
          "        req_state.mm_features"),
    # Pauses, pipeline stages, spaced prefills
    Break("pause-admits", SCHEDULER, PAUSED, "a pause that lets requests finish admits new ones",
          "                if not request_queue and self._pause_state == PauseState.UNPAUSED:",
          "                if not request_queue:",
          "Harmless: the pause only lasts longer."),
    Break("pause-schedules", SCHEDULER, PAUSED, "running requests are scheduled during a pause",
          "            # Do not schedule any requests when paused.\n            token_budget = 0",
          "            pass"),
    Break("stage-runs-ahead", SCHEDULER, STAGES, "tokens in flight count once more",
          "            request.num_in_flight_tokens += num_scheduled_token\n",
          "            request.num_in_flight_tokens += 2 * num_scheduled_token\n"),
    # KV events
    Break("removal-not-reported", POOL, EVENTS, "the removal of a key is not reported",
          "        self._emit_block_removed_events(evicted_hashes)\n        return True", "        return True"),
    Break("reset-not-reported", POOL, EVENTS, "a reset of the cache is not reported",
          "            self.kv_event_queue.append(AllBlocksCleared())", "            pass"),
    # Images, adapters, salts
    Break("image-not-in-key", UTILS, IMAGES, "blocks of different images have one key",
          "            extra_keys.append((\"mm\", mm_feature.identifier, offset - start_token_idx))",
          "            pass"),
    Break("second-image-not-in-key", UTILS, IMAGES, "of two images in a block only the first is in its key",
          "                # the next mm input.\n                curr_mm_idx += 1",
          "                # the next mm input.\n                curr_mm_idx += 2"),
    Break("adapter-not-in-key", UTILS, ADAPTERS, "blocks computed with different adapters have one key",
          "    return [(\"lora\", lora_request.lora_name, lora_request.lora_path)]", "    return []"),
    Break("salt-not-in-key", UTILS, ADAPTERS, "blocks of different salts have one key",
          "if (start_token_idx == 0 and request.cache_salt)", "if False"),
    Break("encoder-never-runs", SCHEDULER, IMAGES, "an image is scheduled without its encoder",
          "            encoder_inputs_to_schedule.append(i)\n\n        return (", "\n        return ("),
    Break("encoder-cache-full", SCHEDULER, IMAGES, "a chunk runs into an image whose encoder output has no room",
          "                    num_new_tokens = min(\n                        num_new_tokens, start_pos - "
          "num_computed_tokens\n                    )", "                    pass"),
    Break("adapter-row-not-moved", BATCH_V1, ADAPTERS | V1, "a row moves, its adapter does not",
          "            self.request_lora_mapping[empty_index] = self.request_lora_mapping[\n"
          "                last_req_index\n            ]", "            pass"),
    Break("adapter-row-not-swapped", BATCH_V1, ADAPTERS | V1, "two rows change places, their adapters do not",
          "        self.request_lora_mapping[i1], self.request_lora_mapping[i2] = (\n"
          "            self.request_lora_mapping[i2],\n            self.request_lora_mapping[i1],\n        )",
          "        pass"),
    Break("adapter-of-last-owner", "v1/worker/gpu/lora_utils.py", ADAPTERS | V2,
          "a slot keeps an adapter of its last owner",
          "        else:\n            self.lora_ids[req_index] = NO_LORA_ID", "        else:\n            pass"),
    Break("adapters-not-limited", SCHEDULER, ADAPTERS, "a step has more adapters than the limit",
          "len(scheduled_loras) == self.lora_config.max_loras", "False"),
    # Lookahead hashes
    Break("token-behind-not-in-key", UTILS, LOOKAHEAD | SPEC, "a key does not name the token behind its block",
          "extra_keys = (extra_keys, request.all_token_ids[end_token_idx])", "extra_keys = (extra_keys, 0)"),
    Break("block-dropped-all-the-same", SCHEDULER, LOOKAHEAD | SPEC, "hits lose their last block beside such keys, too",
          "            self.use_eagle_block_drop = False\n\n        # Create",
          "            pass\n\n        # Create"),
    Break("image-behind-not-in-key", UTILS, LOOKAHEAD | SPEC | IMAGES, "a key does not name the image behind its block",
          "        request, start_token_idx, hash_end_token_idx, start_mm_idx\n",
          "        request, start_token_idx, end_token_idx, start_mm_idx\n"),
    Break("image-behind-not-in-next-key", UTILS, LOOKAHEAD | SPEC | IMAGES,
          "an image that the last key named is passed over for the next",
          "    while mm_idx > 0:\n", "    while False:\n"),
    Break("session-keeps-dropped-token", SCHEDULER, LOOKAHEAD | SPEC,
          "keys of a turn that is computed again name the token that the last turn dropped",
          "                        request.block_hashes.clear()\n", ""),
    # ReplaySSM
    Break("ring-origin-not-moved", BATCH_V1, REPLAY, "a row moves, the origin of its ring does not",
          "                self.replayssm_decode_base[empty_index] = self.replayssm_decode_base[\n"
          "                    last_req_index\n                ]", "                pass"),
    Break("ring-origin-not-swapped", BATCH_V1, REPLAY, "two rows change places, the origins of their rings do not",
          "            self.replayssm_decode_base[i1], self.replayssm_decode_base[i2] = (\n"
          "                self.replayssm_decode_base[i2],\n                self.replayssm_decode_base[i1],\n"
          "            )", "            pass"),
    Break("ring-not-flushed-at-boundary", MAMBA2, REPLAY | ALIGN, "the state at a boundary is published, not stored",
          "                    & ((num_computed_d + query_lens_cpu) % block_size == 0)", "                    & False"),
    Break("ring-not-restarted", MAMBA2, REPLAY | ALIGN, "behind a boundary a ring goes on in the next block",
          "                effective_base = torch.maximum(\n                    decode_base_d, (num_computed_d // "
          "block_size) * block_size\n                )", "                effective_base = decode_base_d"),
    Break("prompt-tail-into-ring", MAMBA2, REPLAY, "the last token of a prompt is appended to a ring",
          "            ) | leftover_prompt\n", "            )\n"),
    Break("ring-wraps-late", MAMBA2, REPLAY, "a full ring wraps without a stored state",
          "write_pos_cpu == self.replayssm_buffer_len - 1", "write_pos_cpu == self.replayssm_buffer_len"),
    Break("graph-ring-not-staged", MAMBA2, REPLAY | GRAPHS, "a decode graph replays with the rings of an earlier batch",
          "                self.decode_write_pos_d[: metadata.num_decodes].copy_(\n"
          "                    write_pos_d[: metadata.num_decodes],\n"
          "                    non_blocking=True,\n                )", "                pass"),
    # Sampling parameters of rows
    Break("allowed-tokens-of-last-owner", BATCH_V1, SAMPLED, "a row keeps the mask of its last owner's allowed tokens",
          "            self.allowed_token_ids_mask_cpu_tensor[req_index].fill_(False)", "            pass"),
    Break("bad-words-not-swapped", BATCH_V1, SAMPLED, "two rows change places, their bad words do not",
          "        swap_dict_values(self.bad_words_token_ids, i1, i2)", "        pass"),
    Break("top-k-not-moved", BATCH_V1, SAMPLED, "a row moves, its top_k does not",
          "            self.top_k_cpu[empty_index] = self.top_k_cpu[last_req_index]", "            pass"),
    # Sampling parameters of slots
    Break("allowed-tokens-of-last-slot", f"{SAMPLE_V2}/logit_bias.py", SLOTS | NO_SPEC,
          "a slot keeps the allowed tokens of its last owner",
          "            self.num_allowed_token_ids.np[req_idx] = 0", "            pass"),
    Break("bad-words-of-last-slot", f"{SAMPLE_V2}/bad_words.py", SLOTS | NO_SPEC,
          "a slot keeps the bad words of its last owner",
          "            self.num_bad_words.np[req_idx] = 0\n", "            pass\n"),
    Break("bias-before-its-owner", f"{SAMPLE_V2}/logit_bias.py", SLOTS | NO_SPEC,
          "the number of biased tokens is that of the slot's last owner",
          "            self.num_logit_bias.np[req_idx] = num_logit_bias", "            pass"),
    Break("bad-words-without-drafts", f"{SAMPLE_V2}/bad_words.py", SLOTS | SPEC,
          "bad words of a verification see the token before it, not the drafts",
          "    cur_req_first_pos = token_idx - pos", "    cur_req_first_pos = token_idx"),
    # Windows stored with their inputs last
    Break("window-width-of-other-layout", MAMBA, LAYOUT | SPEC | ALIGN,
          "the width of a window is taken from the wrong axis",
          "self.state_conv_widths[idx] = state.size(2)", "self.state_conv_widths[idx] = state.size(1)"),
)
STRUCTURED = "v1/structured_output/__init__.py"
REQUEST_BREAKS = (
    # Log-probabilities of prompts
    Break("log-probabilities-from-cache", MANAGER, ALIGN, "a prompt whose log-probabilities are asked for gets a hit",
          "return self.enable_caching and not request.skip_reading_prefix_cache", "return self.enable_caching"),
    Break("log-probabilities-loaded", SCHEDULER, STORE, "such a prompt gets no hit, but is loaded",
          "                        if request.skip_reading_prefix_cache:", "                        if False:"),
    # Structured output
    Break("grammar-not-awaited", SCHEDULER, {}, "a request is admitted before its grammar is ready",
          "if not struct_output_req or struct_output_req.grammar is None:", "if not struct_output_req:"),
    Break("cut-drafts-not-padded", SCHEDULER, ASYNC | SPEC, "drafts that a grammar refuses leave no gap in a plan",
          "                spec_token_ids.extend([-1] * num_invalid_tokens)\n", ""),
    Break("grammar-not-rolled-back", STRUCTURED, SPEC, "a grammar keeps the drafts that it was asked about",
          "                if state_advancements > 0:", "                if False:"),
    Break("sampling-not-deferred", "v1/core/sched/async_scheduler.py", ASYNC,
          "masks are made before the last token is known",
          "request.use_structured_output and request.num_output_placeholders > 0", "False"),
    Break("mask-of-first-row", "v1/worker/gpu/structured_outputs.py", SPEC | V2,
          "all masks are those of a row's first token",
          "req_id_to_idx[req_id] * self.mask_stride + position", "req_id_to_idx[req_id] * self.mask_stride"),
    Break("mask-without-drafts-before", "v1/structured_output/utils.py", SPEC | V1,
          "a mask is applied as if the rows before had no drafts",
          "        logit_index = batch_index + cumulative_offset", "        logit_index = batch_index"),
    # Reasoning before structured output
    Break("grammar-takes-reasoning", STRUCTURED, {}, "the grammar advances by the reasoning of the step that ends it",
          "grammar.accept_tokens(request.request_id, new_token_ids[grammar_start:])",
          "grammar.accept_tokens(request.request_id, new_token_ids)"),
    Break("reasoning-drafts-masked", STRUCTURED, SPEC, "masks are applied to drafts of the reasoning",
          "apply_bitmask = not seen_padding and i >= constraint_start", "apply_bitmask = not seen_padding"),
    # Several samples
    Break("samples-left-running", SCHEDULER, {}, "of requests aborted at once only the last stops running",
          "                running_requests_to_remove.add(request)",
          "                running_requests_to_remove = {request}"),
    # Grammars that do not compile
    Break("grammar-error-lost", SCHEDULER, {}, "a grammar does not compile, and its client is not told",
          "        error_req_ids = set(request_errors)\n", "        error_req_ids = set()\n"),
    Break("grammar-error-ends-all", SCHEDULER, {}, "a grammar that does not compile ends all requests",
          "                error_req_ids, RequestStatus.FINISHED_ERROR\n            )\n            for request in",
          "                None, RequestStatus.FINISHED_ERROR\n            )\n            for request in"),
    Break("grammar-error-taken-for-grammar", SCHEDULER, {}, "a request whose grammar does not compile is admitted",
          "            if isinstance(struct_output_req.grammar, Exception):", "            if False:"),
    # Structured output of a session's turns
    Break("turn-keeps-grammar-while-it-lasts", SCHEDULER, SESSION,
          "a turn has the grammar of the turn before, if that had one",
          "        session.structured_output_request = update.structured_output_request\n",
          "        session.structured_output_request = (\n            session.structured_output_request or "
          "update.structured_output_request\n        )\n"),
    Break("turn-before-its-grammar", SCHEDULER, SESSION, "a turn does not wait for its grammar",
          "            session.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
          "            session.status = RequestStatus.WAITING"),
)
# fmt: on

DRILL = Drill(
    "vllm@0.33.0",
    "vLLM 0.33.0",
    "vllm",
    Path(__file__).parents[1] / "build/vllm-breaks.md",
    BREAKS + FEATURE_BREAKS + REQUEST_BREAKS,
)


def target() -> str:
    """Return the target string of the release with the fixes of its own bugs."""
    release = prepare(DRILL.target, print)
    return f"vllm@{patched(release, [*fixes_of(release.version).values()]).tree}"


if __name__ == "__main__":
    main(replace(DRILL, target=target()))
