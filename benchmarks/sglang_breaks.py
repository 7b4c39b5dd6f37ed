"""Proof that the SGLang target can see: SGLang 0.5.23 with one line broken at a time, until an oracle says so.

    python benchmarks/sglang_breaks.py [--served] [--only SLUG,...] [--results FILE]

Writes build/sglang-breaks.md; with --served, build/sglang-breaks-served.md.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from breaks import Break, Drill, main
from vllm_campaign import fixes_of

from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.registry import prepare

NONE = {"strategy": "no_buffer"}
EXTRA = {"strategy": "extra_buffer"}
OVERLAP = {"strategy": "extra_buffer", "async_depth": "1"}
# A track interval of two verifications keeps away from what the release does to shorter ones.
DRAFTS = {"num_speculative_tokens": "3", "mamba_cache_mode": "slots", "track": "2"}
VERIFIED = {"num_speculative_tokens": "3"}
MODEL_DRAFTS = {**VERIFIED, "drafter": "eagle"}
GUESSED = {"num_speculative_tokens": "2", "breadth": "2", "drafter": "ngram"}
MODEL_TREES = {**GUESSED, "drafter": "eagle"}
SHAPED = {"logits": "shaped", "num_speculative_tokens": "0"}
SHAPED_DRAFTS = {"logits": "shaped", "num_speculative_tokens": "3"}
PRIORITIES, DECODES = {"policy": "priority"}, {"strategy": "extra_buffer", "num_speculative_tokens": "0"}
MIXED = {"mixed_chunk": "yes", "num_speculative_tokens": "0"}
HOST = {"hicache": "write_through", "tree_core": "python", "num_speculative_tokens": "0"}
LATE = {"host_copies": "late"}
LAZY = {"strategy": "extra_buffer_lazy", "async_depth": "1"}
STATES = "srt/mem_cache/unified_cache/components/mamba.py"
TREE = "srt/mem_cache/unified_radix_cache.py"
POOL, SLOTS = "srt/mem_cache/memory_pool.py", "srt/mem_cache/allocator/mamba.py"
COMMON, BATCH = "srt/mem_cache/common.py", "srt/managers/schedule_batch.py"
SCHEDULER = "srt/managers/scheduler.py"
RESULTS = "srt/managers/scheduler_components/batch_result_processor.py"
VERIFY, RELAY = "srt/speculative/spec_utils.py", "srt/managers/overlap_utils.py"
DRAFTING, EAGLE = "srt/speculative/eagle_utils.py", "srt/speculative/eagle_info.py"
POLICY, REGISTRY = "srt/managers/schedule_policy.py", "srt/model_executor/cuda_graph_buffer_registry.py"
CONTROLLER = "srt/managers/cache_controller.py"
CORE = "srt/mem_cache/unified_cache/unified_tree_core.py"
FULL = "srt/mem_cache/unified_cache/components/full.py"
WINDOWS = "srt/mem_cache/unified_cache/components/swa.py"
BACKEND = "srt/layers/attention/hybrid_linear_attn_backend.py"
SAMPLING = "srt/sampling/sampling_batch_info.py"

# fmt: off
BREAKS = (
    Break("state-kept-by-prefix-node", STATES, NONE, "a split leaves the state with the shorter node, too",
        "        new_parent.component_data[ct].value = None\n",
        "        new_parent.component_data[ct].value = child.component_data[ct].value\n"),
    Break("match-without-state", STATES, NONE, "a node without a state counts as a match",
        "            return lambda node: node.component_data[ct].value is not None\n",
        "            return lambda node: True\n"),
    Break("matched-state-not-copied", STATES, NONE, "a hit records no source to copy the state from",
        "        req.kv.mamba_cow_src_index = src_index\n", "        req.kv.mamba_cow_src_index = None\n"),
    Break("state-ahead-of-key", STATES, NONE, "the tree takes a live state for a shorter prefix",
        "            cache_len = token_ids_len\n", "            cache_len = max(token_ids_len - 1, 1)\n"),
    Break("donated-slot-still-tracked", STATES, EXTRA, "the track length survives the donation of its slot",
        "            req.kv.mamba_last_track_seqlen = None\n            req.kv.mamba_prev_track_seqlen = None\n",
        "            req.kv.mamba_prev_track_seqlen = None\n",
        why="The stale length names a checkpoint on the node that the request has locked: the tree has that state, "
            "refuses a second one, and the slot is given back."),
    Break("unused-fork-leaks", STATES, NONE, "a fork that the tree had already is not given back",
        "                insert_result is None or insert_result.mamba_exist\n            ):\n",
        "                insert_result is None\n            ):\n"),
    Break("state-not-locked", STATES, NONE, "matched states are not locked: they may be evicted before the copy",
        "            cd.lock_ref += 1\n        return result\n",
        "            cd.lock_ref += 1\n            cd.lock_ref -= 1\n        return result\n"),
    Break("conv-not-copied", POOL, NONE, "a copy of a state leaves the convolution window behind",
        "                self.mamba_cache.conv[i][:, dst_indices] = self.mamba_cache.conv[i][\n",
        "                self.mamba_cache.conv[i][:, src_indices] = self.mamba_cache.conv[i][\n"),
    Break("slot-not-cleared", POOL, NONE, "a fresh slot keeps the last tenant's recurrent state",
        "            temporal.index_fill_(1, idx64, 0)\n", "            temporal.index_fill_(1, idx64[:0], 0)\n"),
    Break("dangling-track-buffer", POOL, EXTRA, "a request keeps naming the track slots that it freed",
        "            req.kv.mamba_ping_pong_track_buffer = None\n            req.kv.mamba_ping_pong_empty = None\n",
        "            pass\n",
        why="Only a retraction uses a request object again, and `Req.reset_for_retract` clears the field once more."),
    Break("slot-handed-out-twice", SLOTS, NONE, "the free list drops one slot less than it hands out",
        "        self.free_slots = self.free_slots[need_size:]\n",
        "        self.free_slots = self.free_slots[max(need_size - 1, 0) :]\n"),
    Break("spare-slots-of-a-group-leak", SLOTS, NONE, "slots taken ahead for a round of admissions are not given back",
        "                self.free(torch.cat(remaining))\n", "                pass\n"),
    Break("clear-dropped", BATCH, NONE, "the batch forgets which slots to clear",
        "                clear_tensors.append(req.kv.mamba_pool_idx.unsqueeze(0))\n", "                pass\n"),
    Break("track-at-chunk-end", BATCH, OVERLAP, "a prefill names its snapshot by the end of the chunk",
        "            req.kv.mamba_last_track_seqlen = mamba_track_seqlen_aligned\n",
        "            req.kv.mamba_last_track_seqlen = seq_end\n"),
    Break("track-position-off-by-one", BATCH, OVERLAP, "the kernel returns the final state in place of a chunk's",
        "            return i + 1\n", "            return i\n"),
    Break("track-index-not-swapped", BATCH, OVERLAP, "both snapshots of a prefill and a decode go into one slot",
        "            if not get_exec().mamba.enable_mamba_extra_buffer_lazy:\n"
        "                req.kv.mamba_next_track_idx = (\n",
        "            if False:\n                req.kv.mamba_next_track_idx = (\n"),
    Break("stale-track-after-retraction", BATCH, EXTRA, "a retracted request keeps the length of its last snapshot",
        "        self.kv.mamba_last_track_seqlen = None\n", "        pass\n",
        why="`HybridReqToTokenPool.free_mamba_cache` has cleared the field, and a retraction always goes there."),
    Break("lazy-slot-not-swapped", BATCH, LAZY, "the slot that was allocated for a boundary is not written",
        "                pool.set_mamba_ping_pong_slot(req, other_idx, new_slot[0])\n"
        "                req.kv.mamba_next_track_idx = other_idx\n",
        "                pool.set_mamba_ping_pong_slot(req, other_idx, new_slot[0])\n"),
    Break("lookahead-ignored", RESULTS, OVERLAP, "a decode's snapshot is named by a length that includes the next step",
        "                req.kv.mamba_last_track_seqlen = req.kv.kv_committed_len - lookahead\n",
        "                req.kv.mamba_last_track_seqlen = req.kv.kv_committed_len\n"),
    Break("wrong-track-slot-kept", RESULTS, OVERLAP, "the older of two snapshots is taken for the latest",
        "                req.kv.mamba_last_track_idx = batch.mamba_track_buffer_indices[i]\n",
        "                req.kv.mamba_last_track_idx = 1 - batch.mamba_track_buffer_indices[i]\n"),
    Break("rejected-admission-leaks", SCHEDULER, NONE, "a request that is not admitted keeps the slot of its match",
        '                    if req.kv.holds_mamba and not getattr(req, "session", None):\n',
        "                    if False:\n"),
    Break("rejected-copy-stays", SCHEDULER, NONE, "a request that is not admitted keeps the copy that it has put off",
        "                    req.kv.mamba_cow_src_index = None\n                    req.kv.mamba_needs_clear = False\n",
        "                    req.kv.mamba_needs_clear = False\n"),
    Break("tail-freed-from-start", COMMON, NONE, "a request gives back what the tree owns",
        "    tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, owned_kv_len)])\n",
        "    tree_cache.free_kv_row(req.kv, [(0, owned_kv_len)])\n"),
    Break("lock-never-released", COMMON, NONE, "a request that ends leaves its lock on the tree",
        "    tree_cache.unlock(req.lock)\n    req.lock = None\n", "    req.lock = None\n"),
    Break("key-longer-than-state", TREE, EXTRA, "the key spans all tokens, whatever the state covers",
        "                effective_cache_len = min(effective_cache_len, cl)\n",
        "                effective_cache_len = max(effective_cache_len, cl)\n"),
    Break("snapshot-from-next-chunk", BACKEND, OVERLAP, "a snapshot overwrites the final state that it should copy",
        "                ssm_states[forward_metadata.track_ssm_final_dst] = ssm_states[\n",
        "                ssm_states[forward_metadata.track_ssm_final_src] = ssm_states[\n"),
    Break("first-draft-committed", VERIFY, NONE | DRAFTS, "the state after the first token is kept",
        "        accept_index[req_idx, (accept_lens - 1).to(torch.int64)] - accept_indices_offset\n"
        "    )\n    if batch.mamba_track_indices is None:\n",
        "        accept_index[req_idx, (accept_lens * 0).to(torch.int64)] - accept_indices_offset\n"
        "    )\n    if batch.mamba_track_indices is None:\n"),
    Break("track-one-draft-late", VERIFY, OVERLAP | DRAFTS, "a snapshot is one draft past the grid",
        "    to_track_ith = torch.clamp(tracking_point - seq_lens_pre_verify - 1, min=0).to(\n",
        "    to_track_ith = torch.clamp(tracking_point - seq_lens_pre_verify, min=0, max=3).to(\n"),
    Break("stale-track-mask", VERIFY, OVERLAP | DRAFTS, "a verification gets no slots for snapshots",
        "    set_mamba_track_indices_from_reqs(batch, track_positions)\n    batch.mamba_track_mask = None\n",
        "    batch.mamba_track_mask = None\n"),
    Break("crossing-named-by-end", RESULTS, OVERLAP | DRAFTS, "a snapshot is named by where its step ended",
        "                return True, cur // interval * interval\n", "                return True, cur\n"),
    Break("live-state-donated-ahead", RESULTS, NONE | DRAFTS, "a state past the end goes to the tree",
        "        if req.owned_kv_len() != req.kv.kv_committed_len:\n            return False\n",
        "        if False:\n            return False\n"),
    Break("bonus-token-not-counted", RESULTS, NONE | DRAFTS, "the token behind accepted drafts is not counted",
        "                req.kv.kv_committed_len += num_accept_tokens\n",
        "                req.kv.kv_committed_len += num_accept_tokens - 1\n"),
    Break("keep-slot-in-flight", RESULTS, LAZY | DRAFTS | {"track": "1", "spare_states": "0"},
        "a slot goes to the tree that may be written yet", "                or keep_may_be_written_in_flight\n", "",
        why="The slot is written only if no state slot is free when the last verification is planned, and that one "
            "crosses the grid: not met in this time."),
    Break("overallocation-leaks", COMMON, NONE | DRAFTS, "locations for rejected drafts are not given back",
        "    if start_p < end_p:\n        # start_p", "    if False:\n        # start_p"),
    Break("single-reserve", DRAFTING, OVERLAP | DRAFTS, "room for one verification, but two are planned",
        "    double_alloc = get_alloc_reserve_per_decode()\n",
        "    double_alloc = get_alloc_reserve_per_decode() // 2\n"),
    Break("lengths-not-waited-for", RELAY, OVERLAP | DRAFTS, "the new lengths are not waited for",
        "                self.publish_ready.wait()\n        batch.seq_lens = self",
        "                pass\n        batch.seq_lens = self"),
)
SERVED = (
    # Priorities
    Break("ended-row-displaced", POLICY, PRIORITIES, "a row that has ended is displaced: its memory is freed twice",
        "            if r not in self.preempt_list and not r.finished()\n",
        "            if r not in self.preempt_list\n"),
    Break("displaced-row-still-runs", POLICY, PRIORITIES, "a displaced row stays in the batch",
        "        self.running_batch.filter_batch(keep_indices=keep_indices)\n        self.preempt_list",
        "        self.preempt_list"),
    Break("displaced-for-nothing-lost", SCHEDULER, PRIORITIES, "a row that made room for nobody is forgotten",
        "            for req in adder.preempt_list:\n                self._add_request_to_queue(req)\n"
        "            return None",
        "            return None"),
    # Mixed chunks
    Break("decodes-tracked-in-place-of-prompts", BATCH, MIXED, "the mask of a mixed step begins at its decodes",
        "torch.cat([mask, untracked >= 0])", "torch.cat([untracked >= 0, mask])"),
    Break("tail-counts-its-token", BATCH, MIXED, "the prefix of a decode in a mixed step includes its own token",
        "running_prefix_lens = [s - 1 for s in", "running_prefix_lens = [s for s in"),
    Break("mixed-decode-checkpointed", RESULTS, MIXED, "a decode of a mixed step is cached as if its prompt had ended",
        "                    elif not batch.decoding_reqs or req not in batch.decoding_reqs:\n",
        "                    else:\n"),
    Break("undone-slot-still-named", BATCH, MIXED | LAZY, "a mixed step gives back a lazy slot and keeps its number",
        "            pool.mamba_allocator.free(buf[next_idx].unsqueeze(0))\n"
        "            pool.set_mamba_ping_pong_slot(req, next_idx, -1)\n            req.kv.mamba_next_track_idx = 1",
        "            pool.mamba_allocator.free(buf[next_idx].unsqueeze(0))\n"
        "            req.kv.mamba_next_track_idx = 1"),
    Break("mixed-without-room", SCHEDULER, MIXED, "decodes join a prefill that has left no room for them",
        "            if not running_batch.is_empty() and running_batch.check_decode_mem():\n",
        "            if not running_batch.is_empty():\n"),
    # Captured graphs
    Break("padding-not-reset", REGISTRY, {}, "padding rows keep the places of the rows before",
        "            tail.zero_()\n", "            pass\n"),
    Break("first-pad-takes-last-row", BACKEND, {}, "the last row of a padded graph gets the request row of padding",
        "            req_pool_indices[bs - num_padding :] = 0\n",
        "            req_pool_indices[max(bs - num_padding - 1, 0) :] = 0\n"),
    Break("padded-end-counts-rows", BACKEND, DRAFTS, "behind the last verified row boundaries count rows, not tokens",
        "                    (bs - num_padding) * spec_info.draft_token_num\n",
        "                    bs - num_padding\n"),
    Break("snapshots-of-last-replay", BACKEND, DECODES, "the first snapshot slot of a replay is that of the one before",
        "            track_buf.copy_(self._translate_mamba_indices(mamba_track_indices[:bs]))\n",
        "            track_buf[1:].copy_(self._translate_mamba_indices(mamba_track_indices[1:bs]))\n"),
    # Sessions that requests name, requests without an end
    Break("named-session-never-evicted", CORE, {"session_tags": "yes", "tree_core": "python"},
        "states that a named session keeps are not evicted even for lack of memory",
        "        if x is self.head:\n            return None\n        self._remove_node(self.cursor)\n",
        "        if x is self.head or x.component_data[ct].session_ref:\n            return None\n"
        "        self._remove_node(self.cursor)\n"),
    Break("endless-chunk-forgotten", POLICY, {"ignore_eos": "yes", "mamba_cache_mode": "none"},
        "the rest of a prompt without an end token is not computed",
        "            assert req.prefix_len == 0\n            req.extend_end = req.prefix_len + trunc_len\n"
        "            self.can_run_list.append(req)\n            self.new_chunked_req = req\n",
        "            assert req.prefix_len == 0\n            req.extend_end = req.prefix_len + trunc_len\n"
        "            self.can_run_list.append(req)\n"),
    # Host tier
    Break("load-not-waited-for", SCHEDULER, HOST | LATE, "a batch does not say which load from the host it waits for",
        "            new_batch.hicache_consumer_index = (\n                self.tree_cache.ready_to_load_host_cache()\n"
        "            )\n",
        "            self.tree_cache.ready_to_load_host_cache()\n"),
    Break("load-before-the-forward-in-flight", CONTROLLER, HOST | OVERLAP, "a load does not wait for the last forward",
        "        if self.load_fence_stream is not None:\n", "        if False:\n"),
    Break("backup-before-the-forward-in-flight", CONTROLLER, HOST | OVERLAP, "a backup does not wait for a forward",
        "        if self.write_fence_stream is not None:\n", "        if False:\n",
        why="The state beside the keys bounds what is cached; no step in flight writes there: not met."),
    Break("host-copy-not-split", FULL, HOST, "a split leaves both nodes with the first node's places on the host",
        "            child_cd.host_value = child_cd.host_value[split_len:].clone()\n",
        "            child_cd.host_value = child_cd.host_value[: len(child_cd.host_value) - split_len].clone()\n"),
    Break("host-state-leaks", STATES, HOST, "an evicted state keeps its place on the host",
        "            host_frees[self.component_type].append(cd.host_value)\n", "            pass\n"),
    Break("host-state-kept-by-prefix-node", STATES, HOST, "a split leaves the host's state with the prefix, too",
        "        new_parent.component_data[ct].host_value = None\n",
        "        new_parent.component_data[ct].host_value = child.component_data[ct].host_value\n"),
    Break("loaded-node-stays-locked", TREE, HOST, "the lock of a load-back outlives it",
        "                self.dec_lock_ref(node, lock_params)\n"
        "                self.dec_host_lock_ref(node, host_lock_params)\n",
        "                self.dec_host_lock_ref(node, host_lock_params)\n"),
    Break("state-not-loaded-for-its-request", STATES, HOST, "a state is loaded for the tree, not for its request",
        "            if mamba_pool_idx is not None and cd.host_value is not None:\n", "            if False:\n"),
    Break("loaded-state-not-on-its-node", STATES, HOST, "the tree does not take the slot of a state that was loaded",
        "                self.tree_core.set_component_device_value(\n"
        "                    node.id, ct, transfer.device_indices.clone()\n                )\n",
        "                pass\n"),
    Break("backup-of-another-state", STATES, HOST, "a backup stores the state of another slot",
        "                    device_indices=cd.value,\n                )\n            ]\n",
        "                    device_indices=cd.value * 0 + 1,\n                )\n            ]\n"),
    # Sliding windows beside states
    Break("window-given-back-early", COMMON, EXTRA, "half a window is kept",
        "            max(sliding_window_size, page_size), page_size\n",
        "            max(sliding_window_size // 2, page_size), page_size\n"),
    Break("hit-without-its-window", WINDOWS, EXTRA, "a hit behind a gap needs one token less than a layer reads",
        "            return state[\"len\"] >= sliding_window_size\n",
        "            return state[\"len\"] >= sliding_window_size - 1\n"),
    Break("window-lock-ends-early", WINDOWS, EXTRA, "a prefix is locked for half a window",
        "        while cur != root and covered < sliding_window_size:\n            comp = cur.component_data[ct]\n",
        "        while cur != root and covered < sliding_window_size // 2:\n"
        "            comp = cur.component_data[ct]\n"),
    Break("recovered-window-not-moved", WINDOWS, EXTRA, "slots computed again do not replace those that were evicted",
        "        allocator.set_full_to_swa_mapping(kept_full, swa_value)\n", "        pass\n"),
    # Idle data-parallel ranks
    Break("idle-replays-last-rows", REGISTRY, {"num_speculative_tokens": "0"},
        "a batch without rows leaves the buffers as they are",
        "        if self.buffer is None or raw_n >= padded_n:\n",
        "        if self.buffer is None or not 0 < raw_n < padded_n:\n"),
    # Images, salts
    Break("images-named-alike", BATCH, {"inputs": "images"}, "two images have the same numbers in the tree",
        "        self.pad_values = _compute_pad_values(self.hash.to_bytes(8, byteorder=\"big\"))\n",
        "        self.pad_values = _compute_pad_values((self.hash % 2).to_bytes(8, byteorder=\"big\"))\n"),
    Break("salt-left-out-of-the-key", "srt/mem_cache/radix_cache.py", {"inputs": "adapters"},
        "children of a node are not told apart by salt",
        "            return ((self.extra_key, self.cache_salt), plain)\n", "            return plain\n"),
    # Speculation with a draft model
    Break("relay-keeps-first-rows", EAGLE, MODEL_DRAFTS, "the relay keeps rows of other requests",
        "            self.future_indices = self.future_indices[new_indices]\n",
        "            self.future_indices = self.future_indices[: len(new_indices)]\n"),
    Break("relay-keeps-first-states", EAGLE, {**MODEL_DRAFTS, "async_depth": "0"},
        "without overlap, the draft model's states of other requests are kept",
        "            self.hidden_states = self.hidden_states[new_indices]\n",
        "            self.hidden_states = self.hidden_states[: len(new_indices)]\n"),
    Break("relay-merged-in-other-order", EAGLE, {**MODEL_DRAFTS, "async_depth": "0"},
        "without overlap, the last tokens of two batches are joined in the other order",
        "            [self.bonus_tokens, spec_info.bonus_tokens], axis=0\n",
        "            [spec_info.bonus_tokens, self.bonus_tokens], axis=0\n"),
    Break("first-draft-not-relayed", RELAY, {**MODEL_DRAFTS, "async_depth": "1"},
        "the first draft of an earlier step is verified",
        "            self.topk_index_buf[indices] = payload.topk_index.to(\n"
        "                self.topk_index_buf.dtype\n            )\n",
        "            pass\n"),
    Break("drafts-from-a-rejected-token", "srt/speculative/eagle_worker_v2.py", MODEL_DRAFTS,
        "the next drafts follow from the last draft, accepted or not",
        "                + batch_result.accept_lens\n                - 1\n",
        "                + self.speculative_num_draft_tokens\n                - 1\n"),
    Break("wrong-last-token-relayed", "srt/speculative/eagle_worker_common.py", MODEL_DRAFTS,
        "the token behind the accepted drafts is that of the first one",
        "            accept_tokens,\n            accept_lens,\n            bonus_tokens,\n",
        "            accept_tokens,\n            torch.ones_like(accept_lens),\n            bonus_tokens,\n"),
    # Trees of drafts
    Break("tree-computed-as-a-chain", BACKEND, GUESSED,
        "state layers compute each draft of a tree behind the one before it",
        "                if self.topk > 1:\n                    retrieve_next_token = ",
        "                if self.topk > 99:\n                    retrieve_next_token = "),
    Break("links-of-an-earlier-tree", BACKEND, GUESSED,
        "a captured graph keeps which draft follows which of the step before",
        "                self.retrieve_next_token_list[bs - 1][:bs_without_pad].copy_(\n"
        "                    spec_info.retrieve_next_token\n                )\n"
        "                self.retrieve_next_sibling_list[bs - 1][:bs_without_pad].copy_(\n"
        "                    spec_info.retrieve_next_sibling\n                )\n            return",
        "                pass\n            return"),
    Break("state-of-the-accepted-count", VERIFY, GUESSED,
        "the state of as many drafts in the row is taken, not that of the accepted draft",
        "        accept_index[req_idx, (accept_lens - 1).to(torch.int64)] - accept_indices_offset\n",
        "        accept_lens - 1\n"),
    Break("snapshot-of-the-accepted-count", VERIFY, {**GUESSED, "strategy": "extra_buffer"},
        "a snapshot takes the state of as many drafts in the row, not that of the accepted draft",
        "    candidate_track_steps = accept_index[req_idx, to_track_ith] - accept_indices_offset\n",
        "    candidate_track_steps = to_track_ith.to(accept_index.dtype)\n"),
    Break("accepted-path-not-moved", VERIFY, GUESSED,
        "keys and values of accepted drafts stay where their siblings come before them",
        "        tgt_cache_loc, accept_out_cache_loc\n    )\n\n\ndef prepare_mamba_track",
        "        tgt_cache_loc, tgt_cache_loc\n    )\n\n\ndef prepare_mamba_track"),
    Break("siblings-see-each-other", "srt/speculative/ngram_worker.py", GUESSED,
        "the mask of attention lets each draft see all before it",
        "                        torch.from_numpy(mask[i]).to(\n",
        "                        torch.from_numpy(np.tril(np.ones_like(mask[i]))).to(\n"),
    Break("rejected-sibling-keeps-its-place", "srt/mem_cache/common.py", GUESSED,
        "the first place behind what a request has committed is not given back",
        "    if start_p < end_p:\n        # start_p is aligned to the allocator's page above",
        "    start_p += get_spec().speculative_eagle_topk - 1\n"
        "    if start_p < end_p:\n        # start_p is aligned to the allocator's page above"),
    Break("path-relayed-with-the-width-of-the-tree", "srt/speculative/eagle_worker_common.py", MODEL_TREES,
        "the last accepted token of a request is sought with as many tokens to a request as its tree has",
        "            bonus_tokens,\n            accept_index.shape[1],\n            bs,\n",
        "            bonus_tokens,\n            num_draft_tokens,\n            bs,\n"),
    Break("hidden-states-not-moved", "srt/speculative/eagle_worker_common.py", MODEL_TREES,
        "the draft model gets the hidden states of the first drafts, not of the accepted ones",
        "    if logits_output.hidden_states is not None:\n"
        "        logits_output.hidden_states = _compact_accept_to_front(\n",
        "    if logits_output.hidden_states is None:\n"
        "        logits_output.hidden_states = _compact_accept_to_front(\n"),
    # Stop strings
    Break("string-sought-in-last-tokens", BATCH, VERIFIED, "a stop string before the last accepted tokens is missed",
        "            max_len_tail_str + max(new_accepted_len - 1, 0), len(self.output_ids)\n",
        "            max_len_tail_str, len(self.output_ids)\n"),
    Break("string-ends-a-token-late", BATCH, VERIFIED, "an answer keeps the token behind its stop string",
        "                return start + token_count\n", "                return start + token_count + 1\n"),
    Break("string-without-its-place", BATCH, VERIFIED, "an answer keeps all tokens of the step with its stop string",
        "                        if stop_str_in_tail:\n", "                        if False:\n"),
    # Requests that shape logits
    Break("processor-rows-not-filtered", SAMPLING, SHAPED, "a processor keeps its rows when others leave the batch",
        "                if new_rows == entry.rows\n", "                if len(new_rows) == len(entry.rows)\n"),
    Break("parameters-of-the-first-rows", SAMPLING, SHAPED,
        "the parameters of the first rows stay, not those of the rows that do",
        "        self.custom_params = [self.custom_params[i] for i in keep_indices]\n",
        "        self.custom_params = [self.custom_params[i] for i in range(len(keep_indices))]\n"),
    Break("bias-not-filtered", SAMPLING, SHAPED, "the biases of the first rows stay, not those of the rows that do",
        "            self.logit_bias = self.logit_bias[keep_indices_device]\n",
        "            self.logit_bias = self.logit_bias[: len(keep_indices)]\n"),
    Break("bias-merged-in-the-wrong-order", SAMPLING, SHAPED, "the biases of a batch that joins come first",
        "    if lhs is not None and rhs is not None:\n        return torch.cat([lhs, rhs])\n",
        "    if lhs is not None and rhs is not None:\n        return torch.cat([rhs, lhs])\n"),
    Break("verified-without-bias", DRAFTING, SHAPED_DRAFTS, "a verification knows no bias",
        "    if sampling_info.logit_bias is not None:\n", "    if sampling_info.logit_bias is None:\n"),
    Break("biases-of-drafts-take-turns", DRAFTING, SHAPED_DRAFTS,
        "the drafts of a request get the biases of all requests in turn",
        "            torch.repeat_interleave(\n"
        "                sampling_info.logit_bias, verify_input.draft_token_num, dim=0\n            )\n",
        "            sampling_info.logit_bias.repeat(verify_input.draft_token_num, 1)\n"),
)
"""Of priorities, mixed chunks, captured graphs, the host tier, windows, idle ranks, inputs and draft models; behind
the fixes of the release's own bugs."""
# fmt: on

PAGE = Path(__file__).parents[1] / "build/sglang-breaks.md"
DRILL = Drill("sglang@0.5.23", "SGLang 0.5.23", "sglang", PAGE, BREAKS, steps_max=4000)


def served() -> Drill:
    """Return the drill of `SERVED`."""
    release = prepare(DRILL.target, print)
    tree = patched(release, [*fixes_of(release.version, "sglang").values()]).tree
    page = PAGE.with_stem("sglang-breaks-served")
    return replace(DRILL, target=f"sglang@{tree}", page=page, breaks=SERVED, steps_max=20_000)


if __name__ == "__main__":
    main(served() if "--served" in sys.argv else DRILL, "--served")
